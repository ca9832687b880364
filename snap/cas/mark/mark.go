// Package mark reads and writes what says that files belong to one content store: the store's file format, and the header at the beginning of
// each segment and pack.
//
// Both have the store's salt. With a wrong salt no record could be read, and all would be taken for garbage, so a format file that is damaged
// or missing is made anew from the headers, which have a checksum.
package mark

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
)

const op = "open the store"

// Version is the number of the on-disk format, which DESIGN.md describes. Format 1 is format 2 without packs and series.
const (
	Version = 2
	oldest  = 1
)

// Salt is the beginning of every record of one store. It is random, so that a search through a damaged segment does not take
// stored content for a record.
type Salt [8]byte

// Size is the length of a header in bytes: magic [8], version u32, number u32, salt [8], zero u32, CRC32C of the bytes before it. Integers
// are little-endian.
const Size = 32

// Kind is a kind of file with a header.
type Kind [8]byte

// The kinds of files.
var (
	Segment = Kind([]byte("mullicas"))
	Pack    = Kind([]byte("mullpack"))
)

// castagnoli is CRC32C (RFC 3720, appendix B.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header returns the header of a file.
func Header(k Kind, sl Salt, seq uint32) []byte {
	p := append(make([]byte, 0, Size), k[:]...)
	p = binary.LittleEndian.AppendUint32(p, Version)
	p = binary.LittleEndian.AppendUint32(p, seq)
	p = append(p, sl[:]...)
	p = append(p, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
}

// File is a segment or a pack, with its number.
type File struct {
	Path string
	Seq  uint32
}

// read returns the salt and the format's version in the file's header. ok is false if the header is damaged, or the disk cannot read it.
func (f File) read() (sl Salt, v int, ok bool, err error) {
	r, err := os.Open(f.Path)
	if durable.Unreadable(err) {
		return sl, 0, false, nil
	}
	if err != nil {
		return sl, 0, false, err
	}
	defer r.Close() // it was only read
	var p [Size]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || durable.Unreadable(err) {
			err = nil
		}
		return sl, 0, false, err
	}
	le := binary.LittleEndian
	k, sum := Kind(p[:8]), crc32.Checksum(p[:Size-4], castagnoli)
	if k != Segment && k != Pack || le.Uint32(p[12:]) != f.Seq || le.Uint32(p[Size-4:]) != sum {
		return sl, 0, false, nil
	}
	return Salt(p[16:24]), int(le.Uint32(p[8:])), true, nil
}

// Whole reports whether the file's header is not damaged.
func (f File) Whole() (bool, error) {
	_, _, ok, err := f.read()
	return ok, err
}

// Open returns the salt of the store in the folder dir, whose segments and packs are files. If there are none, and no format file either, it
// begins a new store. It makes a damaged format file anew, and one of an older format.
func Open(dir string, files []File) (Salt, error) {
	path := filepath.Join(dir, "format")
	text, err := os.ReadFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing && len(files) == 0 {
		var sl Salt
		rand.Read(sl[:]) // never fails
		if err := write(path, sl); err != nil {
			return sl, err
		}
		return sl, durable.Sync(filepath.Dir(dir)) // the folder may be new, and its parent must be synced
	}
	if err != nil && !missing && !durable.Unreadable(err) {
		return Salt{}, err
	}
	found, err := salts(dir, files)
	if err != nil {
		return Salt{}, err
	}
	v, sl, ok := parse(string(text))
	switch {
	case ok && (v < oldest || v > Version):
		return sl, unknown(dir, v)
	case ok && (len(found) == 0 || found[sl]):
		if v < Version { // before the store contains records that an older build does not know
			return sl, write(path, sl)
		}
		return sl, nil
	case len(found) == 1:
		sl = slices.Collect(maps.Keys(found))[0]
		return sl, write(path, sl)
	case missing:
		return sl, errs.New(errs.Corrupt, op, "%s is missing, although the store has segments", path).
			WithHint("put the file back from a backup of the folder")
	}
	return sl, errs.New(errs.Corrupt, op, "%s is damaged", path).WithHint("put the file back from a backup of the folder")
}

// salts returns the salt in the headers of files, without those headers that are damaged.
func salts(dir string, files []File) (map[Salt]bool, error) {
	found := map[Salt]bool{}
	for _, f := range files {
		sl, v, ok, err := f.read()
		switch {
		case err != nil:
			return nil, err
		case ok && v > Version:
			return nil, unknown(dir, v)
		case ok:
			found[sl] = true
		}
	}
	if len(found) > 1 { // what is of another store would be taken for garbage
		return nil, errs.New(errs.Corrupt, op, "%s has files of several stores", dir).WithHint("move those of the other stores to their own folders")
	}
	return found, nil
}

// unknown returns the error for a version of the format that this build does not know.
func unknown(dir string, v int) error {
	return errs.New(errs.Unsupported, op, "%s has format %d, and this build knows formats %d to %d", dir, v, oldest, Version).
		WithHint("use the version of mulligan that wrote it, or a newer one")
}

func write(path string, sl Salt) error {
	return durable.WriteFile(path, fmt.Appendf(nil, "mulligan-cas %d %x\n", Version, sl), 0o600)
}

// parse parses what write writes. What follows the version of a newer format is not known here.
func parse(text string) (v int, sl Salt, ok bool) {
	f := strings.Split(strings.TrimSuffix(text, "\n"), " ")
	if len(f) < 2 || f[0] != "mulligan-cas" {
		return 0, sl, false
	}
	v, err := strconv.Atoi(f[1])
	if err != nil || v > Version {
		return v, sl, err == nil
	}
	if len(f) != 3 || len(f[2]) != 2*len(sl) {
		return v, sl, false
	}
	_, err = hex.Decode(sl[:], []byte(f[2]))
	return v, sl, err == nil
}
