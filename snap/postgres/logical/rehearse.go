package logical

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
)

var _ snap.Rehearser = (*Driver)(nil)

// Shape returns a digest of the snapshot's schema, or "" if the snapshot has no database.
func (d *Driver) Shape(id snap.SnapshotID) (string, error) {
	const op = "read a snapshot"
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return "", err
	}
	m, err := load(d.cfg.Store, root.Hash)
	if err != nil || m.State.Absent {
		return "", errs.Wrap(errs.Failed, op, err)
	}
	bare := m.State // everything except the contents of tables, sequences and large objects
	bare.Sequences, bare.Objects, bare.Blobs, bare.Tables = nil, nil, content{}, nil
	for _, t := range m.State.Tables {
		t.content = content{}
		bare.Tables = append(bare.Tables, t)
	}
	return bare.hash().String(), nil
}

// Rehearse builds the snapshot's database beside the live one, as Prepare does, compares it with the snapshot and drops it. It
// holds no lock of the driver, so a restore does not wait for it.
func (d *Driver) Rehearse(ctx context.Context, as snap.RestoreID, id snap.SnapshotID) error {
	const op = "rehearse the restore of database"
	if len(beside("", as, "new")) > 63 {
		return errs.New(errs.Invalid, op, "%q is not a restore id", as)
	}
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return err
	}
	m, err := load(d.cfg.Store, root.Hash)
	if err != nil || m.State.Absent {
		return errs.Wrap(errs.Failed, op, err)
	}
	out, err := d.outside(ctx)
	if err != nil {
		return d.classify(op, err)
	}
	defer out.close()
	if err := d.allowed(ctx, out, ends{target: m, base: m}); err != nil {
		return d.classify(op, err)
	}
	return d.RehearseWith(ctx, as, id, func(p *plan) error {
		d.name(p)
		err := d.makeRoles(ctx, out, p, m.Roles)
		if err == nil {
			p.Known, err = d.uncaptured(ctx)
		}
		if err == nil {
			_, err = d.build(ctx, out, p.New, d.note(p), m, p.Known)
		}
		if sqlState(err) == stateDiskFull {
			d.empty(p, m)
		}
		return err
	})
}
