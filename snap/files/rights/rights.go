// Package rights knows who may do what with a file: what the reader may see (Reader), what may be
// changed in place for the app's owner (FileOwner), and what the process that restores may
// give (Giver).
package rights

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
)

// What a thing is allowed, and what it holds, belong together: its owner, group,
// set-id bits, capabilities, trusted attributes and access list are given only to
// the content that they were recorded with. So nothing but the app's owner's
// ordinary files is changed in place or merged; everything else is made anew from
// one recorded state, and a folder that changes hands is made anew with all that is in it.

// FileOwner is the uid whose ordinary things may be changed in place and merged: the app's owner.
type FileOwner uint32

// FileOwnerOf returns the file owner of a workspace whose folder belongs to uid: the reader, else the
// owner that the workspace must have, if there is one.
func FileOwnerOf(reader Reader, owner int, uid uint32) FileOwner {
	switch {
	case os.Geteuid() != 0:
		return FileOwner(os.Geteuid()) // the kernel sees to it that nothing else is given away
	case reader.UID > 0:
		return FileOwner(reader.UID)
	case owner >= 0:
		return FileOwner(owner)
	}
	return FileOwner(uid)
}

// Plain reports whether e is an ordinary thing of the file owner's: nothing about it
// is more than its owner could give to any content.
func (o FileOwner) Plain(e *manifest.Entry) bool {
	special := e.Perm() &^ 0o777
	if e.IsDir() {
		special = 0 // in a folder these bits let nobody run anything
	}
	return e.Uid == uint32(o) && !e.Mount && !e.Device() && special == 0 && !slices.ContainsFunc(e.Xattrs(), privileged)
}

// privileged reports whether only root can set the attribute.
func privileged(x inode.Xattr) bool {
	return strings.HasPrefix(x.Name, "trusted.") || strings.HasPrefix(x.Name, "security.")
}

// SameRights compares all that goes with a content: owner, group, the bits above 0777,
// and all attributes but those that anybody may set.
func SameRights(a, b *manifest.Entry) bool {
	return a.Uid == b.Uid && a.Gid == b.Gid && (a.Mode^b.Mode)&^0o777 == 0 &&
		slices.Equal(rightsIn(a.Xattrs()), rightsIn(b.Xattrs()))
}

// rightsIn is the list without the attributes that anybody may set.
func rightsIn(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), func(x inode.Xattr) bool { return strings.HasPrefix(x.Name, "user.") })
}

// Keeps reports whether the file a may become b where it is: both are ordinary
// files of the file owner's, with the same rights.
func (o FileOwner) Keeps(a, b *manifest.Entry) bool {
	return a != nil && b != nil && o.Plain(a) && o.Plain(b) && SameRights(a, b)
}

// KeepsFolder is keeps for folders. The file owner's own may get another group and access list,
// since what is in it is the file owner's to show anyway. Of others' only attributes that
// anybody may set and times are changed in place.
func (o FileOwner) KeepsFolder(a, b *manifest.Entry) bool {
	if a.Uid == uint32(o) && b.Uid == uint32(o) {
		return slices.Equal(privilegedIn(a.Xattrs()), privilegedIn(b.Xattrs()))
	}
	return SameRights(a, b) && a.Perm() == b.Perm()
}

func privilegedIn(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), func(x inode.Xattr) bool { return !privileged(x) })
}

// ReadEntry reads what the folder behind fd is: its owner, mode, attributes and time.
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

// RootOnly reports whether st is of a folder of this process's own that nobody else may enter.
func RootOnly(st inode.Stat) bool {
	return st.Kind() == unix.S_IFDIR && st.Mode&0o777 == 0o700 && int(st.Uid) == os.Geteuid()
}
