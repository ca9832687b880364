package files

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/workspace"
)

var _ snap.Journal = (*Driver)(nil)

// Following says how current the journal is.
func (d *Driver) Following() snap.Following {
	return d.follower.Following()
}

// Flush waits until every change that was made before is in the journal.
// Besides ctx's end it fails with snap.ErrChanged for what does not hold still
// within five seconds, with errs.Denied for what may not be read, and with
// errs.Unavailable while nobody follows or the workspace is away.
func (d *Driver) Flush(ctx context.Context) (snap.Mark, error) {
	const op = "flush files"
	err := d.follower.Flush(ctx, op)
	m, _, _, e := d.history.Head()
	if e != nil {
		err = errors.Join(err, e)
	}
	return m, workspace.Wrap(errs.Failed, op, err)
}

// Follow writes the journal until ctx ends. Only one call at a time is possible.
func (d *Driver) Follow(ctx context.Context, notify func(snap.Batch)) error {
	return d.follower.Follow(ctx, notify)
}

// Writes lists what changed between two positions. Folders in which nothing
// but their own time changed are left out.
func (d *Driver) Writes(ctx context.Context, from, to snap.Mark) ([]snap.Write, error) {
	const op = "list writes"
	w, err := d.history.Writes(ctx, op, from, to)
	return w, workspace.Wrap(errs.Failed, op, err)
}

// Trim forgets the journal before oldest, as far as whole epochs go.
func (d *Driver) Trim(ctx context.Context, oldest snap.Mark) error {
	const op = "trim journal"
	return workspace.Wrap(errs.Failed, op, d.history.Trim(op, oldest))
}
