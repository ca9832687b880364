package files

import (
	"context"
	"fmt"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// mayReplace ensures that nothing in live is lost. If a path is neither as in the base nor as in the target, a Commit fails,
// and an Undo stores the live state.
func (c *change) mayReplace(ctx context.Context, op string, live *manifest.Manifest, deltas []diff.Delta, base, target *manifest.Manifest, done state) error {
	if c.plan.State == prepared {
		path, err := c.moved(ctx, base, live)
		if err == nil && path != "" {
			err = snap.Changed(op, workspace.Shown(c.d.cfg.Dir, path))
		}
		return workspace.Wrap(errs.Failed, op, err)
	}
	odd, err := c.unexplained(deltas, base, target)
	switch {
	case err != nil:
	case len(odd) == 0:
	case done == switched:
		return snap.Changed(op, workspace.Shown(c.d.cfg.Dir, odd[0]))
	default:
		err = c.keepLate(live, odd)
	}
	return workspace.Wrap(errs.Failed, op, err)
}

// adjustParents makes the folders on the way to the scope end as in the base, even if an interrupted Commit changed their
// times.
func (c *change) adjustParents(deltas []diff.Delta, base *manifest.Manifest) error {
	for i := range deltas {
		if !deltas[i].Outside {
			continue
		}
		e, err := base.Find(deltas[i].Path)
		if err != nil {
			return err
		}
		if manifest.IsFolder(e) {
			deltas[i].New = e
		}
	}
	return nil
}

// unexplained lists the paths whose live entry is neither that of base or target, nor a state on the way from one to the other.
func (c *change) unexplained(deltas []diff.Delta, base, target *manifest.Manifest) ([]string, error) {
	var odd []string
	for _, d := range deltas {
		_, name := relpath.Split(d.Path)
		if d.Outside || d.Old == nil || strings.HasPrefix(name, apply.TempPrefix(string(c.id))) {
			continue
		}
		b, err := base.Find(d.Path)
		if err != nil {
			return nil, err
		}
		t, err := target.Find(d.Path)
		if err != nil {
			return nil, err
		}
		ours := apply.Between(d.Old, b, t)
		if !ours && c.d.applier.FileOwner(base.Root.Uid).Keeps(b, t) {
			if ours, err = apply.HalfRewritten(c.d.cfg.Store, d.Old, b, t); err != nil {
				return nil, err
			}
		}
		if !ours {
			odd = append(odd, d.Seen())
		}
	}
	return odd, nil
}

// keepLate stores the present state of the workspace under a root of its own.
func (c *change) keepLate(live *manifest.Manifest, odd []string) error {
	b := c.d.cfg.Store.Begin()
	defer b.Discard()
	if !b.Keep(live.Hash) {
		return errs.New(errs.Internal, "undo files", "the content store lost data that was just written")
	}
	root, err := c.d.lateName(c.id)
	if err != nil {
		return err
	}
	if err := b.Commit(cas.Root{Name: root, Hash: live.Hash}); err != nil {
		return err
	}
	more := ""
	if len(odd) > 1 {
		more = fmt.Sprintf(" and %d more", len(odd)-1)
	}
	c.plan.Notes = append(c.plan.Notes, fmt.Sprintf("%s%s changed after the restore; before the undo that was stored under %s.",
		workspace.Shown(c.d.cfg.Dir, odd[0]), more, root))
	return nil
}
