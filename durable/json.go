package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// sumMark begins the last line of a file that WriteJSON wrote: the CRC32C of all that is before that line follows, in hex.
const sumMark = "crc32c "

// castagnoli is CRC32C (RFC 3720, appendix B.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WriteJSON replaces the file at path by v as JSON with a checksum, like WriteFile. Only its owner may read the file.
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	return WriteFile(path, fmt.Appendf(data, "%s%08x\n", sumMark, crc32.Checksum(data, castagnoli)), 0o600)
}

// ReadJSON reads what WriteJSON wrote at path into v. The error is fs.ErrNotExist if there is no file, and of kind errs.Corrupt if the file
// is damaged. A file without a checksum, which an earlier version wrote, is read as it is.
func ReadJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := bytes.LastIndexByte(bytes.TrimSuffix(data, []byte("\n")), '\n') + 1
	if body, line := data[:at], data[at:]; bytes.HasPrefix(line, []byte(sumMark)) {
		if want := fmt.Sprintf("%s%08x\n", sumMark, crc32.Checksum(body, castagnoli)); string(line) != want {
			return errs.New(errs.Corrupt, "", "%s is damaged: its checksum is another one", path)
		}
		data = body
	}
	if err := json.Unmarshal(data, v); err != nil {
		return &errs.Error{Kind: errs.Corrupt, Message: path + " is damaged", Err: err}
	}
	return nil
}

// Damaged reports whether an error of ReadJSON says that the content of the file is lost: its checksum is another one, or the disk cannot read it.
func Damaged(err error) bool { return errs.KindOf(err) == errs.Corrupt || Unreadable(err) }

// Unreadable reports whether err says that the disk cannot read what it holds: the read failed (EIO), or the filesystem found itself damaged
// (EUCLEAN, EBADMSG).
func Unreadable(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG)
}
