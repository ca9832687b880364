package files

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/errs"
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
func (g giver) refuses(e *entry) string {
	switch {
	case g.root || e.mount:
		return ""
	case e.uid != g.uid:
		return fmt.Sprintf("belongs to uid %d", e.uid)
	case !g.in(e.gid):
		return fmt.Sprintf("belongs to group %d, which the user of mulligand is not in", e.gid)
	case e.device() && (e.kind() == unix.S_IFBLK || e.rdev() != 0): // 0:0 is overlayfs's mark of a removed file, which anybody may make
		return "is a device"
	case slices.ContainsFunc(e.xattrs(), privileged):
		return "has capabilities (setcap)"
	}
	return ""
}

// refusesChange says why g cannot make b of a, or returns "". What stays g's own, with
// its group, is changed where it is: that takes no right to give it.
func (g giver) refusesChange(a, b *entry) string {
	switch {
	case g.root || b == nil:
		return ""
	case a == nil || !g.inPlace(a, b):
		return g.refuses(b)
	case b.mode&unix.S_ISGID != 0 && !g.in(b.gid) && (a.mode != b.mode || len(a.xattrs()) > 0):
		return fmt.Sprintf("has the set-group-ID bit and belongs to group %d, which the user of mulligand is not in", b.gid)
	}
	return ""
}

// inPlace reports whether an apply that g runs changes a to b without making b anew.
func (g giver) inPlace(a, b *entry) bool {
	if a.uid != g.uid || b.uid != g.uid || a.gid != b.gid || a.mount || b.mount {
		return false
	}
	if isFolder(a) && isFolder(b) {
		return slices.Equal(privilegedIn(a.xattrs()), privilegedIn(b.xattrs()))
	}
	alone := a.group() == "" && b.group() == ""
	return a.isFile() && alone && a.sameBody(b) && holder(g.uid).keeps(a, b)
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
