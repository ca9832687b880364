package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/rights"
	"mulligan/testkit"
)

// The owner of a workspace in these tests, and somebody else.
const (
	ownerID = 5
	otherID = 9
)

// somebody does things in files with the rights of one user: on a thread of its own,
// that has the user's ids and none of root's capabilities over files.
type somebody struct{ work chan func() }

func newSomebody(t testing.TB, uid int, groups ...uint32) *somebody {
	p := &somebody{make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ready <- becomes(uid, groups)
		for f := range p.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(p.work) })
	return p
}

// becomes gives the thread a user's ids for files; setfsuid(2) takes root's
// capabilities over files away.
func becomes(uid int, groups []uint32) error {
	if err := setgroupsHere(groups); err != nil {
		return err
	}
	if _, err := unix.SetfsgidRetGid(uid); err != nil {
		return err
	}
	if _, err := unix.SetfsuidRetUid(uid); err != nil {
		return err
	}
	if now, err := unix.SetfsuidRetUid(-1); err != nil || now != uid {
		return fmt.Errorf("the thread's uid for files is %d: %v", now, err)
	}
	return nil
}

func (p *somebody) do(f func() error) error {
	done := make(chan error)
	p.work <- func() { done <- f() }
	return <-done
}

func (p *somebody) must(t testing.TB, f func() error) {
	t.Helper()
	must(t, p.do(f))
}

func (p *somebody) write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	p.must(t, func() error {
		err := os.WriteFile(path, []byte(text), mode)
		return errs.Also(err, os.Chmod(path, mode))
	})
}

// replaces has a file's copy take its place, as editors do.
func (p *somebody) replaces(t testing.TB, path string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	p.write(t, path+".new", string(b), mode)
	p.must(t, func() error { return os.Rename(path+".new", path) })
}

// roots makes a file of root's.
func roots(t testing.TB, path, text string, mode uint32) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	must(t, unix.Chmod(path, mode))
}

// cap is what setcap cap_net_raw+ep writes.
const capNetRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// owned gives the site a workspace of the owner's that the owner can reach.
func owned(t testing.TB) func(*Config) {
	testkit.Need(t, "root")
	top, err := os.MkdirTemp("/var/tmp", "mulligan-rights-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	must(t, os.Mkdir(top+"/ws", 0o755))
	must(t, os.Chown(top+"/ws", ownerID, ownerID))
	return func(c *Config) {
		c.Dir, c.Owner, c.Reader = top+"/ws", ownerID, rights.Reader{UID: ownerID, GID: ownerID}
	}
}

// own is a followed site with an owner.
type own struct {
	*followed
	owner *somebody
}

func newOwn(t testing.TB) *own {
	o := &own{newFollowed(t, owned(t)), newSomebody(t, ownerID)}
	o.dir = o.cfg.Dir
	return o
}

func (o *own) in(path string) string { return filepath.Join(o.dir, path) }

// tuple is everything that goes together about a file.
func tuple(t testing.TB, path string) string {
	t.Helper()
	line, err := describe(path, filepath.Dir(path), map[inode.ID]string{})
	must(t, err)
	w := strings.Fields(line)
	w[3] = "" // the time
	return strings.Join(w, " ")
}

// left fails unless the revert left path alone for the sake of rights.
func left(t testing.TB, how snap.Reverted, path string, why snap.ConflictReason) {
	t.Helper()
	if !slices.Contains(how.Left, snap.Conflict{Path: path, Why: why}) {
		t.Errorf("%s: %+v, want %s", path, how, why)
	}
}

// TestSetIDNotOntoOtherContent: a file of root's that may run as root is replaced by
// the owner in a turn, and written by the owner after it. Taking the turn back gives root's bits to nothing of the owner's.
func TestSetIDNotOntoOtherContent(t *testing.T) {
	for _, force := range []bool{false, true} {
		o := newOwn(t)
		tool := o.in("tool")
		roots(t, tool, "root's program", 0o4755)
		was := tuple(t, tool)
		turn := o.during(t, func() { o.owner.replaces(t, tool, 0o755) })
		o.owner.write(t, tool, "the owner's program", 0o755)
		mine := tuple(t, tool)
		how := o.revert(t, force, turn)
		if now := tuple(t, tool); force && now != was || !force && now != mine {
			t.Errorf("force %v: the tool is %s", force, now)
		}
		if !force {
			left(t, how, "tool", snap.Rights)
		}
	}
}

// TestRightsNotOntoOtherContent is the same for other rights, and for contents
// that were others'.
func TestRightsNotOntoOtherContent(t *testing.T) {
	for name, c := range map[string]struct {
		before, turn, after func(t *testing.T, o *own, path string)
	}{
		"capabilities": {
			func(t *testing.T, o *own, p string) {
				o.owner.write(t, p, "a program", 0o755)
				must(t, unix.Setxattr(p, "security.capability", []byte(capNetRaw), 0))
			},
			func(t *testing.T, o *own, p string) { o.owner.replaces(t, p, 0o755) },
			func(t *testing.T, o *own, p string) { o.owner.write(t, p, "another program", 0o755) },
		},
		"trusted attribute": {
			func(t *testing.T, o *own, p string) {
				o.owner.write(t, p, "a text", 0o644)
				must(t, unix.Setxattr(p, "trusted.verified", []byte("yes"), 0))
			},
			func(t *testing.T, o *own, p string) { o.owner.replaces(t, p, 0o644) },
			func(t *testing.T, o *own, p string) { o.owner.write(t, p, "another text", 0o644) },
		},
		"secret moved in": {
			func(t *testing.T, o *own, p string) {
				o.owner.write(t, p, "the owner's", 0o644)
				roots(t, p+"-secret", "a secret", 0o600)
			},
			func(t *testing.T, o *own, p string) {
				must(t, os.Chown(p, 0, 0))
				must(t, os.Chmod(p, 0o600))
			},
			func(t *testing.T, o *own, p string) {
				o.owner.must(t, func() error { return os.Rename(p+"-secret", p) })
			},
		},
		"root's text": {
			func(t *testing.T, o *own, p string) { roots(t, p, poem, 0o644) },
			func(t *testing.T, o *own, p string) { o.owner.replaces(t, p, 0o644) },
			func(t *testing.T, o *own, p string) {
				o.owner.write(t, p, strings.Replace(poem, "two\n", "the owner's line\n", 1), 0o644)
			},
		},
		"root's text, whose it still is": {
			func(t *testing.T, o *own, p string) { roots(t, p, poem, 0o600) },
			func(t *testing.T, o *own, p string) {
				roots(t, p, strings.Replace(poem, "two\n", "2\n", 1), 0o644)
			},
			func(t *testing.T, o *own, p string) {
				roots(t, p, strings.Replace(poem, "eight\n", "a secret\n", 1), 0o644)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwn(t)
			path := o.in("thing")
			c.before(t, o, path)
			o.flush(t)
			turn := o.during(t, func() { c.turn(t, o, path) })
			c.after(t, o, path)
			was := tuple(t, path)
			how := o.revert(t, false, turn)
			if now := tuple(t, path); now != was {
				t.Errorf("it was %s and is %s", was, now)
			}
			left(t, how, "thing", snap.Rights)
		})
	}
}

// TestOrdinaryFilesMerge: what is the owner's in every respect is merged as ever, and
// written in place.
func TestOrdinaryFilesMerge(t *testing.T) {
	o := newOwn(t)
	path := o.in("text")
	o.owner.write(t, path, poem, 0o644)
	o.flush(t)
	turn := o.during(t, func() {
		o.owner.write(t, path, strings.Replace(poem, "two\n", "2\n", 1), 0o755)
	})
	o.owner.write(t, path, strings.NewReplacer("two\n", "2\n", "eight\n", "8\n").Replace(poem), 0o755)
	if how := o.revert(t, false, turn); !slices.Contains(how.Merged, "text") {
		t.Errorf("%+v", how)
	}
	if got := o.read(t, "text"); got != strings.Replace(poem, "eight\n", "8\n", 1) {
		t.Errorf("it says %q", got)
	}
	base := o.site.capture(t)
	ino := inodeOf(t, path)
	o.owner.write(t, path, "other", 0o644)
	o.restore(t, base.ID)
	if inodeOf(t, path) != ino {
		t.Error("an ordinary file was not written in place")
	}
}

// TestRightsComeWithNewFiles: a file that changes hands is a new one. Who had the old one
// open has no way into it.
func TestRightsComeWithNewFiles(t *testing.T) {
	o := newOwn(t)
	path := o.in("tool")
	roots(t, path, "a program", 0o4755)
	safe := o.site.capture(t)
	o.owner.replaces(t, path, 0o755)
	must(t, os.Chtimes(path, stamp, stamp))
	var f *os.File
	o.owner.must(t, func() (err error) { f, err = os.OpenFile(path, os.O_RDWR, 0); return err })
	defer f.Close()
	o.restore(t, safe.ID)
	was := tuple(t, path)
	if !strings.Contains(was, "104755 0:0") {
		t.Fatalf("it is %s", was)
	}
	o.owner.must(t, func() error { _, err := f.WriteAt([]byte("the owner's"), 0); return err })
	if now := tuple(t, path); now != was {
		t.Errorf("the owner wrote to root's file: %s, and it was %s", now, was)
	}

	// And the other way round: what root goes on writing is the app's owner may not read this file.
	log := o.in("log")
	o.owner.write(t, log, "begun", 0o644)
	owners := o.site.capture(t)
	must(t, os.Chown(log, 0, 0))
	must(t, os.Chmod(log, 0o600))
	g, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer g.Close()
	o.restore(t, owners.ID, "log")
	_, err = g.WriteString("a secret")
	must(t, err)
	if got := o.read(t, "log"); got != "begun" {
		t.Errorf("the owner's file says %q", got)
	}
}

// TestFolderNotGivenAway: the owner puts root's folder where the owner's was, has what is in
// it excluded, and goes back.
func TestFolderNotGivenAway(t *testing.T) {
	for name, exclude := range map[string][]string{"excluded": {"secret"}, "captured": nil} {
		t.Run(name, func(t *testing.T) {
			o := newOwn(t)
			o.owner.must(t, func() error { return os.Mkdir(o.in("d"), 0o755) })
			must(t, os.Mkdir(o.in("data"), 0o700))
			roots(t, o.in("data/secret"), "a secret", 0o644)
			roots(t, o.in("data/more"), "another", 0o644)
			target := o.site.capture(t)
			folder, err := os.Open(o.in("data"))
			must(t, err)
			defer folder.Close()
			o.owner.must(t, func() error {
				return errs.Also(os.Rename(o.in("d"), o.in("x")), os.Rename(o.in("data"), o.in("d")))
			})
			o.stop()
			o.cfg.Exclude = exclude
			o.open(t)
			base, was := o.site.capture(t), listing(t, o.dir)
			sw, err := o.Prepare(t.Context(), snap.RestoreRequest{ID: "op-g", Target: target.ID, Base: base.ID})
			if exclude != nil {
				if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "/d would get another owner") {
					t.Errorf("root's folder with what is excluded: %v", err)
				}
				return
			}
			must(t, err)
			must(t, sw.Commit(t.Context()))
			p, err := sw.Check(t.Context())
			must(t, err)
			if !p.Match {
				t.Errorf("%+v", p)
			}
			if fi, err := folder.Stat(); err != nil || fi.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("root's folder is the owner's now: %v", err)
			}
			o.owner.must(t, func() error {
				if b, err := os.ReadFile(o.in("data/secret")); err == nil {
					return fmt.Errorf("the secret says %q", b)
				}
				return nil
			})
			must(t, sw.Undo(t.Context()))
			o.owner.must(t, func() error {
				if b, err := os.ReadFile(o.in("d/secret")); err == nil {
					return fmt.Errorf("the secret says %q", b)
				}
				return nil
			})
			same(t, "undone", listing(t, o.dir), was)
		})
	}
}

// TestSecretStaysBehindItsFolder: a file that only its folder kept from the owner does not
// come back into a folder of the owner's.
func TestSecretStaysBehindItsFolder(t *testing.T) {
	prepare := func(t *testing.T) *own {
		o := newOwn(t)
		must(t, os.Mkdir(o.in("data"), 0o700))
		roots(t, o.in("data/secret"), "a secret", 0o644)
		o.flush(t)
		return o
	}
	swap := func(t *testing.T, o *own) {
		o.owner.must(t, func() error {
			return errs.Also(os.Rename(o.in("data"), o.in("hidden")), os.Mkdir(o.in("data"), 0o755))
		})
	}
	hides := func(t *testing.T, o *own, secret string) {
		t.Helper()
		if b, err := os.ReadFile(o.in(secret)); err == nil {
			var got []byte
			if o.owner.do(func() (err error) { got, err = os.ReadFile(o.in(secret)); return err }) == nil {
				t.Errorf("the owner reads %q (%q)", got, b)
			}
		}
	}
	unread := func(t *testing.T, o *own) {
		t.Helper()
		hides(t, o, "data/secret")
	}
	t.Run("scope", func(t *testing.T) {
		o := prepare(t)
		target := o.site.capture(t)
		swap(t, o)
		base := o.site.capture(t)
		_, err := o.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-s", Target: target.ID, Base: base.ID}, []string{"data/secret"})
		if errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.HintOf(err), "scope to data") {
			t.Errorf("%v (%s)", err, errs.HintOf(err))
		}
		unread(t, o)
	})
	t.Run("swapped meanwhile", func(t *testing.T) {
		o := prepare(t)
		target := o.site.capture(t)
		must(t, os.Remove(o.in("data/secret")))
		base := o.site.capture(t)
		sw, err := o.PrepareScoped(t.Context(), snap.RestoreRequest{ID: "op-s", Target: target.ID, Base: base.ID}, []string{"data/secret"})
		must(t, err)
		swap(t, o)
		if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Conflict {
			t.Errorf("Commit: %v", err)
		}
		unread(t, o)
	})
	t.Run("in the middle", func(t *testing.T) {
		o := prepare(t)
		target := o.site.capture(t)
		must(t, os.Remove(o.in("data/secret")))
		base := o.site.capture(t)
		o.cfg.Failpoint = func(step string) error {
			if step == "files rewritten" {
				swap(t, o)
			}
			return nil
		}
		o.stop()
		o.open(t)
		sw, err := o.Prepare(t.Context(), snap.RestoreRequest{ID: "op-s", Target: target.ID, Base: base.ID})
		must(t, err)
		if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Conflict {
			t.Errorf("Commit: %v", err)
		}
		unread(t, o)
	})
	// between goes back where the base has the owner's folder. The owner has a folder of that name again while no folder is there.
	between := func(t *testing.T, o *own, folder string, target snap.Snapshot, base snap.Snapshot) {
		t.Helper()
		made := false
		o.cfg.Failpoint = func(step string) error {
			switch step {
			case "removed":
				made = true
				o.owner.must(t, func() error { return os.Mkdir(o.in(folder), 0o755) })
			case "files placed":
				hides(t, o, folder+"/secret")
			}
			return nil
		}
		o.stop()
		o.open(t)
		sw, err := o.Prepare(t.Context(), snap.RestoreRequest{ID: "op-s", Target: target.ID, Base: base.ID})
		must(t, err)
		if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Conflict || !made {
			t.Errorf("Commit: %v; the owner made a folder: %t", err, made)
		}
		hides(t, o, folder+"/secret")
	}
	t.Run("made by the owner in between", func(t *testing.T) {
		o := prepare(t)
		target := o.site.capture(t)
		swap(t, o)
		between(t, o, "data", target, o.site.capture(t))
	})
	t.Run("made by the owner in a folder that stays for its database", func(t *testing.T) {
		o := newOwn(t)
		o.stop()
		o.cfg.Skip = []string{"data/shop.db"}
		o.open(t)
		must(t, os.Mkdir(o.in("data"), 0o755))
		must(t, os.Mkdir(o.in("data/sub"), 0o700))
		roots(t, o.in("data/sub/secret"), "a secret", 0o644)
		roots(t, o.in("data/shop.db"), "a database", 0o644)
		target := o.site.capture(t)
		must(t, os.Remove(o.in("data/sub/secret")))
		must(t, os.Chmod(o.in("data/sub"), 0o755))
		for _, p := range []string{"data", "data/sub"} {
			must(t, os.Chown(o.in(p), ownerID, ownerID))
		}
		between(t, o, "data/sub", target, o.site.capture(t))
	})
	t.Run("revert", func(t *testing.T) {
		o := prepare(t)
		turn := o.during(t, func() { swap(t, o) })
		o.owner.must(t, func() error { return os.Chmod(o.in("data"), 0o711) }) // so that the folder does not go back
		how := o.revert(t, false, turn)
		left(t, how, "data", snap.Rights)
		left(t, how, "data/secret", snap.Rights)
		unread(t, o)
	})
}

// TestDatabaseInFolderThatChangesHands: a folder with a registered database in it gets its owner and mode back, also over a failure at any
// step, and the database stays the file that it is. It does not where the folder's rights hid the database from the app's owner.
func TestDatabaseInFolderThatChangesHands(t *testing.T) {
	const database = "data/sub/shop.db"
	paths := []string{"data", "data/page", "data/sub", "data/sub/page", database}
	prepare := func(t *testing.T, mode os.FileMode) (o *own, target snap.Snapshot, tuples func() []string) {
		o = newOwn(t)
		o.stop()
		o.cfg.Skip = []string{database}
		o.open(t)
		o.owner.must(t, func() error { return os.MkdirAll(o.in("data/sub"), 0o755) })
		for _, p := range []string{"data/page", "data/sub/page", database} {
			o.owner.write(t, o.in(p), p, 0o644)
		}
		target = o.site.capture(t)
		for _, p := range paths {
			must(t, os.Chown(o.in(p), 0, 0))
		}
		must(t, os.Chmod(o.in("data"), mode))
		return o, target, func() (list []string) {
			for _, p := range paths {
				list = append(list, tuple(t, o.in(p)))
			}
			return list
		}
	}
	for _, step := range []string{"", "removed", "folders made", "files placed", "folders finished"} {
		t.Run("fails at "+step, func(t *testing.T) {
			o, target, tuples := prepare(t, 0o775)
			was, ino := tuples(), inodeOf(t, o.in(database))
			base := o.site.capture(t)
			failed := false
			o.cfg.Failpoint = func(at string) error {
				if at != step || failed {
					return nil
				}
				failed = true
				return errors.New("it fails here")
			}
			o.open(t)
			must(t, o.Precheck(t.Context(), target.ID, nil))
			sw, err := o.Prepare(t.Context(), snap.RestoreRequest{ID: "op-d", Target: target.ID, Base: base.ID})
			must(t, err)
			if err := sw.Commit(t.Context()); (err != nil) != (step != "") || failed != (step != "") {
				t.Fatalf("Commit: %v", err)
			}
			o.open(t)
			sw, err = o.Resume(t.Context(), "op-d")
			must(t, err)
			must(t, sw.Commit(t.Context()))
			if p, err := sw.Check(t.Context()); err != nil || !p.Match || len(p.Notes) > 0 {
				t.Errorf("%+v, %v", p, err)
			}
			for i, now := range tuples()[:4] {
				if !strings.Contains(now, "755 5:5") && !strings.Contains(now, "644 5:5") {
					t.Errorf("%s is %s", paths[i], now)
				}
			}
			if tuples()[4] != was[4] || inodeOf(t, o.in(database)) != ino {
				t.Errorf("the database is %s, and was %s", tuples()[4], was[4])
			}
			must(t, sw.Undo(t.Context()))
			if p, err := sw.Check(t.Context()); err != nil || !p.Match || !slices.Equal(tuples(), was) {
				t.Errorf("undone: %+v, %v; it is %q, and was %q", p, err, tuples(), was)
			}
		})
	}
	t.Run("hidden", func(t *testing.T) {
		o, target, tuples := prepare(t, 0o700)
		hidden := o.site.capture(t)
		refused := func(target, base snap.Snapshot) {
			t.Helper()
			was := tuples()
			_, err := o.Prepare(t.Context(), snap.RestoreRequest{ID: "op-d", Target: target.ID, Base: base.ID})
			if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "/data would get another owner") {
				t.Errorf("%v", err)
			}
			if !slices.Equal(tuples(), was) {
				t.Errorf("it is %q, and was %q", tuples(), was)
			}
		}
		refused(target, hidden)
		for _, p := range paths {
			must(t, os.Chown(o.in(p), ownerID, ownerID))
		}
		refused(hidden, o.site.capture(t)) // an undo could not go back
	})
}
