package follow

import (
	"context"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
)

// An epoch of this length is followed by another one: all its links are read for each state in it, and superseded contents are
// kept until the epoch is trimmed.
const (
	epochRecords = 1024
	epochLinks   = 64
	epochBytes   = 16 << 20
	epochTooLong = 8 // an epoch of this many times the length is ended even if the workspace is busy
)

// long reports whether the epoch has this many times the length.
func (j *Session) long(times int) bool {
	_, _, about, err := j.f.Journal.Head()
	return err == nil && j.live != nil && (about.Records >= times*epochRecords ||
		int(about.Last-about.Base) >= times*epochLinks || about.Bytes >= int64(times)*epochBytes)
}

// Rest does work that is not urgent while nothing changes.
func (j *Session) Rest(ctx context.Context) {
	if j.live == nil {
		return
	}
	var err error
	if j.long(1) {
		err = j.NewEpoch(ctx)
	}
	if err == nil {
		err = j.f.AtRest(ctx)
	}
	err = errs.Also(err, j.save())
	j.live.seal(j.f.Store) // so that the hashes are computed before the next request
	j.live.pack()
	for p, h := range j.debounced {
		if time.Since(h.until) > 2*h.rest {
			delete(j.debounced, p)
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		j.fails(err)
	}
}

// NewEpoch begins a new epoch with the state at the end of the journal.
func (j *Session) NewEpoch(ctx context.Context) error {
	b := j.f.Store.Begin()
	defer b.Discard()
	m, err := j.saved(ctx, b)
	if err != nil {
		return err
	}
	if err := j.f.Failpoint.At("keyframe"); err != nil {
		return err
	}
	if err := j.f.Journal.Begin(b, m.Hash, j.f.Walker.Workspace.Exclude.Hash(), j.live.root.ID.Ino, false); err != nil {
		return err
	}
	j.live.begun()
	return j.trim()
}

// letGo begins an epoch with the state of the last view, and deletes those before it.
func (j *Session) letGo(ctx context.Context) error {
	if j.live == nil {
		return nil
	}
	_, _, about, err := j.f.Journal.Head()
	switch {
	case err != nil:
		return err
	case about.Last == about.Base:
		err = j.trim()
	default:
		err = j.NewEpoch(ctx)
	}
	if err == nil {
		return nil
	}
	j.f.Walker.Cache.Fill(j.live.root)
	j.live = nil // the next view reads the workspace, and begins another journal
	return j.f.Journal.Drop()
}

// trim deletes the epochs before the newest one, if nobody needs them.
func (j *Session) trim() error {
	mark, _, _, err := j.f.Journal.Head()
	if err != nil || !j.noting() {
		return err
	}
	return j.f.Journal.Trim("follow files", mark)
}

// saved seals the tree and stores its manifest. Contents that the store has lost are read again.
func (j *Session) saved(ctx context.Context, b *cas.Batch) (*manifest.Manifest, error) {
	m := j.live.seal(j.f.Store)
	err := m.Save(b)
	if damage(err) {
		if err = j.ReadAgain(ctx); err == nil {
			m = j.live.seal(j.f.Store)
			err = m.Save(b)
		}
	}
	return m, err
}

// ReadAgain reads all files again whose contents the store has lost, and discards the record of stored folders.
func (j *Session) ReadAgain(ctx context.Context) error {
	j.live.each(j.live.root, ".", func(_ string, n *manifest.Node) { n.HashState = manifest.Outdated })
	now := time.Now()
	_, err := j.read(ctx, &todo{all: true, first: now, last: now}, nil)
	return err
}
