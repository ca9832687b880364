package apply

import (
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
)

// TestBetween: only what an interrupted change can have left is taken for its own. Anything else is somebody's work, which an
// Undo must store before it goes.
func TestBetween(t *testing.T) {
	file := func(change func(*manifest.Entry)) *manifest.Entry {
		e := &manifest.Entry{Name: "f", Mode: unix.S_IFREG | 0o644, Uid: 1, Gid: 1, Size: 1, Hash: snap.Hash{1}, Mtime: inode.Time{Sec: 1}}
		e.SetXattrs([]inode.Xattr{{Name: "user.a", Value: "old"}})
		if change != nil {
			change(e)
		}
		return e
	}
	old := file(nil)
	changed := func(e *manifest.Entry) {
		e.Mode, e.Uid, e.Gid, e.Mtime = unix.S_IFREG|unix.S_ISUID|0o755, 2, 2, inode.Time{Sec: 2}
		e.SetXattrs([]inode.Xattr{{Name: "user.a", Value: "new"}, {Name: "user.b", Value: "new"}})
	}
	sameText := file(changed) // the change is one of metadata
	otherText := file(func(e *manifest.Entry) { changed(e); e.Hash = snap.Hash{2} })
	folder := file(func(e *manifest.Entry) { e.Mode, e.Size = unix.S_IFDIR|0o755, 0 })

	for name, c := range map[string]struct {
		live func(*manifest.Entry)
		a, b *manifest.Entry
		want bool
	}{
		"as before":                              {nil, old, otherText, true},
		"as after":                               {changed, old, sameText, true},
		"as after, and new":                      {changed, nil, sameText, true},
		"in neither":                             {nil, nil, nil, false},
		"another text":                           {func(e *manifest.Entry) { e.Hash = snap.Hash{3} }, old, otherText, false},
		"another time":                           {func(e *manifest.Entry) { e.Mtime.Sec = 3 }, old, sameText, false},
		"another time by a nanosecond":           {func(e *manifest.Entry) { e.Mtime.Nsec++ }, old, sameText, false},
		"the time of the other text":             {func(e *manifest.Entry) { e.Mtime.Sec = 2 }, old, otherText, false},
		"the time after":                         {func(e *manifest.Entry) { e.Mtime.Sec = 2 }, old, sameText, true},
		"the owner after":                        {func(e *manifest.Entry) { e.Uid, e.Gid = 2, 2 }, old, sameText, true},
		"a user of one, a group of the other":    {func(e *manifest.Entry) { e.Uid = 2 }, old, sameText, false},
		"another owner":                          {func(e *manifest.Entry) { e.Uid, e.Gid = 3, 3 }, old, sameText, false},
		"the mode after":                         {func(e *manifest.Entry) { e.Mode = unix.S_IFREG | unix.S_ISUID | 0o755 }, old, sameText, true},
		"the mode after, before it is set again": {func(e *manifest.Entry) { e.Mode = unix.S_IFREG | 0o755 }, old, sameText, true},
		"another mode":                           {func(e *manifest.Entry) { e.Mode = unix.S_IFREG | 0o600 }, old, sameText, false},
		"a right to be another user":             {func(e *manifest.Entry) { e.Mode |= unix.S_ISUID }, old, sameText, false},
		"one attribute after": {func(e *manifest.Entry) {
			e.SetXattrs([]inode.Xattr{{Name: "user.a", Value: "old"}, {Name: "user.b", Value: "new"}})
		}, old, sameText, true},
		"no attribute": {func(e *manifest.Entry) { e.SetXattrs(nil) }, old, sameText, true},
		"an attribute of the other text": {func(e *manifest.Entry) {
			e.SetXattrs([]inode.Xattr{{Name: "user.a", Value: "old"}, {Name: "user.b", Value: "new"}})
		}, old, otherText, false},
		"another attribute": {func(e *manifest.Entry) {
			e.SetXattrs([]inode.Xattr{{Name: "user.a", Value: "mine"}})
		}, old, sameText, false},
		"a folder with another time": {func(e *manifest.Entry) { e.Mode, e.Size, e.Mtime.Sec = unix.S_IFDIR|0o755, 0, 3 }, folder, folder, true},
		"a folder instead of a file": {func(e *manifest.Entry) { e.Mode, e.Size = unix.S_IFDIR|0o755, 0 }, old, otherText, false},
	} {
		t.Run(name, func(t *testing.T) {
			live := file(c.live)
			if got := Between(live, c.a, c.b); got != c.want {
				t.Errorf("%+v between %+v and %+v: %v", live, c.a, c.b, got)
			}
			if got := Between(live, c.b, c.a); got != c.want {
				t.Errorf("the other way: %v", got)
			}
		})
	}
}
