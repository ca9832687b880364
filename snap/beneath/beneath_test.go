package beneath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/testkit"
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
			case <-time.After(testkit.Patience):
				t.Fatalf("%s with %#x is still being opened", name, flags)
			}
		}
	}
}

// TestReadFile: a regular file that is no longer than its reader takes is read, and nothing else.
func TestReadFile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/file", []byte("four"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	text, mode, err := root.ReadFile("file", 4)
	if err != nil || string(text) != "four" || mode != 0o640 {
		t.Fatalf("read %q of mode %v: %v", text, mode, err)
	}
	for name, says := range map[string]string{"file": "more than 3 bytes", "fifo": "no regular file", ".": "no regular file"} {
		if _, _, err := root.ReadFile(name, 3); errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
	if _, _, err := root.ReadFile("link", 4); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v", err)
	}
}

// TestPathOfTenKilobytes: a path longer than the kernel takes at once is opened in steps,
// and no step leaves the folder.
func TestPathOfTenKilobytes(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	name, at, path := strings.Repeat("d", 250), root, ""
	for range 40 { // 10 kB
		if err := unix.Mkdirat(at.FD(), name, 0o755); err != nil {
			t.Fatal(err)
		}
		path += name + "/"
		if at, err = root.OpenDir(strings.TrimSuffix(path, "/")); err != nil {
			t.Fatalf("at %d bytes: %v", len(path), err)
		}
		defer at.Close()
	}
	f, err := root.OpenFile(path+"leaf", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := unix.Symlinkat("/", at.FD(), "out"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path + "out", path + "out/tmp", path + strings.Repeat("../", 41) + "x"} {
		if f, err := root.OpenFile(p, unix.O_RDONLY, 0); err == nil {
			f.Close()
			t.Errorf("…%s was opened", p[len(path):])
		}
	}
}

// No link is followed, not even one to another folder below.
func TestLinksBelow(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{os.Mkdir(dir+"/real", 0o755), os.WriteFile(dir+"/real/file", nil, 0o644), os.Symlink("real", dir+"/link"),
		os.Symlink("real/file", dir+"/name")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f, err := root.OpenFile("real/file", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, path := range []string{"link/file", "link", "name"} {
		if f, err := root.OpenFile(path, unix.O_RDONLY, 0); err == nil {
			f.Close()
			t.Errorf("%s was opened through a link", path)
		}
	}
}
