package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// track is what some writes did to one path.
type track struct {
	runs []stretch // oldest first: writes with no other one between them are one

	last  *manifest.Entry // what the journal has there, as far as it was read
	known bool            // last is
	open  bool            // the newest write is one of runs
}

// stretch is a row of writes: what there was before them, and what they left.
type stretch struct {
	before, after *manifest.Entry
	since         snap.Hash // the link of the journal, or the manifest, that holds the state before them
}

// tracker follows paths through the journal.
type tracker struct {
	ctx    context.Context
	s      *cas.Store
	wanted map[place]bool
	tracks map[string]*track
	states map[snap.Hash]*manifest.Manifest // as looked up
}

// place is where a write stands in the journal.
type place struct {
	path string
	seq  uint64
}

// trace gives the tracks of writes, by path.
func (d *Driver) trace(ctx context.Context, op string, writes []snap.Write) (map[string]*track, error) {
	t := &tracker{ctx: ctx, s: d.cfg.Store,
		wanted: map[place]bool{}, tracks: map[string]*track{}, states: map[snap.Hash]*manifest.Manifest{}}
	var first uint64
	for i, w := range writes {
		seq, err := d.history.seq(op, w.At)
		if err != nil {
			return nil, err
		}
		t.wanted[place{w.Path, seq}] = true
		t.tracks[w.Path] = &track{}
		if i == 0 || seq < first {
			first = seq
		}
	}
	err := d.history.since(ctx, op, first, t.link)
	if err != nil {
		return nil, err
	}
	for p, k := range t.tracks {
		if len(k.runs) == 0 {
			return nil, errs.New(errs.NotFound, op, "the journal has no such write of %s", workspace.Shown(d.cfg.Dir, p))
		}
	}
	return t.tracks, nil
}

// link takes in what a link says of the paths.
func (t *tracker) link(l *link) error {
	for i := range l.records {
		r := &l.records[i]
		k := t.tracks[r.path]
		if k == nil {
			continue
		}
		if r.after.Digest() != r.before {
			if err := t.record(k, l, r); err != nil {
				return err
			}
		}
		k.last, k.known = r.after, true
	}
	return nil
}

// record takes in one write of a path.
func (t *tracker) record(k *track, l *link, r *record) error {
	follows := k.known && k.last.Digest() == r.before
	switch {
	case !t.wanted[place{r.path, l.seq}]:
		k.open = false
	case k.open && follows:
		k.runs[len(k.runs)-1].after = r.after
	default:
		before := k.last
		if !follows {
			var err error
			if before, err = t.before(l, r); err != nil {
				return err
			}
		}
		k.runs, k.open = append(k.runs, stretch{before, r.after, l.prev}), true
	}
	return nil
}

// before is what was at the record's path before its link.
func (t *tracker) before(l *link, r *record) (*manifest.Entry, error) {
	if r.before.IsZero() {
		return nil, nil
	}
	m := t.states[l.prev]
	if m == nil {
		var err error
		if m, err = resolve(t.ctx, t.s, l.prev); err != nil {
			return nil, err
		}
		t.states[l.prev] = m
	}
	return m.Find(r.path)
}
