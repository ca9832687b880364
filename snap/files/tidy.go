package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/journal"
)

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
		if errs.KindOf(err) == errs.NotFound || about.Mark == "" || d.history.Reaches(about.Mark) {
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
	m, err := journal.Resolve(ctx, d.cfg.Store, r.Hash)
	if err == nil {
		err = m.Save(b)
	}
	if err != nil {
		return err
	}
	about.Mark = ""
	next, err := about.root(r.Name, m.Hash)
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
