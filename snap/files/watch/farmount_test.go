package watch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit"
)

// ownMounts tells a process of TestMountFarDown that it has a table of mounts for itself.
const ownMounts = "MULLIGAN_TEST_OWN_MOUNTS"

// TestMountFarDown: a user who moves a folder with a mount so deep that the mount's line in the kernel's table is longer than 64 KiB does not keep
// workspaces from being followed, and what is mounted in them from being seen.
func TestMountFarDown(t *testing.T) {
	testkit.Need(t, "root")
	if os.Getenv(ownMounts) == "" { // others on this host also read the table
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestMountFarDown$")
		cmd.Env = append(os.Environ(), ownMounts+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dir, other := t.TempDir(), t.TempDir()
	mkdir(t, filepath.Join(dir, "new"))
	w, _ := follow(t, Options{Dir: dir})

	mkdir(t, filepath.Join(other, "moved/mnt"))
	must(t, unix.Mount("none", filepath.Join(other, "moved/mnt"), "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(other, "moved/mnt"), 0)) })
	moveDeep(t, other, "moved")
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if !slices.ContainsFunc(strings.Split(string(table), "\n"), func(line string) bool { return len(line) > 64<<10 }) {
		t.Fatal("no line is longer than 64 KiB: this shows nothing")
	}

	must(t, unix.Mount("none", filepath.Join(dir, "new"), "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "new"), 0)) })
	barrier(t, w)
	if s, f := w.Take(), w.State(); s.All || !slices.Contains(s.Paths, "new") || f.State != snap.Watching {
		t.Errorf("mounted: %+v, %+v", s, f)
	}
	follow(t, Options{Dir: dir})
}

// moveDeep moves the entry name of the folder dir, for the time of the test, below a chain of folders. The kernel's table of mounts has four bytes for
// each byte of their names.
func moveDeep(t *testing.T, dir, name string) {
	t.Helper()
	top, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	at, spaces := top, strings.Repeat(" ", 255)
	for range 70 {
		must(t, unix.Mkdirat(at, spaces, 0o755))
		next, err := unix.Openat(at, spaces, unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		if at != top {
			must(t, unix.Close(at))
		}
		at = next
	}
	must(t, unix.Renameat(top, name, at, name))
	t.Cleanup(func() {
		must(t, unix.Renameat(at, name, top, name))
		must(t, unix.Close(at))
		must(t, unix.Close(top))
	})
}
