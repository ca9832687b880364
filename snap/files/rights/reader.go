package rights

import (
	"encoding/binary"
	"slices"

	"mulligan/snap/files/manifest"
)

// Reader is the user for whom names and contents are read, and who may see less than the daemon: the app's owner. The zero
// Reader is root, who sees everything.
type Reader struct {
	UID, GID int
	Groups   []int // supplementary groups
}

// All reports whether r sees everything.
func (r Reader) All() bool { return r.UID == 0 }

func (r Reader) in(gid uint32) bool {
	return r.GID == int(gid) || slices.Contains(r.Groups, int(gid))
}

// Permissions, as in each of a mode's three octal digits.
const (
	ToRead   = 4
	ToSearch = 1
)

// Needed returns the permission that is needed at e: to read a file, or to look up a name in a folder.
func Needed(e *manifest.Entry) uint32 {
	if e.Kind() == manifest.DirKind {
		return ToSearch
	}
	return ToRead
}

// SeesInto reports whether r can learn the names in the folder e. The owner of e always can, because the owner may change the
// mode.
func (r Reader) SeesInto(e *manifest.Entry) bool {
	return r.All() || !e.Mount && int(e.Uid) == r.UID || r.May(e, ToRead) && r.May(e, ToSearch)
}

// May reports whether r has the permission want on e. It checks owner, group, mode and access list in the order of acl(5).
func (r Reader) May(e *manifest.Entry, want uint32) bool {
	owner, group, other := e.Mode>>6&7, e.Mode>>3&7, e.Mode&7
	switch list, listed, ok := accessList(e); {
	case r.All():
		return true
	case !ok:
		return false
	case int(e.Uid) == r.UID:
		return owner&want == want
	case listed && group != 0: // if group is 0, the mask allows nothing, and Linux uses only the mode
		return r.mayByList(e, list, want, other)
	case r.in(e.Gid):
		return group&want == want
	}
	return other&want == want
}

// mayByList is May for a reader who does not own e, which has an access list. The mask limits all entries except the owner's
// and the others'. The mode's group digit is the mask.
func (r Reader) mayByList(e *manifest.Entry, list []aclEntry, want, other uint32) bool {
	mask := e.Mode >> 3 & 7
	for _, a := range list {
		if a.tag == aclUser && int(a.id) == r.UID {
			return a.perm&mask&want == want
		}
	}
	matched := false
	for _, a := range list {
		if a.tag == aclGroupOwner && r.in(e.Gid) || a.tag == aclGroup && r.in(a.id) {
			matched = true
			if a.perm&mask&want == want {
				return true
			}
		}
	}
	return !matched && other&want == want
}

// AccessListName is the attribute that has the access list.
const AccessListName = "system.posix_acl_access"

// The tags of access list entries that May uses (linux/posix_acl.h).
const (
	aclUser       = 0x02
	aclGroupOwner = 0x04
	aclGroup      = 0x08
)

type aclEntry struct {
	tag  uint16
	perm uint32
	id   uint32
}

// accessList decodes e's access list. listed reports whether e has one, and ok is false if it is malformed. The attribute is a
// version (4 bytes) and entries of a tag, permissions (2 bytes each) and an id (4), little-endian (linux/posix_acl_xattr.h).
func accessList(e *manifest.Entry) (list []aclEntry, listed, ok bool) {
	text, listed := e.Xattr(AccessListName)
	if !listed {
		return nil, false, true
	}
	const version, head, each = 2, 4, 8
	b := []byte(text)
	if len(b) < head || (len(b)-head)%each != 0 || binary.LittleEndian.Uint32(b) != version {
		return nil, true, false
	}
	for b = b[head:]; len(b) > 0; b = b[each:] {
		list = append(list, aclEntry{
			tag: binary.LittleEndian.Uint16(b), perm: uint32(binary.LittleEndian.Uint16(b[2:])), id: binary.LittleEndian.Uint32(b[4:]),
		})
	}
	return list, true, true
}
