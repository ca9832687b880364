package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/snaptest"
)

func testSalvageConformance(t *testing.T) {
	c := startClient(t)
	snaptest.RunSalvage(t, func(t *testing.T) snaptest.Breakable { return newBreakable(t, c) })
}

// breakable is a subject whose database gets broken, and whose driver gets killed.
type breakable struct {
	*subject
	kill, steps int
}

func newBreakable(t *testing.T, c *client) *breakable {
	s := &breakable{subject: newSubject(t, c, "WAL")}
	s.cfg.Failpoint = func(string) error {
		if s.steps++; s.kill > 0 && s.steps >= s.kill {
			return errors.New("killed")
		}
		return nil
	}
	s.Reopen(t)
	return s
}

func (s *breakable) KillAt(n int) { s.kill, s.steps = n, 0 }
func (s *breakable) Killed() bool { return s.kill > 0 && s.steps >= s.kill }

// wrecks are what agents, and accidents, leave in a database's place.
var wrecks = map[string]func(path, seed string) error{
	"text": func(path, seed string) error { return os.WriteFile(path, []byte("oops "+seed), 0o644) },
	"text beside logs": func(path, seed string) error {
		return errs2(os.WriteFile(path, []byte(strings.Repeat("oops "+seed, 50_000)), 0o600), os.WriteFile(path+"-wal", []byte("wal "+seed), 0o640),
			os.WriteFile(path+"-shm", []byte("shm"), 0o644), os.WriteFile(path+"-journal", nil, 0o600))
	},
	"header": func(path, seed string) error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte(fmt.Sprintf("%-100s", seed)), 0)
		return errors.Join(err, f.Close())
	},
	"folder": func(path, seed string) error {
		err := errs2(os.Remove(path), os.Mkdir(path, 0o750), os.Mkdir(path+"/sub", 0o2711), os.WriteFile(path+"/sub/f", []byte(seed), 0o400),
			os.Symlink("../\xff"+seed, path+"/link"), os.Chown(path+"/sub/f", 65534, 12), os.Lchown(path+"/link", 65534, 65534))
		return errs2(err, unix.Mkfifo(path+"/sub/pipe", 0o612), os.WriteFile(path+"/a\xffb", nil, 0o604), unix.Setxattr(path, "user.seed", []byte(seed), 0))
	},
	"folder for a log": func(path, seed string) error {
		return errs2(os.RemoveAll(path+"-wal"), os.Mkdir(path+"-wal", 0o700), os.WriteFile(path+"-wal/f", []byte(seed), 0o600))
	},
	"fifo": func(path, seed string) error {
		return errs2(os.Remove(path), unix.Mkfifo(path, 0o621), os.WriteFile(path+"-wal", []byte(seed), 0o600))
	},
	"link": func(path, seed string) error { return errs2(os.Remove(path), os.Symlink("/etc/"+seed, path)) },
}

// ways are all wrecks.
var ways = []string{"folder", "text beside logs", "folder for a log", "link", "text", "header", "fifo"}

func (s *breakable) Wrecks() []string { return ways }

// TestSalvageAndBack goes from each of the wrecks to a good state, and back to just them.
func TestSalvageAndBack(t *testing.T) {
	c := startClient(t)
	for _, way := range ways {
		s := newBreakable(t, c)
		_, err := s.capture(t, "db-good")
		check(t, err)
		good := s.Fingerprint(t)
		s.Wreck(t, way, 5)
		broken := s.Bytes(t)
		ctx := t.Context()
		_, err = s.driver.Capture(ctx, snap.CaptureRequest{ID: "db-none"})
		wants(t, err, errs.Invalid)
		_, err = s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw"})
		check(t, err)
		sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: "db-raw"})
		check(t, err)
		check(t, sw.Commit(ctx))
		if s.Fingerprint(t) != good {
			t.Errorf("%s: the state is not the one that was captured", way)
		}
		check(t, sw.Undo(ctx))
		if got := s.Bytes(t); got != broken {
			t.Errorf("%s: after Undo there is\n%s\nwant\n%s", way, got, broken)
		}
		check(t, sw.Finish(ctx))
	}
}

func (s *breakable) Wreck(t *testing.T, way string, seed int64) {
	t.Helper()
	check(t, wrecks[way](s.path(), fmt.Sprint(seed)))
}

// Bytes lists what lies at the database's names: kind, mode, owner, attribute and content.
func (s *breakable) Bytes(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	list, err := os.ReadDir(filepath.Dir(s.path()))
	check(t, err)
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), "app.db") {
			continue // what a killed switch left beside it is not the live state's
		}
		check(t, filepath.WalkDir(filepath.Join(filepath.Dir(s.path()), e.Name()), func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
				return err
			}
			var x [64]byte
			n, _ := unix.Lgetxattr(path, "user.seed", x[:])
			content := ""
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFREG:
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				content = fmt.Sprintf("%d %x", len(data), sha256.Sum256(data))
			case unix.S_IFLNK:
				content, err = os.Readlink(path)
			}
			fmt.Fprintf(&b, "%q %o %d %d %q %q\n", path, st.Mode, st.Uid, st.Gid, x[:max(n, 0)], content)
			return err
		}))
	}
	return b.String()
}

// TestSalvageLeavesNothing: once a switch has ended, nothing lies beside the database.
func TestSalvageLeavesNothing(t *testing.T) {
	c := startClient(t)
	for _, undo := range []bool{false, true} {
		s := newBreakable(t, c)
		_, err := s.capture(t, "db-good")
		check(t, err)
		s.Wreck(t, "folder", 7)
		ctx := t.Context()
		_, err = s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw"})
		check(t, err)
		sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: "db-raw"})
		check(t, err)
		check(t, sw.Commit(ctx))
		if undo {
			check(t, sw.Undo(ctx))
		}
		check(t, sw.Finish(ctx))
		list, err := os.ReadDir(filepath.Dir(s.path()))
		check(t, err)
		for _, e := range list {
			if !strings.HasPrefix(e.Name(), "app.db") {
				t.Errorf("undo %t: %s is left", undo, e.Name())
			}
		}
	}
}

// TestUndoOverRuins: an app that was started after a restore, and broke its database, loses
// nothing of the state before.
func TestUndoOverRuins(t *testing.T) {
	c := startClient(t)
	for _, way := range []string{"text", "folder", "fifo", "link", "folder for a log"} {
		t.Run(way, func(t *testing.T) {
			s := newBreakable(t, c)
			_, err := s.capture(t, "db-target")
			check(t, err)
			s.Mutate(t, 3)
			before := s.Fingerprint(t)
			_, err = s.capture(t, "db-base")
			check(t, err)
			ctx := t.Context()
			sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-target", Base: "db-base"})
			check(t, err)
			check(t, sw.Commit(ctx))
			s.Wreck(t, way, 9)
			p, err := sw.Check(ctx)
			if err != nil || p.Match || p.Post.IsZero() {
				t.Errorf("Check of ruins: %+v, %v", p, err)
			}
			check(t, sw.Undo(ctx))
			if s.Fingerprint(t) != before {
				t.Error("the state is not that before the restore")
			}
			if p, err := sw.Check(ctx); err != nil || !p.Match {
				t.Errorf("Check after Undo: %+v, %v", p, err)
			}
			check(t, sw.Finish(ctx))
		})
	}
}

// TestSalvageOfNothing: that nothing lies there, or that its folder is gone, is a state too.
func TestSalvageOfNothing(t *testing.T) {
	c := startClient(t)
	for _, gone := range []string{"data/app.db", "data"} {
		s := newBreakable(t, c)
		_, err := s.capture(t, "db-good")
		check(t, err)
		good := s.Fingerprint(t)
		check(t, os.RemoveAll(filepath.Join(s.cfg.Dir, gone)))
		ctx := t.Context()
		raw, err := s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw"})
		check(t, err)
		if !raw.Raw || raw.Hash.IsZero() {
			t.Errorf("%+v", raw)
		}
		sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: "db-raw"})
		check(t, err)
		check(t, sw.Commit(ctx))
		if s.Fingerprint(t) != good {
			t.Errorf("%s: the state is not the one that was captured", gone)
		}
		check(t, sw.Undo(ctx))
		if s.Fingerprint(t) != "absent" {
			t.Errorf("%s: there is a database again", gone)
		}
		check(t, sw.Finish(ctx))
	}
}

// TestSalvageRefuses: what is another's, a device, a socket, and a file of holes are not kept.
func TestSalvageRefuses(t *testing.T) {
	c := startClient(t)
	holes := int64(1) << 42
	for name, k := range map[string]struct {
		make func(path string) error
		kind errs.Kind
	}{
		"another's": {func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) }, errs.Denied},
		"another's in folder": {func(p string) error {
			return errs2(os.Mkdir(p, 0o755), os.Chown(p, 65534, 65534), os.WriteFile(p+"/f", nil, 0o600))
		}, errs.Denied},
		"another's link": {func(p string) error { return os.Symlink("x", p) }, errs.Denied},
		"device": {func(p string) error {
			return errs2(unix.Mknod(p, unix.S_IFCHR|0o600, 0x103), os.Chown(p, 65534, 65534))
		}, errs.Unsupported},
		"holes": {func(p string) error {
			return errs2(os.WriteFile(p, []byte("x"), 0o600), os.Truncate(p, holes), os.Chown(p, 65534, 65534))
		}, errs.Invalid},
		"many": {func(p string) error {
			err := errs2(os.Mkdir(p, 0o755), os.Chown(p, 65534, 65534))
			for i := 0; err == nil && i <= mostEntries; i++ {
				err = errs2(os.Symlink("x", fmt.Sprint(p, "/", i)), os.Lchown(fmt.Sprint(p, "/", i), 65534, 65534))
			}
			return err
		}, errs.Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			s := emptySubject(t, c)
			check(t, os.Mkdir(filepath.Dir(s.path()), 0o755))
			check(t, k.make(s.path()))
			s.cfg.Owner = 65534
			check(t, errs2(os.Chown(s.cfg.Dir, 65534, 65534), os.Chown(filepath.Dir(s.path()), 65534, 65534)))
			s.Reopen(t)
			_, err := s.driver.Salvage(context.Background(), snap.CaptureRequest{ID: "db-raw"})
			wants(t, err, k.kind)
			if roots := s.cfg.Store.Roots(""); len(roots) != 0 {
				t.Errorf("stored: %v", roots)
			}
		})
	}
}

// TestNoFolder: a database outside of the workspace whose folder is gone, or has become a file, is captured as missing. Where a restore needs
// the folder, Prepare names it, and where it does not, the restore goes on.
func TestNoFolder(t *testing.T) {
	c := startClient(t)
	for what, replace := range map[string]func(dir string) error{
		"nothing": func(string) error { return nil },
		"a file":  func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			s := newSubject(t, c, "WAL")
			s.cfg.Dir, s.cfg.Path = filepath.Join(s.cfg.Dir, "data"), "app.db"
			s.Reopen(t)
			ctx := t.Context()
			_, err := s.capture(t, "db-good")
			check(t, err)
			good := s.Fingerprint(t)
			check(t, errs2(os.RemoveAll(s.cfg.Dir), replace(s.cfg.Dir)))
			gone, err := s.capture(t, "db-gone")
			check(t, err)
			if len(gone.Warnings) != 1 || !strings.Contains(gone.Warnings[0], s.cfg.Dir) {
				t.Errorf("the warnings are %q", gone.Warnings)
			}
			_, err = s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw"})
			check(t, err)
			for _, base := range []snap.SnapshotID{"db-gone", "db-raw"} {
				_, err = s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: base})
				wants(t, err, errs.Conflict, s.cfg.Dir)
				sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-gone", Base: base})
				check(t, err)
				check(t, sw.Commit(ctx))
				if p, err := sw.Check(ctx); err != nil || !p.Match {
					t.Errorf("from %s: %+v, %v", base, p, err)
				}
				check(t, sw.Undo(ctx))
				check(t, sw.Finish(ctx))
			}
			check(t, errs2(os.RemoveAll(s.cfg.Dir), os.Mkdir(s.cfg.Dir, 0o755)))
			sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-2", Target: "db-good", Base: "db-gone"})
			check(t, err)
			check(t, os.Remove(s.cfg.Dir)) // after it was seen
			wants(t, sw.Commit(ctx), errs.Conflict, s.cfg.Dir)
			check(t, os.Mkdir(s.cfg.Dir, 0o755))
			check(t, sw.Commit(ctx))
			if s.Fingerprint(t) != good {
				t.Error("the state is not the one that was captured")
			}
			check(t, sw.Undo(ctx))
			check(t, sw.Finish(ctx))
		})
	}
}
