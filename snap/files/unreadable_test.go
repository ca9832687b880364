package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/walk"
	"mulligan/testkit"
)

// TestUnreadableOutsideOfScope: where a user's daemon may not read a file and a folder, it restores a scope that leaves them out, and nothing else. The
// snapshot from before does not have them, says so, and a restore to it leaves them as they are.
func TestUnreadableOutsideOfScope(t *testing.T) {
	u := newUserSite(t)
	for _, p := range []string{"a/one", "a/secret", "shut/f", "z"} {
		u.file(p, "one", nobody, nobody)
	}
	must(t, os.Chown(u.ws+"/a", nobody, nobody))
	must(t, os.Chown(u.ws+"/shut", nobody, nobody))
	u.must("capture", "fs-1")
	for _, p := range []string{"a/one", "a/secret", "shut/f", "z"} {
		u.file(p, "two", nobody, nobody)
	}
	keep := func(uid int, file, folder os.FileMode) {
		t.Helper()
		for p, mode := range map[string]os.FileMode{"a/secret": file, "shut": folder} {
			must(t, os.Chown(u.ws+"/"+p, uid, uid))
			must(t, os.Chmod(u.ws+"/"+p, mode))
		}
	}
	is := func(want map[string]string) {
		t.Helper()
		for p, text := range want {
			if got, err := os.ReadFile(u.ws + "/" + p); string(got) != text {
				t.Errorf("%s is %q, %v; want %q", p, got, err, text)
			}
		}
	}
	keep(0, 0o600, 0o700)
	u.refuses([]string{"cannot read " + u.ws}, "restore", "fs-1", "fs-2")
	u.refuses([]string{"cannot read " + u.ws + "/shut"}, "restore", "fs-1", "fs-3", "a/one", "shut/f")
	u.must("foresee", "fs-1", "a/one", "z")
	said := u.must("restore", "fs-1", "fs-4", "a/one", "z")
	for _, p := range []string{"/a/secret", "/shut"} {
		if !strings.Contains(said, u.ws+p+" is not captured") {
			t.Errorf("the capture does not say that it leaves out %s: %s", p, said)
		}
	}
	is(map[string]string{"a/one": "one", "z": "one", "a/secret": "two", "shut/f": "two"})
	keep(nobody, 0o644, 0o755)
	u.file("shut/f", "three", nobody, nobody)
	u.must("restore", "fs-4", "fs-5")
	is(map[string]string{"a/one": "two", "z": "two", "a/secret": "two", "shut/f": "three"})
	u.must("restore", "fs-5", "fs-6")
	is(map[string]string{"a/one": "one", "z": "one", "a/secret": "two", "shut/f": "three"})
}

// TestUnreadableWhileFollowed is the same where the files are followed, and the reading of a file begins to fail.
func TestUnreadableWhileFollowed(t *testing.T) {
	for name, why := range map[string]error{
		"denied":        &errs.Error{Kind: errs.Denied, Message: "cannot read bad", Err: unix.EACCES},
		"a broken disk": &errs.Error{Kind: errs.Failed, Message: "cannot read bad", Err: unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollowed(t)
			write(t, f.dir+"/in/good", "one")
			write(t, f.dir+"/bad", "one")
			first, start := f.capture(t), f.flush(t)
			f.beforeEach(t, func(path string) error {
				if path == "bad" {
					return why
				}
				return nil
			})
			write(t, f.dir+"/in/good", "two")
			write(t, f.dir+"/bad", "two")
			now, err := f.Flush(t.Context())
			if !errors.As(err, &snap.UnreadableError{}) || !walk.Unreadable(err) {
				t.Errorf("Flush: %v", err)
			}
			writes, err := f.Writes(t.Context(), start, now)
			must(t, err)
			if !slices.ContainsFunc(writes, func(w snap.Write) bool { return w.Path == "in/good" }) {
				t.Errorf("the journal has %v", writes)
			}
			for _, paths := range [][]string{nil, {"bad"}, {"in", "bad"}} {
				if _, err := f.Capture(t.Context(), snap.CaptureRequest{ID: "fs-all", Paths: paths}); errs.KindOf(err) != errs.KindOf(why) {
					t.Errorf("a capture for %q: %v", paths, err)
				}
			}
			scope := []string{"in"}
			must(t, f.Precheck(t.Context(), first.ID, scope))
			base, err := f.Capture(t.Context(), snap.CaptureRequest{ID: "fs-base", Paths: scope})
			must(t, err)
			if !slices.ContainsFunc(base.Warnings, func(w string) bool { return strings.HasPrefix(w, f.dir+"/bad is not captured") }) {
				t.Errorf("the warnings are %q", base.Warnings)
			}
			sw, err := f.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-u", Target: first.ID, Base: base.ID}, scope)
			must(t, err)
			if stale, err := sw.Stale(t.Context()); err != nil || stale {
				t.Errorf("stale: %v, %v", stale, err)
			}
			must(t, sw.Commit(t.Context()))
			if p, err := sw.Check(t.Context()); err != nil || !p.Match {
				t.Errorf("%+v, %v", p, err)
			}
			if good, bad := f.read(t, "in/good"), f.read(t, "bad"); good != "one" || bad != "two" {
				t.Errorf("they are %q and %q", good, bad)
			}
			must(t, sw.Undo(t.Context()))
			if good, bad := f.read(t, "in/good"), f.read(t, "bad"); good != "two" || bad != "two" {
				t.Errorf("undone: they are %q and %q", good, bad)
			}
		})
	}
}

// TestUnreadableAmongBusy: what may not be read keeps a flush from no file that can be read a moment later.
func TestUnreadableAmongBusy(t *testing.T) {
	f := newFollowed(t)
	for round := range 5 {
		start := f.flush(t)
		held := fmt.Sprint("held", round)
		var mu sync.Mutex
		wasBusy, wasDenied := 0, 0
		f.beforeEach(t, func(path string) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasPrefix(path, "secret"):
				wasDenied++
				return &errs.Error{Kind: errs.Denied, Message: "cannot read " + path, Err: unix.EACCES}
			case path == held && wasBusy < 3:
				wasBusy++
				return errs.New(errs.Busy, "", "%s is leased", path)
			}
			return nil
		})
		for i := range 20 {
			write(t, fmt.Sprint(f.dir, "/secret", i), fmt.Sprint(round))
		}
		write(t, f.dir+"/"+held, "written")
		now, err := f.Flush(t.Context())
		if errs.KindOf(err) != errs.Denied {
			t.Errorf("Flush: %v", err)
		}
		f.beforeEach(t, nil)
		writes, err := f.Writes(t.Context(), start, now)
		must(t, err)
		if !slices.ContainsFunc(writes, func(w snap.Write) bool { return w.Path == held }) || wasBusy < 3 || wasDenied < 20 {
			t.Errorf("round %d: the journal has %v; a file was busy %d times, and others denied %d times", round, writes, wasBusy, wasDenied)
		}
	}
}

// TestBrokenInodeOutsideOfScope: what a damaged disk has no owner and mode of any more keeps a restore from no scope that leaves it out, and a restore of
// everything from its work only as long as it is not excluded.
func TestBrokenInodeOutsideOfScope(t *testing.T) {
	dir := testkit.Loop(t, 64, "mkfs.ext4", "-q", "-F")
	must(t, os.Mkdir(dir+"/ws", 0o755))
	s := newSite(t, func(c *Config) { c.Dir = dir + "/ws" })
	s.dir = s.cfg.Dir
	write(t, s.dir+"/in/good", "one")
	write(t, s.dir+"/out/bad", "one")
	write(t, s.dir+"/out/folder/f", "one")
	first := s.capture(t)
	write(t, s.dir+"/in/good", "two")
	s.cas.Close()
	s.cas = nil
	// The test damages and mounts a copy of the image. Other tests make mount namespaces; if one still has the image mounted, a new mount of the image
	// would use the inodes that the kernel has in memory, and not the damaged ones.
	image := filepath.Dir(dir) + "/image"
	run(t, "/", `
		mount -o remount,ro `+dir+`
		cp --sparse=always `+image+` `+image+`.damaged
		umount `+dir+`
		for f in bad folder; do debugfs -w -R "set_inode_field /ws/out/$f mode 0" `+image+`.damaged; done
		mount -o loop `+image+`.damaged `+dir)
	s.open(t)
	for _, p := range []string{"out/bad", "out/folder"} {
		if _, err := os.Lstat(s.dir + "/" + p); !errors.Is(err, unix.EUCLEAN) {
			t.Fatalf("%s: %v: this shows nothing", p, err)
		}
	}
	if _, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-all"}); errs.KindOf(err) != errs.Failed || !strings.Contains(errs.HintOf(err), "dmesg") {
		t.Errorf("a capture of everything: %v (%s)", err, errs.HintOf(err))
	}
	scope := []string{"in"}
	base, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-base", Paths: scope})
	must(t, err)
	for _, p := range []string{"out/bad", "out/folder"} {
		if !slices.ContainsFunc(base.Warnings, func(w string) bool { return strings.HasPrefix(w, s.dir+"/"+p+" is not captured") }) {
			t.Errorf("of %s nothing is said: %q", p, base.Warnings)
		}
	}
	must(t, s.Precheck(t.Context(), first.ID, scope))
	sw, err := s.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-u", Target: first.ID, Base: base.ID}, scope)
	must(t, err)
	if stale, err := sw.Stale(t.Context()); err != nil || stale {
		t.Errorf("stale: %v, %v", stale, err)
	}
	must(t, sw.Commit(t.Context()))
	if p, err := sw.Check(t.Context()); err != nil || !p.Match {
		t.Errorf("%+v, %v", p, err)
	}
	content(t, s.dir+"/in/good", "one")
	must(t, sw.Undo(t.Context()))
	content(t, s.dir+"/in/good", "two")
	s.cfg.Exclude = []string{"out/folder/", "bad"}
	s.open(t)
	s.capture(t)
}
