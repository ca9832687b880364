package files

import (
	"context"
	"os"

	"mulligan/snap"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// exposes returns why e cannot be at p: it would make files of other users accessible that only a folder's rights protected. It
// returns "" if there are none.
func (r *reverting) exposes(ctx context.Context, p string, e *manifest.Entry) (snap.ConflictReason, error) {
	if e == nil || os.Geteuid() != 0 {
		return "", nil
	}
	now, err := r.base.Find(p)
	if err != nil {
		return "", err
	}
	if manifest.IsFolder(now) && manifest.IsFolder(e) && p != "." && !r.merger.FileOwner.KeepsFolder(now, e) {
		return r.handsOver(p, now)
	}
	if e.Uid == uint32(r.merger.FileOwner) || r.since[p].IsZero() {
		return "", nil
	}
	return r.movedApart(ctx, p)
}

// handsOver returns why the folder p, whose present entry is now, cannot get other rights: it contains files of other users
// that stay, or that are excluded.
func (r *reverting) handsOver(p string, now *manifest.Entry) (snap.ConflictReason, error) {
	kids, err := manifest.EntriesOf(r.base, now)
	if err != nil {
		return "", err
	}
	for i := range kids {
		k := &kids[i]
		path := relpath.Join(p, k.Name)
		to, changes := r.to[path]
		if !changes && (k.Mount || k.Uid != uint32(r.merger.FileOwner)) {
			return snap.Rights, nil
		}
		if manifest.IsFolder(k) && (!changes || manifest.IsFolder(to)) {
			if why, err := r.handsOver(path, k); why != "" || err != nil {
				return why, err
			}
		}
	}
	root, err := r.d.ws.Open()
	if err != nil {
		return "", err
	}
	defer root.Close()
	held, err := r.d.applier.Held(root, p, false)
	if held != "" {
		return snap.Rights, err
	}
	return "", err
}

// movedApart returns why another user's file cannot be restored at p: a folder on the way has other rights than when the file
// was in it.
func (r *reverting) movedApart(ctx context.Context, p string) (snap.ConflictReason, error) {
	then, err := r.state(ctx, r.since[p])
	if err != nil {
		return "", err
	}
	for dir := p; dir != "."; {
		dir, _ = relpath.Split(dir)
		was, err := then.Find(dir)
		if err != nil {
			return "", err
		}
		is, err := r.at(dir)
		if err != nil {
			return "", err
		}
		if manifest.IsFolder(was) && manifest.IsFolder(is) && !r.merger.FileOwner.KeepsFolder(was, is) {
			return snap.Rights, nil
		}
	}
	return "", nil
}

// state returns the manifest of a state of the journal.
func (r *reverting) state(ctx context.Context, h snap.Hash) (*manifest.Manifest, error) {
	if m := r.states[h]; m != nil {
		return m, nil
	}
	m, err := journal.Resolve(ctx, r.d.cfg.Store, h)
	if err == nil {
		r.states[h] = m
	}
	return m, err
}
