package watch

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

// TestFolderIsNotListed: a folder that a FUSE server fails to list once is watched with all below it.
func TestFolderIsNotListed(t *testing.T) {
	testkit.Need(t, "root", "bindfs")
	src, dir := t.TempDir(), t.TempDir()
	mkdir(t, filepath.Join(src, "d/in"))
	server, err := sysfault.Start(exec.Command("bindfs", "-f", src, dir), sysfault.Options{})
	must(t, err)
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	testkit.Eventually(t, "bindfs serves the folder", func() bool {
		var st unix.Statfs_t
		return unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
	})
	server.Arm(sysfault.Fault{Call: "open " + filepath.Join(src, "d"), Nth: 1, Errno: unix.EIO}) // bindfs opens a folder to list it
	w, _ := follow(t, Options{Dir: dir})
	barrier(t, w)
	w.Take()
	if seen := server.Disarm(); !seen.Hit {
		t.Fatalf("nothing failed of %q", seen.Calls)
	}
	writesAreSeen(t, w)
}

// writesAreSeen writes into the folder d of the workspace and into one below it.
func writesAreSeen(t *testing.T, w *Watcher) {
	t.Helper()
	// By another process: Go asks a file that it opens whether it can be polled, in a way that keeps the garbage collector waiting, and with it all of this
	// process. If this process answers system calls of the FUSE server, neither goes on.
	if out, err := exec.Command("sh", "-c", `echo x >"$0/d/f" && echo x >"$0/d/in/f"`, w.opt.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	barrier(t, w)
	if s := w.Take(); s.All || !slices.Contains(s.Paths, "d/f") || !slices.Contains(s.Paths, "d/in/f") {
		t.Errorf("%+v lacks what was written", s)
	}
}

// failingFolder names the workspace to the process of TestFolderIsNotOpened whose system calls fail.
const failingFolder = "MULLIGAN_TEST_FAILING_FOLDER"

// TestFolderIsNotOpened: a new folder that cannot be opened once is watched with all below it.
func TestFolderIsNotOpened(t *testing.T) {
	there := func(path string) func() bool {
		return func() bool {
			_, err := os.Lstat(path)
			return !errors.Is(err, fs.ErrNotExist)
		}
	}
	if dir := os.Getenv(failingFolder); dir != "" {
		w, _ := follow(t, Options{Dir: dir})
		write(t, filepath.Join(dir, "followed"), "")
		testkit.Eventually(t, "a folder is made", there(filepath.Join(dir, "d")))
		barrier(t, w)
		w.Take()
		writesAreSeen(t, w)
		return
	}
	for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			dir, outside := t.TempDir(), t.TempDir()
			mkdir(t, filepath.Join(outside, "d/in"))
			cmd := exec.Command(os.Args[0], "-test.run=^TestFolderIsNotOpened$")
			cmd.Env = append(os.Environ(), failingFolder+"="+dir)
			out, err := os.CreateTemp(outside, "")
			must(t, err)
			defer out.Close()
			cmd.Stdout, cmd.Stderr = out, out
			watching, err := sysfault.Start(cmd, sysfault.Options{})
			must(t, err)
			t.Cleanup(func() { _ = watching.Process.Kill() })
			testkit.Eventually(t, "the workspace is followed", there(filepath.Join(dir, "followed")))
			watching.Arm(sysfault.Fault{Call: "open " + filepath.Join(dir, "d"), Nth: 1, Errno: errno})
			must(t, os.Rename(filepath.Join(outside, "d"), filepath.Join(dir, "d")))
			err = watching.Wait()
			if seen := watching.Disarm(); err != nil || !seen.Hit {
				said, _ := os.ReadFile(out.Name())
				t.Errorf("hit: %v, of %q: %v\n%s", seen.Hit, seen.Calls, err, said)
			}
		})
	}
}
