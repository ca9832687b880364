package files

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/testkit"
)

// fuse has a program, run as uid, mount a folder at the folder at, for the time of the test. It
// gives the process that serves the mount.
func fuse(t *testing.T, uid uint32, at, program string, args ...string) *exec.Cmd {
	t.Helper()
	testkit.Need(t, "root", program)
	c := exec.Command(program, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	must(t, c.Start())
	t.Cleanup(func() {
		unix.Unmount(at, unix.MNT_DETACH)
		c.Process.Kill()
		c.Wait()
	})
	for end := time.Now().Add(testkit.Patience); !inode.MountedThere(unix.AT_FDCWD, at); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come up", program)
		}
	}
	return c
}

// TestUserMounts: what a user has mounted for himself alone in a workspace, or what nobody
// serves any more, is left out like any mount. Root may not even look at it.
func TestUserMounts(t *testing.T) {
	for _, dead := range []bool{false, true} {
		top, err := os.MkdirTemp("/tmp", "mulligan-files-")
		must(t, err)
		t.Cleanup(func() { os.RemoveAll(top) })
		must(t, os.Chmod(top, 0o755))
		for _, dir := range []string{"ws", "ws/mnt", "src"} {
			must(t, os.Mkdir(top+"/"+dir, 0o755))
		}
		f := &followed{site: newSite(t, func(c *Config) { c.Dir = top + "/ws" })}
		write(t, top+"/ws/f", "one")
		write(t, top+"/src/secret", "not ours")
		for _, dir := range []string{"/src", "/ws/mnt"} {
			must(t, os.Chown(top+dir, nobody, nobody))
		}
		server := fuse(t, nobody, top+"/ws/mnt", "bindfs", "-f", "--no-allow-other", top+"/src", top+"/ws/mnt")
		if dead {
			must(t, server.Process.Kill())
			server.Wait()
		}
		if _, err := os.Lstat(top + "/ws/mnt"); err == nil {
			t.Fatal("root may look at the mount: this shows nothing")
		}
		one := f.capture(t)
		if len(one.Warnings) != 1 || !strings.Contains(one.Warnings[0], "/ws/mnt is a mount point") {
			t.Errorf("dead=%v: warnings: %q", dead, one.Warnings)
		}
		list, err := f.FindGaps(t.Context())
		must(t, err)
		if len(list) != 1 || !strings.Contains(list[0].What, "/ws/mnt is a mount point") {
			t.Errorf("dead=%v: the survey says %q", dead, list)
		}
		write(t, top+"/ws/f", "two")
		f.restore(t, one.ID)
		content(t, top+"/ws/f", "one")
		f.follow(t)
		write(t, top+"/ws/f", "three")
		f.restore(t, one.ID)
		content(t, top+"/ws/f", "one")
		if s := f.Following(); s.State != "watching" {
			t.Errorf("dead=%v: %+v", dead, s)
		}
		f.stop()
	}
}

// TestForeignWorkspace: a workspace that root may not look into is refused.
func TestForeignWorkspace(t *testing.T) {
	top, err := os.MkdirTemp("/tmp", "mulligan-files-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	for _, dir := range []string{"/src", "/ws"} {
		must(t, os.Mkdir(top+dir, 0o755))
		must(t, os.Chown(top+dir, nobody, nobody))
	}
	fuse(t, nobody, top+"/ws", "bindfs", "-f", "--no-allow-other", top+"/src", top+"/ws")
	store, err := cas.Open(t.TempDir(), cas.Options{})
	must(t, err)
	defer store.Close()
	_, err = New(Config{App: "app", Dir: top + "/ws", StateDir: t.TempDir(), Store: store, Owner: -1})
	if errs.KindOf(err) != errs.Denied || !strings.Contains(err.Error(), top+"/ws") {
		t.Errorf("%v", err)
	}
}

// TestImmutable: a file that may not be changed keeps a rollback from its work, by name, and what
// was done is undone.
func TestImmutable(t *testing.T) {
	dir := testkit.Loop(t, 64, "mkfs.ext4", "-q", "-F")
	must(t, os.Mkdir(dir+"/ws", 0o755))
	s := newSite(t, func(c *Config) { c.Dir = dir + "/ws" })
	write(t, dir+"/ws/a", "one")
	write(t, dir+"/ws/held", strings.Repeat("one\x00", 100))
	one := s.capture(t)
	write(t, dir+"/ws/a", "two")
	write(t, dir+"/ws/held", strings.Repeat("two\x00", 100))
	before := listing(t, dir+"/ws")
	flag := func(how string) {
		if out, err := exec.Command("chattr", how, dir+"/ws/held").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	flag("+i")
	defer flag("-i")
	base := s.capture(t)
	sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-i", Target: one.ID, Base: base.ID})
	must(t, err)
	if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Denied || !strings.Contains(err.Error(), "/ws/held") {
		t.Fatalf("an immutable file: %v", err)
	}
	must(t, sw.Undo(t.Context()))
	same(t, "undone", listing(t, dir+"/ws"), before)
	must(t, sw.Finish(t.Context()))
}

// TestInodeFlags: a survey names what has inode flags, which no checkpoint holds. A capture warns of those that are new,
// also of what statx does not tell.
func TestInodeFlags(t *testing.T) {
	dir := testkit.Loop(t, 64, "mkfs.ext4", "-q", "-F")
	must(t, os.Mkdir(dir+"/ws", 0o755))
	s := newSite(t, func(c *Config) { c.Dir = dir + "/ws" })
	says := func(want ...string) {
		t.Helper()
		list, err := s.FindGaps(t.Context())
		must(t, err)
		var got []string
		for _, g := range list {
			if g.Blocks || !strings.Contains(g.Remedy, "chattr") {
				t.Errorf("%+v", g)
			}
			got = append(got, g.What)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the survey says %q, want %q", got, want)
		}
	}
	chattr := func(how, path string) {
		t.Helper()
		if out, err := exec.Command("chattr", how, path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	write(t, dir+"/ws/sub/f", "one")
	write(t, dir+"/ws/plain", "one")
	must(t, unix.Mkfifo(dir+"/ws/fifo", 0o600)) // nobody ever opens its other end
	says()
	warns := func(want ...string) {
		t.Helper()
		if got := s.capture(t).Warnings; !slices.Equal(got, want) {
			t.Errorf("the capture warns of %q, want %q", got, want)
		}
	}
	warns()
	chattr("+A", dir+"/ws/sub/f") // statx does not tell
	warns(dir + "/ws/sub/f has inode flags (chattr +A) that are not part of a checkpoint: made anew, it is without them.")
	warns() // nothing changed
	says(dir + "/ws/sub/f has inode flags (chattr +A) that are not part of a checkpoint.")
	chattr("+dS", dir+"/ws/plain")
	chattr("+A", dir+"/ws/sub")
	warns("2 paths have inode flags that are not part of a checkpoint: made anew, they are without them. The first of them is " + dir + "/ws/plain (chattr +Sd).")
	chattr("-dS", dir+"/ws/plain")
	warns()
	chattr("+d", dir+"/ws/sub/f")
	chattr("+a", dir+"/ws/sub/f")
	defer chattr("-a", dir+"/ws/sub/f")
	says("2 paths have inode flags (chattr) that are not part of a checkpoint, the first of them " + dir + "/ws/sub.")
	chattr("-A", dir+"/ws/sub")
	chattr("-A", dir+"/ws/sub/f")
	says(dir + "/ws/sub/f has inode flags (chattr +ad) that are not part of a checkpoint.")
	chattr("+i", dir+"/ws")
	defer chattr("-i", dir+"/ws")
	says("2 paths have inode flags (chattr) that are not part of a checkpoint, the first of them " + dir + "/ws.")
}
