package files

import (
	"context"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
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
func (j *journal) long(times int) bool {
	_, _, about, err := j.d.history.head()
	return err == nil && j.live != nil && (about.Records >= times*epochRecords ||
		int(about.Last-about.Base) >= times*epochLinks || about.Bytes >= int64(times)*epochBytes)
}

// rest does what is not urgent, while nothing happens.
func (j *journal) rest(ctx context.Context) {
	if j.live == nil {
		return
	}
	var err error
	if j.long(1) {
		err = j.keyframe()
	}
	if err == nil {
		err = j.d.tidy(ctx)
	}
	if err == nil {
		err = j.save()
	}
	j.live.seal(j.d.cfg.Store) // so that whoever asks next finds the hashes made
	for p, h := range j.held {
		if time.Since(h.until) > 2*h.rest {
			delete(j.held, p)
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		j.fails(err)
	}
}

// keyframe begins a new epoch with the tree as it is in the journal.
func (j *journal) keyframe() error {
	b := j.d.cfg.Store.Begin()
	defer b.Discard()
	m := j.live.seal(j.d.cfg.Store)
	if err := m.save(b); err != nil {
		return err
	}
	if err := j.d.cfg.Failpoint.At("keyframe"); err != nil {
		return err
	}
	if err := j.d.history.begin(b, m.hash, j.d.rules(), j.live.root.id.Ino, false); err != nil {
		return err
	}
	j.live.begun()
	return nil
}

// again reads everything anew whose content the store has lost, and forgets
// which folders it has.
func (j *journal) again(ctx context.Context) error {
	j.live.each(j.live.root, ".", func(_ string, n *node) { n.sealed = unsealed })
	now := time.Now()
	_, err := j.read(ctx, &todo{all: true, first: now, last: now}, nil)
	return err
}

// tidy makes ordinary snapshots of the markers whose epoch the journal has let
// go of. Until then each keeps a whole stretch of journal, and the contents
// that came and went in it.
func (d *Driver) tidy(ctx context.Context) error {
	for _, r := range d.cfg.Store.Roots(d.prefix()) {
		id := snap.SnapshotID(r.Name[len(d.prefix()):])
		if checkID("", string(id)) != nil {
			continue
		}
		_, about, err := d.root("tidy files", id)
		if errs.KindOf(err) == errs.NotFound || about.Mark == "" || d.history.reaches(about.Mark) {
			continue
		}
		if err == nil {
			err = d.settleMarker(ctx, r, about)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settleMarker gives a marker a manifest of its own.
func (d *Driver) settleMarker(ctx context.Context, r cas.Root, about meta) error {
	b := d.cfg.Store.Begin()
	defer b.Discard()
	m, err := resolve(ctx, d.cfg.Store, r.Hash)
	if err == nil {
		err = m.save(b)
	}
	if err != nil {
		return err
	}
	about.Mark = ""
	next, err := about.root(r.Name, m.hash)
	if err != nil {
		return err
	}
	d.names.Lock()
	defer d.names.Unlock()
	if now, err := d.cfg.Store.Root(r.Name); err != nil || now.Hash != r.Hash {
		return nil // deleted meanwhile
	}
	return b.Commit(next)
}
