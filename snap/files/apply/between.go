package apply

import (
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
)

// Between reports whether e is a state on the way between a and b: it has the body of one of them, and each part of its
// metadata is from one of them, because the parts are changed one after the other.
func Between(e, a, b *manifest.Entry) bool {
	var from []*manifest.Entry
	for _, x := range []*manifest.Entry{a, b} {
		if x != nil && (manifest.IsFolder(e) && manifest.IsFolder(x) || e.SameBody(x)) {
			from = append(from, x)
		}
	}
	if len(from) == 0 || manifest.IsFolder(e) {
		return len(from) > 0
	}
	return metaBetween(e, from) && slices.ContainsFunc(from, func(x *manifest.Entry) bool { return x.Mtime == e.Mtime })
}

// metaBetween reports whether each part of e's metadata, except the time, is from a or b.
func metaBetween(e *manifest.Entry, from []*manifest.Entry) bool {
	any := func(same func(x *manifest.Entry) bool) bool { return slices.ContainsFunc(from, same) }
	const special = unix.S_ISUID | unix.S_ISGID // a change of owner clears these bits
	return any(func(x *manifest.Entry) bool { return x.Mode == e.Mode || x.Mode&^special == e.Mode }) &&
		any(func(x *manifest.Entry) bool { return x.Uid == e.Uid && x.Gid == e.Gid }) &&
		(any(func(x *manifest.Entry) bool { return manifest.EqualXattrs(x, e) }) || len(from) > 1 && xattrsBetween(e, from))
}

// xattrsBetween reports whether each of e's attributes is from a or b.
func xattrsBetween(e *manifest.Entry, from []*manifest.Entry) bool {
	for _, x := range e.Xattrs() {
		if !slices.ContainsFunc(from, func(f *manifest.Entry) bool { return slices.Contains(f.Xattrs(), x) }) {
			return false
		}
	}
	return true
}
