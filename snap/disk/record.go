package disk

import (
	"slices"
	"sync/atomic"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/layertree"
)

// record has the configuration and the contents of tree.json. All parts of the driver share it. The caller of each method
// except claimed holds the driver's lock.
type record struct {
	cfg   Config
	tree  *layertree.Tree // nil: it was not read yet, or does not exist
	claim atomic.Pointer[Claim]
}

// pools returns the folders of the driver's own files.
func (r *record) pools() layertree.Pools {
	return layertree.Pools{App: r.cfg.App, Dir: r.cfg.PoolDir}
}

// ownOf returns the paths of images that the driver made.
func (r *record) ownOf(paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool { return !r.pools().Owns(path) })
}

// claimed returns the claim of the tree that was read last. It is safe for concurrent use.
func (r *record) claimed() Claim {
	if c := r.claim.Load(); c != nil {
		return *c
	}
	return Claim{Domain: r.cfg.Domain}
}

// load reads the tree, which stays nil if there is no file.
func (r *record) load(op string) error {
	if r.tree != nil {
		return nil
	}
	t, err := layertree.Read(op, r.cfg.StateDir)
	if err != nil || t == nil {
		return err
	}
	r.tree = t
	r.claim.Store(layertree.ClaimOf(t))
	return nil
}

// update changes the tree, first on disk. If that fails, nothing has changed.
func (r *record) update(change func(t *layertree.Tree)) error {
	next, err := r.tree.Clone()
	if err != nil {
		return err
	}
	change(next)
	return r.save(next)
}

func (r *record) save(next *layertree.Tree) error {
	if err := r.cfg.Failpoint.At("save"); err != nil {
		return err
	}
	if err := next.Write(r.cfg.StateDir); err != nil {
		return err
	}
	r.tree = next
	r.claim.Store(layertree.ClaimOf(next))
	return nil
}

// snapshot finds a snapshot.
func (r *record) snapshot(op string, id snap.SnapshotID) (*layertree.Snapshot, error) {
	if r.tree != nil {
		if s := r.tree.Snapshots[id]; s != nil {
			return s, nil
		}
	}
	return nil, errs.New(errs.NotFound, op, "no snapshot %s of domain %s", id, r.cfg.Domain).
		WithHint("list the checkpoints to see which there are")
}

func (r *record) plan(op string, id snap.RestoreID) (*layertree.Plan, error) {
	if r.tree != nil {
		if p := r.tree.Switches[id]; p != nil {
			return p, nil
		}
	}
	return nil, errs.New(errs.NotFound, op, "no restore %s of domain %s is under way", id, r.cfg.Domain)
}

// onRaw returns an error if the domain's present images are overlays on images that cannot be read.
func (r *record) onRaw(op string) error {
	if !r.tree.Rests(r.tree.Layers[r.tree.Head]) {
		return nil
	}
	return errs.New(errs.Conflict, op, "the disks of domain %s have images that cannot be read; they were kept as they are", r.cfg.Domain).
		WithHint("go back to a checkpoint that was made before")
}
