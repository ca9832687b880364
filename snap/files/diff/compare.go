// Package diff compares two manifests, and words the differences for people.
package diff

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
)

// Delta is one path at which two manifests differ: the old entry and the new one. nil is nothing. Folders that differ only in what they hold
// are deltas too, since their times must be put right.
type Delta struct {
	Path     string
	Old, New *manifest.Entry
	HiddenBy string // the outermost folder above it that the reader may not look into; "": none
	Outside  bool   // a folder outside of the scope, on the way into it: stays as it is

	Remake    bool   // what is there goes, and is made anew: its folder changes hands
	LinkTo    string // where again: a name of the file that stays, to be linked to
	Rewritten bool   // by an apply, in place
}

// comparison walks two manifests side by side, into differing folders only.
type comparison struct {
	ctx      context.Context
	old, new *manifest.Manifest
	scope    relpath.Scope
	reader   rights.Reader
	groups   bool // hard-link groups count
}

// branch is a path at which two manifests differ, with what differs below it.
type branch struct {
	Delta
	a, b *manifest.Entry // what the manifests have there
	kids []*branch
}

// Compare lists where new differs from old, parents before what they hold, and notes what the
// reader may not see. Within a scope, hard-link groups do not count: they may reach out of it.
func Compare(ctx context.Context, reader rights.Reader, old, new *manifest.Manifest, sc relpath.Scope) ([]Delta, error) {
	c := &comparison{ctx: ctx, old: old, new: new, scope: sc, reader: reader, groups: len(sc) == 0}
	if old.Hash == new.Hash {
		return nil, nil
	}
	top, err := c.pair(".", &old.Root, &new.Root)
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
func (t *branch) list(out []Delta) []Delta {
	out = append(out, t.Delta)
	for _, k := range t.kids {
		out = k.list(out)
	}
	return out
}

// alike reports whether nothing at or below the two differs.
func (c *comparison) alike(a, b *manifest.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameMeta(b) && a.SameBody(b) && a.Hash == b.Hash && (a.Group() == b.Group() || !c.groups)
}

// pair compares what is at path on either side; nil: nothing is to be done there.
func (c *comparison) pair(path string, old, new *manifest.Entry) (*branch, error) {
	if c.alike(old, new) {
		return nil, c.ctx.Err()
	}
	t := &branch{Delta: Delta{Path: path, Old: old, New: new}, a: old, b: new}
	if !c.scope.Holds(path) {
		d := &t.Delta
		switch {
		case new == nil, !new.IsDir():
			d.New = old // what is outside of the scope stays
		case old != nil && !old.IsDir():
			return nil, errs.New(errs.Conflict, "compare files", "%s is in the way of what is to be restored below it", path).
				WithHint("widen the scope to %s", path)
		case old != nil:
			d.New = old
		}
		if d.New == nil || !d.New.IsDir() {
			return nil, nil
		}
		d.Outside = old != nil
	}
	return t, nil
}

// below compares the entries of t's folders, either of which may be none.
func (c *comparison) below(t *branch) error {
	if t.a != nil && t.a.Mount || t.b != nil && t.b.Mount {
		return nil
	}
	a, err := manifest.EntriesOf(c.old, t.a)
	if err != nil {
		return err
	}
	b, err := manifest.EntriesOf(c.new, t.b)
	if err != nil {
		return err
	}
	veil := t.HiddenBy
	if veil == "" && !(c.seesInto(t.a) && c.seesInto(t.b)) {
		veil = t.Path
	}
	return manifest.Pairs(a, b, func(name string, x, y *manifest.Entry) error {
		p := relpath.Join(t.Path, name)
		if !c.scope.Leads(p) {
			return nil
		}
		k, err := c.pair(p, x, y)
		if k != nil {
			k.HiddenBy = veil
			t.kids = append(t.kids, k)
		}
		return err
	})
}

// seesInto reports whether the reader may look into e, if it is a folder.
func (c *comparison) seesInto(e *manifest.Entry) bool {
	return !manifest.IsFolder(e) || c.reader.SeesInto(e)
}

// Seen is the path as the reader may see it: what lies in a folder that the reader
// may not look into is told by that folder's.
func (d *Delta) Seen() string {
	if d.HiddenBy != "" {
		return d.HiddenBy
	}
	return d.Path
}

// Changes tells of what happened from old to new, for people: a folder whose
// times alone moved, because something in it did, is left out. Of what changed in a folder
// that the reader may not look into only the number is told.
func Changes(deltas []Delta, limit int) (list []snap.Change, total int) {
	veiled := map[string]int{}
	for _, d := range deltas {
		c := snap.Change{Path: d.Path, Operation: snap.Modify, Summary: d.summary()}
		switch {
		case d.Outside || d.Old != nil && d.New != nil && c.Summary == "":
			continue
		case d.Old == nil:
			c.Operation = snap.Create
		case d.New == nil:
			c.Operation = snap.Delete
		}
		if d.HiddenBy != "" {
			veiled[d.HiddenBy]++
			if veiled[d.HiddenBy] > 1 || len(list) > 0 && list[len(list)-1].Path == d.HiddenBy {
				continue
			}
			c = snap.Change{Path: d.HiddenBy, Operation: snap.Modify}
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

func (d *Delta) summary() string {
	a, b := d.Old, d.New
	if a == nil {
		return what(b)
	}
	if b == nil {
		return what(a)
	}
	if a.Kind() != b.Kind() || a.Mount != b.Mount {
		return what(a) + " → " + what(b)
	}
	var s []string
	say := func(on bool, format string, args ...any) {
		if on {
			s = append(s, fmt.Sprintf(format, args...))
		}
	}
	say(a.Size != b.Size, "%s → %s", FormatSize(a.Size), FormatSize(b.Size))
	say(a.IsFile() && a.Size == b.Size && a.Hash != b.Hash, "content")
	say(a.Link() != b.Link(), "target %q → %q", a.Link(), b.Link())
	say(a.Rdev() != b.Rdev(), "device %d → %d", a.Rdev(), b.Rdev())
	say(a.Perm() != b.Perm(), "mode %o→%o", a.Perm(), b.Perm())
	say(a.Uid != b.Uid || a.Gid != b.Gid, "owner %d:%d→%d:%d", a.Uid, a.Gid, b.Uid, b.Gid)
	say(!manifest.EqualXattrs(a, b), "attributes")
	say(a.Group() != b.Group(), "hard links")
	say(len(s) == 0 && a.Mtime != b.Mtime && !a.IsDir(), "time")
	return strings.Join(s, ", ")
}

// what says what a thing is.
func what(e *manifest.Entry) string {
	if e.Mount {
		return "mount point"
	}
	switch e.Kind() {
	case unix.S_IFDIR:
		return "folder"
	case unix.S_IFLNK:
		return fmt.Sprintf("link to %q", e.Link())
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "device"
	}
	return FormatSize(e.Size)
}

func FormatSize(n int64) string {
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

// SameGroup reports whether the hard-link group stays the same.
func (d *Delta) SameGroup() bool {
	if d.Old == nil {
		return d.New.Group() == ""
	}
	return d.Old.Group() == d.New.Group()
}

// Mounted reports whether a mount point stands, or stood, at the path: it is
// left as it is.
func (d *Delta) Mounted() bool {
	return d.Old != nil && d.Old.Mount || d.New != nil && d.New.Mount
}

// Goes reports whether the old thing must be away before the new can come.
func (d *Delta) Goes() bool {
	return d.Old != nil && !d.Mounted() && (d.New == nil || d.Remake || manifest.IsFolder(d.Old) != manifest.IsFolder(d.New))
}

// MostTelling is the path among deltas that says most to a reader: a file rather
// than the folder whose time moved with it.
func MostTelling(deltas []Delta) string {
	path := "."
	for _, d := range deltas {
		if !manifest.IsFolder(d.Old) || !manifest.IsFolder(d.New) {
			return d.Seen()
		}
		path = d.Seen()
	}
	return path
}
