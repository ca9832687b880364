// Package diff compares two manifests, and describes the differences for people.
package diff

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
)

// Delta is a path at which two manifests differ, with the old and the new entry. An entry is nil if the path does not exist. A
// folder whose entries differ is a delta too, because its time must be restored.
type Delta struct {
	Path     string
	Old, New *manifest.Entry
	HiddenBy string // the outermost folder above Path that the reader may not look into; "": none
	Outside  bool   // a folder outside of the scope, above a path of the scope: it stays as it is

	Remake    bool   // the entry is removed and created anew: it is, or is in, a folder that changes its owner
	LinkTo    string // with Remake: another name of the same file, which stays and to which Path is linked
	Rewritten bool   // an apply has begun to rewrite the file in place
}

// comparison walks two manifests together. It enters only folders that differ.
type comparison struct {
	ctx      context.Context
	old, new *manifest.Manifest
	scope    relpath.Scope
	reader   rights.Reader
	groups   bool // compare hard-link groups too
}

// branch is a path at which two manifests differ, with the differences below it.
type branch struct {
	Delta
	a, b *manifest.Entry // the entries of the manifests at the path
	kids []*branch
}

// Compare returns the paths at which new differs from old, folders before their entries, and marks the paths that the reader
// may not see. With a scope, it ignores hard-link groups, because they may reach out of the scope.
func Compare(ctx context.Context, reader rights.Reader, old, new *manifest.Manifest, sc relpath.Scope) ([]Delta, error) {
	c := &comparison{ctx: ctx, old: old, new: new, scope: sc, reader: reader, groups: len(sc) == 0}
	if old.Hash == new.Hash {
		return nil, nil
	}
	top, err := c.pair(".", &old.Root, &new.Root)
	if err != nil || top == nil {
		return nil, err
	}
	for level := []*branch{top}; len(level) > 0; { // each level runs in parallel, because reading folders takes most of the time
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

// list appends to out the deltas of t and of the branches below it.
func (t *branch) list(out []Delta) []Delta {
	out = append(out, t.Delta)
	for _, k := range t.kids {
		out = k.list(out)
	}
	return out
}

// alike reports whether a and b have no difference, either themselves or below them.
func (c *comparison) alike(a, b *manifest.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameMeta(b) && a.SameBody(b) && a.Hash == b.Hash && (a.Group() == b.Group() || !c.groups)
}

// pair compares the entries at path. It returns nil if there is no difference, or if a difference outside of the scope is
// ignored.
func (c *comparison) pair(path string, old, new *manifest.Entry) (*branch, error) {
	if c.alike(old, new) {
		return nil, c.ctx.Err()
	}
	t := &branch{Delta: Delta{Path: path, Old: old, New: new}, a: old, b: new}
	if !c.scope.Holds(path) {
		d := &t.Delta
		switch {
		case new == nil, !new.IsDir():
			d.New = old // paths outside of the scope stay as they are
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

// below compares the entries of t's two folders, one of which may be missing.
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
	hiddenBy := t.HiddenBy
	if hiddenBy == "" && !(c.seesInto(t.a) && c.seesInto(t.b)) {
		hiddenBy = t.Path
	}
	return manifest.Pairs(a, b, func(name string, x, y *manifest.Entry) error {
		p := relpath.Join(t.Path, name)
		if !c.scope.Leads(p) {
			return nil
		}
		k, err := c.pair(p, x, y)
		if k != nil {
			k.HiddenBy = hiddenBy
			t.kids = append(t.kids, k)
		}
		return err
	})
}

// seesInto reports whether e is no folder, or one that the reader may look into.
func (c *comparison) seesInto(e *manifest.Entry) bool {
	return !manifest.IsFolder(e) || c.reader.SeesInto(e)
}

// Seen returns the path as the reader may see it. For a path in a folder that the reader may not look into, it is the path of
// that folder.
func (d *Delta) Seen() string {
	if d.HiddenBy != "" {
		return d.HiddenBy
	}
	return d.Path
}

// Changes describes the deltas for people: at most limit of them, and their total. It leaves out folders of which only the time
// changed, because something in them did. For folders that the reader may not look into, it tells only the number of changes.
func Changes(deltas []Delta, limit int) (list []snap.Change, total int) {
	hidden := map[string]int{}
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
			hidden[d.HiddenBy]++
			if hidden[d.HiddenBy] > 1 || len(list) > 0 && list[len(list)-1].Path == d.HiddenBy {
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
		list[i].Summary = hiddenSummary(list[i].Summary, hidden[list[i].Path])
	}
	return list, total
}

// hiddenSummary adds n, the number of hidden changes in a folder, to the summary of the folder's change.
func hiddenSummary(summary string, n int) string {
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

// what describes an entry: its type, or the size of a file.
func what(e *manifest.Entry) string {
	if e.Mount {
		return "mount point, or not readable"
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

// FormatSize returns n bytes with a unit, such as "12 KiB".
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

// Regrouped returns the hard-link groups of entries whose first name stays as it is, with their other names in order: the first of these takes
// its place. stays has the paths that stay beside those that are mounted, and entry returns that entry of a delta which is meant.
func Regrouped(deltas []Delta, stays map[string]bool, entry func(*Delta) *manifest.Entry) map[string][]string {
	alone := maps.Clone(stays)
	for i := range deltas {
		if deltas[i].Mounted() {
			alone[deltas[i].Path] = true
		}
	}
	out := map[string][]string{}
	for i := range deltas {
		e := entry(&deltas[i])
		if e == nil || e.Group() == "" || alone[deltas[i].Path] {
			continue
		}
		for p := e.Group(); p != "."; p, _ = relpath.Split(p) {
			if alone[p] {
				out[e.Group()] = append(out[e.Group()], deltas[i].Path)
				break
			}
		}
	}
	return out
}

// Mounted reports whether either entry is a mount point. A mount point stays as it is.
func (d *Delta) Mounted() bool {
	return d.Old != nil && d.Old.Mount || d.New != nil && d.New.Mount
}

// Goes reports whether the old entry must be removed before the new one can be created.
func (d *Delta) Goes() bool {
	return d.Old != nil && !d.Mounted() && (d.New == nil || d.Remake || manifest.IsFolder(d.Old) != manifest.IsFolder(d.New))
}

// MostTelling returns the path of the deltas that tells a reader most: the first that is not merely a changed folder, or else
// the last one.
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
