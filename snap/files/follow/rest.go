package follow

import (
	"context"
	"errors"
	"time"

	"mulligan/snap/files/manifest"
)

// When an epoch is long enough to begin another: its links are read whenever a
// state in it is asked for, and what they supersede is kept until it is trimmed.
const (
	epochRecords = 1024
	epochLinks   = 64
	epochBytes   = 16 << 20
	epochTooLong = 8 // times as long is too long, however much happens
)

// long reports whether the epoch is that many times long enough.
func (j *Session) long(times int) bool {
	_, _, about, err := j.f.Journal.Head()
	return err == nil && j.live != nil && (about.Records >= times*epochRecords ||
		int(about.Last-about.Base) >= times*epochLinks || about.Bytes >= int64(times)*epochBytes)
}

// Rest does what is not urgent, while nothing happens.
func (j *Session) Rest(ctx context.Context) {
	if j.live == nil {
		return
	}
	var err error
	if j.long(1) {
		err = j.NewEpoch()
	}
	if err == nil {
		err = j.f.AtRest(ctx)
	}
	if err == nil {
		err = j.save()
	}
	j.live.seal(j.f.Store) // so that whoever asks next finds the hashes made
	for p, h := range j.debounced {
		if time.Since(h.until) > 2*h.rest {
			delete(j.debounced, p)
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		j.fails(err)
	}
}

// NewEpoch begins a new epoch with the tree as it is in the journal.
func (j *Session) NewEpoch() error {
	b := j.f.Store.Begin()
	defer b.Discard()
	m := j.live.seal(j.f.Store)
	if err := m.Save(b); err != nil {
		return err
	}
	if err := j.f.Failpoint.At("keyframe"); err != nil {
		return err
	}
	if err := j.f.Journal.Begin(b, m.Hash, j.f.Walker.Workspace.Exclude.Hash(), j.live.root.ID.Ino, false); err != nil {
		return err
	}
	j.live.begun()
	return nil
}

// ReadAgain reads everything anew whose content the store has lost, and forgets
// which folders it has.
func (j *Session) ReadAgain(ctx context.Context) error {
	j.live.each(j.live.root, ".", func(_ string, n *manifest.Node) { n.HashState = manifest.Outdated })
	now := time.Now()
	_, err := j.read(ctx, &todo{all: true, first: now, last: now}, nil)
	return err
}
