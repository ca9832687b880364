package files

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/files/manifest"
)

// giver is what the process that restores may give to files: root everything, a
// user what is the user's.
type giver struct {
	root   bool
	uid    uint32
	groups []uint32
}

// self is the giver that this process is.
func self() (giver, error) {
	g := giver{root: os.Geteuid() == 0, uid: uint32(os.Geteuid()), groups: []uint32{uint32(os.Getegid())}}
	groups, err := os.Getgroups()
	for _, id := range groups {
		g.groups = append(g.groups, uint32(id))
	}
	return g, err
}

func (g giver) in(gid uint32) bool { return slices.Contains(g.groups, gid) }

// refuses says why g cannot make e anew, or returns "".
func (g giver) refuses(e *manifest.Entry) string {
	switch {
	case g.root || e.Mount:
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

// refusesChange says why g cannot make b of a, or returns "". What stays g's own, with
// its group, is changed where it is: that takes no right to give it.
func (g giver) refusesChange(a, b *manifest.Entry) string {
	switch {
	case g.root || b == nil:
		return ""
	case a == nil || !g.inPlace(a, b):
		return g.refuses(b)
	case b.Mode&unix.S_ISGID != 0 && !g.in(b.Gid) && (a.Mode != b.Mode || len(a.Xattrs()) > 0):
		return fmt.Sprintf("has the set-group-ID bit and belongs to group %d, which the user of mulligand is not in", b.Gid)
	}
	return ""
}

// inPlace reports whether an apply that g runs changes a to b without making b anew.
func (g giver) inPlace(a, b *manifest.Entry) bool {
	if a.Uid != g.uid || b.Uid != g.uid || a.Gid != b.Gid || a.Mount || b.Mount {
		return false
	}
	if manifest.IsFolder(a) && manifest.IsFolder(b) {
		return slices.Equal(privilegedIn(a.Xattrs()), privilegedIn(b.Xattrs()))
	}
	alone := a.Group() == "" && b.Group() == ""
	return a.IsFile() && alone && a.SameBody(b) && holder(g.uid).keeps(a, b)
}

// checkGiven refuses what only root could give back, in either direction.
func (d *Driver) checkGiven(op string, deltas []delta) error {
	g, err := self()
	if err != nil || g.root {
		return err
	}
	why, path, more := "", "", 0
	for i := range deltas {
		c := &deltas[i]
		if c.frame || c.mounted() {
			continue
		}
		word := g.refusesChange(c.old, c.new)
		if word == "" {
			word = g.refusesChange(c.new, c.old) // an undo must be possible too
		}
		switch {
		case word == "":
		case why == "":
			why, path = word, c.seen()
		default:
			more++
		}
	}
	if why == "" {
		return nil
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf(" (and %d more paths)", more)
	}
	return errs.New(errs.Denied, op, "%s %s: only root can give it back%s", shown(d.cfg.Dir, path), why, others).
		WithHint("chown or chgrp it to yourself, exclude it, or protect this app with the host daemon (root); a scope that leaves it out goes back")
}
