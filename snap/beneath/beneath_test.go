package beneath

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOpenWithoutOpening: a thing can be looked at with O_PATH, whatever it is, and
// a fifo that nobody writes to does not keep anybody.
func TestOpenWithoutOpening(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/file", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"file", "fifo", "."} {
		for _, flags := range []int{unix.O_PATH, unix.O_RDONLY} {
			done := make(chan error, 1)
			go func() {
				f, err := root.OpenFile(name, flags, 0)
				if err == nil {
					err = f.Close()
				}
				done <- err
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%s with %#x: %v", name, flags, err)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s with %#x is still being opened", name, flags)
			}
		}
	}
}
