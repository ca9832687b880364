package journal

import (
	"context"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
)

// Back says what leads from the state at one place back to an earlier one,
// which the link h stands for. nil: fewer changes lead there from the beginning
// of its epoch, or not all that lies between was recorded.
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
				delete(paths, r.Path) // what is older does not matter
			}
		}
	}
	m, err := manifest.Load(h.s, base)
	if err != nil {
		return nil, err
	}
	for p := range paths { // as they were at the beginning
		e, err := m.Find(p)
		if err != nil {
			return nil, err
		}
		t.Put(p, e)
	}
	return t, nil
}

// changed are the paths that changed from one place to a later one; nil where
// not all of that was recorded, or it is more than so many records.
func (h *Journal) changed(ctx context.Context, from, to snap.Mark, most int) (map[string]bool, error) {
	lo, err := h.Seq("", from)
	if err != nil {
		return nil, nil // of another journal
	}
	hi, err := h.Seq("", to)
	if err != nil {
		return nil, nil
	}
	steps, err := h.stepsSince("", lo+1)
	if err != nil {
		return nil, nil // trimmed
	}
	steps = slices.DeleteFunc(steps, func(s step) bool { return s.seq > hi })
	if len(steps) == 0 || len(steps) > most || uint64(len(steps)) != hi-lo { // a gap has a number, and no link
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

// Writes lists the changes after from, up to to.
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

// Since calls do with every link from number first on, in their order.
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

// writes appends what the link says to a caller: a folder whose time alone
// moved, because something in it did, is left out.
func (l *link) writes(out []snap.Write, at snap.Mark) []snap.Write {
	for i := range l.records {
		r := &l.records[i]
		if after := r.After.Digest(); after != r.Before {
			out = append(out, snap.Write{Path: r.Path, Before: r.Before, After: after, At: at, Seen: l.seen})
		}
	}
	return out
}
