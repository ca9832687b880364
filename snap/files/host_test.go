package files

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// mount mounts something for the time of the test.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	testkit.Need(t, "root")
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		testkit.Lack(t, "mount: ", err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// TestMounts: what is mounted in a workspace is neither read, changed nor
// removed, whether another filesystem or a folder of the same one.
func TestMounts(t *testing.T) {
	s := newSite(t)
	elsewhere := s.dir + "-elsewhere"
	write(t, elsewhere+"/inner/secret", "elsewhere")
	for _, d := range []string{"keep/bound", "keep/tmpfs", "went/bound"} {
		must(t, os.MkdirAll(s.dir+"/"+d, 0o755))
	}
	write(t, s.dir+"/keep/file", "here")
	write(t, s.dir+"/onefile", "covered")
	before := s.capture(t)
	mount(t, elsewhere, s.dir+"/keep/bound", "", unix.MS_BIND, "")
	mount(t, "none", s.dir+"/keep/tmpfs", "tmpfs", 0, "size=1m")
	mount(t, elsewhere+"/inner/secret", s.dir+"/onefile", "", unix.MS_BIND, "")
	write(t, s.dir+"/keep/tmpfs/f", "in memory")
	mounted := s.capture(t)
	if len(mounted.Warnings) != 3 || !strings.Contains(mounted.Warnings[0], "mount point") {
		t.Errorf("warnings: %q", mounted.Warnings)
	}
	write(t, s.dir+"/keep/file", "changed")
	must(t, os.RemoveAll(s.dir+"/went"))
	was := listing(t, elsewhere)
	s.restore(t, mounted.ID)

	write(t, s.dir+"/more/bound/x", "x")
	empty := s.capture(t)
	mount(t, elsewhere, s.dir+"/more/bound", "", unix.MS_BIND, "")
	base := s.capture(t)
	sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-m", Target: before.ID, Base: base.ID})
	must(t, err)
	must(t, sw.Commit(t.Context()))
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match || strings.Count(strings.Join(p.Notes, "\n"), "is or was a mount point") != 4 {
		t.Errorf("mounts that are in the way are not spoken of: %+v", p)
	}
	must(t, sw.Undo(t.Context()))
	must(t, sw.Finish(t.Context()))
	same(t, "elsewhere", listing(t, elsewhere), was)
	if _, err := os.Stat(s.dir + "/keep/tmpfs/f"); err != nil {
		t.Error(err)
	}
	_ = empty
}

// TestMountsFollowed: what a mount covered is captured again after its end, with what is written then, and what a mount covers is left out.
func TestMountsFollowed(t *testing.T) {
	for _, noting := range []bool{false, true} {
		t.Run(fmt.Sprint("noting=", noting), func(t *testing.T) {
			f := &followed{site: newSite(t), noting: noting}
			write(t, f.dir+"/d/below/file", "one")
			write(t, f.dir+"/e/below/file", "two")
			must(t, os.Mkdir(f.dir+"/empty", 0o755))
			mount(t, "none", f.dir+"/d", "tmpfs", 0, "size=1m")
			f.follow(t)
			if c := f.capture(t); len(c.Warnings) != 1 {
				t.Errorf("one mount: %q", c.Warnings)
			}
			for _, name := range []string{"/e", "/empty"} {
				mount(t, "none", f.dir+name, "tmpfs", 0, "size=1m")
			}
			if c := f.capture(t); len(c.Warnings) != 3 {
				t.Errorf("three mounts: %q", c.Warnings)
			}
			for _, name := range []string{"/d", "/e", "/empty"} {
				must(t, unix.Unmount(f.dir+name, 0))
			}
			if c := f.capture(t); len(c.Warnings) != 0 {
				t.Errorf("no mount: %q", c.Warnings)
			}
			for _, name := range []string{"/d/new", "/d/below/new", "/e/below/file", "/empty/new"} {
				write(t, f.dir+name, "later")
			}
			c, now := f.capture(t), listing(t, f.dir)
			must(t, os.RemoveAll(f.dir+"/d"))
			must(t, os.RemoveAll(f.dir+"/e"))
			f.restore(t, c.ID)
			same(t, "after a rollback", listing(t, f.dir), now)
		})
	}
}

// small gives a site whose workspace is on a filesystem of the size.
func small(t *testing.T, size string) (s *site, filler string) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	mount(t, "none", top, "tmpfs", 0, "size="+size)
	must(t, os.Mkdir(top+"/ws", 0o755))
	return newSite(t, func(c *Config) { c.Dir = top + "/ws" }), top + "/filler"
}

// TestDiskFull: Prepare says so beforehand; where the disk fills up during
// Commit, Undo still gets everything back.
func TestDiskFull(t *testing.T) {
	s, filler := small(t, "8m")
	ws := s.cfg.Dir
	write(t, ws+"/a", strings.Repeat("a", 3<<20))
	target := s.capture(t)
	must(t, os.Remove(ws+"/a"))
	write(t, ws+"/b", "b")
	before := listing(t, ws)
	base := s.capture(t)
	must(t, os.WriteFile(filler, make([]byte, 6<<20), 0o600))
	req := snap.RestoreRequest{ID: "op-f", Target: target.ID, Base: base.ID}
	_, err := s.Prepare(t.Context(), req)
	if errs.KindOf(err) != errs.Failed || !strings.Contains(errs.HintOf(err), "free") {
		t.Fatalf("Prepare on a full disk: %v", err)
	}
	must(t, os.Remove(filler))
	sw, err := s.Prepare(t.Context(), req)
	must(t, err)
	must(t, os.WriteFile(filler, make([]byte, 6<<20), 0o600))
	err = sw.Commit(t.Context())
	if errs.KindOf(err) != errs.Failed || !strings.Contains(err.Error(), "full") {
		t.Fatalf("Commit on a full disk: %v", err)
	}
	must(t, sw.Undo(t.Context()))
	same(t, "undone on a full disk", listing(t, ws), before)
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match {
		t.Errorf("%+v", p)
	}
}

// TestPlainUser runs asUser as nobody.
func TestPlainUser(t *testing.T) {
	testkit.Need(t, "root")
	top, err := os.MkdirTemp("/tmp", "mulligan-files-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	exe := top + "/test"
	b, err := os.ReadFile(os.Args[0])
	must(t, err)
	must(t, testkit.WriteProgram(exe, b))
	must(t, os.Mkdir(top+"/mine", 0o755))
	must(t, os.Chown(top+"/mine", 65534, 65534))
	must(t, os.Chmod(top, 0o755))
	must(t, os.Mkdir(top+"/mine/ws", 0o755))
	must(t, os.Chown(top+"/mine/ws", 65534, 65534))
	write(t, top+"/mine/ws/roots", "not to be read")
	must(t, os.Chmod(top+"/mine/ws/roots", 0o600))
	c := exec.Command(exe)
	c.Env = []string{"MULLIGAN_FILES_CHILD=user", "MULLIGAN_FILES_TOP=" + top + "/mine", "MULLIGAN_FILES_FAILPOINT=-1", "HOME=/nonexistent"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// asUser is what an ordinary user's daemon meets.
func asUser(top string) error {
	store, err := cas.Open(top+"/store", cas.Options{})
	if err != nil {
		return err
	}
	d, err := New(Config{App: "app", Dir: top + "/ws", StateDir: top + "/state", Store: store, Owner: os.Geteuid()})
	if err != nil {
		return err
	}
	ctx := context.Background()
	_, err = d.Capture(ctx, snap.CaptureRequest{ID: "fs-0"})
	if errs.KindOf(err) != errs.Denied || !strings.Contains(err.Error(), "ws/roots") || !strings.Contains(errs.HintOf(err), "exclude") {
		return fmt.Errorf("a file that is not to be read: %v (%s)", err, errs.HintOf(err))
	}
	script := func(s string) error {
		c := exec.Command("/bin/sh", "-euc", s)
		c.Dir = top + "/ws"
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := script(`rm -f roots; mkdir -p shut/in; echo 1 > shut/f; echo 1 > shut/in/f; chmod 555 shut shut/in; chmod 444 shut/f`); err != nil {
		return err
	}
	one, err := d.Capture(ctx, snap.CaptureRequest{ID: "fs-1"})
	if err != nil {
		return err
	}
	if err := script(`chmod 755 shut; echo 2 > shut/in/f; rm -f shut/f; echo n > shut/n; chmod 755 shut/in; rm -r shut/in; mkdir shut/in; chmod 555 shut/in shut`); err != nil {
		return err
	}
	return asUserBackAndForth(ctx, d, one)
}

func asUserBackAndForth(ctx context.Context, d *Driver, one snap.Snapshot) error {
	two, err := d.Capture(ctx, snap.CaptureRequest{ID: "fs-2"})
	if err != nil {
		return err
	}
	for _, r := range []snap.RestoreRequest{{ID: "op-1", Target: one.ID, Base: two.ID}, {ID: "op-2", Target: two.ID, Base: one.ID}} {
		sw, err := d.Prepare(ctx, r)
		if err != nil {
			return err
		}
		if err := sw.Commit(ctx); err != nil {
			return err
		}
		p, err := sw.Check(ctx)
		if err != nil || !p.Match {
			return fmt.Errorf("%s: %+v %v", r.Target, p, err)
		}
	}
	return nil
}
