package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// A freezer is a tree of control groups in which the kernel can freeze the processes of each.
type freezer struct {
	root   string
	v2     bool     // whether it is of cgroup v2
	file   string   // in each group: its state
	frozen []string // what the file says while the processes are frozen
	freeze string   // what is written to the file to freeze them
	thaw   string   // what is written to the file to let them go on
}

// freezers has the places where hosts mount them: with cgroup v2, with v2 beside v1, and with v1. See the kernel's admin-guide/cgroup-v2 and cgroup-v1/freezer-subsystem.
var freezers = []freezer{
	{"/sys/fs/cgroup", true, "cgroup.freeze", []string{"1"}, "1", "0"},
	{"/sys/fs/cgroup/unified", true, "cgroup.freeze", []string{"1"}, "1", "0"},
	{"/sys/fs/cgroup/freezer", false, "freezer.state", []string{"FROZEN", "FREEZING"}, "FROZEN", "THAWED"},
}

// group is a control group of a container.
type group struct {
	*freezer
	at     string // the file with its state
	frozen bool
}

// groups finds the control groups that have a container's id in their names, as those of Docker's and Podman's containers have: there may be several, for a user
// may have made one of that name. There are none where the engine's word for the id is not to be believed: root's daemon believes root's engines alone.
func (e *Engine) groups(id string) (all []group) {
	const length = 64 // of every container's id
	if len(id) != length || e.peer.Load() != 0 && os.Geteuid() == 0 {
		return nil
	}
	for i := range freezers {
		f := &freezers[i]
		var s unix.Statfs_t
		if unix.Statfs(f.root, &s) != nil || f.v2 != (s.Type == unix.CGROUP2_SUPER_MAGIC) {
			continue
		}
		_ = filepath.WalkDir(f.root, func(path string, e fs.DirEntry, err error) error {
			// Podman's conmon, which watches a container from a group beside it, must never be left frozen.
			if err != nil || !e.IsDir() || !strings.Contains(e.Name(), id) || strings.Contains(e.Name(), "conmon") {
				return nil // groups come and go
			}
			at := filepath.Join(path, f.file)
			if says, err := os.ReadFile(at); err == nil {
				all = append(all, group{f, at, slices.Contains(f.frozen, strings.TrimSpace(string(says)))})
			}
			return nil
		}) // the function returns no error
	}
	return all
}

// anyFrozen reports whether the kernel has frozen one of the groups.
func anyFrozen(all []group) bool {
	return slices.ContainsFunc(all, func(g group) bool { return g.frozen })
}

// freeze has the kernel freeze the processes of the groups.
func freeze(all []group) error {
	return write(all, func(g group) string { return g.freezer.freeze })
}

// thaw has the kernel let the processes of the groups go on.
func thaw(all []group) error {
	return write(all, func(g group) string { return g.freezer.thaw })
}

func write(all []group, what func(group) string) (err error) {
	for _, g := range all {
		if e := os.WriteFile(g.at, []byte(what(g)), 0); !errors.Is(e, fs.ErrNotExist) { // a group that is gone holds nobody up
			err = errs.Also(err, e)
		}
	}
	return err
}
