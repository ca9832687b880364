package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// mergeSuffix marks the file that will replace an image. A random part follows it: a program that a daemon started survives the
// daemon's death, and must not write to the file of the next daemon.
const mergeSuffix = ".merge-"

// Maintain hashes frozen files, merges layers that no snapshot names, and keeps the backing chains short. All other methods may
// be called meanwhile. Maintain returns quickly if there is nothing to do.
func (d *Driver) Maintain(ctx context.Context) error {
	const op = "maintain disks"
	d.maintain.Lock()
	defer d.maintain.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	if d.life.Err() != nil {
		return nil // closed
	}
	if err := d.merger.sealAll(ctx, op); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	for {
		j, err := d.merger.nextJob(ctx, op)
		if err != nil || j == nil {
			return errs.Wrap(errs.Failed, op, err)
		}
		if err := d.merger.merge(ctx, op, *j); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
}

// merger does the work of Maintain. Its methods lock d.mu themselves, except finishMerge, whose caller holds the lock.
type merger struct{ d *Driver }

// sealAll hashes all frozen files that are not hashed yet. It reads them without the lock.
func (mg *merger) sealAll(ctx context.Context, op string) error {
	d := mg.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	var todo []layertree.File
	if d.tree != nil {
		for _, l := range d.tree.Layers {
			for _, f := range l.All() {
				if l.Frozen && f.Hash == "" {
					todo = append(todo, *f)
				}
			}
		}
		for _, s := range d.tree.Snapshots {
			if s.Memory != nil && s.Memory.Hash == "" {
				todo = append(todo, *s.Memory)
			}
		}
	}
	d.mu.Unlock()
	fresh := map[string]layertree.File{}
	for _, f := range todo {
		now, err := d.integrity.checkFile(ctx, op, f, true)
		if err != nil && imagefile.Exists(f.Path) {
			return err
		}
		if err == nil {
			fresh[f.Path] = now
		}
	}
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if err := d.integrity.learn(fresh); err != nil {
		return err
	}
	return d.integrity.stateAll()
}

// nextJob removes files that nothing needs, and returns the next merge, if there is one.
func (mg *merger) nextJob(ctx context.Context, op string) (*layertree.Job, error) {
	d := mg.d
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if d.tree == nil || d.tree.Intent != nil {
		return nil, nil
	}
	if err := d.follower.forgetOut(); err != nil {
		return nil, err
	}
	if err := d.images.dropOrphans(); err != nil {
		return nil, err
	}
	l := d.ledger(d.tree)
	j, _, err := l.Next()
	if err == nil && j == nil {
		j = d.tree.Shortcut(d.cfg.Depth)
	}
	if j != nil && (d.tree.Layers[j.Into].State == "" || j.From != "" && d.tree.Layers[j.From].State == "") {
		return nil, err // it was frozen just now, and the next Maintain hashes it first
	}
	return j, err
}

// merge creates the new images beside the old ones, checks that a guest would read the same from them, and replaces the old
// ones.
func (mg *merger) merge(ctx context.Context, op string, j layertree.Job) (err error) {
	d := mg.d
	var temps []string
	defer func() {
		if err != nil && !mg.holdsMerge(j) {
			for _, t := range temps {
				err = errors.Join(err, imagefile.Remove(t))
			}
		}
	}()
	d.mu.Lock()
	in := &layertree.Intent{Op: "merge", Old: j.From, New: j.Into, Parent: j.Parent, Files: map[string]*layertree.File{}, Suffix: mergeSuffix + random()}
	in.Rests = map[string]string{}
	images := map[string]string{}
	for _, dev := range d.tree.Linked(j) {
		images[dev], in.Rests[dev] = d.tree.Layers[j.Into].Files[dev].Path, d.tree.Under(j, dev)
	}
	d.mu.Unlock()
	for dev, path := range images {
		temp := path + in.Suffix
		temps = append(temps, temp)
		hash, err := mg.rebased(ctx, op, path, temp, in.Rests[dev])
		if err != nil {
			return err
		}
		in.Files[dev] = &layertree.File{Path: path, Hash: hash}
	}
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if !d.tree.Fits(j) {
		return discard(temps)
	}
	if err := d.cfg.Failpoint.At("merge: intent"); err != nil {
		return err
	}
	if err := d.update(func(t *layertree.Tree) { t.Intent = in }); err != nil {
		return err
	}
	return mg.finishMerge()
}

// holdsMerge reports whether the tree says that the merge has begun. Then its files must not be removed.
func (mg *merger) holdsMerge(j layertree.Job) bool {
	d := mg.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tree.Intent != nil && d.tree.Intent.Op == "merge" && d.tree.Intent.New == j.Into
}

func discard(temps []string) error {
	var all []error
	for _, t := range temps {
		all = append(all, imagefile.Remove(t))
	}
	return errors.Join(all...)
}

// rebased writes to temp a copy of the image at path whose backing file is parent and which reads the same, and returns its
// hash. It only reads the original.
func (mg *merger) rebased(ctx context.Context, op, path, temp, parent string) (string, error) {
	d := mg.d
	free, err := imagefile.FreeBytes(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	if need := 2*imagefile.Blocks(path) + minFree; free < need {
		return "", errs.New(errs.Failed, op, "no space left to merge %s: %d MiB are needed, %d are there", path, need>>20, free>>20)
	}
	if err := d.cfg.Failpoint.At("merge: copy"); err != nil {
		return "", err
	}
	if err := imagefile.CopyFile(ctx, path, temp); err != nil {
		return "", err
	}
	if err := d.cfg.Failpoint.At("merge: rebase"); err != nil {
		return "", err
	}
	if err := imagefile.Rebase(ctx, temp, parent); err != nil {
		return "", err
	}
	if err := d.cfg.Failpoint.At("merge: compare"); err != nil {
		return "", err
	}
	if _, err := imagefile.Run(ctx, "qemu-img", "compare", "-q", "-U", "-f", "qcow2", "-F", "qcow2", path, temp); err != nil {
		return "", errs.Wrap(errs.Corrupt, op, err)
	}
	// The contents would also be equal if the backing file of temp were still the one that will be removed.
	if err := restsOn(op, temp, parent); err != nil {
		return "", err
	}
	if err := imagefile.ChownLike(temp, path); err != nil {
		return "", err
	}
	if err := errors.Join(durable.Sync(temp), durable.Sync(filepath.Dir(temp))); err != nil {
		return "", err
	}
	return imagefile.HashFile(ctx, temp)
}

// finishMerge replaces the images of the merge that the tree names. An image that was replaced before has no new file any more.
func (mg *merger) finishMerge() error {
	d := mg.d
	in := d.tree.Intent
	stats := map[string]imagefile.Stat{}
	for dev, f := range in.Files {
		path := f.Path
		if err := d.cfg.Failpoint.At("merge: exchange"); err != nil {
			return err
		}
		if imagefile.Exists(path + in.Suffix) {
			if err := imagefile.SetImmutable(path, false); err != nil {
				return err
			}
			if err := os.Rename(path+in.Suffix, path); err != nil {
				return err
			}
		}
		if err := errors.Join(durable.Sync(filepath.Dir(path)), imagefile.SetImmutable(path, true)); err != nil {
			return err
		}
		// Its old backing file will be removed.
		if err := restsOn("merge layers", path, in.Under(d.tree, dev)); err != nil {
			return err
		}
		st, err := imagefile.StatOf(path)
		if err != nil {
			return err
		}
		stats[dev] = st
	}
	if err := d.cfg.Failpoint.At("merge: record"); err != nil {
		return err
	}
	gone := d.tree.Layers[in.Old]
	err := d.update(func(t *layertree.Tree) {
		into := t.Layers[in.New]
		for dev, f := range in.Files {
			into.Files[dev] = &layertree.File{Path: f.Path, Hash: f.Hash, Stat: stats[dev]}
		}
		t.Put(in.New, in.Old, in.Parent)
		t.Intent = nil
	})
	if err != nil || gone == nil {
		return err
	}
	if err := d.cfg.Failpoint.At("merge: unlink"); err != nil {
		return err
	}
	return d.images.unlink(gone)
}
