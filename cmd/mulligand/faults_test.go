package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// refused runs the client, which must fail with the exit code and one line
// that holds each of the words.
func (d *daemonProcess) refused(code int, words []string, args ...string) {
	d.t.Helper()
	out, errOut, got := d.mulligan(args...)
	if got != code {
		d.t.Errorf("mulligan %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, errOut)
	}
	if strings.Count(errOut, "\n") != 1 {
		d.t.Errorf("mulligan %s: not one line of error:\n%s", strings.Join(args, " "), errOut)
	}
	for _, w := range words {
		if !strings.Contains(errOut, w) {
			d.t.Errorf("mulligan %s: no %q in %s", strings.Join(args, " "), w, errOut)
		}
	}
}

func TestUnknownAndJunk(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 10)
	d.refused(3, []string{"nosuch"}, "show", "cp-000000000000", "--app", "nosuch")
	d.refused(3, []string{"cp-000000000000"}, "show", "cp-000000000000", "--app", "shop")
	d.refused(3, []string{"cp-000000000000"}, "rollback", "cp-000000000000", "--app", "shop")
	d.refused(3, []string{"cp-000000000000"}, "delete", "cp-000000000000", "--app", "shop")
	d.refused(2, []string{"trigger"}, "create", "--trigger", "nonsense", "--app", "shop")

	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
	}}}
	for _, junk := range [][]byte{bytes.Repeat([]byte("junk"), 512<<10), bytes.Repeat([]byte{'{'}, 2<<20), bytes.Repeat([]byte{0}, 2<<20)} {
		resp, err := client.Post("http://mulligan/api/apps/shop/checkpoints", "application/json", bytes.NewReader(junk))
		if err != nil {
			continue // cut off in the middle is an answer too
		}
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("2 MB of junk: %s", resp.Status)
		}
		resp.Body.Close()
	}
	if n := len(a.checkpoints()); n != 0 {
		t.Errorf("%d checkpoints came of it", n)
	}
	a.sound(t)
}

func testTwoRollbacksAtOnce(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 3000)
	cp := a.create()
	a.set(t, "later")
	gate := filepath.Join(d.dir, "gate")
	d.must("app", "set", "--app", "shop", fmt.Sprintf(`health.command=["sh", "-c", "until [ -e %s ]; do sleep 0.05; done"]`, gate), "health.timeout=10m")
	asks := make(chan struct{})
	first := make(chan error, 1)
	go func() {
		once := sync.OnceFunc(func() { close(asks) })
		_, err := d.client.Rollback(t.Context(), "shop", cp.ID, ipc.RollbackRequest{}, func(s ipc.Stage) {
			if s.Stage == ipc.StageHealthy && s.Status == ipc.StageRunning {
				once()
			}
		})
		first <- err
	}()
	select {
	case <-asks: // it lasts until the gate is open
	case err := <-first:
		t.Fatalf("the first is over: %v", err)
	}
	_, err := d.client.Rollback(t.Context(), "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err != nil && errs.KindOf(err) != errs.Busy {
		t.Errorf("the second: %v", err)
	}
	if err == nil {
		t.Error("the second was let through")
	} else if !strings.Contains(err.Error(), "roll back") || !strings.Contains(err.Error(), "pid") {
		t.Errorf("the second is not told who holds it: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Errorf("the first: %v", err)
	}
	if got := a.sound(t); got != "zero" {
		t.Errorf("the app says %q", got)
	}
}

func testUnitThatWontStart(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 10)
	start := filepath.Join(a.ws, "start")
	script := fmt.Sprintf("#!/bin/sh\nexec %s serve-app %s page.html\n", filepath.Join(bin, "app"), a.addr)
	if err := testkit.WriteProgram(start, []byte(script)); err != nil {
		t.Fatal(err)
	}
	d.must("app", "set", "run="+start, "--app", "shop")
	a.up(t)
	if err := os.Remove(start); err != nil { // it runs on, and could not be started again
		t.Fatal(err)
	}
	var cp ipc.Checkpoint
	eventually(t, "a checkpoint says that the app is well", func() bool { // the app has two seconds to say so
		cp = ask[ipc.Checkpoint](d, "create", "--app", "shop", "--quiesce", "none")
		return cp.Healthy != nil && *cp.Healthy
	})
	if err := testkit.WriteProgram(start, []byte(script)); err != nil {
		t.Fatal(err)
	}
	a.set(t, "fine")
	d.refused(6, []string{"shop"}, "rollback", string(cp.ID), "--app", "shop")
	if got := a.sound(t); got != "fine" {
		t.Errorf("the app says %q", got)
	}
	out, _, _ := d.mulligan("rollback", string(cp.ID), "--app", "shop", "--json")
	if !strings.Contains(out, `"recovered":true`) {
		t.Errorf("not recovered: %s", out)
	}
}

func testDatabaseLocked(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 10)
	db := a.db(t)
	for _, q := range []string{`PRAGMA journal_mode=DELETE`, `BEGIN EXCLUSIVE`} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	d.refused(4, []string{"shop"}, "create", "--app", "shop")
	if _, err := db.Exec(`ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	db.Close()
	a.sound(t)
	a.create()
}

func TestFileThatKeepsChanging(t *testing.T) {
	d := startDaemon(t)
	a := newApp(t, d, 10)
	a.noise(t, "busy.log", 64) // large enough to be written to while it is read
	f, err := os.OpenFile(filepath.Join(a.ws, "busy.log"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				f.WriteAt([]byte(fmt.Sprint(i)), i%(64<<20))
			}
		}
	}()
	d.refused(4, []string{"busy.log"}, "create", "--app", "shop")
	close(stop)
	<-stopped
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	a.sound(t)
	a.create()
}

// newUsersDaemon is newDaemon for a daemon that an ordinary user runs. It is not started yet.
func newUsersDaemon(t *testing.T) *daemonProcess {
	t.Helper()
	testkit.Need(t, "root")
	d := newDaemon(t)
	d.cred = &syscall.Credential{Uid: 65534, Gid: 65534}
	shell(t, d.dir, "chown 65534:65534 . && chmod 755 .")
	return d
}

func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	d := newUsersDaemon(t)
	d.start()
	a := newApp(t, d, 10)
	path := filepath.Join(a.ws, "secret")
	if err := os.WriteFile(path, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.refused(5, []string{"secret"}, "create", "--app", "shop")
	a.sound(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	a.create()
}

// TestDatabaseOfAnother: a user's app has a database that its owner alone may write. Its checkpoints hold the database, and rollbacks go on unless
// they would have to change it.
func TestDatabaseOfAnother(t *testing.T) {
	t.Parallel()
	d := newUsersDaemon(t)
	shell(t, d.dir, "mkdir ws && echo one >ws/work && chown -R 65534:65534 ws && chmod 755 ws")
	shell(t, d.dir, "sqlite3 ws/theirs.db 'CREATE TABLE t(v); INSERT INTO t VALUES (1)'")
	d.start()
	ws := filepath.Join(d.dir, "ws")
	d.must("app", "add", "--slug", "shop", "--dir", ws, "--db", "main=sqlite:theirs.db")
	cp := string(ask[ipc.Checkpoint](d, "create", "--app", "shop").ID)
	has := func(text string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(ws, "work")); err != nil || string(got) != text+"\n" {
			t.Errorf("the file has %q, %v; want %q", got, err, text)
		}
	}
	shell(t, ws, "echo two >work")
	d.must("rollback", cp, "--app", "shop")
	has("one")
	d.must("redo", "--app", "shop")
	has("two")
	shell(t, ws, "sqlite3 theirs.db 'INSERT INTO t VALUES (2)'")
	d.refused(5, []string{"theirs.db", "--without db:main"}, "rollback", cp, "--app", "shop")
	has("two")
	d.must("rollback", cp, "--app", "shop", "--without", "db:main")
	has("one")
}

// TestUnreadableOutsideOfScope: a file that the daemon may not read keeps it from a rollback that is of that file too, and from none that leaves it out:
// not from one of a scope, nor from the way forward again, nor from a revert.
func TestUnreadableOutsideOfScope(t *testing.T) {
	t.Parallel()
	d := newUsersDaemon(t)
	d.start()
	a := newApp(t, d, 10)
	d.must("app", "set", "auto=true", "--app", "shop")
	eventually(t, "the files are followed", func() bool {
		app, err := d.client.App(t.Context(), "shop")
		return err == nil && app.Following == "watching"
	})
	file, secret := filepath.Join(a.ws, "src/d0/f1"), filepath.Join(a.ws, "secret")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cp := string(a.create().ID)
	_, err = d.client.BeginTurn(t.Context(), "shop", ipc.BeginTurn{TurnID: "t1", ConversationID: "c1", MessageID: "m1", Agent: "test"})
	if err == nil {
		_, err = d.client.BeginCall(t.Context(), "shop", "t1", ipc.BeginCall{CallID: "call1", Tool: "Bash", Before: true, DeadlineMS: 10000})
	}
	a.write(t, "src/d0/f1", "the agent's")
	if err == nil {
		_, err = d.client.EndCall(t.Context(), "shop", "t1", "call1")
	}
	if err == nil {
		_, err = d.client.EndTurn(t.Context(), "shop", "t1")
	}
	if err == nil {
		err = os.WriteFile(secret, []byte("root's"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	is := func(want string) {
		t.Helper()
		for path, text := range map[string]string{file: want, secret: "root's"} {
			if got, err := os.ReadFile(path); string(got) != text {
				t.Errorf("%s is %q, %v; want %q", path, got, err, text)
			}
		}
	}
	d.refused(5, []string{"secret"}, "rollback", cp, "--app", "shop")
	d.refused(5, []string{"secret"}, "rollback", cp, "--app", "shop", "--scope", filepath.Join(a.ws, "src"), "--scope", secret)
	is("the agent's")
	res := ask[ipc.RollbackResult](d, "rollback", cp, "--app", "shop", "--scope", filepath.Join(a.ws, "src"))
	if w := strings.Join(res.SafetyCheckpoint.Warnings, " "); !strings.Contains(w, "secret is not captured") {
		t.Errorf("the safety checkpoint does not say that it lacks the secret: %q", w)
	}
	is(string(before))
	d.must("redo", "--app", "shop")
	is("the agent's")
	d.must("revert", "--app", "shop", "--call", "call1")
	is(string(before))
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	a.create()
}

// tmpfs mounts a file system of so many MB on dir.
func (d *daemonProcess) tmpfs(dir string, mb int) {
	t := d.t
	t.Helper()
	testkit.Need(t, "root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=755", mb)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// noise fills a file with what cannot be compressed.
func (a *testApp) noise(t *testing.T, rel string, mb int) {
	t.Helper()
	shell(t, a.ws, `head -c $(($2 * 1048576)) /dev/urandom >"$1"`, rel, fmt.Sprint(mb))
}

func testStoreDiskFull(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.tmpfs(filepath.Join(d.dir, "state"), 24)
	d.start()
	a := newApp(t, d, 100)
	cp := a.create()
	a.set(t, "later")
	a.noise(t, "big", 40)
	d.refused(1, []string{"space"}, "create", "--app", "shop")
	d.refused(1, []string{"space"}, "rollback", string(cp.ID), "--app", "shop")
	if got := a.sound(t); got != "later" {
		t.Errorf("the app says %q", got)
	}
	if n := len(a.checkpoints()); n != 1 {
		t.Errorf("%d checkpoints are listed, want 1", n)
	}
	if err := os.Remove(filepath.Join(a.ws, "big")); err != nil {
		t.Fatal(err)
	}
	d.must("rollback", string(cp.ID), "--app", "shop")
	if got := a.sound(t); got != "zero" {
		t.Errorf("the app says %q", got)
	}
	d.stop()
	d.start()
	a.sound(t)
}

func testWorkspaceDiskFull(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := &testApp{d: d, ws: filepath.Join(d.dir, "ws"), addr: freeAddr(t)}
	d.tmpfs(a.ws, 64)
	a.registerIn(t, 10)
	a.noise(t, "big", 40)
	cp := a.create()
	if err := os.Remove(filepath.Join(a.ws, "big")); err != nil {
		t.Fatal(err)
	}
	a.set(t, "later")
	a.noise(t, "other", 30)
	before := a.files(t)
	// There is room for one of the two files, not for both: the rollback must
	// either manage all the same, or say so and change nothing.
	if _, _, code := d.mulligan("rollback", string(cp.ID), "--app", "shop"); code == 0 {
		if got := a.sound(t); got != "zero" {
			t.Errorf("the app says %q", got)
		}
		return
	}
	if got := a.sound(t); got != "later" {
		t.Errorf("the app says %q", got)
	}
	sameListing(t, "workspace", a.files(t), before)
}
