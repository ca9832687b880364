package journal

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Track is the effect of some writes on one path.
type Track struct {
	Runs []Run // oldest first; writes without a foreign write between them are one run

	last  *manifest.Entry // the entry of the path after the last link that was read
	known bool            // whether last is set
	open  bool            // whether the newest write belongs to the last run
}

// Run is a sequence of writes: the entry before them, and the entry after them.
type Run struct {
	Before, After *manifest.Entry
	Since         snap.Hash // the link of the journal, or the manifest, that has the state before them
	Seq           uint64    // the number of the link that has the first of them
}

// tracer follows paths through the journal. wanted has the writes to trace.
type tracer struct {
	ctx    context.Context
	s      *cas.Store
	wanted map[position]bool
	tracks map[string]*Track
	states map[snap.Hash]*manifest.Manifest // resolved states, by link or manifest
}

// position is the path of a write and the number of its link.
type position struct {
	path string
	seq  uint64
}

// Trace returns the tracks of writes, by path. dir is the workspace's folder, for errors. The error is of kind errs.NotFound if
// the journal has no record of a write.
func (h *Journal) Trace(ctx context.Context, op, dir string, writes []snap.Write) (map[string]*Track, error) {
	t := &tracer{ctx: ctx, s: h.s,
		wanted: map[position]bool{}, tracks: map[string]*Track{}, states: map[snap.Hash]*manifest.Manifest{}}
	var first uint64
	for i, w := range writes {
		seq, err := h.Seq(op, w.At)
		if err != nil {
			return nil, err
		}
		t.wanted[position{w.Path, seq}] = true
		t.tracks[w.Path] = &Track{}
		if i == 0 || seq < first {
			first = seq
		}
	}
	err := h.Since(ctx, op, first, t.link)
	if err != nil {
		return nil, err
	}
	for p, k := range t.tracks {
		if len(k.Runs) == 0 {
			return nil, errs.New(errs.NotFound, op, "the journal has no record of this write of %s", workspace.Shown(dir, p))
		}
	}
	return t.tracks, nil
}

// link adds the records of a link to the tracks.
func (t *tracer) link(l *link) error {
	for i := range l.records {
		r := &l.records[i]
		k := t.tracks[r.Path]
		if k == nil {
			continue
		}
		if r.After.Digest() != r.Before {
			if err := t.record(k, l, r); err != nil {
				return err
			}
		}
		k.last, k.known = r.After, true
	}
	return nil
}

// record adds one write of a path to the path's track.
func (t *tracer) record(k *Track, l *link, r *Record) error {
	follows := k.known && k.last.Digest() == r.Before
	switch {
	case !t.wanted[position{r.Path, l.seq}]:
		k.open = false
	case k.open && follows:
		k.Runs[len(k.Runs)-1].After = r.After
	default:
		before := k.last
		if !follows {
			var err error
			if before, err = t.before(l, r); err != nil {
				return err
			}
		}
		k.Runs, k.open = append(k.Runs, Run{before, r.After, l.prev, l.seq}), true
	}
	return nil
}

// before returns the entry at the record's path before link l, or nil if there was none.
func (t *tracer) before(l *link, r *Record) (*manifest.Entry, error) {
	if r.Before.IsZero() {
		return nil, nil
	}
	m := t.states[l.prev]
	if m == nil {
		var err error
		if m, err = Resolve(t.ctx, t.s, l.prev); err != nil {
			return nil, err
		}
		t.states[l.prev] = m
	}
	return m.Find(r.Path)
}
