package files

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Pinned returns the driver for a copy of d's workspace in another folder, which exists, and keeps what it knows of the copy in stateDir.
func Pinned(d *Driver, dir, stateDir string) (*Driver, error) {
	c := d.cfg
	c.Dir, c.StateDir, c.Below = dir, stateDir, ""
	return New(c)
}

// Pin brings the folder of a pinned copy, whose driver is d and which is empty, to a snapshot of from's workspace, and proves that it is exact. The error is
// of kind errs.Unsupported if an overlay mount over the copy would show something else.
func Pin(ctx context.Context, d, from *Driver, id snap.SnapshotID) error {
	const op = "copy files"
	target, err := d.stored(ctx, op, id)
	if err == nil {
		err = showsAll(ctx, target, &target.Root)
	}
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	return d.Seed(ctx, from, id)
}

// showsAll returns an error if something in a folder has a meaning for overlayfs: a device 0:0 hides a file, as do some attributes.
func showsAll(ctx context.Context, m *manifest.Manifest, e *manifest.Entry) error {
	for _, x := range e.Xattrs() {
		if strings.HasPrefix(x.Name, "trusted.overlay.") {
			return errs.New(errs.Unsupported, "", "%q has the attribute %s", e.Name, x.Name)
		}
	}
	if e.Kind() == unix.S_IFCHR && e.Rdev() == 0 {
		return errs.New(errs.Unsupported, "", "%q is a device 0:0", e.Name)
	}
	if !e.IsDir() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := m.Folder(e.Hash)
	for i := 0; err == nil && i < len(entries); i++ {
		err = showsAll(ctx, m, &entries[i])
	}
	return err
}
