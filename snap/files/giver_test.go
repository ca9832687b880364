package files

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/rights"
	"mulligan/testkit"
)

// nobody is an ordinary user, in no other group than that of the same number.
const nobody = 65534

// userSite is a workspace of nobody's, and a daemon's driver that runs as nobody.
type userSite struct {
	t        *testing.T
	exe, top string
	ws       string
}

func newUserSite(t *testing.T) *userSite {
	t.Helper()
	if os.Geteuid() != 0 {
		testkit.Lack(t, "only root can become somebody else")
	}
	top, err := os.MkdirTemp("/tmp", "mulligan-files-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	u := &userSite{t, top + "/test", top + "/mine", top + "/mine/ws"}
	b, err := os.ReadFile(os.Args[0])
	must(t, err)
	must(t, testkit.WriteProgram(u.exe, b))
	u.dir("", nobody, nobody)
	u.dir("ws", nobody, nobody)
	return u
}

func (u *userSite) dir(rel string, uid, gid int) {
	u.t.Helper()
	must(u.t, os.Mkdir(u.top+"/"+rel, 0o755))
	must(u.t, os.Chown(u.top+"/"+rel, uid, gid))
}

// file writes a file of the workspace, whose owner is kept where it is there.
func (u *userSite) file(rel, text string, uid, gid int) {
	u.t.Helper()
	write(u.t, u.ws+"/"+rel, text)
	must(u.t, os.Chown(u.ws+"/"+rel, uid, gid))
}

// does has the driver run an errand as nobody, and gives what it said.
func (u *userSite) does(errand ...string) (string, error) {
	u.t.Helper()
	c := exec.Command(u.exe, errand...)
	c.Env = []string{"MULLIGAN_FILES_CHILD=errand", "MULLIGAN_FILES_TOP=" + u.top, "MULLIGAN_FILES_FAILPOINT=-1", "HOME=/nonexistent"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := c.CombinedOutput()
	return string(out), err
}

// must runs an errand that has to succeed.
func (u *userSite) must(errand ...string) string {
	u.t.Helper()
	out, err := u.does(errand...)
	if err != nil {
		u.t.Fatalf("%q: %v\n%s", errand, err, out)
	}
	return out
}

// refuses runs an errand that has to be denied, with these words.
func (u *userSite) refuses(words []string, errand ...string) {
	u.t.Helper()
	out, err := u.does(errand...)
	if err == nil {
		u.t.Fatalf("%q was done", errand)
	}
	for _, w := range append(words, "denied") {
		if !strings.Contains(out, w) {
			u.t.Errorf("%q does not say %q: %s", errand, w, out)
		}
	}
}

// errand is what userSite.does runs: capture ID; survey; foresee TARGET [PATH…];
// restore TARGET BASE [PATH…], which makes BASE first.
func errand(top string, args []string) error {
	store, err := cas.Open(top+"/store", cas.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	d, err := New(Config{App: "app", Dir: top + "/ws", StateDir: top + "/state", Store: store, Owner: -1})
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch args[0] {
	case "capture":
		var s snap.Snapshot
		s, err = d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(args[1])})
		fmt.Println(strings.Join(s.Warnings, "\n"))
	case "survey":
		var list []snap.Gap
		list, err = d.FindGaps(ctx)
		for _, g := range list {
			fmt.Println(g, g.Blocks)
		}
	case "foresee":
		err = d.Precheck(ctx, snap.SnapshotID(args[1]), args[2:])
	case "restore":
		err = restoreErrand(ctx, d, snap.SnapshotID(args[1]), snap.SnapshotID(args[2]), args[3:])
	}
	if err != nil {
		return fmt.Errorf("%s: %w (%s)", errs.KindOf(err), err, errs.HintOf(err))
	}
	return nil
}

func restoreErrand(ctx context.Context, d *Driver, target, base snap.SnapshotID, paths []string) error {
	s, err := d.Capture(ctx, snap.CaptureRequest{ID: base, Paths: paths})
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(s.Warnings, "\n"))
	sw, err := d.PrepareScoped(ctx, snap.RestoreRequest{ID: "op-" + snap.RestoreID(base), Target: target, Base: base}, paths)
	if err != nil {
		return err
	}
	if err := sw.Commit(ctx); err != nil {
		return err
	}
	p, err := sw.Check(ctx)
	if err == nil && !p.Match {
		err = fmt.Errorf("no match: %+v", p)
	}
	if err == nil {
		err = sw.Finish(ctx)
	}
	return err
}

// testOthersGroups: where the daemon is a user's own, a file of a group that the user
// is not in is warned of at the capture, keeps no restore from its work that need not
// touch it, and is named by one that would.
func testOthersGroups(t *testing.T) {
	const foreign = 4711
	u := newUserSite(t)
	u.dir("ws/shared", nobody, foreign) // its time moves with what is in it
	u.file("shared/mine", "one", nobody, nobody)
	u.file("logs", "one", nobody, foreign)
	u.file("more", "one", nobody, foreign)
	must(t, os.Chown(u.ws, nobody, foreign))
	if got := u.must("capture", "fs-1"); !strings.Contains(got, "3 paths belong to other users") || !strings.Contains(got, u.ws+"/logs") || !strings.Contains(got, "chgrp") {
		t.Errorf("the capture says %q", got)
	}
	one := listing(t, u.ws)

	u.file("shared/mine", "two", nobody, nobody)
	must(t, os.Chtimes(u.ws+"/logs", stamp, stamp))
	must(t, os.Chmod(u.ws+"/more", 0o600))
	u.file("new", "two", nobody, nobody)
	two := listing(t, u.ws)
	u.must("foresee", "fs-1")
	u.must("restore", "fs-1", "fs-2")
	same(t, "back", listing(t, u.ws), one)
	u.must("restore", "fs-2", "fs-3")
	same(t, "and forth", listing(t, u.ws), two)

	u.file("logs", strings.Repeat("three\x00", 1000), nobody, foreign)
	u.file("shared/mine", "three", nobody, nobody)
	three := listing(t, u.ws)
	words := []string{u.ws + "/logs", "group 4711", "chgrp", "exclude"}
	u.refuses(words, "foresee", "fs-1")
	u.refuses(words, "restore", "fs-1", "fs-4")
	same(t, "refused", listing(t, u.ws), three)
	u.must("foresee", "fs-1", "shared")
	u.must("restore", "fs-1", "fs-5", "shared")

	must(t, os.Remove(u.ws+"/logs")) // to make it again takes the right, too
	u.refuses([]string{u.ws + "/logs"}, "foresee", "fs-1")
}

// testOthersThings: owners, capabilities, set-group-ID bits and devices are refused in Prepare, not in the middle.
func testOthersThings(t *testing.T) {
	for name, make := range map[string]func(u *userSite, path string){
		"of another user": func(u *userSite, path string) { u.file("thing", "x", 4711, nobody) },
		"with a capability": func(u *userSite, path string) {
			u.file("thing", "x", nobody, nobody)
			must(t, os.Chmod(path, 0o755))
			capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			must(t, unix.Setxattr(path, "security.capability", capability, 0))
		},
		"a device": func(u *userSite, path string) {
			must(t, unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))))
			must(t, os.Chown(path, nobody, nobody))
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUserSite(t)
			path := u.ws + "/thing"
			make(u, path)
			u.file("other", "one", nobody, nobody)
			if got := u.must("capture", "fs-1"); !strings.Contains(got, path) {
				t.Errorf("the capture says %q", got)
			}
			u.file("other", "two", nobody, nobody)
			u.must("restore", "fs-1", "fs-2")
			content(t, u.ws+"/other", "one")
			must(t, os.Remove(path))
			u.refuses([]string{path}, "restore", "fs-1", "fs-3")
			if _, err := os.Lstat(path); err == nil {
				t.Error("it was made all the same")
			}
		})
	}
	t.Run("a set-group-ID bit", func(t *testing.T) {
		u := newUserSite(t)
		u.dir("ws/thing", nobody, 4711)
		must(t, os.Chmod(u.ws+"/thing", 0o755|os.ModeSetgid))
		u.must("capture", "fs-1")
		must(t, os.Chmod(u.ws+"/thing", 0o700))
		u.refuses([]string{u.ws + "/thing", "set-group-ID"}, "restore", "fs-1", "fs-2")
	})
}

// TestSurvey: what cannot be captured at all is said beforehand, with a remedy.
func TestSurvey(t *testing.T) {
	u := newUserSite(t)
	u.file("fine", "x", nobody, nobody)
	if got := strings.TrimSpace(u.must("survey")); got != "" {
		t.Errorf("nothing is wrong, and the survey says %q", got)
	}
	u.file("roots", "x", 0, 0)
	must(t, os.Chmod(u.ws+"/roots", 0o600))
	u.file("shut/f", "x", 0, 0)
	must(t, os.Chmod(u.ws+"/shut", 0o700))
	u.file("mine", "x", nobody, 4711)
	must(t, os.Mkdir(u.ws+"/mnt", 0o755))
	mount(t, "none", u.ws+"/mnt", "tmpfs", 0, "size=1m")
	got := u.must("survey")
	for _, w := range []string{u.ws + "/mnt is a mount point", "2 paths cannot be read", u.ws + "/roots", "exclude", "2 paths belong to other users", u.ws + "/mine"} {
		if !strings.Contains(got, w) {
			t.Errorf("the survey does not say %q:\n%s", w, got)
		}
	}
	u.refuses([]string{u.ws + "/"}, "capture", "fs-1")
}

// TestLacking: a capture reads the rights only of folders that changed, and tells of all that this process could not restore.
func TestLacking(t *testing.T) {
	s := newSite(t)
	for i := range 30 {
		write(t, fmt.Sprintf("%s/d%d/below/f", s.dir, i), fmt.Sprint("of ", i)) // equal folders would be read once
	}
	expect := func(paths, read int) {
		t.Helper()
		m, err := s.stored(t.Context(), "test", s.capture(t).ID)
		must(t, err)
		g, err := s.lacking.find(m, rights.Giver{}) // may give nothing: root's group is not its own
		if must(t, err); g.n != paths || g.first != "d0" {
			t.Errorf("%d paths from %s, want %d", g.n, g.first, paths)
		}
		if m.Loaded() != read {
			t.Errorf("%d folders were read, want %d", m.Loaded(), read)
		}
	}
	expect(90, 61)
	write(t, s.dir+"/d7/below/more", "x")
	expect(91, 3)
	must(t, os.RemoveAll(s.dir+"/d7"))
	expect(87, 1)
	expect(87, 0)
}
