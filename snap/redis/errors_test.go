package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// refuses checks that err is of the kind, one line, with what to do, and without the password.
func refuses(t *testing.T, err error, kind errs.Kind) {
	t.Helper()
	switch {
	case errs.KindOf(err) != kind:
		t.Errorf("want %s, have %s: %v", kind, errs.KindOf(err), err)
	case errs.HintOf(err) == "" || strings.Contains(err.Error(), "\n"):
		t.Errorf("the error has no hint, or several lines: %v", err)
	}
	if all := fmt.Sprintf("%+v %v", err, errs.HintOf(err)); strings.Contains(all, secret) || strings.Contains(all, "wr0ng") {
		t.Errorf("the error holds the password: %s", all)
	}
}

func (s *subject) capture(id snap.SnapshotID) error {
	_, err := s.driver.Capture(context.Background(), snap.CaptureRequest{ID: id})
	return err
}

func TestCannotLogIn(t *testing.T) {
	s := newSubject(t)
	before := s.digest(t)
	for dsn, kind := range map[string]errs.Kind{
		"redis://:wr0ng@127.0.0.1:" + s.port:      errs.Denied,
		"redis://127.0.0.1:" + s.port:             errs.Denied,
		"redis://bob:wr0ng@127.0.0.1:" + s.port:   errs.Denied,
		"redis://:wr0ng@127.0.0.1:1":              errs.Unavailable,
		"redis:///?socket=" + s.socket() + "-not": errs.Unavailable,
	} {
		s.cfg.DSN = dsn
		s.reopen(t)
		refuses(t, s.capture("db-1"), kind)
	}
	if s.digest(t) != before {
		t.Error("the data changed")
	}
}

func TestBadDSN(t *testing.T) {
	s := newSubject(t)
	for _, dsn := range []string{"mysql://u:wr0ng@h", "redis://u:wr0ng@h/x", "redis://u:wr0ng@h:port", "redis://h?socket=/s", "redis:///?socket=s", ":wr0ng"} {
		s.cfg.DSN = dsn
		_, err := New(s.cfg)
		refuses(t, err, errs.Invalid)
	}
}

// The owner's rights are what a socket is opened with.
func TestSocket(t *testing.T) {
	s := newSubject(t)
	s.cfg.DSN = "redis://:" + secret + "@/?socket=" + s.socket()
	s.reopen(t)
	check(t, s.capture("db-1"))
	want := s.digest(t)
	s.mutate(t, 5)
	s.restore(t, "db-1")
	if s.digest(t) != want {
		t.Error("not restored through the socket")
	}
	testkit.Need(t, "root")
	s.cfg.Owner = privsep.User{UID: 65534, GID: 65534}
	s.reopen(t)
	refuses(t, s.capture("db-2"), errs.Denied)
}

func TestRefused(t *testing.T) {
	s := newSubject(t)
	check(t, s.capture("db-1"))
	check(t, s.db.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	refuses(t, s.capture("db-2"), errs.Unsupported)
	check(t, s.db.ReplicaOf(t.Context(), "no", "one").Err())
	check(t, s.capture("db-3"))
	s.db.Do(t.Context(), "ACL", "SETUSER", "bob", "on", ">"+secret, "~*", "+@all", "-psync")
	s.cfg.DSN = "redis://bob:" + secret + "@127.0.0.1:" + s.port
	s.reopen(t)
	s.mutate(t, 4)
	refuses(t, s.capture("db-4"), errs.Denied)

	cluster := startServer(t, "--cluster-enabled", "yes")
	s.cfg.DSN = cluster.dsn()
	s.reopen(t)
	refuses(t, s.capture("db-5"), errs.Unsupported)
}

// tiny mounts a small file system.
func tiny(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tiny", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		testkit.Lack(t, "cannot mount a small file system: ", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill takes all the room that is left.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	check(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	check(t, f.Close())
}

func TestStoreDiskFull(t *testing.T) {
	s := newSubject(t)
	dir := tiny(t, 2<<20)
	old := s.cfg.Store
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	s.cfg.Store = store
	s.reopen(t)
	check(t, s.db.Set(t.Context(), "noise:x", noise(testkit.Rand(t), 3<<20), 0).Err())
	before := s.digest(t)
	if err := s.capture("db-1"); errs.KindOf(err) != errs.Failed || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk is %s: %v", errs.KindOf(err), err)
	}
	if s.digest(t) != before {
		t.Error("the data changed")
	}
	check(t, store.Close())
	s.cfg.Store = old
}

// The server has no room for what it is sent: it keeps what it has.
func TestServerDiskFull(t *testing.T) {
	dir := tiny(t, 4<<20)
	s := newSubject(t, "--dir", dir)
	check(t, s.db.Set(t.Context(), "noise:x", noise(testkit.Rand(t), 1<<20), 0).Err())
	check(t, s.capture("db-target"))
	check(t, s.db.FlushAll(t.Context()).Err())
	s.mutate(t, 4)
	check(t, s.capture("db-base"))
	base := s.digest(t)
	check(t, fate{Do: "prepare"}.run(s.driver))
	fill(t, dir)
	err := fate{Do: "commit"}.run(s.driver)
	refuses(t, err, errs.Failed)
	if s.digest(t) != base {
		t.Error("the data changed")
	}
	check(t, s.db.ConfigSet(t.Context(), "stop-writes-on-bgsave-error", "no").Err())
	check(t, s.db.Set(t.Context(), "later", "kept", 0).Err())
	refuses(t, s.capture("db-late"), errs.Unavailable)
	check(t, os.Remove(filepath.Join(dir, "filler")))
	sw, err := s.driver.Resume(t.Context(), "op-1")
	check(t, err)
	check(t, sw.Undo(t.Context()))
	check(t, sw.Finish(t.Context()))
	if got, err := s.db.Get(t.Context(), "later").Result(); err != nil || got != "kept" {
		t.Errorf("Undo of a Commit that changed nothing took back a write: %q %v", got, err)
	}
	s.alone(t)
}

// TestAppendOnlyDiskFull: a restore waits for the append-only file that the server writes of the loaded data. It fails if that cannot be written, and
// not because an earlier one could not.
func TestAppendOnlyDiskFull(t *testing.T) {
	restore := func(t *testing.T, between func(s *subject, filler string)) (s *subject, target string, err error) {
		t.Helper()
		dir := tiny(t, 16<<20)
		s = newSubject(t, "--dir", dir, "--hz", "10", "--appendonly", "yes", "--aof-use-rdb-preamble", "no") // so that the file is larger than the compressed snapshot
		check(t, s.db.Set(t.Context(), "large", strings.Repeat("a", 4<<20), 0).Err())
		check(t, s.capture("db-target"))
		target = s.digest(t)
		check(t, s.db.Del(t.Context(), "large").Err())
		check(t, s.capture("db-base"))
		check(t, fate{Do: "prepare"}.run(s.driver))
		fill(t, dir)
		between(s, filepath.Join(dir, "filler"))
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		return s, target, snaptest.Do(ctx, s.driver, "commit")
	}
	t.Run("before", func(t *testing.T) {
		s, target, err := restore(t, func(s *subject, filler string) {
			testkit.Eventually(t, "the server cannot write its append-only file", func() bool {
				s.db.BgRewriteAOF(t.Context()) // refused while one is written
				return strings.Contains(s.db.Info(t.Context(), "persistence").Val(), "aof_last_bgrewrite_status:err")
			})
			check(t, os.Remove(filler))
		})
		check(t, err)
		if s.digest(t) != target {
			t.Error("Commit did not get to the target")
		}
	})
	t.Run("then", func(t *testing.T) {
		_, _, err := restore(t, func(_ *subject, filler string) {
			info, err := os.Stat(filler)
			check(t, err)
			check(t, os.Truncate(filler, info.Size()-1<<20)) // room for the snapshot, and not for the append-only file
		})
		refuses(t, err, errs.Failed)
		if err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("the error does not name the append-only file: %v", err)
		}
	})
}

// A write between the last look and the switch is noticed by the server's own word.
func TestWriteAtTheLastMoment(t *testing.T) {
	s, _, _ := crashSubject(t, "commit")
	s.cfg.Failpoint = func(step string) error {
		if step == "follow" {
			return s.db.Incr(context.Background(), "counter").Err()
		}
		return nil
	}
	s.reopen(t)
	err := fate{Do: "commit"}.run(s.driver)
	refuses(t, err, errs.Conflict)
	if n, _ := s.db.Get(t.Context(), "counter").Int(); !errors.Is(err, snap.ErrChanged) || n != 1 {
		t.Errorf("the counter is %d after %v", n, err)
	}
	sw, err := s.driver.Resume(t.Context(), "op-1")
	check(t, err)
	check(t, sw.Undo(t.Context()))
	if n, _ := s.db.Get(t.Context(), "counter").Int(); n != 1 {
		t.Error("Undo took back the write")
	}
	check(t, sw.Finish(t.Context()))
	s.alone(t)
}

// TestSnapshotUnderWay: a capture has what was written before it began, although the server is at work on an older snapshot for another replica.
func TestSnapshotUnderWay(t *testing.T) {
	s := newSubject(t)
	check(t, s.db.ConfigSet(t.Context(), "rdb-key-save-delay", "500000").Err()) // microseconds: the snapshot takes seconds
	first := make(chan error, 1)
	go func() { first <- s.capture("db-1") }()
	saves := func() bool {
		return strings.Contains(s.db.Info(t.Context(), "replication").Val(), "state=wait_bgsave") &&
			strings.Contains(s.db.Info(t.Context(), "persistence").Val(), "rdb_bgsave_in_progress:1")
	}
	testkit.Eventually(t, "the server writes the first snapshot", saves)
	check(t, s.db.Set(t.Context(), "meanwhile", "x", 0).Err())
	cfg, underWay := s.cfg, false
	cfg.Name, cfg.StateDir = "other", filepath.Join(testkit.TempDir(t), "state")
	cfg.Failpoint = func(step string) error {
		if step == "capture: read" {
			underWay = saves()
			return s.db.ConfigSet(context.Background(), "rdb-key-save-delay", "0").Err()
		}
		return nil
	}
	other, err := New(cfg)
	check(t, err)
	_, err = other.Capture(t.Context(), snap.CaptureRequest{ID: "db-2"})
	check(t, err)
	check(t, <-first)
	root, err := cfg.Store.Root(other.records.SnapshotRoot("db-2"))
	check(t, err)
	found := false
	stored, err := other.scanStored(t.Context(), root, func(i item) error {
		found = found || string(i.key) == "meanwhile"
		return nil
	})
	check(t, err)
	stored.close()
	if !underWay || !found {
		t.Errorf("the first snapshot was under way: %v; the second capture has the key that was set before it: %v", underWay, found)
	}
}

// What has expired since does not come back, and is no mismatch.
func TestExpired(t *testing.T) {
	s := newSubject(t)
	check(t, s.db.Set(t.Context(), "short", "x", 10*time.Second).Err()) // it is captured before that
	check(t, s.db.Set(t.Context(), "long", "x", time.Hour).Err())
	check(t, s.capture("db-target"))
	check(t, s.db.Del(t.Context(), "long").Err())
	testkit.Eventually(t, "it expires", func() bool { return s.db.Exists(t.Context(), "short").Val() == 0 })
	check(t, s.capture("db-base"))
	check(t, fate{Do: "prepare"}.run(s.driver))
	check(t, fate{Do: "commit"}.run(s.driver))
	sw, err := s.driver.Resume(t.Context(), "op-1")
	check(t, err)
	s.db.Exists(t.Context(), "short") // a server drops what has expired when somebody asks for it, or later
	p, err := sw.Check(t.Context())
	check(t, err)
	if !p.Match || len(p.Notes) != 1 || s.db.Exists(t.Context(), "short").Val() != 0 || s.db.TTL(t.Context(), "long").Val() <= 0 {
		t.Errorf("short is %d, long ends in %v, the proof is %+v", s.db.Exists(t.Context(), "short").Val(), s.db.TTL(t.Context(), "long").Val(), p)
	}
	check(t, sw.Finish(t.Context()))
}

// The port that the server is sent to gives nothing to whoever lacks the password.
func TestStrangerAtThePort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	m := &master{Listener: l, password: secret, silence: testkit.Patience}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.serve(ctx) }()
	raw, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	c := wrap(t.Context(), raw, testkit.Patience)
	for _, words := range [][]string{{"PING"}, {"AUTH", "guess"}, {"PSYNC", "?", "-1"}} {
		if _, err := c.do(words...); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
			t.Errorf("%s is answered with %v", words[0], err)
		}
	}
	c.close()
	cancel()
	<-done
}

func TestNothingSecretIsKept(t *testing.T) {
	s, _, _ := crashSubject(t, "commit")
	s.cfg.Failpoint = func(step string) error {
		if step == "follow" {
			return errors.New("cut")
		}
		return nil
	}
	s.reopen(t)
	if fate.run(fate{Do: "commit"}, s.driver) == nil {
		t.Fatal("it was not cut")
	}
	check(t, filepath.Walk(s.cfg.StateDir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, and holds the password: %t", path, info.Mode(), bytes.Contains(data, []byte(secret)))
		}
		return err
	}))
}

func TestShared(t *testing.T) {
	s := newSubject(t)
	check(t, s.capture("db-1"))
	one, err := s.driver.Size(t.Context(), "db-1")
	check(t, err)
	s.cfg.Failpoint = func(step string) error {
		if step == "capture: read" {
			return errors.New("it reads what did not change")
		}
		return nil
	}
	old := s.driver.last
	s.reopen(t)
	s.driver.last = old
	check(t, s.capture("db-2"))
	if n, _ := s.driver.Size(t.Context(), "db-1"); n >= one {
		t.Errorf("%d bytes belong to one of two equal snapshots, of %d", n, one)
	}
	check(t, s.db.Incr(t.Context(), "n").Err())
	if s.capture("db-3") == nil {
		t.Error("a write was not noticed")
	}
}

func TestDiff(t *testing.T) {
	s := newSubject(t)
	check(t, s.capture("db-1"))
	check(t, s.db.MSet(t.Context(), "user:1", "a", "user:2", "b", "seed", "other").Err())
	check(t, s.db.HSet(t.Context(), "user:3", "a", "b").Err())
	list, err := s.driver.Diff(t.Context(), "db-1", "", nil)
	check(t, err)
	want := "[{db0/seed modify 1 string changed} {db0/user create 1 hash, 2 strings added}]"
	if fmt.Sprint(list) != want {
		t.Errorf("have %v, want %s", list, want)
	}
	list, err = s.driver.Diff(t.Context(), "", "db-1", []string{"user"})
	check(t, err)
	if fmt.Sprint(list) != "[{db0/user delete 1 hash, 2 strings removed}]" {
		t.Errorf("backwards: %v", list)
	}
	load := func(name, code string) {
		check(t, s.db.FunctionLoadReplace(t.Context(), fmt.Sprintf("#!lua name=%s\nredis.register_function('%s_f', function() return %s end)", name, name, code)).Err())
	}
	load("one", "1")
	load("three", "3")
	check(t, s.capture("db-2"))
	check(t, s.db.FunctionDelete(t.Context(), "one").Err())
	load("two", "2")
	load("three", "4")
	list, err = s.driver.Diff(t.Context(), "db-2", "", nil)
	check(t, err)
	if want := "[{functions/one delete 1 library removed} {functions/three modify 1 library changed} {functions/two create 1 library added}]"; fmt.Sprint(list) != want {
		t.Errorf("have %v, want %s", list, want)
	}
}

// FuzzScan: whatever a server sends, the parser ends with a state or an error.
func FuzzScan(f *testing.F) {
	s := startServer(f)
	ctx := context.Background()
	for _, words := range []string{"SET a 1", "SETEX b 1000 text", "RPUSH l 1 -70000 word", "SADD i 1 2 3", "SADD s x y", "HSET h f 1 g two", "ZADD z 1.5 m 2 n", "XADD st 1-1 k v", "XGROUP CREATE st g 0"} {
		var args []any
		for _, w := range strings.Fields(words) {
			args = append(args, w)
		}
		check(f, s.db.Do(ctx, args...).Err())
	}
	check(f, s.db.Save(ctx).Err())
	data, err := os.ReadFile(filepath.Join(s.dir, "dump.rdb"))
	check(f, err)
	f.Add(data)
	f.Add([]byte("REDIS0010\xff12345678"))
	f.Add([]byte("REDIS0006\x00\x01k\xc3\x04\x08\x01ab\x00\x01\x10\x02zl\x0d\x0d\x00\x00\x00\x0a\x00\x00\x00\x00\x00\xff"))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := scan(t.TempDir(), bytes.NewReader(p), nil)
		if err == nil && s.hash().IsZero() {
			t.Error("a state without a hash")
		}
		s.close()
	})
}

// TestFewerDatabases has a server that was started with fewer databases than the target has: one that is sent the target would exit, and not start again.
func TestFewerDatabases(t *testing.T) {
	t.Parallel()
	s := newSubject(t, "--databases", "32")
	high := s.client(20)
	defer func() { _ = high.Close() }()
	check(t, high.Set(t.Context(), "a", "1", 0).Err())
	then := s.digest(t)
	check(t, s.capture("db-target"))
	s.kill()
	check(t, os.Remove(filepath.Join(s.dir, "dump.rdb"))) // the server would not start with it
	s.args[1] = "16"
	s.start(t)
	now := s.digest(t)
	check(t, s.capture("db-base"))
	_, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-target", Base: "db-base"})
	refuses(t, err, errs.Unsupported)
	var e *errs.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "databases 21") {
		t.Errorf("the refusal is %v", err)
	}
	if got := s.digest(t); got != now {
		t.Errorf("the server has %s, and had %s", got, now)
	}
	s.args[1] = "21"
	s.restart(t)
	check(t, s.capture("db-again"))
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-2", Target: "db-target", Base: "db-again"})
	check(t, err)
	check(t, sw.Commit(t.Context()))
	check(t, sw.Finish(t.Context()))
	if got := s.digest(t); got != then {
		t.Errorf("restored, the server has %s, and had %s", got, then)
	}
}
