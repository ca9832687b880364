package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Most restores go from the present to a marker that lies a little behind it.
// Then neither manifest is made of that of an epoch's beginning, with all that
// changed since: the present's is in memory, and the marker's is the present's,
// but for the paths that changed between the two.

// ends gives the manifests that a restore goes from and to, by today's rules.
func (d *Driver) ends(ctx context.Context, op string, base, target snap.SnapshotID) (from, to *manifest.Manifest, err error) {
	from, at, err := d.standing(ctx, op, base)
	if err != nil {
		return nil, nil, err
	}
	if to, err = d.behind(ctx, op, target, from, at); err == nil && to == nil {
		to, err = d.stored(ctx, op, target)
	}
	return from, to, err
}

// standing gives a snapshot's manifest by today's rules, and its place in the
// journal, "" where it has none.
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

// behind gives the manifest of a marker that lies behind from, the state at
// the place at. nil: it does not, or there is a shorter way.
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
