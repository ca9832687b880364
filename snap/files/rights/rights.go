// Package rights decides who may do what with a file: what the reader may see (Reader), what may be changed in place for the
// app's owner (FileOwner), and what the restoring process may give to files (Giver).
package rights

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
)

// The rights of a file and its content belong together: owner, group, set-id bits, capabilities, trusted attributes and access
// list are given only to the content with which they were recorded. Therefore only ordinary files of the app's owner are
// changed in place or merged. Every other file is created anew from one recorded state, and a folder that changes its owner is
// created anew with everything in it.

// FileOwner is the uid whose ordinary files and folders may be changed in place and merged: the app's owner.
type FileOwner uint32

// FileOwnerOf returns the file owner of a workspace whose folder belongs to uid: the reader, or else the owner that the
// workspace must have, or else uid. A process that is not root always gets its own uid.
func FileOwnerOf(reader Reader, owner int, uid uint32) FileOwner {
	switch {
	case os.Geteuid() != 0:
		return FileOwner(os.Geteuid()) // the kernel lets such a process give nothing else away
	case reader.UID > 0:
		return FileOwner(reader.UID)
	case owner >= 0:
		return FileOwner(owner)
	}
	return FileOwner(uid)
}

// Plain reports whether e is an ordinary entry of the file owner: it has no rights that its owner could not give to any
// content.
func (o FileOwner) Plain(e *manifest.Entry) bool {
	special := e.Perm() &^ 0o777
	if e.IsDir() {
		special = 0 // in a folder these bits do not give anybody's rights to a program
	}
	return e.Uid == uint32(o) && !e.Mount && !e.Device() && special == 0 && !slices.ContainsFunc(e.Xattrs(), privileged)
}

// privileged reports whether only root can set the attribute.
func privileged(x inode.Xattr) bool {
	return strings.HasPrefix(x.Name, "trusted.") || strings.HasPrefix(x.Name, "security.")
}

// SameRights reports whether a and b have the same rights: owner, group, the bits above 0777, and all attributes except those
// that anybody may set.
func SameRights(a, b *manifest.Entry) bool {
	return a.Uid == b.Uid && a.Gid == b.Gid && (a.Mode^b.Mode)&^0o777 == 0 &&
		slices.Equal(rightsIn(a.Xattrs()), rightsIn(b.Xattrs()))
}

// rightsIn returns the list without the attributes that anybody may set.
func rightsIn(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), func(x inode.Xattr) bool { return strings.HasPrefix(x.Name, "user.") })
}

// Keeps reports whether the file a may be changed into b in place: both are ordinary files of the file owner, with the same
// rights.
func (o FileOwner) Keeps(a, b *manifest.Entry) bool {
	return a != nil && b != nil && o.Plain(a) && o.Plain(b) && SameRights(a, b)
}

// KeepsFolder does the same as Keeps for folders. A folder of the file owner may get another group and access list, because the
// owner may show its entries to anybody. Of other users' folders, only times and the attributes that anybody may set are
// changed in place.
func (o FileOwner) KeepsFolder(a, b *manifest.Entry) bool {
	if a.Uid == uint32(o) && b.Uid == uint32(o) {
		return slices.Equal(privilegedIn(a.Xattrs()), privilegedIn(b.Xattrs()))
	}
	return SameRights(a, b) && a.Perm() == b.Perm()
}

func privilegedIn(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), func(x inode.Xattr) bool { return !privileged(x) })
}

// ReadEntry reads the owner, mode, attributes and time of the folder behind fd, and returns its inode.
func ReadEntry(fd int) (*manifest.Entry, inode.ID, error) {
	st, err := inode.StatAt(fd, "")
	if err != nil {
		return nil, inode.ID{}, err
	}
	xattrs, err := inode.ReadXattrsPath(fd)
	e := &manifest.Entry{Mode: st.Mode, Uid: st.Uid, Gid: st.Gid, Mtime: st.Mtime}
	e.SetXattrs(xattrs)
	return e, st.ID, err
}

// RootOnly reports whether st is of a folder of this process's user that no other user may enter.
func RootOnly(st inode.Stat) bool {
	return st.Kind() == unix.S_IFDIR && st.Mode&0o777 == 0o700 && int(st.Uid) == os.Geteuid()
}

// Unprivileged returns the attributes of the list that its owner could set.
func Unprivileged(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), privileged)
}
