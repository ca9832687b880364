package rights

import (
	"encoding/binary"
	"slices"

	"mulligan/snap/files/manifest"
)

// Reader is whose eyes names and contents are for, where the daemon sees more
// than they do: the app's owner. The zero Reader is root, who sees everything.
type Reader struct {
	UID, GID int
	Groups   []int // supplementary
}

// All reports whether nothing is hidden from r.
func (r Reader) All() bool { return r.UID == 0 }

func (r Reader) in(gid uint32) bool {
	return r.GID == int(gid) || slices.Contains(r.Groups, int(gid))
}

// Permissions, as in each of a mode's three digits.
const (
	ToRead   = 4
	ToSearch = 1
)

// Needed is the permission that it takes to go on at e: to read a file, or to
// look up a name in a folder.
func Needed(e *manifest.Entry) uint32 {
	if e.Kind() == manifest.DirKind {
		return ToSearch
	}
	return ToRead
}

// SeesInto reports whether r can learn the names in the folder e. Its owner can,
// whatever the mode is at present: he may change it.
func (r Reader) SeesInto(e *manifest.Entry) bool {
	return r.All() || !e.Mount && int(e.Uid) == r.UID || r.May(e, ToRead) && r.May(e, ToSearch)
}

// May reports whether r has the permission want on e: by its owner, group and
// mode, and its access list, in the order that acl(5) gives.
func (r Reader) May(e *manifest.Entry, want uint32) bool {
	owner, group, other := e.Mode>>6&7, e.Mode>>3&7, e.Mode&7
	switch list, listed, ok := accessList(e); {
	case r.All():
		return true
	case !ok:
		return false
	case int(e.Uid) == r.UID:
		return owner&want == want
	case listed && group != 0: // else the mask lets nothing through, and Linux goes by the mode alone
		return r.mayByList(e, list, want, other)
	case r.in(e.Gid):
		return group&want == want
	}
	return other&want == want
}

// mayByList is may for somebody who does not own e, which has an access list. The
// mask bounds all but the owner and others; the mode's group digit is the mask.
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

// AccessListName is the attribute that holds a thing's access list.
const AccessListName = "system.posix_acl_access"

// The tags of an access list's entries that matter here (linux/posix_acl.h).
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

// accessList takes e's access list apart; listed says that there is one, ok that
// it is none or well formed. An attribute is a version (4 bytes) and entries of a
// tag, permissions (2 bytes each) and an id (4), little-endian (linux/posix_acl_xattr.h).
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
