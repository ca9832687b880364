package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Loop makes a filesystem of this many MB with the program mkfs and its options, and mounts it until the test ends. It returns
// the mount point.
func Loop(t testing.TB, megabytes int64, mkfs string, options ...string) (dir string) {
	t.Helper()
	Need(t, "root")
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	image, dir := filepath.Join(top, "image"), filepath.Join(top, "mnt")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, megabytes<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs, append(options, image)...).CombinedOutput(); err != nil {
		Lack(t, fmt.Sprintf("%s: %v: %s", mkfs, err, out))
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		Lack(t, fmt.Sprintf("mount: %v: %s", err, out))
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // a folder that stays is seen by the removal of TempDir
	return dir
}
