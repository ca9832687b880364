package rights

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
)

// Giver describes which owners, groups and attributes the restoring process may give to files: root may give all, and another
// user only that user's own.
type Giver struct {
	Root   bool
	uid    uint32
	groups []uint32
}

// Self returns the giver for this process.
func Self() (Giver, error) {
	g := Giver{Root: os.Geteuid() == 0, uid: uint32(os.Geteuid()), groups: []uint32{uint32(os.Getegid())}}
	groups, err := os.Getgroups()
	for _, id := range groups {
		g.groups = append(g.groups, uint32(id))
	}
	return g, err
}

func (g Giver) in(gid uint32) bool { return slices.Contains(g.groups, gid) }

// Refuses returns the reason for which g cannot create e, or "" if it can.
func (g Giver) Refuses(e *manifest.Entry) string {
	switch {
	case g.Root || e.Mount:
		return ""
	case e.Uid != g.uid:
		return fmt.Sprintf("belongs to uid %d", e.Uid)
	case !g.in(e.Gid):
		return fmt.Sprintf("belongs to group %d, which the user of mulligand is not in", e.Gid)
	case e.Device() && (e.Kind() == unix.S_IFBLK || e.Rdev() != 0): // anybody may create device 0:0, overlayfs's whiteout
		return "is a device"
	case slices.ContainsFunc(e.Xattrs(), privileged):
		return "has capabilities (setcap)"
	}
	return ""
}

// RefusesChange returns the reason for which g cannot change a into b, or "" if it can. A file or folder that stays g's own,
// with the same group, is changed in place, for which g need not be in the group.
func (g Giver) RefusesChange(a, b *manifest.Entry) string {
	switch {
	case g.Root || b == nil:
		return ""
	case a == nil || !g.inPlace(a, b):
		return g.Refuses(b)
	case b.Mode&unix.S_ISGID != 0 && !g.in(b.Gid) && (a.Mode != b.Mode || len(a.Xattrs()) > 0):
		return fmt.Sprintf("has the set-group-ID bit and belongs to group %d, which the user of mulligand is not in", b.Gid)
	}
	return ""
}

// inPlace reports whether an apply that g runs changes a into b in place instead of creating b.
func (g Giver) inPlace(a, b *manifest.Entry) bool {
	if a.Uid != g.uid || b.Uid != g.uid || a.Gid != b.Gid || a.Mount || b.Mount {
		return false
	}
	if manifest.IsFolder(a) && manifest.IsFolder(b) {
		return slices.Equal(privilegedIn(a.Xattrs()), privilegedIn(b.Xattrs()))
	}
	alone := a.Group() == "" && b.Group() == ""
	return a.IsFile() && alone && a.SameBody(b) && FileOwner(g.uid).Keeps(a, b)
}
