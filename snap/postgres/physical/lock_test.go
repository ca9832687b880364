package physical

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mulligan/privsep"
	"mulligan/snap/postgres/pgtest"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/testkit"
)

// testLeftSocketLock starts a server whose socket has the lock of one that was killed. Its number belongs to a process that lives: one that
// nobody has reaped, or a later one. A lock behind which somebody listens stays.
func testLeftSocketLock(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	c := pgtest.New(t, pgtest.Options{})
	uid, gid := c.Owner()
	other := sleeper(t, uid, gid)
	socket := filepath.Join(c.Socket, fmt.Sprintf(".s.PGSQL.%d", c.Port))
	leave := func() {
		t.Helper()
		text := fmt.Sprintf("%d\n%s\n%d\n%d\n%s\n", other, c.DataDir, time.Now().Unix(), c.Port, c.Socket)
		check(t, os.WriteFile(socket+".lock", []byte(text), 0o600))
		check(t, os.Chown(socket+".lock", uid, gid))
		long := time.Now().Add(-time.Minute)
		check(t, os.Chtimes(socket+".lock", long, long))
	}
	p := pgserver.PgCtl{Bin: c.Bin, DataDir: c.DataDir, Log: c.Log, Owner: privsep.User{UID: uid, GID: gid}}

	leave()
	l, err := net.Listen("unix", socket)
	check(t, err)
	check(t, os.Chmod(socket, 0o777))
	if err := p.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "lock file") {
		t.Errorf("beside a server that listens: %v", err)
	}
	if _, err := os.Lstat(socket + ".lock"); err != nil {
		t.Errorf("the lock of a server that listens was removed: %v", err)
	}
	check(t, l.Close())

	leave()
	check(t, p.Start(t.Context()))
	text, err := os.ReadFile(socket + ".lock")
	if err != nil || strings.HasPrefix(string(text), fmt.Sprintln(other)) {
		t.Errorf("the lock is %s (%v)", text, err)
	}
	check(t, p.Stop(t.Context()))
	testkit.Eventually(t, "the server has ended", func() bool {
		_, err := os.Lstat(filepath.Join(c.DataDir, "postmaster.pid"))
		return err != nil
	})
}

// TestStartBesideAnotherStart: a server that was started meanwhile is the one that was asked for. A lock of the data folder that names a living process which is
// no server there is told after a while.
func TestStartBesideAnotherStart(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	c := pgtest.New(t, pgtest.Options{})
	uid, gid := c.Owner()
	p := pgserver.PgCtl{Bin: c.Bin, DataDir: c.DataDir, Log: c.Log, Owner: privsep.User{UID: uid, GID: gid}}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	check(t, p.Start(ctx))
	if err := p.Start(ctx); err != nil {
		t.Errorf("of a server that runs: %v", err)
	}
	check(t, p.Stop(ctx))
	check(t, pgserver.AwaitEnd(ctx, c.DataDir))

	other := sleeper(t, uid, gid)
	lock := filepath.Join(c.DataDir, "postmaster.pid")
	check(t, os.WriteFile(lock, fmt.Appendf(nil, "%d\n%s\n%d\n%d\n\n\n\nready\n", other, c.DataDir, time.Now().Unix(), c.Port), 0o600))
	check(t, os.Chown(lock, uid, gid))
	if err := p.Start(ctx); ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "postmaster.pid") {
		t.Errorf("with the lock of another process: %v (%v)", err, ctx.Err())
	}
	check(t, os.Remove(lock))
	check(t, p.Start(ctx))
	check(t, p.Stop(ctx))
}

// sleeper starts a process of the user that does nothing, and returns its id.
func sleeper(t *testing.T, uid, gid int) int {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	check(t, testkit.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return cmd.Process.Pid
}

// TestNoSocketFolder: a server whose socket has no folder cannot start, and that is said at once.
func TestNoSocketFolder(t *testing.T) {
	t.Parallel()
	c := pgtest.New(t, pgtest.Options{Settings: map[string]string{"unix_socket_directories": "/nowhere/at/all"}})
	uid, gid := c.Owner()
	p := pgserver.PgCtl{Bin: c.Bin, DataDir: c.DataDir, Log: c.Log, Owner: privsep.User{UID: uid, GID: gid}}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := p.Start(ctx); ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), `could not create lock file "/nowhere/at/all`) {
		t.Errorf("the start says %v (%v)", err, ctx.Err())
	}
	if text, err := os.ReadFile(c.Log); err != nil || strings.Count(string(text), "could not create lock file") != 1 {
		t.Errorf("it was started again: %s (%v)", text, err)
	}
}

// testStopBesideAnotherStop stops a server that ends by itself between pg_ctl's two looks at it, as it does on a slow machine after it
// was asked once. A pg_ctl that first stops the server, and then does what it was asked, makes that moment sure.
func testStopBesideAnotherStop(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	c := pgtest.New(t, pgtest.Options{})
	uid, gid := c.Owner()
	p := pgserver.PgCtl{Bin: c.Bin, DataDir: c.DataDir, Log: c.Log, Owner: privsep.User{UID: uid, GID: gid}}
	check(t, p.Start(t.Context()))
	slow := p
	slow.Bin = testkit.OpenDir(t)
	text := "#!/bin/sh\nreal=" + c.Bin + "/pg_ctl\n[ $1 != stop ] || { $real stop -s -w -D " + c.DataDir + "; touch " + slow.Bin + "/stopped; }\nexec $real \"$@\"\n"
	check(t, testkit.WriteProgram(filepath.Join(slow.Bin, "pg_ctl"), []byte(text)))
	check(t, os.Chmod(slow.Bin, 0o777))
	check(t, slow.Stop(t.Context()))
	if _, err := os.Lstat(filepath.Join(slow.Bin, "stopped")); err != nil {
		t.Errorf("the server was not stopped in between: %v", err)
	}
	if used, err := pgserver.InUse(c.DataDir); used || err != nil {
		t.Errorf("in use is %v (%v)", used, err)
	}
}
