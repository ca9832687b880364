package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// Prepare prepares the restore of a whole workspace.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	return d.PrepareScoped(ctx, req, nil)
}

// PrepareScoped prepares the restore of paths and everything below them. Hard links between a file in the scope and one outside
// of it are not restored.
func (d *Driver) PrepareScoped(ctx context.Context, req snap.RestoreRequest, paths []string) (snap.Switch, error) {
	const op = "prepare files"
	if err := checkID(op, string(req.ID)); err != nil {
		return nil, err
	}
	sc, err := makeScope(op, paths)
	if err != nil {
		return nil, err
	}
	base, target, stays, err := d.ends(ctx, op, req.Base, req.Target)
	if err != nil {
		return nil, err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	return d.prepare(ctx, op, req.ID, base, target, sc, b, staysNotes(d, stays, sc))
}

// prepare prepares the change from base to target. b has the contents that are new in target. notes are for the receipt.
func (d *Driver) prepare(ctx context.Context, op string, id snap.RestoreID, base, target *manifest.Manifest, sc relpath.Scope, b *cas.Batch, notes []string) (snap.Switch, error) {
	deltas, err := d.compare(ctx, base, target, sc)
	if err == nil {
		err = d.applier.Check(ctx, op, deltas, base, target, sc)
	}
	if err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	p := &plan{Version: planVersion, State: prepared, Base: manifest.HexHash(base.Hash), Target: manifest.HexHash(target.Hash), Notes: notes}
	for _, s := range sc {
		p.Scope = append(p.Scope, []byte(s))
	}
	if err := d.record(ctx, id, p, base, target, b); err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	return &change{d: d, id: id, plan: p, base: base, target: target, deltas: deltas}, nil
}

// Precheck returns the error that Prepare would return because of rights, free space, excluded paths, or stored contents that are
// missing. It looks for those contents alone that the restore writes: a snapshot may have many more. It ignores files that change
// or cannot be read, because the capture reports these; then it looks for all contents of the snapshot.
func (d *Driver) Precheck(ctx context.Context, target snap.SnapshotID, paths []string) error {
	const op = "prepare files"
	sc, err := makeScope(op, paths)
	if err != nil {
		return err
	}
	if _, _, err := d.root(op, target); err != nil {
		return err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	now, err := d.read(ctx, op, b, sc, sc, follow.CheckNames, nil, nil) // Prepare is given a capture that has looked at everything
	if err != nil {
		return d.Verify(ctx, target, snap.Quick)
	}
	to, _, err := storedOver(ctx, d, op, target, now.Manifest)
	if err != nil {
		return err
	}
	deltas, err := d.compare(ctx, now.Manifest, to, sc)
	fileOwner := d.applier.FileOwner(now.Root.Uid)
	if err == nil {
		deltas, err = d.applier.CheckAllowed(ctx, op, deltas, fileOwner, now.Manifest, to, sc)
	}
	if err == nil {
		err = d.applier.CheckPresent(ctx, deltas, fileOwner)
	}
	if err == nil { // last, so that a caller that makes room knows that nothing else is in the way
		err = d.applier.CheckRoom(op, deltas)
	}
	return workspace.Wrap(errs.Failed, op, err)
}

// record stores the plan durably, with references to the manifests of base and target.
func (d *Driver) record(ctx context.Context, id snap.RestoreID, p *plan, base, target *manifest.Manifest, b *cas.Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	plan, err := d.putPlan(id, p, b)
	if err != nil {
		return err
	}
	for _, m := range []*manifest.Manifest{base, target} {
		if m.Source.IsZero() {
			if err := m.Save(b); err != nil {
				return err
			}
		}
	}
	from, to := d.switchRoots(id)
	if err := b.Commit(cas.Root{Name: from, Hash: base.Source}, cas.Root{Name: to, Hash: target.Source}, plan); err != nil {
		return err
	}
	return d.cfg.Failpoint.At("switch planned")
}

// ends returns the manifests of base and target, with the present rules of exclusion, and the paths that stay because target could not
// have them.
//
// Most restores go from the present to a recent marker. Then neither manifest is computed from the beginning of its epoch: the
// present one is in memory, and the marker's differs from it only in the paths that changed between the two.
func (d *Driver) ends(ctx context.Context, op string, base, target snap.SnapshotID) (from, to *manifest.Manifest, stays []string, err error) {
	from, at, err := d.standing(ctx, op, base)
	if err != nil {
		return nil, nil, nil, err
	}
	if to, err = d.behind(ctx, op, target, from, at); err == nil && to == nil {
		to, stays, err = storedOver(ctx, d, op, target, from)
	}
	return from, to, stays, err
}

// standing returns a snapshot's manifest with the present rules of exclusion, and its position in the journal, "" if it has
// none.
func (d *Driver) standing(ctx context.Context, op string, id snap.SnapshotID) (*manifest.Manifest, snap.Mark, error) {
	r, about, err := d.root(op, id)
	if err != nil {
		return nil, "", err
	}
	at := about.Place
	if about.Mark != "" {
		at = about.Mark
	}
	if about.Rules != d.ws.Exclude.Hash() {
		at = ""
	}
	if about.Mark != "" && at != "" {
		m, err := d.follower.At(ctx, at)
		if err != nil {
			return nil, at, workspace.Wrap(errs.Failed, op, err)
		}
		if m != nil {
			m.Source = r.Hash
			return m, at, nil
		}
	}
	m, err := d.stored(ctx, op, id)
	return m, at, err
}

// behind returns the manifest of a marker, computed backwards from the manifest from at the position at. It returns nil if the
// marker is not before from, or if there is a shorter way.
func (d *Driver) behind(ctx context.Context, op string, id snap.SnapshotID, from *manifest.Manifest, at snap.Mark) (*manifest.Manifest, error) {
	r, about, err := d.root(op, id)
	if err != nil || about.Mark == "" || at == "" || about.Rules != d.ws.Exclude.Hash() {
		return nil, err
	}
	t, err := d.history.Back(ctx, at, about.Mark, r.Hash)
	if err != nil || t == nil {
		return nil, workspace.Wrap(errs.Corrupt, op, err)
	}
	m, err := from.Edit(ctx, t)
	if err != nil {
		return nil, workspace.Wrap(errs.Corrupt, op, err)
	}
	m.Source = r.Hash
	return m, nil
}
