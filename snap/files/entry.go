package files

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
)

// entry is what a manifest says of one name. There is one in memory for every name in a
// workspace: what few have is elsewhere.
type entry struct {
	name     string
	mode     uint32 // st_mode: the type and all twelve permission bits
	uid, gid uint32
	mount    bool // something was mounted here: nothing else is known
	loose    bool // a folder whose mtime is somebody else's business
	mtime    inode.Time
	size     int64     // of a regular file
	hash     snap.Hash // of a file's content (none when empty), or of a folder's node
	rare     *rare     // nil: nothing. Copies share it, so it is never changed, but replaced
}

// rare is what few entries have.
type rare struct {
	rdev   uint64        // of a device
	link   string        // of a symbolic link
	group  string        // the first path of its hard-link group; "" when it stands alone
	xattrs []inode.Xattr // sorted by name
}

func (e *entry) odds() rare {
	if e.rare == nil {
		return rare{}
	}
	return *e.rare
}

func (e *entry) rdev() uint64          { return e.odds().rdev }
func (e *entry) link() string          { return e.odds().link }
func (e *entry) group() string         { return e.odds().group }
func (e *entry) xattrs() []inode.Xattr { return e.odds().xattrs }

func (e *entry) setRdev(v uint64) { e.set(func(r *rare) { r.rdev = v }) }
func (e *entry) setLink(v string) { e.set(func(r *rare) { r.link = v }) }
func (e *entry) setGroup(v string) {
	if v != e.group() {
		e.set(func(r *rare) { r.group = v })
	}
}
func (e *entry) setXattrs(v []inode.Xattr) { e.set(func(r *rare) { r.xattrs = v }) }

func (e *entry) set(change func(*rare)) {
	r := e.odds()
	change(&r)
	if e.rare = nil; r.rdev != 0 || r.link != "" || r.group != "" || len(r.xattrs) > 0 {
		e.rare = &r
	}
}

func (e *entry) kind() uint32  { return e.mode & unix.S_IFMT }
func (e *entry) isDir() bool   { return e.kind() == unix.S_IFDIR && !e.mount }
func (e *entry) isFile() bool  { return e.kind() == unix.S_IFREG && !e.mount }
func (e *entry) perm() uint32  { return e.mode & 0o7777 }
func (e *entry) device() bool  { k := e.kind(); return k == unix.S_IFCHR || k == unix.S_IFBLK }
func (e *entry) symlink() bool { return e.kind() == unix.S_IFLNK }

// equal reports whether a and b say the same, hash and all.
func (a *entry) equal(b *entry) bool {
	return a.sameMeta(b) && a.sameBody(b) && a.group() == b.group() && a.hash == b.hash
}

// sameMeta compares what can be changed without touching the content.
func (a *entry) sameMeta(b *entry) bool {
	return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.mtime == b.mtime &&
		a.loose == b.loose && slices.Equal(a.xattrs(), b.xattrs())
}

// sameBody compares what makes it another thing: type, content, target. A
// folder's content is its entries' business.
func (a *entry) sameBody(b *entry) bool {
	return a.kind() == b.kind() && a.mount == b.mount && a.size == b.size && a.rdev() == b.rdev() &&
		a.link() == b.link() && (a.isDir() || a.hash == b.hash)
}

// newEntry is the entry of a thing with that stat, as far as stat tells.
func newEntry(name string, st inode.Stat) entry {
	e := entry{name: name, mode: st.Mode, uid: st.Uid, gid: st.Gid, mtime: st.Mtime}
	switch {
	case st.Mount:
		return entry{name: name, mode: st.Kind(), mount: true}
	case e.isFile():
		e.size = st.Size
	case e.device():
		e.setRdev(st.Rdev)
	}
	return e
}

const dirKind = unix.S_IFDIR

// search finds name among a folder's entries, or gives nil.
func search(entries []entry, name string) *entry {
	i, ok := slices.BinarySearchFunc(entries, name, func(e entry, n string) int { return strings.Compare(e.name, n) })
	if !ok {
		return nil
	}
	return &entries[i]
}

func equalXattrs(a, b *entry) bool { return slices.Equal(a.xattrs(), b.xattrs()) }
