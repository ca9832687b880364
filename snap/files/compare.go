package files

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
)

// delta is one path at which two manifests differ: what is there (or was), and
// what shall be. nil is nothing. Folders that differ only in what they hold
// are deltas too, since their times must be put right.
type delta struct {
	path     string
	old, new *entry
	veil     string // the outermost folder above it that the reader may not look into; "": none
	frame    bool   // a folder outside of the scope, on the way into it: stays as it is

	again     bool   // what is there goes, and is made anew: its folder changes hands
	twin      string // where again: a name of the file that stays, to be linked to
	rewritten bool   // by an apply, in place
}

// comparison walks two manifests side by side, into differing folders only.
type comparison struct {
	ctx      context.Context
	old, new *manifest
	scope    relpath.Scope
	reader   Reader
	groups   bool // hard-link groups count
}

// branch is a path at which two manifests differ, with what differs below it.
type branch struct {
	delta
	a, b *entry // what the manifests have there
	kids []*branch
}

// compare lists where new differs from old, parents before what they hold.
// Within a scope, hard-link groups do not count: they may reach out of it.
func compare(ctx context.Context, old, new *manifest, sc relpath.Scope) ([]delta, error) {
	return compareFor(ctx, Reader{}, old, new, sc)
}

// compare compares, and notes what the app's owner may not see.
func (d *Driver) compare(ctx context.Context, old, new *manifest, sc relpath.Scope) ([]delta, error) {
	return compareFor(ctx, d.cfg.Reader, old, new, sc)
}

func compareFor(ctx context.Context, reader Reader, old, new *manifest, sc relpath.Scope) ([]delta, error) {
	c := &comparison{ctx: ctx, old: old, new: new, scope: sc, reader: reader, groups: len(sc) == 0}
	if old.hash == new.hash {
		return nil, nil
	}
	top, err := c.pair(".", &old.root, &new.root)
	if err != nil || top == nil {
		return nil, err
	}
	for level := []*branch{top}; len(level) > 0; { // reading folders is what takes time
		err := parallel.InRuns(len(level), func() (func(int) error, func()) {
			return func(i int) error { return c.below(level[i]) }, func() {}
		})
		if err != nil {
			return nil, err
		}
		var next []*branch
		for _, t := range level {
			next = append(next, t.kids...)
		}
		level = next
	}
	return top.list(nil), nil
}

// list appends the deltas of t and of what is below it.
func (t *branch) list(out []delta) []delta {
	out = append(out, t.delta)
	for _, k := range t.kids {
		out = k.list(out)
	}
	return out
}

// alike reports whether nothing at or below the two differs.
func (c *comparison) alike(a, b *entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.sameMeta(b) && a.sameBody(b) && a.hash == b.hash && (a.group() == b.group() || !c.groups)
}

// pair compares what is at path on either side; nil: nothing is to be done there.
func (c *comparison) pair(path string, old, new *entry) (*branch, error) {
	if c.alike(old, new) {
		return nil, c.ctx.Err()
	}
	t := &branch{delta: delta{path: path, old: old, new: new}, a: old, b: new}
	if !c.scope.Holds(path) {
		d := &t.delta
		switch {
		case new == nil, !new.isDir():
			d.new = old // what is outside of the scope stays
		case old != nil && !old.isDir():
			return nil, errs.New(errs.Conflict, "compare files", "%s is in the way of what is to be restored below it", path).
				WithHint("widen the scope to %s", path)
		case old != nil:
			d.new = old
		}
		if d.new == nil || !d.new.isDir() {
			return nil, nil
		}
		d.frame = old != nil
	}
	return t, nil
}

// below compares the entries of t's folders, either of which may be none.
func (c *comparison) below(t *branch) error {
	if t.a != nil && t.a.mount || t.b != nil && t.b.mount {
		return nil
	}
	a, err := entriesOf(c.old, t.a)
	if err != nil {
		return err
	}
	b, err := entriesOf(c.new, t.b)
	if err != nil {
		return err
	}
	veil := t.veil
	if veil == "" && !(c.seesInto(t.a) && c.seesInto(t.b)) {
		veil = t.path
	}
	return pairs(a, b, func(name string, x, y *entry) error {
		p := relpath.Join(t.path, name)
		if !c.scope.Leads(p) {
			return nil
		}
		k, err := c.pair(p, x, y)
		if k != nil {
			k.veil = veil
			t.kids = append(t.kids, k)
		}
		return err
	})
}

// seesInto reports whether the reader may look into e, if it is a folder.
func (c *comparison) seesInto(e *entry) bool { return !isFolder(e) || c.reader.seesInto(e) }

// pairs calls do for each name in a or b, both of which are sorted, with its entries; nil: none.
func pairs(a, b []entry, do func(name string, x, y *entry) error) error {
	for len(a) > 0 || len(b) > 0 {
		var x, y *entry
		var name string
		if len(b) == 0 || len(a) > 0 && a[0].name <= b[0].name {
			x = &a[0]
		}
		if len(a) == 0 || len(b) > 0 && b[0].name <= a[0].name {
			y = &b[0]
		}
		if x != nil {
			name, a = x.name, a[1:]
		}
		if y != nil {
			name, b = y.name, b[1:]
		}
		if err := do(name, x, y); err != nil {
			return err
		}
	}
	return nil
}

func entriesOf(m *manifest, e *entry) ([]entry, error) {
	if e == nil || !e.isDir() {
		return nil, nil
	}
	return m.folder(e.hash)
}

// telling is the path among deltas that says most to a reader: a file rather
// than the folder whose time moved with it.
func telling(deltas []delta) string {
	path := "."
	for _, d := range deltas {
		if !isFolder(d.old) || !isFolder(d.new) {
			return d.seen()
		}
		path = d.seen()
	}
	return path
}

// seen is the path as the reader may see it: what lies in a folder that the reader
// may not look into is told by that folder's.
func (d *delta) seen() string {
	if d.veil != "" {
		return d.veil
	}
	return d.path
}

// changes tells of what happened from old to new, for people: a folder whose
// times alone moved, because something in it did, is left out. Of what changed in a folder
// that the reader may not look into only the number is told.
func changes(deltas []delta, limit int) (list []snap.Change, total int) {
	veiled := map[string]int{}
	for _, d := range deltas {
		c := snap.Change{Path: d.path, Operation: snap.Modify, Summary: d.summary()}
		switch {
		case d.frame || d.old != nil && d.new != nil && c.Summary == "":
			continue
		case d.old == nil:
			c.Operation = snap.Create
		case d.new == nil:
			c.Operation = snap.Delete
		}
		if d.veil != "" {
			veiled[d.veil]++
			if veiled[d.veil] > 1 || len(list) > 0 && list[len(list)-1].Path == d.veil {
				continue
			}
			c = snap.Change{Path: d.veil, Operation: snap.Modify}
		}
		total++
		if len(list) < limit {
			list = append(list, c)
		}
	}
	for i := range list {
		list[i].Summary = veiledSummary(list[i].Summary, veiled[list[i].Path])
	}
	return list, total
}

// veiledSummary adds to the summary of a folder's change that n things changed in it unseen.
func veiledSummary(summary string, n int) string {
	if n == 0 {
		return summary
	}
	text := fmt.Sprintf("%d changes in it, where the app's owner may not look", n)
	if n == 1 {
		text = "1 change in it, where the app's owner may not look"
	}
	if summary == "" {
		return text
	}
	return summary + "; " + text
}

func (d *delta) summary() string {
	a, b := d.old, d.new
	if a == nil {
		return b.what()
	}
	if b == nil {
		return a.what()
	}
	if a.kind() != b.kind() || a.mount != b.mount {
		return a.what() + " → " + b.what()
	}
	var s []string
	say := func(on bool, format string, args ...any) {
		if on {
			s = append(s, fmt.Sprintf(format, args...))
		}
	}
	say(a.size != b.size, "%s → %s", size(a.size), size(b.size))
	say(a.isFile() && a.size == b.size && a.hash != b.hash, "content")
	say(a.link() != b.link(), "target %q → %q", a.link(), b.link())
	say(a.rdev() != b.rdev(), "device %d → %d", a.rdev(), b.rdev())
	say(a.perm() != b.perm(), "mode %o→%o", a.perm(), b.perm())
	say(a.uid != b.uid || a.gid != b.gid, "owner %d:%d→%d:%d", a.uid, a.gid, b.uid, b.gid)
	say(!equalXattrs(a, b), "attributes")
	say(a.group() != b.group(), "hard links")
	say(len(s) == 0 && a.mtime != b.mtime && !a.isDir(), "time")
	return strings.Join(s, ", ")
}

// what says what a thing is.
func (e *entry) what() string {
	if e.mount {
		return "mount point"
	}
	switch e.kind() {
	case unix.S_IFDIR:
		return "folder"
	case unix.S_IFLNK:
		return fmt.Sprintf("link to %q", e.link())
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "device"
	}
	return size(e.size)
}

func size(n int64) string {
	for _, u := range []struct {
		name string
		unit int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= 10*u.unit {
			return fmt.Sprintf("%d %s", n/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
