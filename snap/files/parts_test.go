package files

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
	"mulligan/testkit"
)

// TestExcluded: what is excluded, or another driver's, is neither captured nor
// touched, also when an older snapshot has it and when its folder must go.
func TestExcluded(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/app.log", "log one")
	write(t, s.dir+"/data/main.db", "db one")
	write(t, s.dir+"/data/main.db-wal", "wal one")
	write(t, s.dir+"/code", "one")
	all := s.capture(t)

	s.cfg.Exclude, s.cfg.Skip = []string{"# logs", "*.log", "cache/", ""}, []string{"data/main.db", "./data/main.db-wal"}
	s.open(t)
	write(t, s.dir+"/app.log", "log two")
	write(t, s.dir+"/data/main.db", "db two")
	write(t, s.dir+"/data/main.db-shm", "shm")
	write(t, s.dir+"/code", "two")
	write(t, s.dir+"/new/cache/x", "cached")
	write(t, s.dir+"/new/deep/er/y.log", "logged")
	write(t, s.dir+"/new/y", "y")
	two := s.capture(t)
	changes, err := s.Diff(t.Context(), all.ID, "", nil)
	must(t, err)
	for _, c := range changes {
		if strings.Contains(c.Path, "log") || strings.HasPrefix(c.Path, "data/main.db") && c.Path != "data/main.db-shm" {
			t.Errorf("the diff speaks of %s", c.Path)
		}
	}
	base := s.capture(t)
	sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-x", Target: all.ID, Base: base.ID})
	must(t, err)
	must(t, os.WriteFile(s.dir+"/data/sqlite-at-work", nil, 0o600)) // another driver's own doings
	must(t, os.Remove(s.dir+"/data/sqlite-at-work"))
	if stale, err := sw.Stale(t.Context()); stale || err != nil {
		t.Errorf("stale for another driver's files: %v %v", stale, err)
	}
	must(t, sw.Commit(t.Context()))
	for path, want := range map[string]string{"app.log": "log two", "data/main.db": "db two", "code": "one", "new/cache/x": "cached"} {
		if got, err := os.ReadFile(s.dir + "/" + path); string(got) != want {
			t.Errorf("%s is %q (%v), want %q", path, got, err, want)
		}
	}
	var reverted []string
	list, _ := sw.Changes(100)
	for _, c := range list {
		reverted = append(reverted, c.Path)
	}
	if want := []string{"code", "data/main.db-shm", "new/y"}; !slices.Equal(reverted, want) { // new and the folders below it stay
		t.Errorf("the commit has changed %q, want %q", reverted, want)
	}
	check := func(match bool) {
		t.Helper()
		p, err := sw.Check(t.Context())
		must(t, err)
		if p.Match != match || !strings.Contains(strings.Join(p.Notes, " "), "/new stays") || !strings.Contains(strings.Join(p.Notes, " "), "/new/deep/er stays") {
			t.Errorf("a folder that could not go: %+v", p)
		}
	}
	check(true)
	for _, path := range []string{"other", "new/deep/other", "new/other"} { // by somebody else: nothing keeps these folders
		in := filepath.Dir(s.dir + "/" + path)
		was, err := os.Stat(in)
		must(t, err)
		must(t, os.Mkdir(s.dir+"/"+path, 0o755))
		must(t, os.Chtimes(in, time.Time{}, was.ModTime()))
		check(false)
		must(t, os.Remove(s.dir+"/"+path))
		must(t, os.Chtimes(in, time.Time{}, was.ModTime()))
	}
	check(true)
	must(t, sw.Undo(t.Context()))
	if p, err := sw.Check(t.Context()); err != nil || p.Want != two.Hash || !p.Match {
		t.Errorf("undone: %+v %v", p, err)
	}
}

// TestScope restores a part and leaves the rest, its folders' times included.
func TestScope(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/a/b/one", "1")
	write(t, s.dir+"/a/b/gone", "g")
	write(t, s.dir+"/a/other", "o")
	write(t, s.dir+"/lost/deep/x", "x")
	must(t, os.Link(s.dir+"/a/b/one", s.dir+"/a/linked"))
	target := s.capture(t)
	run(t, s.dir, `echo 2 > a/b/one; rm a/b/gone; echo new > a/b/new; echo 2 > a/other; rm -r lost; touch -d 2004-04-04 a .`)
	before := listing(t, s.dir)
	base := s.restore(t, target.ID, "a/b", "lost/deep/x")
	for path, want := range map[string]string{"a/b/one": "1", "a/b/gone": "g", "a/other": "2\n", "lost/deep/x": "x", "a/linked": "2\n"} {
		if got, err := os.ReadFile(s.dir + "/" + path); string(got) != want {
			t.Errorf("%s is %q (%v), want %q", path, got, err, want)
		}
	}
	if _, err := os.Lstat(s.dir + "/a/b/new"); err == nil {
		t.Error("a file that is not in the target stayed")
	}
	for _, l := range listing(t, s.dir) {
		if strings.HasPrefix(l, `"a" `) || strings.HasPrefix(l, `"."`) || strings.HasPrefix(l, `"a/other"`) {
			same(t, "outside of the scope", []string{l}, pick(before, strings.Fields(l)[0]))
		}
	}
	s.restore(t, base.ID, "a/b", "lost")
	if _, err := os.Lstat(s.dir + "/lost/deep/x"); err == nil {
		t.Error("going forward did not remove what the base lacks")
	}
	for _, bad := range []string{"/etc", "../x", "a/../../x"} {
		if _, err := s.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-b", Target: target.ID, Base: base.ID}, []string{bad}); errs.KindOf(err) != errs.Invalid {
			t.Errorf("scope %q: %v", bad, err)
		}
	}
}

func pick(lines []string, first string) []string {
	for _, l := range lines {
		if strings.HasPrefix(l, first+" ") {
			return []string{l}
		}
	}
	return nil
}

// TestScopeInterrupted: a scoped restore that is undone after a crash leaves
// the folders above it as the base has them.
func TestScopeInterrupted(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/top/in/f", "1")
	target := s.capture(t)
	run(t, s.dir, `echo 2 > top/in/f; echo n > top/in/n; mkdir top/in/d; touch -d 2004-04-04 top`)
	before := listing(t, s.dir)
	base := s.capture(t)
	for stop := 1; stop < 12; stop++ {
		n := 0
		s.cfg.Failpoint = nil
		s.open(t)
		_, err := s.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-s", Target: target.ID, Base: base.ID}, []string{"top/in"})
		must(t, err)
		cut := errors.New("cut")
		s.cfg.Failpoint = func(string) error {
			if n++; n == stop {
				return cut
			}
			return nil
		}
		s.open(t)
		sw, err := s.Resume(t.Context(), "op-s")
		must(t, err)
		if err := sw.Commit(t.Context()); err != nil && !errors.Is(err, cut) {
			t.Fatal(err)
		}
		s.cfg.Failpoint = nil
		s.open(t)
		sw, err = s.Resume(t.Context(), "op-s")
		must(t, err)
		if stop%2 == 0 {
			must(t, sw.Commit(t.Context()))
		}
		must(t, sw.Undo(t.Context()))
		same(t, "undone", listing(t, s.dir), before)
		must(t, sw.Finish(t.Context()))
	}
}

// TestLate: what appears after Commit is not lost by Undo.
func TestLate(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/f", "target")
	target := s.capture(t)
	write(t, s.dir+"/f", "base")
	base := s.capture(t)
	before := listing(t, s.dir)
	sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-late", Target: target.ID, Base: base.ID})
	must(t, err)
	must(t, sw.Commit(t.Context()))
	write(t, s.dir+"/f", "written by the app that was started")
	write(t, s.dir+"/g", "and this")
	must(t, sw.Undo(t.Context()))
	same(t, "undone", listing(t, s.dir), before)
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "files/app/late/op-late") {
		t.Errorf("the receipt is %+v", p)
	}
	must(t, sw.Finish(t.Context()))
	must(t, s.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{"op-late"}}))
	r, err := s.cas.Root("files/app/late/op-late")
	must(t, err)
	m, err := manifest.Load(s.cas, r.Hash)
	must(t, err)
	got, err := s.cas.Get(mustFind(t, m, "f").Hash)
	must(t, err)
	if string(got) != "written by the app that was started" {
		t.Errorf("stored is %q", got)
	}
}

// TestLateTwice: an Undo that is cut short and comes again keeps both finds.
func TestLateTwice(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/f", "target")
	target := s.capture(t)
	write(t, s.dir+"/f", "base")
	base := s.capture(t)
	sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-late", Target: target.ID, Base: base.ID})
	must(t, err)
	must(t, sw.Commit(t.Context()))
	write(t, s.dir+"/f", "first find")
	cut := errors.New("cut")
	s.applier.Failpoint = func(step string) error {
		if step == "synced" {
			return cut
		}
		return nil
	}
	if err := sw.Undo(t.Context()); !errors.Is(err, cut) {
		t.Fatal(err)
	}
	s.open(t)
	write(t, s.dir+"/f", "second find")
	sw, err = s.Resume(t.Context(), "op-late")
	must(t, err)
	must(t, sw.Undo(t.Context()))
	for root, want := range map[string]string{"op-late": "first find", "op-late.2": "second find"} {
		r, err := s.cas.Root("files/app/late/" + root)
		must(t, err)
		m, err := manifest.Load(s.cas, r.Hash)
		must(t, err)
		if got, err := s.cas.Get(mustFind(t, m, "f").Hash); string(got) != want {
			t.Errorf("%s has %q (%v)", root, got, err)
		}
	}
	p, err := sw.Check(t.Context())
	if err != nil || !p.Match || len(p.Notes) != 2 {
		t.Errorf("%+v %v", p, err)
	}
}

// TestWarm: what Warm stored is there for Capture, and counts for nothing after it.
func TestWarm(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/f", "warm content")
	must(t, s.Warm(t.Context()))
	must(t, s.Sweep(t.Context(), snap.Gone{}))
	must(t, s.Warm(t.Context()))
	before := s.cas.DiskUsage()
	one := s.capture(t)
	if n, err := s.Size(t.Context(), one.ID); err != nil || n < int64(len("warm content")) {
		t.Errorf("size %d %v", n, err)
	}
	if grown := s.cas.DiskUsage() - before; grown > 4096 {
		t.Errorf("a warm capture wrote %d bytes", grown)
	}
	if roots := s.cas.Roots("files/app/"); len(roots) != 1 {
		t.Errorf("roots: %v", roots)
	}
}

// TestDiff names what happened from one state to another.
func TestDiff(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/a/grows", "12 bytes long")
	write(t, s.dir+"/a/same", "abc")
	write(t, s.dir+"/gone", "gone")
	write(t, s.dir+"/mode", "m")
	one := s.capture(t)
	run(t, s.dir, `printf 30.30.30.30.30.30.30.30.30.30 > a/grows; printf xyz > a/same; rm gone; chmod 755 mode; mkdir new; ln -s x link`)
	two := s.capture(t)
	want := map[string]string{
		"a/grows": "modify 13 B → 29 B", "a/same": "modify content", "gone": "delete 4 B", "mode": "modify mode 644→755",
		"new": "create folder", "link": `create link to "x"`,
	}
	for _, to := range []snap.SnapshotID{two.ID, ""} {
		list, err := s.Diff(t.Context(), one.ID, to, nil)
		must(t, err)
		got := map[string]string{}
		for _, c := range list {
			got[c.Path] = string(c.Operation) + " " + c.Summary
		}
		for p, w := range want {
			if got[p] != w {
				t.Errorf("to %q: %s is %q, want %q", to, p, got[p], w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("to %q: %v", to, got)
		}
	}
	list, err := s.Diff(t.Context(), two.ID, one.ID, []string{"a", "gone"})
	must(t, err)
	if len(list) != 3 || list[2].Operation != snap.Create {
		t.Errorf("back, for two paths: %v", list)
	}
}

// TestMerkle: only differing subtrees are walked.
func TestMerkle(t *testing.T) {
	s := newSite(t)
	for _, p := range []string{"a/a/a/f", "b/b/b/f", "c/f"} {
		write(t, s.dir+"/"+p, p)
	}
	open := func(id snap.SnapshotID) *manifest.Manifest {
		m, err := s.stored(t.Context(), "test", id)
		must(t, err)
		return m
	}
	one := s.capture(t)
	write(t, s.dir+"/c/f", "other")
	two := s.capture(t)
	old, new := open(one.ID), open(two.ID)
	deltas, err := diff.Compare(t.Context(), rights.Reader{}, old, new, nil)
	must(t, err)
	if loads := old.Loaded() + new.Loaded(); loads != 4 || len(deltas) != 3 { // the root's folder and c, on both sides; ".", "c", "c/f"
		t.Errorf("%d and %d folders read, %d differences", old.Loaded(), new.Loaded(), len(deltas))
	}
}

// TestLimits: a tree over the limits is refused, with figures and a remedy.
func TestLimits(t *testing.T) {
	for _, limit := range []func(*Config){func(c *Config) { c.MaxFiles = 3 }, func(c *Config) { c.MaxBytes = 9000 }} {
		s := newSite(t, limit)
		for _, n := range []string{"a", "b", "c", "d"} {
			write(t, s.dir+"/"+n, strings.Repeat(n, 3000))
		}
		_, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-1"})
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(errs.HintOf(err), "exclude") {
			t.Errorf("too large a tree: %v", err)
		}
	}
}

// TestCheckRoot refuses what is no project.
func TestCheckRoot(t *testing.T) {
	s := newSite(t)
	t.Setenv("HOME", s.dir+"/home/me")
	must(t, os.MkdirAll(s.dir+"/home/me/project", 0o755))
	must(t, os.Symlink(s.dir+"/home/me/project", s.dir+"/link"))
	write(t, s.dir+"/file", "")
	for dir, want := range map[string]errs.Kind{
		"/": errs.Denied, "/etc": errs.Denied, "/etc/ssh": errs.Denied, "/usr": errs.Denied, "/var": errs.Denied, "/home": errs.Denied,
		"/root": errs.Denied, "/tmp": errs.Denied, "/proc/self": errs.Denied, "relative": errs.Invalid, s.dir + "/": errs.Invalid,
		s.dir + "/home/me": errs.Denied, s.dir + "/home": errs.Denied, s.dir + "/link": errs.Invalid, s.dir + "/none": errs.NotFound,
		s.dir + "/file": errs.Invalid, s.dir + "/home/me/project": "",
	} {
		if err := workspace.CheckRoot(dir); errs.KindOf(err) != want {
			t.Errorf("CheckRoot(%s) = %v, want kind %q", dir, err, want)
		}
	}
	t.Setenv("HOME", "/nonexistent")
	c := s.cfg
	c.StateDir = s.dir + "/.state"
	if _, err := New(c); errs.KindOf(err) != errs.Invalid {
		t.Errorf("a workspace around the state: %v", err)
	}
	c = s.cfg
	c.Owner = 4242
	d, err := New(c)
	must(t, err)
	must(t, os.Chown(s.dir, 4343, 4343))
	if _, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "fs-o"}); errs.KindOf(err) != errs.Denied {
		t.Errorf("somebody else's workspace: %v", err)
	}
}

// TestStaysInPlace goes back to a checkpoint, and forward again, where something that mulligan does not touch lies in the place of a path:
// the rest is as it should be, the proof says so, and a note names the path.
func TestStaysInPlace(t *testing.T) {
	for _, c := range []struct {
		name, before, after, note string
		root                      bool
	}{
		{name: "folder that holds excluded files for a file", before: "echo f >data", after: "rm data; mkdir -p data/deep; echo x >data/deep/x.log; echo y >data/y", note: "/data stays"},
		{name: "excluded folder for a link", before: "ln -s elsewhere cache", after: "rm cache; mkdir cache; echo x >cache/x", note: "/cache stays"},
		{name: "mount over a folder", before: "mkdir data; echo f >data/f", after: "mount -t tmpfs none data", note: "/data is or was a mount point", root: true},
		{name: "mount that has ended", before: "mkdir -p data; echo f >data/f; mount -t tmpfs none data", after: "umount data; echo g >data/g", note: "/data is or was a mount point", root: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				testkit.Need(t, "root")
			}
			s := newSite(t, func(c *Config) { c.Exclude = []string{"*.log", "cache/"} })
			t.Cleanup(func() { _ = unix.Unmount(s.dir+"/data", unix.MNT_DETACH) })
			run(t, s.dir, "echo 1 >a; "+c.before)
			target := s.capture(t)
			run(t, s.dir, "echo 2 >a; "+c.after)
			before := listing(t, s.dir)
			base := s.capture(t)
			sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-x", Target: target.ID, Base: base.ID})
			must(t, err)
			must(t, sw.Commit(t.Context()))
			if got, err := os.ReadFile(s.dir + "/a"); string(got) != "1\n" {
				t.Errorf("a is %q, %v", got, err)
			}
			p, err := sw.Check(t.Context())
			must(t, err)
			if !p.Match || !strings.Contains(strings.Join(p.Notes, " "), c.note) {
				t.Errorf("%+v", p)
			}
			must(t, os.WriteFile(s.dir+"/other", nil, 0o644))
			if p, err := sw.Check(t.Context()); err != nil || p.Match {
				t.Errorf("something else differs: %+v, %v", p, err)
			}
			must(t, os.Remove(s.dir+"/other"))
			must(t, sw.Undo(t.Context()))
			if p, err := sw.Check(t.Context()); err != nil || !p.Match {
				t.Errorf("undone: %+v, %v", p, err)
			}
			same(t, "undone", listing(t, s.dir), before)
		})
	}
}

// TestFirstNameStays: a file of several names is put back where its first name has to stay as it is, and its other names are one file again.
func TestFirstNameStays(t *testing.T) {
	for _, c := range []struct {
		name, before, after, note string
		root                      bool
	}{
		{name: "folder that holds excluded files", before: "echo f >data", after: "rm data; mkdir data; echo x >data/x.log", note: "/data stays"},
		{name: "excluded folder", before: "echo f >cache", after: "rm cache; mkdir cache; echo x >cache/x", note: "/cache stays"},
		{name: "mount over its folder", before: "mkdir data; echo f >data/f", after: "mount -t tmpfs none data", note: "/data is or was a mount point", root: true},
	} {
		for _, since := range []string{"rm l? m", "echo g >l1; ln -f l1 l2; ln -f l1 m"} {
			t.Run(c.name+", "+since, func(t *testing.T) {
				if c.root {
					testkit.Need(t, "root")
				}
				s := newSite(t, func(c *Config) { c.Exclude = []string{"*.log", "cache/"} })
				t.Cleanup(func() { _ = unix.Unmount(s.dir+"/data", unix.MNT_DETACH) })
				run(t, s.dir, c.before+"; for l in l1 l2 m; do ln $(find . -type f | sort | head -n1) $l; done")
				target := s.capture(t)
				run(t, s.dir, since+"; "+c.after)
				before := listing(t, s.dir)
				base := s.capture(t)
				sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-x", Target: target.ID, Base: base.ID})
				must(t, err)
				must(t, sw.Commit(t.Context()))
				for _, l := range []string{"l1", "l2", "m"} {
					if got, err := os.ReadFile(s.dir + "/" + l); string(got) != "f\n" || inodeOf(t, s.dir+"/"+l) != inodeOf(t, s.dir+"/l1") {
						t.Errorf("%s is %q, %v, or another file than l1", l, got, err)
					}
				}
				if p, err := sw.Check(t.Context()); err != nil || !p.Match || !strings.Contains(strings.Join(p.Notes, " "), c.note) {
					t.Errorf("%+v, %v", p, err)
				}
				run(t, s.dir, "cp -p m apart; mv apart m")
				if p, err := sw.Check(t.Context()); err != nil || p.Match {
					t.Errorf("a name is another file: %+v, %v", p, err)
				}
				run(t, s.dir, "ln -f l1 m")
				must(t, sw.Undo(t.Context()))
				if p, err := sw.Check(t.Context()); err != nil || !p.Match {
					t.Errorf("undone: %+v, %v", p, err)
				}
				same(t, "undone", listing(t, s.dir), before)
			})
		}
	}
}
