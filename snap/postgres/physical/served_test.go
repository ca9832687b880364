package physical

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/own"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/served"
	"mulligan/testkit"
)

// forked is a server of a fork's own, on a copy of a subject's cluster.
type forked struct {
	*subject
	name   string
	dir    string // with the data folder and the configuration
	socket string // its folder
}

// serve starts the server of a fork as a fork of an app runs it. It ends with the test.
func (s *subject) serve(t *testing.T, name string) *forked {
	t.Helper()
	folder, at, role, err := s.driver.ServedBy(t.Context())
	check(t, err)
	server, err := own.Server(snap.Parent{DSN: s.cfg.DSN, Kind: own.Kind{Major: 15, User: "postgres", Database: "app", Superuser: true, Cluster: &own.Cluster{
		Folder: folder, Bin: at.Bin, UID: at.Owner.UID, GID: at.Owner.GID, Bootstrap: role,
	}}.String()})
	check(t, err)
	f := &forked{subject: s, name: name, dir: filepath.Join(folder, name)}
	f.socket, err = os.MkdirTemp("/tmp", "pgf-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(f.socket)) })
	check(t, os.Chown(f.socket, at.Owner.UID, at.Owner.GID))
	var settings []string
	for _, arg := range server.Args[2:] {
		settings = append(settings, strings.ReplaceAll(arg, snap.ServerData, f.dir))
	}
	settings = append(settings, "-c", "unix_socket_directories="+f.socket)
	data := filepath.Join(f.dir, own.ClusterData)
	cmd := s.Command("pg_ctl", "start", "-w", "-s", "-D", data, "-l", filepath.Join(f.dir, "log"), "-o", "'"+strings.Join(settings, "' '")+"'")
	if err := cmd.Run(); err != nil { // without pipes, which the server would keep open
		text, _ := os.ReadFile(filepath.Join(f.dir, "log"))
		t.Fatalf("%v\n%s", err, text)
	}
	t.Cleanup(func() {
		if running, err := pgserver.InUse(data); err == nil && running {
			f.stop(t, "immediate")
		}
	})
	return f
}

func (f *forked) stop(t *testing.T, mode string) {
	t.Helper()
	check(t, f.Command("pg_ctl", "stop", "-w", "-s", "-m", mode, "-D", filepath.Join(f.dir, own.ClusterData)).Run())
}

func (f *forked) ask(t *testing.T, sql string) string {
	t.Helper()
	cmd := f.Command("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", f.socket, "-p", "5432", "-U", "postgres", "-d", "app", "-c", sql)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// A fork's server has the state of its snapshot, and nothing that would tie it to the cluster. When it is kept, the cluster has the
// fork's data, and the configuration and the roles of its own servers stay as they are.
func TestServerOfFork(t *testing.T) {
	t.Parallel()
	modes := []string{"archive", "slot"}
	for _, i := range testkit.Sample(t, "ways to keep the log", len(modes), 1) {
		mode := modes[i]
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			keepServer(t, newSubject(t, options{slot: mode == "slot"}))
		})
	}
}

func keepServer(t *testing.T, s *subject) {
	ctx := t.Context()
	s.Psql(t, "app", `CREATE TABLE t (v text); INSERT INTO t VALUES ('first');
		BEGIN; INSERT INTO t VALUES ('waits'); PREPARE TRANSACTION 'waiting'`)
	capture(t, s, "origin")
	s.Psql(t, "app", "INSERT INTO t VALUES ('onwards')")
	s.Psql(t, "app", "ALTER SYSTEM SET work_mem = '1111kB'")
	before := s.fingerprint(t)

	check(t, s.driver.SeedServer(ctx, "one", "origin"))
	check(t, s.driver.SeedServer(ctx, "two", "origin"))
	folder, _, _, err := s.driver.ServedBy(ctx)
	check(t, err)
	kept, err := served.Keep(ctx, s.cfg.Owner, folder, "one", "begin")
	check(t, err)
	if _, err := os.Lstat(filepath.Join(folder, "begin")); kept != s.driver.store.cloning(ctx) || kept != (err == nil) {
		t.Errorf("kept: %v, and there is %v", kept, err)
	}
	f := s.serve(t, "one")
	if got := f.ask(t, "SELECT string_agg(v, ' ') FROM t") + " " + f.ask(t, "SELECT gid FROM pg_prepared_xacts"); got != "first waiting" {
		t.Errorf("the fork begins with %q", got)
	}
	if n := f.ask(t, "SELECT count(*) FROM pg_replication_slots"); n != "0" {
		t.Errorf("the fork has %s replication slots, which keep its log for ever", n)
	}
	f.ask(t, "INSERT INTO t VALUES ('forked')")
	f.ask(t, "ROLLBACK PREPARED 'waiting'")
	f.ask(t, "ALTER SYSTEM SET work_mem = '2222kB'")
	f.ask(t, "ALTER SYSTEM SET archive_command = 'false'")
	_, err = s.driver.AdoptServer(ctx, "one", "kept")
	fails(t, "adopting a server that runs", err, errs.Conflict, "not shut down in order")
	f.stop(t, "immediate")
	_, err = s.driver.AdoptServer(ctx, "one", "kept")
	fails(t, "adopting a server that was killed", err, errs.Conflict, "not shut down in order")
	f = s.serve(t, "one")
	f.stop(t, "fast")
	_, err = s.driver.AdoptServer(ctx, "one", "kept")
	check(t, err)
	check(t, s.driver.Verify(ctx, "kept", snap.Full))
	if now := s.fingerprint(t); now != before {
		t.Errorf("a fork changed the cluster:\n%s\nbefore:\n%s", now, before)
	}

	s.Psql(t, "app", "ALTER SYSTEM SET work_mem = '3333kB'")
	capture(t, s, "safety")
	s.restore(t, "kept", "safety")
	if got := s.value(t, "SELECT string_agg(v, ' ') FROM t"); got != "first forked" {
		t.Errorf("after keep the cluster has %q", got)
	}
	if got := s.value(t, "SELECT setting FROM pg_file_settings WHERE name = 'work_mem'"); got != "1111kB" {
		t.Errorf("after keep the cluster's work_mem is %q, and was 1111kB when the fork was adopted", got)
	}
	if got := s.value(t, "SELECT count(*) FROM pg_file_settings WHERE name = 'archive_command' AND setting = 'false'"); got != "0" {
		t.Error("after keep the cluster has the fork's archive_command")
	}
	check(t, s.driver.Sweep(ctx, snap.Gone{}))
	capture(t, s, "after")
	s.Psql(t, "app", "INSERT INTO t VALUES ('later')")
	capture(t, s, "later")
	s.restore(t, "kept", "later") // once more, in a timeline of its own
	capture(t, s, "again")
	s.restore(t, "after", "again")
	if got := s.value(t, "SELECT string_agg(v, ' ') FROM t"); got != "first forked" {
		t.Errorf("after a restore of what was captured after keep the cluster has %q", got)
	}
	capture(t, s, "end")
	s.restore(t, "safety", "end")
	if got := strings.ReplaceAll(s.fingerprint(t), "3333kB", "1111kB"); got != before {
		t.Errorf("the way back leads to\n%s\nnot\n%s", got, before)
	}

	// The kept state can be forked too.
	check(t, s.driver.SeedServer(ctx, "three", "kept"))
	if got := s.serve(t, "three").ask(t, "SELECT string_agg(v, ' ') FROM t"); got != "first forked" {
		t.Errorf("the fork of a kept fork has %q", got)
	}
	two := s.serve(t, "two")
	if got := two.ask(t, "SELECT string_agg(v, ' ') FROM t"); got != "first" {
		t.Errorf("the other fork has %q", got)
	}
	two.stop(t, "fast")
	check(t, served.Drop(ctx, s.cfg.Owner, two.dir))
	if _, err := os.Lstat(two.dir); !os.IsNotExist(err) {
		t.Errorf("after the drop: %v", err)
	}
}
