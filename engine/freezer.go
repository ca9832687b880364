package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A freezer is a tree of control groups in which the kernel can freeze the processes of each.
type freezer struct {
	root   string
	v2     bool
	file   string   // in each group
	frozen []string // what it says then
	thaw   string   // what lets them go on
}

// freezers has where hosts have them: with cgroup v2, with v2 beside v1, and with v1. See the kernel's admin-guide/cgroup-v2 and cgroup-v1/freezer-subsystem.
var freezers = []freezer{
	{"/sys/fs/cgroup", true, "cgroup.freeze", []string{"1"}, "0"},
	{"/sys/fs/cgroup/unified", true, "cgroup.freeze", []string{"1"}, "0"},
	{"/sys/fs/cgroup/freezer", false, "freezer.state", []string{"FROZEN", "FREEZING"}, "THAWED"},
}

// frozen is [frozen], if the engine's word for which container has which id can be believed: root's daemon believes root's engines alone.
func (e *Engine) frozen(id string) (thaw func() error, known bool) {
	if e.peer.Load() != 0 && os.Geteuid() == 0 {
		return nil, false
	}
	return frozen(id)
}

// frozen returns the function that has the kernel let a container's processes go on, or nil if they are not frozen. It is unknown where no control group has the
// container's id in its name, as Docker's and Podman's have.
func frozen(id string) (thaw func() error, known bool) {
	const length = 64 // of every container's id
	if len(id) != length {
		return nil, false
	}
	for _, f := range freezers {
		var s unix.Statfs_t
		if unix.Statfs(f.root, &s) != nil || f.v2 != (s.Type == unix.CGROUP2_SUPER_MAGIC) {
			continue
		}
		err := filepath.WalkDir(f.root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() || !strings.Contains(e.Name(), id) {
				return nil // groups come and go
			}
			at := filepath.Join(path, f.file)
			says, err := os.ReadFile(at)
			if err != nil {
				return nil
			}
			known = true
			for _, word := range f.frozen {
				if strings.TrimSpace(string(says)) == word {
					thaw = func() error { return os.WriteFile(at, []byte(f.thaw), 0) }
					return fs.SkipAll
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, false
		}
		if thaw != nil {
			break
		}
	}
	return thaw, known
}
