package files

import (
	"context"
	"path/filepath"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// compare returns the differences, and marks those that the app's owner may not see.
func (d *Driver) compare(ctx context.Context, old, new *manifest.Manifest, sc relpath.Scope) ([]diff.Delta, error) {
	return diff.Compare(ctx, d.cfg.Reader, old, new, sc)
}

// Diff compares two snapshots; an empty id is the workspace as it is now.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare files"
	sc, err := makeScope(op, paths)
	if err != nil {
		return nil, err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	side := func(id snap.SnapshotID, other *manifest.Manifest) (*manifest.Manifest, error) {
		if id == "" {
			v, err := d.present(ctx, op, b, sc)
			if err != nil {
				return nil, err
			}
			return v.Manifest, nil
		}
		m, _, err := storedOver(ctx, d, op, id, other)
		return m, err
	}
	new, err := side(to, nil)
	if err != nil {
		return nil, err
	}
	old, err := side(from, new) // what from could not have was not created since
	if err != nil {
		return nil, err
	}
	deltas, err := d.compare(ctx, old, new, sc)
	list, _ := diff.Changes(deltas, len(deltas))
	return list, workspace.Wrap(errs.Failed, op, err)
}

// makeScope checks and sorts the paths of a caller.
func makeScope(op string, paths []string) (relpath.Scope, error) {
	var sc relpath.Scope
	for _, p := range paths {
		c := filepath.Clean(p)
		if c == "." {
			return nil, nil
		}
		if !relpath.Valid(c) {
			return nil, errs.New(errs.Invalid, op, "%q is not a path in the workspace", p).
				WithHint("give paths relative to the workspace, without ..")
		}
		sc = append(sc, c)
	}
	slices.Sort(sc) // folders come before what is in them
	var out relpath.Scope
	has := map[string]bool{}
	for _, p := range sc {
		at := p
		for at != "." && !has[at] {
			at, _ = relpath.Split(at)
		}
		if at == "." {
			has[p], out = true, append(out, p)
		}
	}
	return out, nil
}
