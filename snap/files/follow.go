package files

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/workspace"
)

var _ snap.Journal = (*Driver)(nil)

// Following returns the state of the journal.
func (d *Driver) Following() snap.Following {
	return d.follower.Following()
}

// Flush waits until every change that was made before is in the journal.
// The error is snap.ErrChanged if a file changes all the time for five seconds, a snap.UnreadableError if something may not be
// read or the disk cannot read it, and of kind errs.Unavailable if Follow is not running or the workspace cannot be reached.
func (d *Driver) Flush(ctx context.Context) (snap.Mark, error) {
	const op = "flush files"
	err := d.follower.Flush(ctx, op)
	m, _, _, e := d.history.Head()
	if e != nil {
		err = errors.Join(err, e)
	}
	return m, workspace.Wrap(errs.Failed, op, err)
}

// Follow writes the journal until ctx ends. Only one call at a time is possible. If notify is nil, changed paths are noted, and read when a
// state is asked for.
func (d *Driver) Follow(ctx context.Context, notify func(snap.Batch)) error {
	return d.follower.Follow(ctx, notify)
}

// Writes lists the changes between two positions. It leaves out folders whose time alone changed.
func (d *Driver) Writes(ctx context.Context, from, to snap.Mark) ([]snap.Write, error) {
	const op = "list writes"
	w, err := d.history.Writes(ctx, op, from, to)
	return w, workspace.Wrap(errs.Failed, op, err)
}

// Trim deletes the epochs of the journal that end before oldest.
func (d *Driver) Trim(ctx context.Context, oldest snap.Mark) error {
	const op = "trim journal"
	return workspace.Wrap(errs.Failed, op, d.history.Trim(op, oldest))
}
