package disk

import (
	"context"
	"encoding/hex"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// Verify checks all images of a snapshot's backing chain. Quick checks that all exist and look unchanged; Full reads every
// byte.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	const op = "verify disk snapshot"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	s, err := d.snapshot(op, id)
	if err != nil {
		return err
	}
	if err := d.integrity.checkChain(ctx, op, s.Layer, depth == snap.Full); err != nil {
		return err
	}
	if s.Memory != nil {
		_, err = s.Memory.Check(ctx, op, depth == snap.Full)
	}
	return err
}

// integrity hashes frozen files and compares them with the record. The caller of each method holds the
// driver's lock.
type integrity struct{ *record }

// checkChain checks a layer and all layers below it. It reads a file that was touched since the last check, and with full all
// files.
func (i *integrity) checkChain(ctx context.Context, op string, id layertree.ID, full bool) error {
	fresh := map[string]layertree.File{}
	check := func(f *layertree.File) error {
		if f == nil {
			return nil
		}
		now, err := f.Check(ctx, op, full)
		if err == nil && now != *f {
			fresh[f.Path] = now
		}
		return err
	}
	l := i.tree.Layers[id]
	for _, dev := range l.Devices() {
		for _, k := range i.tree.Images(id, dev) {
			if err := check(k.Of.Files[k.Dev]); err != nil {
				return err
			}
			if k.Of.Raw {
				continue
			}
			if err := i.checkLink(op, k.Of, k.Dev); err != nil {
				return err
			}
			for _, f := range k.Of.Below[k.Dev] {
				if err := check(f); err != nil {
					return err
				}
			}
		}
	}
	if err := check(l.NVRAM); err != nil {
		return err
	}
	return i.learn(fresh)
}

// learn records the results of checks of files.
func (i *integrity) learn(fresh map[string]layertree.File) error {
	if len(fresh) == 0 {
		return nil
	}
	return i.update(func(t *layertree.Tree) {
		note := func(f *layertree.File) {
			if f == nil {
				return
			}
			if now, ok := fresh[f.Path]; ok {
				*f = now
			}
		}
		for _, l := range t.Layers {
			for _, f := range l.Files {
				note(f)
			}
			for _, list := range l.Below {
				for _, f := range list {
					note(f)
				}
			}
			note(l.NVRAM)
		}
		for _, s := range t.Snapshots {
			note(s.Memory)
		}
	})
}

// checkLink checks that the backing file of an image is the one in the tree.
func (i *integrity) checkLink(op string, l *layertree.Layer, dev string) error {
	path := l.Files[dev].Path
	if below, known := i.tree.Backing(l, dev); known {
		return imagefile.RestsOn(op, path, below)
	}
	if _, err := imagefile.ImageSize(path); err != nil {
		return imagefile.Corrupt(op, "%v", err)
	}
	return nil
}

// seal hashes the files of the layers' backing chains that are not hashed yet, and computes the states of the layers. It
// reports its progress, because the first time it reads whole disks.
func (i *integrity) seal(ctx context.Context, op string, ids ...layertree.ID) error {
	var list []layertree.ID
	for _, id := range ids {
		list = append(list, i.tree.Closure(id)...)
	}
	todo := map[string]layertree.File{}
	size := int64(0)
	for _, id := range list {
		for _, f := range i.tree.Layers[id].All() {
			if _, known := todo[f.Path]; f.Hash == "" && !known {
				todo[f.Path] = *f
				size += f.Stat.Size
			}
		}
	}
	ctx = imagefile.Metered(ctx, size)
	fresh := map[string]layertree.File{}
	for path, f := range todo {
		now, err := f.Check(ctx, op, true)
		if err != nil {
			return errs.Also(err, i.learn(fresh)) // what was read need not be read again
		}
		fresh[path] = now
	}
	if err := i.learn(fresh); err != nil {
		return err
	}
	return i.giveStates(list)
}

// giveStates computes the states of layers that have none. In list, a layer comes before the layers above it.
func (i *integrity) giveStates(list []layertree.ID) error {
	missing := false
	for _, id := range list {
		missing = missing || i.tree.Layers[id].State == ""
	}
	if !missing {
		return nil
	}
	return i.update(func(t *layertree.Tree) {
		for _, id := range list {
			if l := t.Layers[id]; l.State == "" {
				l.State = t.Digest(l)
			}
		}
	})
}

// hashOf converts a state to a hash of package snap.
func hashOf(state string) (h snap.Hash) {
	raw, err := hex.DecodeString(state)
	if err == nil {
		copy(h[:], raw)
	}
	return h
}

// stateAll computes the state of every layer whose files, and those of all layers below, are hashed.
func (i *integrity) stateAll() error {
	if i.tree == nil {
		return nil
	}
	for _, id := range i.tree.SortedLayers() {
		ready := true
		chain := i.tree.Closure(id)
		for _, id := range chain {
			for _, f := range i.tree.Layers[id].All() {
				ready = ready && f.Hash != ""
			}
		}
		if ready && i.tree.Layers[id].Frozen {
			if err := i.giveStates(chain); err != nil {
				return err
			}
		}
	}
	return nil
}
