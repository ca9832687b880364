package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy says where the cgroup v2 hierarchy is, or why no box can be made here.
func Hierarchy() (dir, reason string) {
	if os.Geteuid() != 0 {
		return "", "it needs root"
	}
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var s unix.Statfs_t
		if unix.Statfs(dir, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
			if unix.Access(dir, unix.W_OK) != nil {
				return "", dir + " is not writable"
			}
			return dir, ""
		}
	}
	return "", "no cgroup v2 hierarchy is mounted"
}

// Sweep removes boxes whose names begin with prefix and whose test was killed: nobody holds their locks, and
// their processes are gone. What does not want to go is left for the next one.
func Sweep(prefix string) {
	hierarchy, reason := Hierarchy()
	if reason != "" {
		return
	}
	var dirs []string
	// The Makefile gives each run a temporary folder of its own, whose name has an m and three more letters.
	for _, in := range []string{os.TempDir(), os.TempDir() + "/m???", filepath.Dir(os.TempDir()) + "/m???"} {
		found, _ := filepath.Glob(filepath.Join(in, prefix+"*")) // the pattern is good
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		lock, err := os.Open(dir + "/lock")
		if err != nil {
			continue // not ours, or just being made
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if removeCgroup(filepath.Join(hierarchy, filepath.Base(dir))) == nil {
				os.RemoveAll(dir)
			}
		}
		lock.Close()
	}
	groups, _ := filepath.Glob(filepath.Join(hierarchy, prefix+"*")) // as before; their folders may be gone, or anywhere
	for _, group := range groups {
		lock, err := os.Open(group)
		if err != nil {
			continue
		}
		events, err := os.ReadFile(group + "/cgroup.events")
		if err == nil && strings.Contains(string(events), "populated 0") && unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = rmdirs(group) // left for the next one
		}
		lock.Close()
	}
}

// removeCgroup ends what is in a control group and removes it with those below.
func removeCgroup(cgroup string) error {
	if _, err := os.Lstat(cgroup); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(cgroup+"/cgroup.kill", []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var err error
	for range 2000 {
		if err = rmdirs(cgroup); err == nil {
			return nil
		}
		<-tick.C // killed processes take a moment to leave
	}
	return fmt.Errorf("the control group is still busy: %w", err)
}

func rmdirs(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := os.Remove(d); err != nil {
			return err
		}
	}
	return nil
}
