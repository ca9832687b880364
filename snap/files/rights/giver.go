package rights

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
)

// Giver is what the process that restores may give to files: root everything, a
// user what is the user's.
type Giver struct {
	Root   bool
	uid    uint32
	groups []uint32
}

// Self is the giver that this process is.
func Self() (Giver, error) {
	g := Giver{Root: os.Geteuid() == 0, uid: uint32(os.Geteuid()), groups: []uint32{uint32(os.Getegid())}}
	groups, err := os.Getgroups()
	for _, id := range groups {
		g.groups = append(g.groups, uint32(id))
	}
	return g, err
}

func (g Giver) in(gid uint32) bool { return slices.Contains(g.groups, gid) }

// Refuses says why g cannot make e anew, or returns "".
func (g Giver) Refuses(e *manifest.Entry) string {
	switch {
	case g.Root || e.Mount:
		return ""
	case e.Uid != g.uid:
		return fmt.Sprintf("belongs to uid %d", e.Uid)
	case !g.in(e.Gid):
		return fmt.Sprintf("belongs to group %d, which the user of mulligand is not in", e.Gid)
	case e.Device() && (e.Kind() == unix.S_IFBLK || e.Rdev() != 0): // 0:0 is overlayfs's mark of a removed file, which anybody may make
		return "is a device"
	case slices.ContainsFunc(e.Xattrs(), privileged):
		return "has capabilities (setcap)"
	}
	return ""
}

// RefusesChange says why g cannot make b of a, or returns "". What stays g's own, with
// its group, is changed where it is: that takes no right to give it.
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

// inPlace reports whether an apply that g runs changes a to b without making b anew.
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
