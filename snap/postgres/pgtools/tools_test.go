package pgtools

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/pglogin"
	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	privsep.Main()
	os.Exit(m.Run())
}

// nobody is a user without rights.
var nobody = privsep.User{UID: 65534, GID: 65534}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A tool is asked for its version with the rights of the app's owner, and what the owner may not run is of no use.
func TestToolAskedAsOwner(t *testing.T) {
	testkit.Need(t, "root")
	dir := testkit.OpenDir(t)
	for _, name := range []string{"pg_dump", "pg_restore"} {
		check(t, testkit.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\nid -u >"+dir+"/who\necho '"+name+" (PostgreSQL) 15.1'\n")))
	}
	b := &Tools{Dirs: []string{dir}, Owner: nobody}
	if got, err := b.ask(t.Context(), dir); err != nil || got.Major != 15 {
		t.Errorf("%+v, %v", got, err)
	}
	who, err := os.ReadFile(filepath.Join(dir, "who"))
	check(t, err)
	if string(who) != "65534\n" {
		t.Errorf("pg_dump --version ran as user %s", who)
	}
	check(t, os.Chmod(filepath.Join(dir, "pg_dump"), 0o700))
	b = &Tools{Dirs: []string{dir}, Owner: nobody}
	if got, err := b.ask(t.Context(), dir); err == nil {
		t.Errorf("what nobody but root may run is taken: %+v", got)
	}
}

// The tools of the server's version are taken, else the next newer ones.
func TestFind(t *testing.T) {
	var dirs []string
	for _, version := range []string{"13.2", "17.0 (Debian 17.0-1)", "15.18", "16beta1", "nonsense"} {
		dir := t.TempDir()
		for _, name := range []string{"pg_dump", "pg_restore"} {
			check(t, testkit.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\necho '"+name+" (PostgreSQL) "+version+"'\n")))
		}
		dirs = append(dirs, dir)
	}
	b := &Tools{Dirs: append(dirs, "/nowhere")}
	for server, want := range map[int]int{13: 13, 14: 15, 15: 15, 16: 16, 17: 17, 18: 0} {
		got, err := b.find(context.Background(), server, func() string { return "" })
		if got.Major != want || (want == 0) != (errs.KindOf(err) == errs.Unsupported) {
			t.Errorf("for a server of version %d: %+v, %v", server, got, err)
		}
	}
}

// The daemon's own environment does not reach a tool, and no password is in what a tool gets.
func TestEnvironment(t *testing.T) {
	for k, v := range map[string]string{"PGHOST": "elsewhere", "PGPASSWORD": "s3cret", "PGUSER": "root", "PGSSLMODE": "verify-full", "PGOPTIONS": "-c x=y"} {
		t.Setenv(k, v)
	}
	l, err := pglogin.Parse("host=h user=u dbname=d password=s3cret")
	check(t, err)
	got := environment(*l, passPath)
	for _, v := range got {
		if strings.Contains(v, "s3cret") || strings.Contains(v, "elsewhere") || strings.HasPrefix(v, "PGPASSWORD") {
			t.Errorf("a tool gets %s", v)
		}
	}
	for _, want := range []string{"PGHOST=h", "PGUSER=u", "PGSSLMODE=prefer"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing in %q", want, got)
		}
	}
}

// The tools of this host cannot connect to a server that only the daemon's own dialler reaches: those in its container are taken.
func TestFindInside(t *testing.T) {
	testkit.Need(t, "postgres")
	inside := &Inside{Port: 5432, Run: func(ctx context.Context, args, env []string, _ io.Reader, stdout, stderr io.Writer) (int, error) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), stdout, stderr
		err := cmd.Run()
		return cmd.ProcessState.ExitCode(), err
	}}
	b := &Tools{Owner: privsep.Self, Inside: inside}
	nowhere := func() (int, error) { return 0, os.ErrNotExist }
	here, err := b.Find(t.Context(), 1, nowhere) // of whichever version the host has
	check(t, err)
	if here, err = b.Find(t.Context(), here.Major, nowhere); err != nil || here.Inside() {
		t.Errorf("with a port of this host: %+v, %v", here, err)
	}
	inside.Dial = (&net.Dialer{}).DialContext
	if own, err := b.Find(t.Context(), here.Major, nowhere); err != nil || !own.Inside() || own.Major != here.Major {
		t.Errorf("without a port: %+v, %v", own, err)
	}
}

// A tool whose server says nothing finds out in minutes whether the server is still there.
func TestKeepAlive(t *testing.T) {
	testkit.Need(t, "postgres")
	b := &Tools{Owner: privsep.Self}
	pair, err := b.find(t.Context(), 1, func() string { return "" })
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	host, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.Run(ctx, pglogin.Settings{Host: host, Port: port, User: "nobody", Password: "none"}, Command{
			Tools: pair, Name: "pg_dump", Args: []string{ToDatabase("a 'name'")}, Out: io.Discard,
		})
	}()
	c, err := l.Accept()
	check(t, err)
	defer c.Close()
	_, err = c.Read(make([]byte, 1)) // its first message: it is connected
	check(t, err)
	var number int
	_, err = fmt.Sscan(port, &number)
	check(t, err)
	left := -1.0
	testkit.Eventually(t, "only the timer of the connection's keepalive runs", func() bool {
		rows, err := os.ReadFile("/proc/net/tcp")
		check(t, err)
		for _, row := range strings.Split(string(rows), "\n") {
			f := strings.Fields(row) // the third is the other side; the sixth the timer, of which kind and in how many hundredths of a second
			if len(f) < 6 || !strings.HasSuffix(f[2], fmt.Sprintf(":%04X", number)) {
				continue
			}
			if kind, ticks, _ := strings.Cut(f[5], ":"); kind == "02" {
				n, err := strconv.ParseInt(ticks, 16, 64)
				check(t, err)
				left = float64(n) / 100
			}
		}
		return left >= 0
	})
	if left > 60 {
		t.Errorf("the server is asked in %v seconds", left)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("pg_dump of a server that says nothing succeeded")
	}
}
