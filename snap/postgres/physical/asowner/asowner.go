// Package asowner has the operations on the data folder of a PostgreSQL cluster and on the store beside it. Both belong to the
// cluster's owner, who may put anything there, and every superuser of a database can act as the owner. So the daemon itself
// opens no files in them. The functions of this package do, each in a process with the rights of the owner (package privsep).
// They keep no state, and do not block on a fifo in place of a file. The driver trusts their results no more than the owner.
package asowner

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// none is the result of a function that returns nothing.
type none struct{}

// Home has the paths of a cluster: its data folder and its store.
type Home struct{ Data, Store string }

// Archive returns the folder of the archived log in the store.
func (h Home) Archive() string { return filepath.Join(h.Store, "archive") }

// WAL returns the folder into which the server writes its log.
func (h Home) WAL() string { return filepath.Join(h.Data, "pg_wal") }

// openRegular opens a regular file for reading. It returns an error, and does not block, if path is another kind of file.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errs.New(errs.Invalid, "", "%q is not a regular file", path).WithHint("remove it, if it is not the server's")
	}
	if err != nil {
		return nil, errs.Also(err, f.Close())
	}
	return f, nil
}

// readBounded reads a regular file. It returns an error if the file has more than most bytes.
func readBounded(path string, most int64, flags int) ([]byte, error) {
	f, err := openRegular(path, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = errs.New(errs.Invalid, "", "the file %q has more than %d KiB", path, most>>10).WithHint("make it smaller, or use mode = logical")
	}
	return data, err
}

// writeFile creates a regular file, or replaces the content of an existing one.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Tail reads the last maxTail bytes of a file.
var Tail = privsep.Define("physical.tail", func(_ context.Context, path string) ([]byte, error) {
	f, err := openRegular(path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, size-maxTail), maxTail))
})

const maxTail = 1 << 20

// Absent reports whether err means that no file exists at a path.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
