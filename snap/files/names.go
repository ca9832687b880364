package files

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
)

var _ snap.Lister = (*Driver)(nil)

// Names lists the names in the folder dir of a snapshot, or of the workspace if id is empty, without excluded ones.
func (d *Driver) Names(ctx context.Context, id snap.SnapshotID, dir string) ([]string, error) {
	const op = "list folder"
	if dir != "." && !relpath.Valid(dir) {
		return nil, errs.New(errs.Invalid, op, "%q is not a path in the workspace", dir)
	}
	if id == "" {
		names, err := d.liveNames(dir)
		return names, errs.Wrap(errs.Failed, op, err)
	}
	m, err := d.stored(ctx, op, id)
	if err != nil {
		return nil, err
	}
	e := &m.Root
	if dir != "." {
		if e, err = findFor(m, d.cfg.Reader, dir); err != nil {
			return nil, errs.Wrap(errs.Failed, op, err)
		}
	}
	if e == nil || !e.IsDir() {
		return nil, nil
	}
	if !d.cfg.Reader.All() && !d.cfg.Reader.SeesInto(e) {
		return nil, notReadable(dir)
	}
	entries, err := m.Folder(e.Hash)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names, nil
}

// liveNames lists a folder; an excluded one has no names. It opens the folders on the way one by one, and checks that the app's owner may do the same.
func (d *Driver) liveNames(dir string) ([]string, error) {
	at, err := d.ws.Open()
	if err != nil {
		return nil, err
	}
	defer func() { at.Close() }()
	for path, rest := ".", dir; rest != "" && dir != "."; {
		var name string
		name, rest = relpath.Cut(rest)
		if path = relpath.Join(path, name); d.ws.Exclude.Excludes(path, true) {
			return nil, nil // nothing in it is in a snapshot, whatever the rules say of a name in it
		}
		if err := d.mayLookIn(at, dir); err != nil {
			return nil, err
		}
		next, err := at.OpenDir(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		at.Close()
		at = next
	}
	if err := d.mayLookIn(at, dir); err != nil {
		return nil, err
	}
	list, err := at.OpenFile(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer list.Close()
	entries, err := list.ReadDir(-1)
	var names []string
	for _, e := range entries {
		if !d.ws.Exclude.Excludes(relpath.Join(dir, e.Name()), e.IsDir()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// mayLookIn returns an error if the app's owner may not look up names in an open folder.
func (d *Driver) mayLookIn(dir *beneath.Root, path string) error {
	if d.cfg.Reader.All() {
		return nil
	}
	e, _, err := rights.ReadEntry(dir.FD())
	if err == nil && !d.cfg.Reader.SeesInto(e) {
		err = notReadable(path)
	}
	return err
}
