package files

import (
	"context"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/relpath"
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

// TrimSize is what deleting these snapshots and trimming to oldest would free.
func (d *Driver) TrimSize(ctx context.Context, oldest snap.Mark, ids ...snap.SnapshotID) (int64, error) {
	const op = "size of files"
	names, err := d.snapshotRoots(op, ids)
	if err == nil && oldest != "" {
		var gone []string
		gone, err = d.history.EndedRoots(op, oldest)
		names = append(names, gone...)
	}
	if err != nil {
		return 0, workspace.Wrap(errs.Failed, op, err)
	}
	n, err := d.cfg.Store.Unique(names...)
	return n, workspace.Wrap(errs.Failed, op, err)
}

// captureAt makes a snapshot of a position: a name for what the journal holds
// already.
func (d *Driver) captureAt(op string, req snap.CaptureRequest) (snap.Snapshot, error) {
	at, epoch, err := d.history.Find(op, req.At)
	if err != nil {
		return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
	}
	about := meta{Created: time.Now().UTC(), Quiesced: req.Quiesced, Rules: epoch.Rules, Mark: req.At}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	r, err := about.root(d.rootName(req.ID), at)
	if err == nil {
		err = d.cfg.Failpoint.At("captured")
	}
	if err == nil {
		err = b.Commit(r)
	}
	if err == nil {
		err = d.cfg.Failpoint.At("stored")
	}
	if err != nil {
		return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
	}
	var hash snap.Hash
	if d.history.IsBase(epoch, req.At) { // at is a manifest
		hash = at
	}
	return snap.Snapshot{ID: req.ID, Driver: "files", Hash: hash, Quiesced: req.Quiesced, Created: about.Created, Position: string(req.At)}, nil
}

// present reads the workspace: from the journal where that is current, else by a
// walk of everything, or of sc, into b.
func (d *Driver) present(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope) (*follow.View, error) {
	return d.read(ctx, op, b, sc, follow.CheckNames, nil, nil)
}

// presentFresh is present for a proof: it reads some paths from disk even if they seem to be known.
func (d *Driver) presentFresh(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, fresh map[string]bool) (*follow.View, error) {
	return d.read(ctx, op, b, sc, follow.CheckStores, fresh, nil)
}

// presentStored puts the manifest into b, whoever reads it.
func (d *Driver) presentStored(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, how follow.Depth) (*follow.View, error) {
	return d.read(ctx, op, b, sc, how, nil, b)
}

func (d *Driver) read(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, how follow.Depth, fresh map[string]bool, to *cas.Batch) (*follow.View, error) {
	v, err := d.follower.View(ctx, to, how, fresh)
	if errors.Is(err, follow.ErrEnded) {
		return d.walk(ctx, op, b, sc, fresh, to != nil)
	}
	return v, workspace.Wrap(errs.Failed, op, err)
}
