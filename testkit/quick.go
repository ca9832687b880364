package testkit

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Quick returns the folder in which tests make what syncs a lot: one in memory, where there is
// enough of it, for only a power cut tells the difference. What depends on the file system of a
// disk, or is large, belongs elsewhere.
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

// attributes reports whether files in dir may have extended attributes: not in the memory of older kernels.
func attributes(dir string) bool {
	f, err := os.CreateTemp(dir, "mt")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return unix.Fsetxattr(int(f.Fd()), "user.test", []byte("x"), 0) == nil
}

// TempDir is t.TempDir in Quick. Its path is short, so that a socket may be in it.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(Quick(), "mt")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755)) // as t.TempDir
	return dir
}
