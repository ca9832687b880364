package physical

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/replay"
	"mulligan/snap/postgres/physical/wal"
	"mulligan/testkit"
)

// somebody is a user without an account, whom no cluster belongs to.
var somebody = privsep.User{UID: 54331, GID: 54331}

// reachable makes a folder of root's that everybody reaches.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mulligan-physical-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o755))
	return dir
}

// The owner's folders are touched with the owner's rights: a link planted there
// leads nowhere that the owner could not go.
func TestOwnerRights(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	dir, ctx := reachable(t), t.Context()
	data, secret := filepath.Join(dir, "data"), filepath.Join(dir, "secret")
	check(t, os.WriteFile(secret, []byte("secret"), 0o600))
	check(t, errors.Join(os.MkdirAll(filepath.Join(data, "base"), 0o755), os.MkdirAll(filepath.Join(data, "bases", "1"), 0o755)))
	check(t, errors.Join(os.Mkdir(filepath.Join(data, "archive"), 0o755), os.WriteFile(filepath.Join(data, "archive", wal.Segments(1<<20).Name(1, 0)), nil, 0o644)))
	check(t, os.Symlink(secret, filepath.Join(data, "base", "1")))
	check(t, os.Symlink(secret, filepath.Join(data, "postgresql.conf")))
	check(t, os.Chown(data, somebody.UID, somebody.GID))
	for name, err := range map[string]error{
		"a file of root's": func() error { _, err := asowner.Tail.Call(ctx, somebody, secret); return err }(),
		"a folder of root's": func() error {
			_, err := asowner.Mkdir.Call(ctx, somebody, asowner.NewFolder{Path: filepath.Join(dir, "new")})
			return err
		}(),
		"removing": func() error { _, err := asowner.Remove.Call(ctx, somebody, []string{secret}); return err }(),
	} {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := asowner.Copy.Call(ctx, somebody, asowner.ClusterCopy{From: data, To: filepath.Join(data, "copy")})
	if errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("copying a link: %v", err)
	}
	q := asowner.BaseQuery{Home: asowner.Home{Data: data, Store: data}, TLI: 1, LSN: 1, Size: 1 << 20, Conf: new(string)}
	q.Bases, q.System = []wal.Base{{ID: "1", TLI: 1}}, "0"
	check(t, os.Mkdir(filepath.Join(data, "global"), 0o755))
	check(t, os.WriteFile(filepath.Join(data, "global", "pg_control"), make([]byte, 8), 0o644))
	check(t, os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("15\n"), 0o644))
	if found, err := asowner.FindBase.Call(ctx, somebody, q); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a configuration that is root's file: %q, %v", found.Conf, err)
	}
}

// The store is made with the owner's rights too: in a folder that only root
// writes to, nothing is made.
func TestStoreIsTheOwners(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	dir := reachable(t)
	d := bare(t, filepath.Join(dir, "data"))
	made, err := d.store.claim(t.Context())
	fails(t, "a store in root's folder", err, errs.Denied, "cannot write to")
	if _, e := os.Lstat(d.cfg.Store); made || !errors.Is(e, fs.ErrNotExist) {
		t.Errorf("made: %t, %v", made, e)
	}
}

// bare is a driver for a cluster of somebody's that need not be there.
func bare(t *testing.T, data string) *Driver {
	t.Helper()
	d, err := New(Config{App: "app-1", Name: "main", DSN: "postgres://postgres@/app?host=/nowhere", DataDir: data,
		StateDir: t.TempDir(), Bin: "/nowhere", Server: pgserver.PgCtl{}, Owner: somebody})
	check(t, err)
	return d
}

// threads calls see with the ids of each thread of this process.
func threads(t *testing.T, see func(line string)) {
	t.Helper()
	list, err := filepath.Glob("/proc/self/task/*/status")
	check(t, err)
	for _, path := range list {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "Uid:") || strings.HasPrefix(line, "Gid:") {
				see(strings.TrimSpace(line))
			}
		}
	}
}

// allRoot checks that no thread of this process has any id but root's: its user
// could signal it, and the whole daemon with it.
func allRoot(t *testing.T, when string) {
	t.Helper()
	seen := 0
	threads(t, func(line string) {
		seen++
		for _, id := range strings.Fields(line)[1:] {
			if id != "0" {
				t.Errorf("%s, a thread of the daemon has %s", when, line)
				return
			}
		}
	})
	if seen < 4 {
		t.Errorf("%s, only %d lines were seen", when, seen)
	}
}

// Whatever the driver is at, the daemon's threads stay root's.
func testThreadsKeepTheirIDs(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	s := newSubject(t, options{})
	s.cfg.MaxReplay = 1
	s.cfg.Failpoint = func(step string) error {
		allRoot(t, step)
		return nil
	}
	s.reopen(t)
	s.mutate(t, 1)
	capture(t, s, "db-a")
	check(t, s.driver.Maintain(t.Context())) // takes a base
	s.mutate(t, 2)
	capture(t, s, "db-b")
	s.restore(t, "db-a", "db-b")
}

// While connections are opened as the owner, the daemon's threads stay root's.
func TestThreadsWhileConnecting(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	d := bare(t, filepath.Join(reachable(t), "data"))
	cfg, err := d.server.config(t.Context())
	check(t, err)
	done := make(chan error, 1)
	go func() {
		var err error
		for range 1000 {
			if _, err = cfg.DialFunc(t.Context(), "unix", filepath.Dir(d.cfg.DataDir)+"/.s.PGSQL.5432"); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		done <- err
	}()
	for {
		allRoot(t, "connecting")
		select {
		case err := <-done:
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("connecting to no server: %v", err)
			}
			return
		default:
		}
	}
}

// A fifo, where a file should be, is waited for by nobody.
func TestFifos(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	dir := reachable(t)
	own := filepath.Join(dir, "own")
	d := bare(t, filepath.Join(own, "data"))
	segment, history, base := wal.Segments(1<<20).Name(2, 3), wal.Timeline(2).HistoryFile(), "base"
	grown := filepath.Join(own, "grown")
	for _, path := range []string{own, grown, d.cfg.DataDir, d.store.WAL(), d.cfg.Store, d.store.Archive(), d.store.path("bases"), d.store.path("bases", base), d.store.path("forks")} {
		check(t, os.Mkdir(path, 0o700))
		check(t, os.Chown(path, somebody.UID, somebody.GID))
	}
	fifo := func(path string) {
		check(t, unix.Mkfifo(path, 0o600))
		check(t, os.Chown(path, somebody.UID, somebody.GID))
	}
	for _, name := range []string{"postmaster.pid", "postgresql.conf", "PG_VERSION", "backup_label", "pg_wal/" + segment, "pg_wal/" + history} {
		fifo(filepath.Join(d.cfg.DataDir, name))
	}
	fifo(filepath.Join(grown, segment))
	fifo(d.store.path("fork.log"))
	fifo(d.store.path("claim"))
	fifo(d.store.path("claim.tmp"))
	check(t, os.WriteFile(d.store.path("archive", wal.Segments(1<<20).Name(1, 0)), nil, 0o644))
	check(t, d.records.put("bases", base, wal.Base{ID: base, TLI: 1}))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	forked := &replay.Server{Programs: d.forks.programs, Log: d.store.path("fork.log")}
	for name, do := range map[string]func() error{
		"the server's state": func() error { return errors.New(d.server.Status(ctx, d.cfg.DataDir) + "is nothing") },
		"its version":        func() error { _, err := pgserver.VersionOf(ctx, d.cfg.Owner, d.cfg.DataDir); return err },
		"its configuration": func() error {
			_, err := d.marks.survey(ctx, marker{place: place{TLI: 1}, LSN: 1, segments: 1 << 20})
			return err
		},
		"a history":      func() error { _, err := d.archive.history(ctx, 2); return err },
		"copying it":     func() error { return d.archive.save(ctx, asowner.LogToSave{Wal: d.store.WAL(), End: segment}) },
		"log that grows": func() error { return d.archive.save(ctx, asowner.LogToSave{Wal: grown, End: segment, Until: segment}) },
		"linking log": func() error {
			_, err := d.archive.gather(ctx, asowner.LogLinks{First: segment, Size: 1 << 20})
			return err
		},
		"a file that is written": func() error {
			return d.store.arrange(ctx, asowner.Arrangement{Dir: d.cfg.DataDir, Files: map[string][]byte{"backup_label": nil}})
		},
		"the log of a fork": func() error { return forked.Died(ctx) },
		"its beginning":     func() error { return forked.Start(ctx, nil) },
		"the claim":         func() error { _, err := d.store.claim(ctx); return err },
	} {
		err := do()
		if err == nil || ctx.Err() != nil {
			t.Errorf("%s: %v, %v", name, err, ctx.Err())
		}
		t.Logf("%s: %v", name, err)
	}
}

// A base that is given up in the middle leaves nothing, though its caller has gone.
func testGivenUpCopy(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	for _, at := range []string{"base: copy", "base: sync", "base: record"} {
		ctx, cancel := context.WithCancel(t.Context())
		s.cfg.Failpoint = func(step string) error {
			if step == at {
				cancel()
				return ctx.Err()
			}
			return nil
		}
		s.reopen(t)
		if err := s.driver.bases.take(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: got %v", at, err)
		}
		dirs, err := os.ReadDir(s.driver.store.path("bases"))
		check(t, err)
		if len(dirs) != 1 { // the subject's own
			t.Errorf("%s: there are %v", at, dirs)
		}
	}
	s.cfg.Failpoint = nil
	s.reopen(t)
	capture(t, s, "db-a")
	check(t, s.driver.Verify(t.Context(), "db-a", snap.Full))
}

// endlessText is what a program prints that its user has taken over.
type endlessText struct{}

func (endlessText) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func testEndlessOutput(t *testing.T) {
	t.Parallel()
	var p pgserver.Printed
	if _, err := io.Copy(&p, endlessText{}); err == nil || p.Buf.Len() > pgserver.MaxPrinted {
		t.Errorf("%d bytes were kept, %v", p.Buf.Len(), err)
	}
	if _, err := wal.ReadLine(bufio.NewReader(endlessText{})); !errors.Is(err, wal.ErrLongLine) {
		t.Errorf("an endless line: %v", err)
	}
	r := bufio.NewReaderSize(strings.NewReader(strings.Repeat("y", 100)+"\nend"), 16)
	if line, err := wal.ReadLine(r); len(line) != 101 || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if line, err := wal.ReadLine(r); !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v", line, err)
	}
}

// Neither files nor the environment of the daemon's user reach a connection, whatever a DSN names.
func TestLoginReadsNothingOfTheDaemons(t *testing.T) {
	testkit.Need(t, "root")
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, ".pgpass"), []byte("*:*:*:*:s3cret\n"), 0o600))
	t.Setenv("HOME", home)
	t.Setenv("PGPASSFILE", filepath.Join(home, ".pgpass"))
	t.Setenv("PGPASSWORD", "s3cret")
	t.Setenv("PGHOST", "elsewhere")
	d := bare(t, filepath.Join(reachable(t), "data"))
	for _, dsn := range []string{"postgres://postgres@/app?host=/nowhere", "postgres://postgres@127.0.0.1/app?passfile=" + home + "/.pgpass", "user=postgres dbname=app"} {
		d.server.dsn = dsn
		cfg, err := d.server.config(t.Context())
		check(t, err)
		if cfg.Password != "" || cfg.Host == "elsewhere" {
			t.Errorf("%s: the password is %q, of host %s", dsn, cfg.Password, cfg.Host)
		}
	}
	d.server.dsn = "postgres://postgres@127.0.0.1/app?sslmode=verify-full&sslrootcert=" + home + "/.pgpass"
	_, err := d.server.config(t.Context())
	fails(t, "a certificate", err, errs.Unsupported, "sslrootcert")
}

// A server starts although the process of the one before it is still known to the kernel, for longer than a
// start would wait for one that runs.
func testStartWhileTheOldServerEnds(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	check(t, s.driver.server.Stop(t.Context()))
	old := s.Command("pg_ctl", "--version")
	old.Path, old.Args = "/bin/sh", []string{"sh", "-c", "read x"}
	in, err := old.StdinPipe()
	check(t, err)
	check(t, old.Start())
	lock := fmt.Sprintf("%s/.s.PGSQL.%d.lock", s.Socket, s.Port)
	check(t, os.WriteFile(lock, fmt.Appendf(nil, "%d\n%s\n1\n%d\n%s\n", old.Process.Pid, s.DataDir, s.Port, s.Socket), 0o600))
	check(t, os.Chown(lock, s.cfg.Owner.UID, s.cfg.Owner.GID))
	p := s.cfg.Server.(pgserver.PgCtl)
	if err := p.StartOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "lock file") {
		t.Fatalf("beside a process that has the socket's lock: %v", err)
	}
	check(t, in.Close())
	const tries = 12 // the last ones are made once the wait for a server that runs is over
	go func() {      // what has ended is known until somebody waits for it
		_ = pgserver.Await(t.Context(), func() (bool, error) {
			log, err := os.ReadFile(s.Log)
			return strings.Count(string(log), lock) > tries, err
		})
		_ = old.Wait()
	}()
	check(t, p.Start(t.Context()))
	if s.driver.server.Status(t.Context(), s.DataDir) != "ready" {
		t.Error("no server is up")
	}
}

// Whose a cluster is stays known without its data folder, from the records of the driver and from those of an earlier version. What is
// stored for the cluster is removed by them.
func TestKnownWithoutDataFolder(t *testing.T) {
	testkit.Need(t, "root")
	for _, version := range []string{"this", "earlier"} {
		t.Run(version, func(t *testing.T) {
			dir, state := reachable(t), t.TempDir()
			w := known.Ward{Store: filepath.Join(dir, "data.mulligan"), UID: somebody.UID, GID: somebody.GID, Bin: "/opt/pg/bin"}
			check(t, os.Chown(dir, somebody.UID, somebody.GID))
			check(t, os.Mkdir(w.Store, 0o700))
			check(t, os.Chown(w.Store, somebody.UID, somebody.GID))
			if version == "earlier" {
				text := fmt.Sprintf(`{"store": %q, "UID": %d, "GID": %d, "Bin": %q, "Apart": false}`, w.Store, w.UID, w.GID, w.Bin)
				check(t, os.WriteFile(filepath.Join(state, "ward.json"), []byte(text), 0o600))
			} else {
				check(t, (&records{dir: state, ward: w}).remember(facts{}))
			}

			p, found := Recall(state)
			if !found || p.Owner.UID != w.UID || p.Owner.GID != w.GID || p.Bin != w.Bin {
				t.Errorf("recalled %+v, %v", p, found)
			}

			check(t, Purge(state))
			for _, gone := range []string{w.Store, state} {
				if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s after the removal: %v", gone, err)
				}
			}
		})
	}
}
