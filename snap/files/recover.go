package files

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// Sweep deletes the snapshots and switches in gone. States that an Undo stored because they were neither base nor target (see
// Switch.Undo) stay.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep files"
	var drop []string
	for _, r := range d.cfg.Store.Roots(d.prefix()) {
		name := strings.TrimPrefix(r.Name, d.prefix())
		sort, rest, nested := strings.Cut(name, "/")
		id, _, _ := strings.Cut(rest, "/")
		switch {
		case !nested && slices.Contains(gone.Snapshots, snap.SnapshotID(name)),
			nested && sort == "switch" && slices.Contains(gone.Restores, snap.RestoreID(id)):
			drop = append(drop, r.Name)
		}
	}
	if len(drop) == 0 {
		return nil
	}
	return workspace.Wrap(errs.Failed, op, d.cfg.Store.Delete(drop...))
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(ctx context.Context, id snap.RestoreID) (snap.Switch, error) {
	const op = "resume files"
	if err := checkID(op, string(id)); err != nil {
		return nil, err
	}
	p, err := loadPlan(d, id)
	if errs.KindOf(err) == errs.NotFound {
		return nil, errs.New(errs.NotFound, op, "no restore %s is under way", id)
	}
	if err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	return &change{d: d, id: id, plan: p, unsynced: true}, nil
}

// set stores the state durably.
func (c *change) set(s state) error {
	p := *c.plan
	p.State = s
	if err := savePlan(c.d, c.id, &p); err != nil {
		return err
	}
	c.plan = &p
	return c.d.cfg.Failpoint.At(string(s))
}

// manifests returns the manifests of base and target.
func (c *change) manifests(ctx context.Context) (base, target *manifest.Manifest, err error) {
	if c.base != nil {
		return c.base, c.target, nil
	}
	from, to := c.d.switchRoots(c.id)
	if base, err = c.manifest(ctx, from, c.plan.Base); err == nil {
		target, err = c.manifest(ctx, to, c.plan.Target)
	}
	if err != nil {
		return nil, nil, err
	}
	c.base, c.target = base, target
	return base, target, nil
}

// manifest reads the manifest to which the root with this name refers.
func (c *change) manifest(ctx context.Context, root string, want manifest.HexHash) (*manifest.Manifest, error) {
	r, err := c.d.cfg.Store.Root(root)
	if err != nil {
		return nil, err
	}
	m, err := journal.Resolve(ctx, c.d.cfg.Store, r.Hash)
	if err == nil && m.Hash != snap.Hash(want) {
		err = manifest.Damaged(r.Hash, fmt.Errorf("it leads to %v, not to %v", m.Hash, snap.Hash(want)))
	}
	return m, err
}

// sweepTemps removes temporary files that an interrupted Commit or Undo of a scope left. Without a scope, a restore removes
// them as files that the target does not have.
func (c *change) sweepTemps(ctx context.Context) error {
	if len(c.plan.Scope) == 0 || c.plan.State == prepared {
		return nil
	}
	deltas, err := c.differences(ctx)
	if err != nil {
		return err
	}
	root, err := c.d.ws.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	folders := map[string]bool{}
	for i := range deltas {
		dir, _ := relpath.Split(deltas[i].Path)
		folders[dir] = true
	}
	for _, path := range relpath.SortedKeys(folders) {
		dir, err := root.OpenDir(path)
		if err != nil {
			continue // the folder does not exist, and so nothing in it
		}
		err = errors.Join(apply.SweepTemps(dir, apply.TempPrefix(string(c.id))), dir.Close())
		if err != nil {
			return err
		}
	}
	return nil
}
