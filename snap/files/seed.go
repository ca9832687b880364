package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// Seed copies into an empty workspace those files of a snapshot that the workspace of another app has unchanged.
func (d *Driver) Seed(ctx context.Context, from snap.Driver, id snap.SnapshotID) (err error) {
	const op = "copy files"
	other, ok := from.(*Driver)
	if !ok {
		return errs.New(errs.Unsupported, op, "the other app's driver is not one of files")
	}
	target, err := d.stored(ctx, op, id)
	if err != nil {
		return err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	now, err := d.present(ctx, op, b, nil)
	if err != nil {
		return err
	}
	deltas, err := d.compare(ctx, now.Manifest, target, nil)
	if err == nil {
		err = d.applier.Check(ctx, op, deltas, now.Manifest, target, nil)
	}
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	source, err := other.ws.Open()
	if err != nil {
		return err
	}
	defer source.Close()
	job, err := d.applier.Begin(ctx, op, "seed", b, deltas, nil, false)
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	defer job.Close()
	st, err := inode.StatAt(source.FD(), "")
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	original := apply.Source{Root: source, Memory: other.follower.Memory(ctx, deltas), Mapped: walk.MappedToWrite(st.ID.Dev)}
	return workspace.Wrap(errs.Failed, op, job.Seed(original))
}
