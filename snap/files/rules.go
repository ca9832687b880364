package files

import (
	"context"
	"fmt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// maxRules bounds the bytes of the rules that are stored with a snapshot, because the data of a root is bounded.
const maxRules = 16 << 10

// withRules returns m with d's present rules of exclusion.
func withRules(d *Driver, m meta) meta {
	m.Rules = d.ws.Exclude.Hash()
	n := 0
	for _, list := range [][]string{d.cfg.Exclude, d.cfg.Skip} {
		for _, s := range list {
			n += len(s)
		}
	}
	if n <= maxRules {
		m.Exclude, m.Skip = d.cfg.Exclude, d.cfg.Skip
	}
	return m
}

// rulesOf returns the rules of exclusion at the time of a snapshot, or nil if only their hash is known: an earlier mulligan stored no more.
func rulesOf(m meta) *workspace.Rules {
	if x := workspace.NewRules(m.Exclude, m.Skip); x.Hash() == m.Rules {
		return x
	}
	return nil
}

// stored returns a snapshot's manifest with the present rules of exclusion. If the snapshot was captured with other rules, the
// manifest is computed again without the paths that are excluded now.
func (d *Driver) stored(ctx context.Context, op string, id snap.SnapshotID) (*manifest.Manifest, error) {
	m, _, err := storedOver(ctx, d, op, id, nil)
	return m, err
}

// storedOver does the same as stored, and adds what live has and the snapshot could not have, because its own rules excluded it: a
// restore must not remove that. It also returns the outermost paths of what it added.
func storedOver(ctx context.Context, d *Driver, op string, id snap.SnapshotID, live *manifest.Manifest) (m *manifest.Manifest, stays []string, err error) {
	r, about, err := d.root(op, id)
	if err != nil {
		return nil, nil, err
	}
	m, err = journal.Resolve(ctx, d.cfg.Store, r.Hash)
	if err != nil || about.Rules == d.ws.Exclude.Hash() {
		return m, nil, workspace.Wrap(errs.Corrupt, op, err)
	}
	a := &adjusted{ctx: ctx, m: m, live: live, now: d.ws.Exclude, then: rulesOf(about)}
	var root *manifest.Entry
	if live != nil && a.then != nil {
		root = &live.Root
	}
	n, err := a.load(".", &m.Root, root, false)
	if err == nil {
		m, err = manifest.SealTree(n, d.cfg.Store, nil)
	}
	return m, a.stays, workspace.Wrap(errs.Failed, op, err)
}

// adjusted computes a snapshot's manifest anew, because the rules of exclusion have changed.
type adjusted struct {
	ctx       context.Context
	m, live   *manifest.Manifest
	now, then *workspace.Rules
	stays     []string // outermost paths that are added from live
}

// load loads into memory what is at path: the snapshot's entry e, without the paths below it that are excluded now, and of the live entry
// is, what was excluded then. Either may be nil. out means that path was excluded then. The result is nil if there is nothing.
func (a *adjusted) load(path string, e, is *manifest.Entry, out bool) (*manifest.Node, error) {
	if e == nil && !out && a.then.Excludes(path, is.Kind() == manifest.DirKind) {
		out, a.stays = true, append(a.stays, path)
	}
	n := &manifest.Node{}
	switch {
	case e != nil:
		n.Entry, n.LinkKey = *e, e.Group()
		if n.Loose = a.now.Loose[path]; n.Loose {
			n.Mtime = inode.Time{}
		} else if e.Loose && manifest.IsFolder(is) { // the snapshot does not have the time
			n.Mtime = is.Mtime
		}
	case out || is.IsDir():
		if n.Entry = *is; is.Group() != "" {
			n.LinkKey = "/" + is.Group() // no group of the snapshot begins so
		}
	default:
		return nil, a.ctx.Err()
	}
	if !n.IsDir() {
		return n, a.ctx.Err()
	}
	stored, err := manifest.EntriesOf(a.m, e)
	if err != nil {
		return nil, err
	}
	live, err := manifest.EntriesOf(a.live, is)
	if err != nil {
		return nil, err
	}
	var kids []*manifest.Node
	err = manifest.Pairs(stored, live, func(name string, e, is *manifest.Entry) error {
		p := relpath.Join(path, name)
		if e != nil && a.now.Excludes(p, e.Kind() == manifest.DirKind) {
			if e = nil; is == nil {
				return nil
			}
		}
		kid, err := a.load(p, e, is, out)
		if kid != nil {
			kids = append(kids, kid)
		}
		return err
	})
	if e == nil && !out && len(kids) == 0 {
		return nil, err
	}
	n.SetChildren(kids)
	return n, err
}

// staysNotes returns a note of the paths that a restore of the scope leaves as they are, because the snapshot could not have them.
func staysNotes(d *Driver, stays []string, sc relpath.Scope) []string {
	first, n := "", 0
	for _, p := range stays {
		if !sc.Leads(p) {
			continue
		}
		if n++; n == 1 {
			first = shown(d, p)
		}
	}
	switch n {
	case 0:
		return nil
	case 1:
		return []string{first + " stays as it is: the checkpoint does not have it, because it was excluded then, or belonged to a database."}
	}
	return []string{fmt.Sprintf("%s and %d more stay as they are: the checkpoint does not have them, because they were excluded then, or belonged to a database.", first, n-1)}
}
