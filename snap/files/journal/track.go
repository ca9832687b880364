package journal

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Track is what some writes did to one path.
type Track struct {
	Runs []Run // oldest first: writes with no other one between them are one

	last  *manifest.Entry // what the journal has there, as far as it was read
	known bool            // last is
	open  bool            // the newest write is one of runs
}

// Run is a row of writes: what there was before them, and what they left.
type Run struct {
	Before, After *manifest.Entry
	Since         snap.Hash // the link of the journal, or the manifest, that holds the state before them
}

// tracer follows paths through the journal.
type tracer struct {
	ctx    context.Context
	s      *cas.Store
	wanted map[position]bool
	tracks map[string]*Track
	states map[snap.Hash]*manifest.Manifest // as looked up
}

// position is where a write stands in the journal.
type position struct {
	path string
	seq  uint64
}

// Trace returns the tracks of writes, by path. dir is the workspace, for errors.
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

// link takes in what a link says of the paths.
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

// record takes in one write of a path.
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
		k.Runs, k.open = append(k.Runs, Run{before, r.After, l.prev}), true
	}
	return nil
}

// before is what was at the record's path before its link.
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
