package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

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
	failed := d.merger.sealAll(ctx, op) // the first failure
	aside := map[layertree.Job]bool{}
	for {
		j, err := d.merger.nextJob(ctx, op, aside)
		if err == nil && j != nil {
			err = d.merger.merge(ctx, op, *j)
		}
		if failed == nil {
			failed = err
		}
		if j == nil {
			return errs.Wrap(errs.Failed, op, failed)
		}
		if err != nil { // the others may still be possible, and make room
			aside[*j] = true
		}
	}
}

// merger does the work of Maintain. Its methods lock d.mu themselves, except finishMerge, whose caller holds the lock.
type merger struct {
	d *Driver
	// unread has the frozen files that the disk could not read, by path. They are read again once they have changed.
	unread map[string]unread
}

// unread is a file as it was when the disk could not read it.
type unread struct {
	stat imagefile.Stat
	err  error
}

// sealAll hashes all frozen files that are not hashed yet, and returns the first error after it has hashed those that can be read. It
// reads them without the lock.
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
	slices.SortFunc(todo, func(a, b layertree.File) int { return strings.Compare(a.Path, b.Path) }) // the first error is the same one each time
	fresh, failed := mg.hash(ctx, op, todo)
	if err := d.begin(context.WithoutCancel(ctx), op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if err := d.integrity.learn(fresh); err != nil {
		return err
	}
	return errs.Also(failed, d.integrity.stateAll())
}

// hash hashes files, and returns the descriptions of those that it could read, and the first error.
func (mg *merger) hash(ctx context.Context, op string, files []layertree.File) (fresh map[string]layertree.File, failed error) {
	fresh = map[string]layertree.File{}
	bad := map[string]unread{}
	for _, f := range files {
		st, err := imagefile.StatOf(f.Path)
		if was, ok := mg.unread[f.Path]; ok && was.stat == st {
			err = was.err
		} else if err == nil {
			f, err = f.Check(ctx, op, true)
		}
		if err == nil {
			fresh[f.Path] = f
			continue
		}
		if _, e := os.Lstat(f.Path); errors.Is(e, os.ErrNotExist) { // its layer may have been deleted since
			continue
		}
		if durable.Unreadable(err) {
			bad[f.Path] = unread{st, err}
		}
		if failed == nil {
			failed = err
		}
	}
	mg.unread = bad
	return fresh, failed
}

// nextJob removes files that nothing needs, and returns the next merge that is not in aside, if there is one. It also returns
// the merge if the error concerns only this one.
func (mg *merger) nextJob(ctx context.Context, op string, aside map[layertree.Job]bool) (*layertree.Job, error) {
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
	l.Skip = func(j layertree.Job) bool {
		// A layer that was frozen just now is hashed first, and one that cannot be read is left as it is.
		return aside[j] || d.tree.Layers[j.Into].State == "" || j.From != "" && d.tree.Layers[j.From].State == ""
	}
	j, _, err := l.Next()
	if j == nil {
		if j = d.tree.Shortcut(d.cfg.Depth); j != nil && l.Skip(*j) {
			j = nil
		}
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
	if !d.tree.Fits(j) { // a snapshot was deleted since
		d.mu.Unlock()
		return nil
	}
	in := &layertree.Intent{Op: "merge", Old: j.From, New: j.Into, Parent: j.Parent, Files: map[string]*layertree.File{}, Suffix: imagefile.MergeSuffix + imagefile.Random()}
	in.Rests = map[string]string{}
	images, brought := map[string]string{}, map[string][]string{}
	for _, dev := range d.tree.Linked(j) {
		images[dev], in.Rests[dev], brought[dev] = d.tree.Layers[j.Into].Files[dev].Path, d.tree.Under(j, dev), d.tree.Brought(j, dev)
	}
	d.mu.Unlock()
	need := map[string]int64{}
	for dev, path := range images {
		if need[path], err = mg.mostOf(path, brought[dev]); err != nil {
			return err
		}
	}
	for dev, path := range images {
		if err := imagefile.EnoughFor(op, need); err != nil {
			return err
		}
		delete(need, path)
		temp := path + in.Suffix
		temps = append(temps, temp)
		hash, err := imagefile.Rebased(ctx, op, path, temp, in.Rests[dev], func(step string) error { return d.cfg.Failpoint.At("merge: " + step) })
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

// mostOf returns the most bytes that a copy of the image at path can occupy after the contents of the images below were written to it.
func (mg *merger) mostOf(path string, below []string) (int64, error) {
	of, err := mg.d.maps.MapOf(path)
	if err != nil {
		return 0, err
	}
	var list []imagefile.Allocation
	for _, path := range below {
		a, err := mg.d.maps.MapOf(path)
		if err != nil {
			return 0, err
		}
		list = append(list, a)
	}
	return of.Most(list), nil
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
		if err := imagefile.RestsOn("merge layers", path, in.Under(d.tree, dev)); err != nil {
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
	gone, below := d.tree.Layers[in.Old], map[string]string{}
	if gone != nil {
		for dev := range gone.Files {
			below[dev], _ = d.tree.Backing(gone, dev)
		}
	}
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
	return d.images.replace(gone, below)
}
