package journal

import (
	"context"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
)

// Back returns the edits that turn the state at from into that at the earlier mark to, whose link or manifest is at. It returns
// nil if the way from the beginning of the epoch to at has fewer changes, or if the journal lacks changes between the two
// marks.
func (h *Journal) Back(ctx context.Context, from, to snap.Mark, at snap.Hash) (*manifest.Edits, error) {
	links, base, err := chain(h.s, at)
	if err != nil {
		return nil, err
	}
	most := 0
	for _, l := range links {
		most += len(l.records)
	}
	paths, err := h.changed(ctx, to, from, most)
	if err != nil || paths == nil {
		return nil, err
	}
	t := &manifest.Edits{}
	for _, l := range links {
		for i := len(l.records) - 1; i >= 0; i-- {
			if r := &l.records[i]; paths[r.Path] {
				t.Put(r.Path, r.After)
				delete(paths, r.Path) // older records of the path do not matter
			}
		}
	}
	m, err := manifest.Load(h.s, base)
	if err != nil {
		return nil, err
	}
	for p := range paths { // paths that did not change between the beginning of the epoch and at
		e, err := m.Find(p)
		if err != nil {
			return nil, err
		}
		t.Put(p, e)
	}
	return t, nil
}

// changed returns the paths that changed from one mark to a later one. It returns nil if the journal lacks some of these
// changes, or if they are more than most records.
func (h *Journal) changed(ctx context.Context, from, to snap.Mark, most int) (map[string]bool, error) {
	lo, err := h.Seq("", from)
	if err != nil {
		return nil, nil // the mark is of another journal
	}
	hi, err := h.Seq("", to)
	if err != nil {
		return nil, nil
	}
	steps, err := h.stepsSince("", lo+1)
	if err != nil {
		return nil, nil // the journal was trimmed
	}
	steps = slices.DeleteFunc(steps, func(s step) bool { return s.seq > hi })
	if len(steps) == 0 || len(steps) > most || uint64(len(steps)) != hi-lo { // a gap takes a number but has no link
		return nil, nil
	}
	paths := map[string]bool{}
	for _, s := range steps {
		l, _, err := loadLink(h.s, s.hash)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if most -= len(l.records); most < 0 {
			return nil, nil
		}
		for i := range l.records {
			paths[l.records[i].Path] = true
		}
	}
	return paths, nil
}

// Writes returns the changes after from, up to and including to. The error is of kind errs.NotFound if the journal does not
// have all of them.
func (h *Journal) Writes(ctx context.Context, op string, from, to snap.Mark) ([]snap.Write, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return nil, err
	}
	lo, err := h.parse(op, from)
	if err != nil {
		return nil, err
	}
	hi, err := h.parse(op, to)
	if err != nil {
		return nil, err
	}
	if e := h.last(); e == nil || hi > e.about.Last || lo < h.epochs[0].about.Base {
		return nil, errs.New(errs.NotFound, op, "the journal does not reach from %s to %s", from, to).
			WithHint("it was trimmed; compare checkpoints instead")
	}
	var out []snap.Write
	for _, e := range h.epochs {
		if e.about.Last <= lo || e.about.Base >= hi {
			continue
		}
		if err := h.read(e); err != nil {
			return nil, err
		}
		for _, s := range e.steps[1:] {
			if s.seq <= lo || s.seq > hi {
				continue
			}
			l, _, err := loadLink(h.s, s.hash)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return nil, err
			}
			out = l.writes(out, h.mark(l.seq))
		}
	}
	return out, nil
}

// Since calls do with every link from the number first on, in order.
func (h *Journal) Since(ctx context.Context, op string, first uint64, do func(*link) error) error {
	steps, err := h.stepsSince(op, first)
	if err != nil {
		return err
	}
	for _, s := range steps {
		l, top, err := loadLink(h.s, s.hash)
		if err == nil && !top {
			err = do(l)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *Journal) stepsSince(op string, first uint64) ([]step, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return nil, err
	}
	if len(h.epochs) == 0 || first <= h.epochs[0].about.Base {
		return nil, errs.New(errs.NotFound, op, "the journal does not reach back that far").
			WithHint("it was trimmed; use a checkpoint")
	}
	var out []step
	for _, e := range h.epochs {
		if e.about.Last < first {
			continue
		}
		if err := h.read(e); err != nil {
			return nil, err
		}
		for _, s := range e.steps[1:] {
			if s.seq >= first {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// writes appends the records of the link to out. It leaves out a folder of which only the time changed, because something in
// the folder changed.
func (l *link) writes(out []snap.Write, at snap.Mark) []snap.Write {
	for i := range l.records {
		r := &l.records[i]
		if after := r.After.Digest(); after != r.Before {
			out = append(out, snap.Write{Path: r.Path, Before: r.Before, After: after, At: at, Seen: l.seen})
		}
	}
	return out
}
