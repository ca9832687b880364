package daemon

import (
	"context"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/beneath"
)

// makeFolder makes the folder at path, whose parent is reached without links.
var makeFolder = privsep.Define("daemon.makeFolder", func(_ context.Context, path string) (struct{}, error) {
	parent, err := beneath.Open(filepath.Dir(path))
	if err != nil {
		return struct{}{}, err
	}
	defer parent.Close()
	return struct{}{}, unix.Mkdirat(parent.FD(), filepath.Base(path), 0o755)
}).Within(folderTimeout)

// remakeWorkspace makes an app's folder again, empty, if somebody deleted it, with the rights
// of whom it belonged to. made reports whether it did.
func (d *Daemon) remakeWorkspace(ctx context.Context, rec store.App) (made bool, err error) {
	root, err := beneath.Open(rec.Workspace)
	if err == nil {
		return false, root.Close()
	}
	if !errors.Is(err, unix.ENOENT) {
		return false, nil // what it is instead, the driver of the files says
	}
	acc, err := d.AccountOf(rec)
	if err != nil {
		return false, err
	}
	whose := acc.User()
	if rec.FolderUID == 0 {
		whose = privsep.Self
	}
	if _, err := makeFolder.Call(ctx, whose, rec.Workspace); err != nil {
		return false, (&errs.Error{Kind: errs.Failed, Op: "make the workspace anew", Message: rec.Workspace, Err: err}).
			WithHint("make that folder, with the owner that it had, and try again")
	}
	return true, nil
}
