package layertree

import (
	"errors"
	"os"
	"path/filepath"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
)

// Version is the version of the record's file.
const Version = 1

func file(dir string) string { return filepath.Join(dir, "tree.json") }

// Holds reports whether there is a record in the folder dir.
func Holds(dir string) bool {
	_, err := os.Stat(file(dir))
	return err == nil
}

// Read reads the record in the folder dir; nil if there is none.
func Read(op, dir string) (*Tree, error) {
	t := &Tree{}
	switch err := durable.ReadJSON(file(dir), t); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errs.KindOf(err) == errs.Corrupt:
		return nil, errs.New(errs.Corrupt, op, "the record of the disks: %v", err).WithHint("the disks are whole: put the file back from a backup")
	case err != nil:
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if t.Version != Version {
		return nil, errs.New(errs.Unsupported, op, "%s has version %d", file(dir), t.Version).WithHint("a newer mulligan wrote it: use that one")
	}
	return t, nil
}

// Write durably replaces the record in the folder dir.
func (t *Tree) Write(dir string) error { return durable.WriteJSON(file(dir), t) }

// Remove durably removes the record in the folder dir.
func Remove(dir string) error {
	if err := os.Remove(file(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return durable.Sync(dir)
}

// CopyNVRAM durably copies the NVRAM of a domain to a file that nobody can change. It returns nil if the domain has none yet: libvirt
// creates it at the domain's first start.
func CopyNVRAM(from, to string) (*File, error) {
	data, err := imagefile.ReadNVRAM(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	copied := &File{Path: to, Hash: imagefile.HashBytes(data)}
	if err := imagefile.SetImmutable(to, false); err != nil {
		return nil, err
	}
	if err := durable.WriteFile(to, data, 0o600); err != nil {
		return nil, err
	}
	if err := imagefile.SetImmutable(to, true); err != nil {
		return nil, err
	}
	copied.Stat, err = imagefile.StatOf(to)
	return copied, err
}
