package files

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
)

// What a thing is allowed, and what it holds, belong together: its owner, group,
// set-id bits, capabilities, trusted attributes and access list are given only to
// the content that they were recorded with. So nothing but the app's owner's
// ordinary files is changed in place or merged; everything else is made anew from
// one recorded state, and a folder that changes hands is made anew with all that is in it.

// holder is the uid whose ordinary things may be changed in place and merged: the app's owner.
type holder uint32

// holderOf is the holder in a workspace whose folder belongs to uid.
func (d *Driver) holderOf(uid uint32) holder {
	switch {
	case os.Geteuid() != 0:
		return holder(os.Geteuid()) // the kernel sees to it that nothing else is given away
	case d.cfg.Reader.UID > 0:
		return holder(d.cfg.Reader.UID)
	case d.cfg.Owner >= 0:
		return holder(d.cfg.Owner)
	}
	return holder(uid)
}

// plain reports whether e is an ordinary thing of the holder's: nothing about it
// is more than its owner could give to any content.
func (o holder) plain(e *entry) bool {
	special := e.perm() &^ 0o777
	if e.isDir() {
		special = 0 // in a folder these bits let nobody run anything
	}
	return e.uid == uint32(o) && !e.mount && !e.device() && special == 0 && !slices.ContainsFunc(e.xattrs(), privileged)
}

// privileged reports whether only root can set the attribute.
func privileged(x inode.Xattr) bool {
	return strings.HasPrefix(x.Name, "trusted.") || strings.HasPrefix(x.Name, "security.")
}

// sameRights compares all that goes with a content: owner, group, the bits above 0777,
// and all attributes but those that anybody may set.
func sameRights(a, b *entry) bool {
	return a.uid == b.uid && a.gid == b.gid && (a.mode^b.mode)&^0o777 == 0 &&
		slices.Equal(rightsIn(a.xattrs()), rightsIn(b.xattrs()))
}

// rightsIn is the list without the attributes that anybody may set.
func rightsIn(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), func(x inode.Xattr) bool { return strings.HasPrefix(x.Name, "user.") })
}

// keeps reports whether the file a may become b where it is: both are ordinary
// files of the holder's, with the same rights.
func (o holder) keeps(a, b *entry) bool {
	return a != nil && b != nil && o.plain(a) && o.plain(b) && sameRights(a, b)
}

// keepsFolder is keeps for folders. The holder's own may get another group and access list,
// since what is in it is the holder's to show anyway. Of others' only attributes that
// anybody may set and times are changed in place.
func (o holder) keepsFolder(a, b *entry) bool {
	if a.uid == uint32(o) && b.uid == uint32(o) {
		return slices.Equal(privilegedIn(a.xattrs()), privilegedIn(b.xattrs()))
	}
	return sameRights(a, b) && a.perm() == b.perm()
}

func privilegedIn(list []inode.Xattr) []inode.Xattr {
	return slices.DeleteFunc(slices.Clone(list), func(x inode.Xattr) bool { return !privileged(x) })
}

// remakes reports whether d's folder changes hands: then it is made anew, with
// everything in it. The workspace folder itself stays: Driver.open judges whose it is.
func (o holder) remakes(d *delta) bool {
	return os.Geteuid() == 0 && !d.frame && d.path != "." && isFolder(d.old) && isFolder(d.new) && !o.keepsFolder(d.old, d.new)
}

// readOwn reads what the folder behind fd is: its owner, mode, attributes and time.
func readOwn(fd int) (*entry, inode.ID, error) {
	st, err := inode.StatAt(fd, "")
	if err != nil {
		return nil, inode.ID{}, err
	}
	xattrs, err := inode.ReadXattrsPath(fd)
	e := &entry{mode: st.Mode, uid: st.Uid, gid: st.Gid, mtime: st.Mtime}
	e.setXattrs(xattrs)
	return e, st.ID, err
}

// onlyRoots reports whether st is of a folder of this process's own that nobody else may enter.
func onlyRoots(st inode.Stat) bool {
	return st.Kind() == unix.S_IFDIR && st.Mode&0o777 == 0o700 && int(st.Uid) == os.Geteuid()
}
