package files

import (
	"context"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/merge"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

var _ snap.Reverter = (*Driver)(nil)

// reverting computes the state of a workspace without some writes.
type reverting struct {
	d      *Driver
	base   *manifest.Manifest
	tracks map[string]*journal.Track // by path: what the writes did to it
	force  bool
	merger *merge.Merger
	to     map[string]*manifest.Entry // paths that change, with their new entries; nil means removed
	merged map[string]bool
	left   map[string]snap.ConflictReason
	since  map[string]snap.Hash             // by path: the state of the journal from which the entry in to comes
	states map[snap.Hash]*manifest.Manifest // manifests that were read
	known  map[string]bool                  // by folder: whether it is a git repository
}

// PrepareRevert prepares the revert of writes. Hard links of files that it writes are not restored.
func (d *Driver) PrepareRevert(ctx context.Context, req snap.RevertRequest) (snap.Switch, snap.Reverted, error) {
	const op = "prepare revert of files"
	var none snap.Reverted
	if err := checkID(op, string(req.ID)); err != nil {
		return nil, none, err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	base, _, err := d.standing(ctx, op, req.Base)
	if err != nil {
		return nil, none, err
	}
	tracks, err := d.history.Trace(ctx, op, d.cfg.Dir, req.Writes)
	if err != nil {
		return nil, none, workspace.Wrap(errs.Failed, op, err)
	}
	r := &reverting{d: d, base: base, tracks: tracks, force: req.Force, merger: merge.New(d.cfg.Store, b, d.applier.FileOwner(base.Root.Uid)),
		to: map[string]*manifest.Entry{}, merged: map[string]bool{}, left: map[string]snap.ConflictReason{},
		since: map[string]snap.Hash{}, states: map[snap.Hash]*manifest.Manifest{}, known: map[string]bool{}}
	if err := r.all(ctx); err != nil {
		return nil, none, workspace.Wrap(errs.Failed, op, err)
	}
	how := r.outcome()
	if len(how.Paths) == 0 {
		how, err = r.asSeen(how)
		return nil, how, workspace.Wrap(errs.Failed, op, err)
	}
	target, err := r.target(ctx)
	if err != nil {
		return nil, none, workspace.Wrap(errs.Failed, op, err)
	}
	sc, err := makeScope(op, how.Paths)
	if err != nil {
		return nil, none, err
	}
	sw, err := d.prepare(ctx, op, req.ID, base, target, sc, b, nil)
	if err != nil {
		return nil, none, err
	}
	how, err = r.asSeen(how)
	return sw, how, err
}

// all computes the new entries of all paths.
func (r *reverting) all(ctx context.Context) error {
	for _, p := range relpath.SortedKeys(r.tracks) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.path(p, r.tracks[p]); err != nil {
			return err
		}
	}
	if err := r.repositories(ctx); err != nil {
		return err
	}
	return r.fit(ctx)
}

// path reverts the runs of one path, newest first.
func (r *reverting) path(p string, k *journal.Track) error {
	if r.d.ws.Exclude.Covers(p) {
		r.left[p] = snap.Excluded
		return nil
	}
	now, err := r.base.Find(p)
	if err != nil {
		return err
	}
	e, merged := now, false
	for _, run := range slices.Backward(k.Runs) {
		next, m, why, err := r.merger.Merge(run.After, e, run.Before)
		if err != nil {
			return err
		}
		if why != "" && !r.force {
			r.left[p] = why
			return nil
		}
		if why != "" {
			e, merged = k.Runs[0].Before, false
			r.since[p] = k.Runs[0].Since
			break
		}
		if next == run.Before {
			r.since[p] = run.Since
		}
		e, merged = next, merged || m
	}
	r.set(p, now, e, merged)
	return nil
}

// set records the new entry of p, whose present entry is now.
func (r *reverting) set(p string, now, e *manifest.Entry, merged bool) {
	if merge.Alike(now, e) {
		return
	}
	if e != nil {
		x := *e
		x.SetGroup("")
		if manifest.IsFolder(&x) && manifest.IsFolder(now) { // the time of a folder changes with its entries
			x.Mtime, x.Loose = now.Mtime, now.Loose
		}
		e = &x
	}
	r.to[p] = e
	if merged {
		r.merged[p] = true
	}
}

// fit drops changes that do not fit together: entries whose folder does not exist, and removals of folders that are not empty.
// It repeats this until the rest is consistent.
func (r *reverting) fit(ctx context.Context) error {
	for {
		paths := relpath.SortedKeys(r.to)
		n := len(paths)
		for _, p := range paths {
			e, goes := r.to[p]
			if !goes { // its repository is left alone
				continue
			}
			why, err := r.misfit(p, e)
			if err == nil && why == "" {
				why, err = r.exposes(ctx, p, e)
			}
			if err == nil && why != "" {
				err = r.leave(p, why)
			}
			if err != nil {
				return err
			}
		}
		if len(r.to) == n {
			return nil
		}
	}
}

// misfit returns why e cannot be at p, "" if it can.
func (r *reverting) misfit(p string, e *manifest.Entry) (snap.ConflictReason, error) {
	now, err := r.base.Find(p)
	if err != nil {
		return "", err
	}
	if e != nil && p != "." {
		dir, _ := relpath.Split(p)
		in, err := r.at(dir)
		if err != nil {
			return "", err
		}
		if !manifest.IsFolder(in) {
			return snap.NoParent, nil
		}
	}
	if p == "." && !manifest.IsFolder(e) || now != nil && now.Mount {
		return snap.Retyped, nil
	}
	if !manifest.IsFolder(now) || manifest.IsFolder(e) {
		return "", nil
	}
	kids, err := manifest.EntriesOf(r.base, now)
	for i := range kids {
		if to, goes := r.to[relpath.Join(p, kids[i].Name)]; !goes || to != nil {
			return snap.NotEmpty, nil
		}
	}
	return "", err
}

// at returns the entry that will be at a path.
func (r *reverting) at(p string) (*manifest.Entry, error) {
	if e, ok := r.to[p]; ok {
		return e, nil
	}
	return r.base.Find(p)
}

func (r *reverting) outcome() snap.Reverted {
	how := snap.Reverted{Paths: relpath.SortedKeys(r.to), Merged: relpath.SortedKeys(r.merged)}
	for _, p := range relpath.SortedKeys(r.left) {
		how.Left = append(how.Left, snap.Conflict{Path: p, Why: r.left[p]})
	}
	return how
}

// target returns the manifest of the result.
func (r *reverting) target(ctx context.Context) (*manifest.Manifest, error) {
	t := &manifest.Edits{}
	for p, e := range r.to {
		t.Put(p, e)
	}
	return r.base.Edit(ctx, t)
}
