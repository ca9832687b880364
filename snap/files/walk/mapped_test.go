package walk

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
)

// TestMappedToWrite: the question to the kernel and the text say the same.
func TestMappedToWrite(t *testing.T) {
	dir := t.TempDir()
	noError(t, os.WriteFile(dir+"/f", []byte("first"), 0o644))
	f, err := os.OpenFile(dir+"/f", os.O_RDWR, 0)
	noError(t, err)
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	noError(t, err)
	defer unix.Munmap(mapped)
	st, err := inode.StatAt(unix.AT_FDCWD, dir+"/f")
	noError(t, err)
	want := st.ID.Ino
	file, err := os.Open("/proc/self/maps")
	noError(t, err)
	defer file.Close()
	found := map[string]map[uint64]bool{"asked": {}, "read": {}}
	in := func(how string) func(uint32, uint32, uint64) {
		return func(_, _ uint32, ino uint64) { found[how][ino] = true }
	}
	readMaps(file, in("read"))
	if !found["read"][want] {
		t.Errorf("the text has no inode %d: %v", want, found["read"])
	}
	if askMaps(file, in("asked")) && fmt.Sprint(found["asked"]) != fmt.Sprint(found["read"]) {
		t.Errorf("asked: %v, read: %v", found["asked"], found["read"])
	}
	if !MappedToWrite(st.ID.Dev)[want] {
		t.Error("the file is not found among all processes' mappings")
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
