package files

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
)

// mayReplace makes sure that nothing is lost that is in live: a Commit fails
// if something is neither as the base nor as the target has it, an Undo stores it.
func (c *change) mayReplace(ctx context.Context, op string, live *manifest, deltas []delta, base, target *manifest, done state) error {
	if c.plan.State == prepared {
		path, err := c.moved(ctx, base, live)
		if err == nil && path != "" {
			err = snap.Changed(op, shown(c.d.cfg.Dir, path))
		}
		return wrapped(errs.Failed, op, err)
	}
	odd, err := c.unexplained(deltas, base, target)
	switch {
	case err != nil:
	case len(odd) == 0:
	case done == switched:
		return snap.Changed(op, shown(c.d.cfg.Dir, odd[0]))
	default:
		err = c.keepLate(live, odd)
	}
	return wrapped(errs.Failed, op, err)
}

// settleFrames lets folders on the way to the scope end as the base has them,
// whatever an interrupted Commit did to their times.
func (c *change) settleFrames(deltas []delta, base *manifest) error {
	for i := range deltas {
		if !deltas[i].frame {
			continue
		}
		e, err := base.find(deltas[i].path)
		if err != nil {
			return err
		}
		if isFolder(e) {
			deltas[i].new = e
		}
	}
	return nil
}

// unexplained lists the paths where something is that neither base nor target
// has, nor the way from one to the other.
func (c *change) unexplained(deltas []delta, base, target *manifest) ([]string, error) {
	var odd []string
	for _, d := range deltas {
		_, name := relpath.Split(d.path)
		if d.frame || d.old == nil || strings.HasPrefix(name, tmpPrefix(string(c.id))) {
			continue
		}
		b, err := base.find(d.path)
		if err != nil {
			return nil, err
		}
		t, err := target.find(d.path)
		if err != nil {
			return nil, err
		}
		ours := between(d.old, b, t)
		if !ours && c.d.holderOf(base.root.uid).keeps(b, t) {
			if ours, err = halfRewritten(c.d.cfg.Store, d.old, b, t); err != nil {
				return nil, err
			}
		}
		if !ours {
			odd = append(odd, d.seen())
		}
	}
	return odd, nil
}

// between reports whether e is a or b, or has the body of one and meta data of
// which each part is from one of them: meta data is changed a part at a time.
func between(e, a, b *entry) bool {
	var from []*entry
	for _, x := range []*entry{a, b} {
		if x != nil && (isFolder(e) && isFolder(x) || e.sameBody(x)) {
			from = append(from, x)
		}
	}
	if len(from) == 0 || isFolder(e) {
		return len(from) > 0
	}
	return metaBetween(e, from) && slices.ContainsFunc(from, func(x *entry) bool { return x.mtime == e.mtime })
}

// metaBetween reports whether each part of e's meta data but its time is from one of the others.
func metaBetween(e *entry, from []*entry) bool {
	any := func(same func(x *entry) bool) bool { return slices.ContainsFunc(from, same) }
	const special = unix.S_ISUID | unix.S_ISGID // a change of owner takes them away
	return any(func(x *entry) bool { return x.mode == e.mode || x.mode&^special == e.mode }) &&
		any(func(x *entry) bool { return x.uid == e.uid && x.gid == e.gid }) &&
		(any(func(x *entry) bool { return equalXattrs(x, e) }) || len(from) > 1 && xattrsBetween(e, from))
}

// xattrsBetween reports whether each of e's attributes is one of the others'.
func xattrsBetween(e *entry, from []*entry) bool {
	for _, x := range e.xattrs() {
		if !slices.ContainsFunc(from, func(f *entry) bool { return slices.Contains(f.xattrs(), x) }) {
			return false
		}
	}
	return true
}

// keepLate stores what the workspace is now, beside everything else.
func (c *change) keepLate(live *manifest, odd []string) error {
	b := c.d.cfg.Store.Begin()
	defer b.Discard()
	if !b.Keep(live.hash) {
		return errs.New(errs.Internal, "undo files", "the store lost what was just put there")
	}
	root, err := c.d.lateName(c.id)
	if err != nil {
		return err
	}
	if err := b.Commit(cas.Root{Name: root, Hash: live.hash}); err != nil {
		return err
	}
	more := ""
	if len(odd) > 1 {
		more = fmt.Sprintf(" and %d more", len(odd)-1)
	}
	c.plan.Notes = append(c.plan.Notes, fmt.Sprintf("%s%s changed after the restore; before the undo that was stored under %s.",
		shown(c.d.cfg.Dir, odd[0]), more, root))
	return nil
}
