// Package asowner has what is done in the data folder of a PostgreSQL cluster, and in the store
// beside it. Both are the cluster owner's, who may put anything there, and whoever is superuser of
// a database can act as the owner. So the daemon itself opens nothing in them: the functions of
// this package do, each in a process that is the owner (package privsep). They keep no state, and
// do not wait where a file turns out to be a fifo. The driver takes what they answer as something
// that the owner said.
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

// none is the result of a function that has nothing to tell.
type none struct{}

// Home is where the files of a cluster are.
type Home struct{ Data, Store string }

// Archive returns the folder of the store with the log that is kept.
func (h Home) Archive() string { return filepath.Join(h.Store, "archive") }

// WAL returns the folder with the log that the server writes.
func (h Home) WAL() string { return filepath.Join(h.Data, "pg_wal") }

// openRegular opens a regular file for reading. Another kind of file is an error,
// and is not waited for.
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

// readBounded reads a regular file of at most so many bytes.
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

// writeFile makes a regular file, or replaces what is in the one that is there.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Tail reads the end of a file that may be long: up to maxTail bytes.
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

// Absent reports whether the error says that nothing is at a path, or that nothing can be.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
