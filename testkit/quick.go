package testkit

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Quick returns a folder for tests that sync often: a folder in memory if there is enough of it, because only a power cut would
// show the difference. Tests that depend on a disk's filesystem, or that write much, must use another folder.
func Quick() string { return quick() }

var quick = sync.OnceValue(func() string {
	const memory = "/dev/shm"
	var fs unix.Statfs_t
	err := unix.Statfs(memory, &fs)
	if err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) > 4<<30 && attributes(memory) {
		return memory
	}
	return os.TempDir()
})

// attributes reports whether files in dir may have extended attributes. The tmpfs of older kernels has none.
func attributes(dir string) bool {
	f, err := os.CreateTemp(dir, "mt")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return unix.Fsetxattr(int(f.Fd()), "user.test", []byte("x"), 0) == nil
}

// TempDir returns a temporary folder of the test in Quick. Its path is short enough for a socket.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(Quick(), "mt")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755)) // the same mode as that of t.TempDir
	return dir
}

// OpenDir returns a temporary folder of the test that every user may enter and write to.
func OpenDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mulligan-open")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o777))
	return dir
}
