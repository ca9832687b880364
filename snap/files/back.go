package files

import (
	"context"
	"errors"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Most restores go from the present to a marker that lies a little behind it.
// Then neither manifest is made of that of an epoch's beginning, with all that
// changed since: the present's is in memory, and the marker's is the present's,
// but for the paths that changed between the two.

// ends gives the manifests that a restore goes from and to, by today's rules.
func (d *Driver) ends(ctx context.Context, op string, base, target snap.SnapshotID) (from, to *manifest.Manifest, err error) {
	from, at, err := d.standing(ctx, op, base)
	if err != nil {
		return nil, nil, err
	}
	if to, err = d.behind(ctx, op, target, from, at); err == nil && to == nil {
		to, err = d.stored(ctx, op, target)
	}
	return from, to, err
}

// standing gives a snapshot's manifest by today's rules, and its place in the
// journal, "" where it has none.
func (d *Driver) standing(ctx context.Context, op string, id snap.SnapshotID) (*manifest.Manifest, snap.Mark, error) {
	r, about, err := d.root(op, id)
	if err != nil {
		return nil, "", err
	}
	at := about.Place
	if about.Mark != "" {
		at = about.Mark
	}
	if about.Rules != d.ws.Exclude.Hash() {
		at = ""
	}
	if about.Mark != "" && at != "" {
		m, err := d.atHead(ctx, at)
		if err != nil {
			return nil, at, workspace.Wrap(errs.Failed, op, err)
		}
		if m != nil {
			m.Source = r.Hash
			return m, at, nil
		}
	}
	m, err := d.stored(ctx, op, id)
	return m, at, err
}

// atHead gives the manifest of the tree in memory, if that is the state at the
// place at, else nil.
func (d *Driver) atHead(ctx context.Context, at snap.Mark) (m *manifest.Manifest, err error) {
	j := d.current()
	if j == nil {
		return nil, nil
	}
	err = j.do(ctx, func() error {
		head, _, _, err := d.history.head()
		if err == nil && at == head && j.live != nil {
			m = j.live.seal(d.cfg.Store)
		}
		return err
	})
	if errors.Is(err, errEnded) {
		return nil, nil
	}
	return m, err
}

// behind gives the manifest of a marker that lies behind from, the state at
// the place at. nil: it does not, or there is a shorter way.
func (d *Driver) behind(ctx context.Context, op string, id snap.SnapshotID, from *manifest.Manifest, at snap.Mark) (*manifest.Manifest, error) {
	r, about, err := d.root(op, id)
	if err != nil || about.Mark == "" || at == "" || about.Rules != d.ws.Exclude.Hash() {
		return nil, err
	}
	t, err := d.history.back(ctx, at, about.Mark, r.Hash)
	if err != nil || t == nil {
		return nil, workspace.Wrap(errs.Corrupt, op, err)
	}
	m, err := from.Edit(ctx, t)
	if err != nil {
		return nil, workspace.Wrap(errs.Corrupt, op, err)
	}
	m.Source = r.Hash
	return m, nil
}

// back says what leads from the state at one place back to an earlier one,
// which the link h stands for. nil: fewer changes lead there from the beginning
// of its epoch, or not all that lies between was recorded.
func (h *history) back(ctx context.Context, from, to snap.Mark, at snap.Hash) (*manifest.Edits, error) {
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
			if r := &l.records[i]; paths[r.path] {
				t.Put(r.path, r.after)
				delete(paths, r.path) // what is older does not matter
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
func (h *history) changed(ctx context.Context, from, to snap.Mark, most int) (map[string]bool, error) {
	lo, err := h.seq("", from)
	if err != nil {
		return nil, nil // of another journal
	}
	hi, err := h.seq("", to)
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
			paths[l.records[i].path] = true
		}
	}
	return paths, nil
}
