package files

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// Seed brings a workspace that nobody uses to a snapshot. It copies those files that are missing and that the workspace of another app has
// unchanged, and restores the rest. Then it examines everything, and reads each file whose content is not known.
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
	made := 0
	deltas, err := d.compare(ctx, now.Manifest, target, nil)
	if err == nil {
		// Stored contents are not read here: most files need none.
		var all []diff.Delta
		if all, err = d.applier.CheckAllowed(ctx, op, deltas, d.applier.FileOwner(now.Root.Uid), now.Manifest, target, nil); err == nil {
			err = d.applier.CheckRoom(op, all)
		}
	}
	if err == nil {
		made, err = seed(ctx, d, op, b, other, deltas)
	}
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	var both errgroup.Group
	if made > 0 {
		both.Go(func() error { return syncAll(d) }) // while what was made is examined
	}
	both.Go(func() error { return bring(ctx, d, op, b, target) })
	err = both.Wait()
	if err == nil {
		_ = d.walker.Cache.Save(d.cfg.StateDir) // without it, a restart reads every file again
	}
	return workspace.Wrap(errs.Failed, op, err)
}

// seed copies the files of the deltas that another workspace has, and makes the folders. It returns the number of both.
func seed(ctx context.Context, d *Driver, op string, b *cas.Batch, other *Driver, deltas []diff.Delta) (made int, err error) {
	source, err := other.ws.Open()
	if err != nil {
		return 0, err
	}
	defer source.Close()
	job, err := d.applier.Begin(ctx, op, "seed", b, deltas, nil, false)
	if err != nil {
		return 0, err
	}
	defer job.Close()
	st, err := inode.StatAt(source.FD(), "")
	if err != nil {
		return 0, err
	}
	return job.Seed(apply.Source{Root: source, Memory: other.follower.Memory(ctx, deltas), Mapped: walk.MappedToWrite(st.ID.Dev)})
}

// syncAll makes everything in the workspace durable.
func syncAll(d *Driver) error {
	root, err := d.ws.Open()
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(root.FD()), root.Close())
}

// bring restores what the present state of the workspace lacks of the target, and proves the result.
func bring(ctx context.Context, d *Driver, op string, b *cas.Batch, target *manifest.Manifest) error {
	now, err := d.present(ctx, op, b, nil)
	if err != nil {
		return err
	}
	deltas, err := d.compare(ctx, now.Manifest, target, nil)
	if err != nil || len(deltas) == 0 {
		return err
	}
	if err = d.applier.Check(ctx, op, deltas, now.Manifest, target, nil); err == nil {
		deltas, err = d.applier.WithRemade(ctx, deltas, now.Manifest, target, nil)
	}
	if err != nil {
		return err
	}
	job, err := d.applier.Begin(ctx, op, "seed", b, deltas, nil, false)
	if err != nil {
		return err
	}
	err = job.Run()
	job.Close()
	if err != nil {
		return err
	}
	fresh := map[string]bool{}
	for i := range deltas {
		fresh[deltas[i].Path] = true
	}
	if now, err = d.presentFresh(ctx, op, b, nil, fresh); err != nil {
		return err
	}
	if deltas, err = d.compare(ctx, now.Manifest, target, nil); err != nil || len(deltas) == 0 {
		return err
	}
	return snap.Changed(op, workspace.Shown(d.cfg.Dir, diff.MostTelling(deltas)))
}
