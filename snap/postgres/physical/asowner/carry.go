package asowner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
	"mulligan/snap/postgres/physical/wal"
)

// openedFile is a file that was opened for reading.
type openedFile struct {
	File *os.File `json:"-"`
}

// Files implements privsep.Carrier.
func (o *openedFile) Files() []**os.File { return []**os.File{&o.File} }

// Open opens a regular file for reading.
var Open = privsep.Define("physical.open", func(_ context.Context, path string) (o openedFile, err error) {
	o.File, err = openRegular(path, unix.O_NOFOLLOW)
	return o, err
})

// Folders lists the folders below dir, relative to it, each after the one that it is in.
var Folders = privsep.Define("physical.folders", func(ctx context.Context, dir string) (list []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || !e.IsDir() || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		list = append(list, rel)
		return err
	})
	return list, err
})

// NewFolders names a new folder, and folders in it.
type NewFolders struct {
	Dir    string
	Within []string // relative to Dir, each after the one that it is in
}

// MakeFolders makes a folder that only the owner can enter, and folders in it.
var MakeFolders = privsep.Define("physical.makeFolders", func(_ context.Context, n NewFolders) (none, error) {
	if err := os.Mkdir(filepath.Dir(n.Dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return none{}, err
	}
	for _, rel := range append([]string{"."}, n.Within...) {
		if err := os.Mkdir(filepath.Join(n.Dir, rel), 0o700); err != nil {
			return none{}, err
		}
	}
	return none{}, nil
})

// LogQuery asks where log files are.
type LogQuery struct {
	Home  Home
	Names []string
	Size  wal.Segments
}

// FindLog returns the paths of log files, as LinkLog links them.
var FindLog = privsep.Define("physical.findLog", func(_ context.Context, q LogQuery) (paths []string, err error) {
	if err := q.Home.present(q.Names, q.Size); err != nil {
		return nil, err
	}
	for i, name := range q.Names {
		from := q.Home.locate(name)
		if from == "" && i+1 < len(q.Names) { // a fork's first file begins with the content of its parent's last file
			from = q.Home.locate(q.Names[i+1])
		}
		paths = append(paths, from)
	}
	return paths, nil
})
