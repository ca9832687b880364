package manifest

import (
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
)

// Entry describes one name of a workspace. A process may hold millions of entries, so fields that few entries have are in rare.
type Entry struct {
	Name     string
	Mode     uint32 // st_mode: the type and all twelve permission bits
	Uid, Gid uint32
	Mount    bool // a mount point, or what could not be read, of which only name and type are known
	Loose    bool // a folder whose mtime is ignored, because a file of another driver is in it
	Mtime    inode.Time
	Size     int64     // of a regular file
	Hash     snap.Hash // of a file's content (zero if empty), or of a folder's node
	rare     *rare     // nil: none of them. Copies of an entry share it, so it is never changed, only replaced
}

// rare has the fields that few entries have.
type rare struct {
	rdev   uint64        // of a device
	link   string        // of a symbolic link
	group  string        // the first path of its hard-link group; "" if there is no other name
	xattrs []inode.Xattr // sorted by name
}

func (e *Entry) odds() rare {
	if e.rare == nil {
		return rare{}
	}
	return *e.rare
}

func (e *Entry) Rdev() uint64          { return e.odds().rdev }
func (e *Entry) Link() string          { return e.odds().link }
func (e *Entry) Group() string         { return e.odds().group }
func (e *Entry) Xattrs() []inode.Xattr { return e.odds().xattrs }

// Xattr returns the value of one of e's extended attributes.
func (e *Entry) Xattr(name string) (value string, ok bool) {
	for _, x := range e.Xattrs() {
		if x.Name == name {
			return x.Value, true
		}
	}
	return "", false
}

func (e *Entry) SetRdev(v uint64) { e.set(func(r *rare) { r.rdev = v }) }
func (e *Entry) SetLink(v string) { e.set(func(r *rare) { r.link = v }) }
func (e *Entry) SetGroup(v string) {
	if v != e.Group() {
		e.set(func(r *rare) { r.group = v })
	}
}
func (e *Entry) SetXattrs(v []inode.Xattr) { e.set(func(r *rare) { r.xattrs = v }) }

func (e *Entry) set(change func(*rare)) {
	r := e.odds()
	change(&r)
	if e.rare = nil; r.rdev != 0 || r.link != "" || r.group != "" || len(r.xattrs) > 0 {
		e.rare = &r
	}
}

func (e *Entry) Kind() uint32  { return e.Mode & unix.S_IFMT }
func (e *Entry) IsDir() bool   { return e.Kind() == unix.S_IFDIR && !e.Mount }
func (e *Entry) IsFile() bool  { return e.Kind() == unix.S_IFREG && !e.Mount }
func (e *Entry) Perm() uint32  { return e.Mode & 0o7777 }
func (e *Entry) Device() bool  { k := e.Kind(); return k == unix.S_IFCHR || k == unix.S_IFBLK }
func (e *Entry) Symlink() bool { return e.Kind() == unix.S_IFLNK }

// Equal reports whether all fields of a and b are equal, except for the names.
func (a *Entry) Equal(b *Entry) bool {
	return a.SameMeta(b) && a.SameBody(b) && a.Group() == b.Group() && a.Hash == b.Hash
}

// SameMeta compares the fields that can be changed without a change of the content.
func (a *Entry) SameMeta(b *Entry) bool {
	return a.Mode == b.Mode && a.Uid == b.Uid && a.Gid == b.Gid && a.Mtime == b.Mtime &&
		a.Loose == b.Loose && slices.Equal(a.Xattrs(), b.Xattrs())
}

// SameBody compares type, content and target: two entries that differ in these cannot be made equal by a change of metadata.
// The content of folders is not compared.
func (a *Entry) SameBody(b *Entry) bool {
	return a.Kind() == b.Kind() && a.Mount == b.Mount && a.Size == b.Size && a.Rdev() == b.Rdev() &&
		a.Link() == b.Link() && (a.IsDir() || a.Hash == b.Hash)
}

// NewEntry returns an entry with the fields that stat returns.
func NewEntry(name string, st inode.Stat) Entry {
	e := Entry{Name: name, Mode: st.Mode, Uid: st.Uid, Gid: st.Gid, Mtime: st.Mtime}
	switch {
	case st.Mount:
		return Entry{Name: name, Mode: st.Kind(), Mount: true}
	case e.IsFile():
		e.Size = st.Size
	case e.Device():
		e.SetRdev(st.Rdev)
	}
	return e
}

const DirKind = unix.S_IFDIR

// search returns the entry called name of a folder, or nil.
func search(entries []Entry, name string) *Entry {
	i, ok := slices.BinarySearchFunc(entries, name, func(e Entry, n string) int { return strings.Compare(e.Name, n) })
	if !ok {
		return nil
	}
	return &entries[i]
}

func EqualXattrs(a, b *Entry) bool { return slices.Equal(a.Xattrs(), b.Xattrs()) }

// Digest returns a hash that identifies the state of an entry. It covers neither the name, nor the hard-link group, nor a
// folder's content and time (which changes with the content). The digest of nil is zero.
func (e *Entry) Digest() snap.Hash {
	if e == nil {
		return snap.Hash{}
	}
	x := *e
	x.Name = ""
	x.SetGroup("")
	if x.IsDir() {
		x.Hash, x.Mtime = snap.Hash{}, inode.Time{}
	}
	return blake3.Sum256(append(x.Append(nil), x.Hash[:]...))
}

// Bare returns a copy of e as a record of the journal has it: without the name and a folder's hash.
func (e *Entry) Bare() *Entry {
	x := *e
	x.Name = ""
	if x.IsDir() {
		x.Hash = snap.Hash{}
	}
	return &x
}

func IsFolder(e *Entry) bool { return e != nil && e.IsDir() }
