package disk

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/layertree"
)

func (d *Driver) treeFile() string { return filepath.Join(d.cfg.StateDir, "tree.json") }

// load reads the tree; without one it leaves nil.
func (d *Driver) load(op string) error {
	if d.tree != nil {
		return nil
	}
	data, err := os.ReadFile(d.treeFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	t := &layertree.Tree{}
	if err := json.Unmarshal(data, t); err != nil {
		return errs.New(errs.Corrupt, op, "%s is damaged: %v", d.treeFile(), err).
			WithHint("the disks are whole: put the file back from a backup")
	}
	if t.Version != version {
		return errs.New(errs.Unsupported, op, "%s has version %d", d.treeFile(), t.Version).WithHint("a newer mulligan wrote it: use that one")
	}
	d.tree = t
	d.claim.Store(claimOf(t))
	return nil
}

// update changes the tree, on disk first: where that fails nothing has changed.
func (d *Driver) update(change func(t *layertree.Tree)) error {
	next, err := d.tree.Clone()
	if err != nil {
		return err
	}
	change(next)
	return d.save(next)
}

func (d *Driver) save(next *layertree.Tree) error {
	data, err := json.MarshalIndent(next, "", "\t")
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("save"); err != nil {
		return err
	}
	if err := durable.WriteFile(d.treeFile(), data, 0o600); err != nil {
		return err
	}
	d.tree = next
	d.claim.Store(claimOf(next))
	return nil
}
