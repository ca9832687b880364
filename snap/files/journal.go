package files

import (
	"context"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
)

var _ snap.Journal = (*Driver)(nil)

// Following says how current the journal is.
func (d *Driver) Following() snap.Following {
	j := d.following()
	if j == nil {
		return snap.Following{State: snap.Degraded, Detail: "nobody follows " + d.cfg.Dir + ".",
			Remedy: "set auto=true for the app"}
	}
	return j.state()
}

// following is the journal that is being written, or nil.
func (d *Driver) following() *journal {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.journal
}

// current is the journal that is being written, once it has a baseline.
func (d *Driver) current() *journal {
	j := d.following()
	if j == nil {
		return nil
	}
	select {
	case <-j.ready:
		return j
	default:
		return nil
	}
}

// settleTime bounds how long a Flush waits for a file that
// is written to all the time.
const settleTime = 5 * time.Second

// Flush waits until every change that was made before is in the journal.
// Besides ctx's end it fails with snap.ErrChanged for what does not hold still
// within five seconds, with errs.Denied for what may not be read, and with
// errs.Unavailable while nobody follows or the workspace is away.
func (d *Driver) Flush(ctx context.Context) (snap.Mark, error) {
	const op = "flush files"
	j := d.following()
	if j == nil {
		m, _, _, err := d.history.head()
		if err == nil {
			err = errs.New(errs.Unavailable, op, "the files of %s are not being followed", d.cfg.Dir)
		}
		return m, wrapped(errs.Failed, op, err)
	}
	err := j.flush(ctx)
	m, _, _, e := d.history.head()
	return m, wrapped(errs.Failed, op, errors.Join(err, e))
}

// Writes lists what changed between two positions. Folders in which nothing
// but their own time changed are left out.
func (d *Driver) Writes(ctx context.Context, from, to snap.Mark) ([]snap.Write, error) {
	const op = "list writes"
	w, err := d.history.writes(ctx, op, from, to)
	return w, wrapped(errs.Failed, op, err)
}

// Trim forgets the journal before oldest, as far as whole epochs go.
func (d *Driver) Trim(ctx context.Context, oldest snap.Mark) error {
	const op = "trim journal"
	return wrapped(errs.Failed, op, d.history.trim(op, oldest))
}

// TrimSize is what deleting these snapshots and trimming to oldest would free.
func (d *Driver) TrimSize(ctx context.Context, oldest snap.Mark, ids ...snap.SnapshotID) (int64, error) {
	const op = "size of files"
	names, err := d.snapshotRoots(op, ids)
	if err == nil && oldest != "" {
		var gone []string
		gone, err = d.history.before(op, oldest)
		names = append(names, gone...)
	}
	if err != nil {
		return 0, wrapped(errs.Failed, op, err)
	}
	n, err := d.cfg.Store.Unique(names...)
	return n, wrapped(errs.Failed, op, err)
}

// captureAt makes a snapshot of a position: a name for what the journal holds
// already.
func (d *Driver) captureAt(op string, req snap.CaptureRequest) (snap.Snapshot, error) {
	at, epoch, err := d.history.find(op, req.At)
	if err != nil {
		return snap.Snapshot{}, wrapped(errs.Failed, op, err)
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
		return snap.Snapshot{}, wrapped(errs.Failed, op, err)
	}
	var hash snap.Hash
	if d.history.isBase(epoch, req.At) { // at is a manifest
		hash = at
	}
	return snap.Snapshot{ID: req.ID, Driver: "files", Hash: hash, Quiesced: req.Quiesced, Created: about.Created, Position: string(req.At)}, nil
}

// view is the workspace as it is: its manifest and what is to be said of it.
type view struct {
	*manifest
	place    snap.Mark // in the journal; "": nobody follows
	files    int64
	warnings []string
}

// present reads the workspace: from the journal where that is current, else by a
// walk of everything, or of sc, into b.
func (d *Driver) present(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope) (*view, error) {
	return d.read(ctx, op, b, sc, doubtNames, nil, nil)
}

// presentFresh is present for a proof: it reads some paths from disk even if they seem to be known.
func (d *Driver) presentFresh(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, fresh map[string]bool) (*view, error) {
	return d.read(ctx, op, b, sc, doubtStores, fresh, nil)
}

// presentStored puts the manifest into b, whoever reads it.
func (d *Driver) presentStored(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, how doubt) (*view, error) {
	return d.read(ctx, op, b, sc, how, nil, b)
}

func (d *Driver) read(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, how doubt, fresh map[string]bool, to *cas.Batch) (*view, error) {
	j := d.current()
	if j == nil {
		return d.walk(ctx, op, b, sc, fresh, to != nil)
	}
	v, err := j.view(ctx, to, how, fresh)
	if errors.Is(err, errEnded) {
		return d.walk(ctx, op, b, sc, fresh, to != nil)
	}
	return v, wrapped(errs.Failed, op, err)
}
