package beneath

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// tree makes a folder with folders, files, a fifo and a link that leads out, and returns it with the path of what the link leads to.
func tree(t *testing.T) (root *Root, top, outside string) {
	t.Helper()
	top, err := filepath.EvalSymlinks(testkit.TempDir(t))
	if err != nil {
		t.Fatal(err)
	}
	outside = filepath.Join(top, "outside")
	for _, dir := range []string{"outside", "gone/a/b/c", "gone/empty", "gone/mnt"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"outside/file", "gone/a/b/c/file", "gone/a/file", "gone/file"} {
		if err := os.WriteFile(filepath.Join(top, file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(top, "gone/a/fifo"), 0o600), os.Symlink(outside, filepath.Join(top, "gone/a/link"))); err != nil {
		t.Fatal(err)
	}
	if root, err = Open(top); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, top, outside
}

// TestRemoveAll: a folder goes with all that is in it, and what its links lead to stays.
func TestRemoveAll(t *testing.T) {
	root, top, outside := tree(t)
	for range 2 { // the second time, nothing is there
		if err := root.RemoveAll("gone"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(top, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", ".", "..", "/", "outside/file", "../outside"} {
		if err := root.RemoveAll(name); errs.KindOf(err) != errs.Invalid {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
}

// TestRemoveAllEntersNoMount: what is mounted in a folder that is removed stays as it is, and the error says where it is.
func TestRemoveAllEntersNoMount(t *testing.T) {
	testkit.Need(t, "root")
	for _, at := range []string{"gone/mnt", "gone/a/b/c/file"} {
		root, top, outside := tree(t)
		path, from := filepath.Join(top, at), outside
		if strings.HasSuffix(at, "file") {
			from = filepath.Join(outside, "file")
		}
		if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		err := root.RemoveAll("gone")
		if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), path) || !strings.Contains(errs.HintOf(err), "umount "+path) {
			t.Errorf("%s: %v", at, err)
		}
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
			t.Errorf("what was mounted at %s: %v", at, err)
		}
		if err := root.RemoveAll("gone"); err != nil {
			t.Errorf("without the mount at %s: %v", at, err)
		}
	}
}

// TestRemoveAllOfReadOnlyFolders: an owner removes folders in which nobody may remove anything, as Go's module cache has them.
func TestRemoveAllOfReadOnlyFolders(t *testing.T) {
	testkit.Need(t, "root")
	const nobody = 65534
	root, top, _ := tree(t)
	if err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	}); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{"gone/a/b/c": 0, "gone/a/b": 0o555, "gone/empty": 0o100, "gone": 0o500} {
		if err := os.Chmod(filepath.Join(top, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock, so that the thread ends
		if _, err := unix.SetfsgidRetGid(nobody); err != nil {
			done <- err
			return
		}
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			done <- err
			return
		}
		done <- root.RemoveAll("gone")
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(top, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

// TestRemoveAllOfDeepFolders: how deep a folder is costs neither open files nor much memory when it is removed. Also what is beside the way down goes.
func TestRemoveAllOfDeepFolders(t *testing.T) {
	const inChild = "MULLIGAN_BENEATH_TOP"
	if top := os.Getenv(inChild); top != "" {
		root, err := Open(top)
		if err != nil {
			t.Fatal(err)
		}
		if err := root.RemoveAll("gone"); err != nil {
			t.Fatalf("%.300s", err)
		}
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.Sys > 100<<20 {
			t.Errorf("it took %d MiB of memory", m.Sys>>20)
		}
		return
	}
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY, 0)
	name := "gone"
	for i := 0; err == nil && i < 2000; i++ {
		if err = unix.Mkdirat(at, name, 0o755); err == nil {
			at, err = openAndClose(at, name)
		}
		if err == nil && i%100 == 0 {
			err = errors.Join(unix.Mkdirat(at, "a", 0o755), unix.Mkdirat(at, "z", 0o755), unix.Mknodat(at, "file", unix.S_IFREG|0o644, 0))
		}
		name = strings.Repeat("n", 255)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
	c := exec.Command("sh", "-c", `ulimit -n 64 && exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), inChild+"="+top)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(top); err != nil || len(left) > 0 {
		t.Errorf("%v is left: %v", left, err)
	}
}

// openAndClose opens the folder name in the folder at, and closes that.
func openAndClose(at int, name string) (int, error) {
	next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	return next, errors.Join(err, unix.Close(at))
}
