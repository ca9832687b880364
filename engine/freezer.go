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
	thaw   string   // what is written to the file to let them go on
}

// freezers has the places where hosts mount them: with cgroup v2, with v2 beside v1, and with v1. See the kernel's admin-guide/cgroup-v2 and cgroup-v1/freezer-subsystem.
var freezers = []freezer{
	{"/sys/fs/cgroup", true, "cgroup.freeze", []string{"1"}, "0"},
	{"/sys/fs/cgroup/unified", true, "cgroup.freeze", []string{"1"}, "0"},
	{"/sys/fs/cgroup/freezer", false, "freezer.state", []string{"FROZEN", "FREEZING"}, "THAWED"},
}

// frozen looks whether the kernel has frozen a container's processes, and returns the function that lets them go on, or nil if they are not frozen. It is
// unknown where no control group has the container's id in its name, as those of Docker's and Podman's have, and where the engine's word for the id is not to be
// believed: root's daemon believes root's engines alone.
func (e *Engine) frozen(id string) (thaw func() error, known bool) {
	const length = 64 // of every container's id
	if len(id) != length || e.peer.Load() != 0 && os.Geteuid() == 0 {
		return nil, false
	}
	var all []func() error // of every group with the id: a user may have made one of that name, ahead of the container's
	for _, f := range freezers {
		var s unix.Statfs_t
		if unix.Statfs(f.root, &s) != nil || f.v2 != (s.Type == unix.CGROUP2_SUPER_MAGIC) {
			continue
		}
		_ = filepath.WalkDir(f.root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() || !strings.Contains(e.Name(), id) {
				return nil // groups come and go
			}
			at := filepath.Join(path, f.file)
			says, err := os.ReadFile(at)
			if err != nil {
				return nil
			}
			known = true
			if slices.Contains(f.frozen, strings.TrimSpace(string(says))) {
				all = append(all, func() error { return os.WriteFile(at, []byte(f.thaw), 0) })
			}
			return nil
		}) // the function returns no error
	}
	if len(all) == 0 {
		return nil, known
	}
	return func() (err error) {
		for _, thaw := range all {
			if e := thaw(); !errors.Is(e, fs.ErrNotExist) { // a group that is gone holds nobody up
				err = errs.Also(err, e)
			}
		}
		return err
	}, true
}
