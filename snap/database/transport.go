package database

import (
	"context"
	"encoding/json"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Export returns what a snapshot consists of. See [snap.Transporter].
func (d *Driver[T, P]) Export(_ context.Context, id snap.SnapshotID) (p snap.Portable, release func(), err error) {
	op := "export " + d.records.noun + " snapshot"
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return p, nil, err
	}
	b := d.records.store.Begin()
	if !b.Keep(root.Hash) {
		b.Discard()
		return p, nil, errs.New(errs.Corrupt, op, "the contents of %s are not in the content store", id).WithHint("use another checkpoint")
	}
	return snap.Portable{Driver: d.records.driver, Object: root.Hash, Meta: root.Meta}, b.Discard, nil
}

// Import stores a snapshot that Export returned, perhaps on another host. See [snap.Transporter].
func (d *Driver[T, P]) Import(_ context.Context, p snap.Portable, as snap.SnapshotID) (s snap.Snapshot, err error) {
	op := "import " + d.records.noun + " snapshot"
	if !ValidName(string(as)) {
		return s, errs.New(errs.Invalid, op, "%q is not a snapshot id", as)
	}
	if p.Driver != d.records.driver {
		return s, errs.New(errs.Unsupported, op, "the snapshot is of %q and not of %q", p.Driver, d.records.driver)
	}
	root := cas.Root{Name: d.records.SnapshotRoot(as), Hash: p.Object, Meta: p.Meta}
	s = snap.Snapshot{ID: as, Driver: d.records.driver, Created: time.Now().UTC()}
	if s.Hash, err = HashOf(root); err != nil {
		return s, err
	}
	if !json.Valid(p.Meta) {
		return s, errs.New(errs.Corrupt, op, "the description of %s is damaged", as)
	}
	return s, errs.Wrap(errs.Failed, op, d.records.keep(root))
}

// keep commits a root whose objects are in the store.
func (r *Records) keep(root cas.Root) error {
	b := r.store.Begin()
	defer b.Discard()
	if !b.Keep(root.Hash) {
		return errs.New(errs.Corrupt, "", "the contents of %s are not in the content store", root.Name).WithHint("use another checkpoint")
	}
	return b.Commit(root)
}
