// Package jsonrows keeps small records, each in a file of JSON.
package jsonrows

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/database"
)

// Folder is the path of a folder with records. Each kind of them has a subfolder.
type Folder string

// Put writes a record durably.
func (f Folder) Put(kind, id string, v any) error { return durable.WriteJSON(f.file(kind, id), v) }

func (f Folder) file(kind, id string) string { return filepath.Join(string(f), kind, id+".json") }

// Get reads a record. If the record does not exist, the error is fs.ErrNotExist.
func (f Folder) Get(kind, id string, v any) error {
	if !database.ValidName(id) {
		return fs.ErrNotExist
	}
	err := durable.ReadJSON(f.file(kind, id), v)
	if errs.KindOf(err) == errs.Corrupt {
		return errs.Wrap(errs.Corrupt, "read the record of "+id, err)
	}
	return err
}

// Drop removes a record durably. A missing record is not an error.
func (f Folder) Drop(kind, id string) error { return Remove(f.file(kind, id)) }

// List reads all records of a kind, sorted by id. If some are damaged, it returns the others, and an error of kind errs.Corrupt.
func List[T any](f Folder, kind string) ([]T, error) {
	entries, err := os.ReadDir(filepath.Join(string(f), kind))
	if err != nil {
		return nil, err
	}
	var all []T
	var damaged error
	for _, e := range entries {
		id, found := strings.CutSuffix(e.Name(), ".json")
		if !found {
			continue
		}
		var v T
		switch err := f.Get(kind, id, &v); {
		case err == nil:
			all = append(all, v)
		case errs.KindOf(err) == errs.Corrupt:
			damaged = errs.Also(damaged, err)
		default:
			return nil, err
		}
	}
	return all, damaged
}

// Remove removes a file, if it exists. The file does not reappear after a power cut.
func Remove(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}
