package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/postgres/pgtest"
)

// TestInit lets init find the databases of a real folder, start the real daemon and
// protect them all: what it said is what a rollback brings back.
func TestInit(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{})
	c.Psql(t, "postgres", `CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'; CREATE DATABASE shop OWNER shopper; CREATE DATABASE store OWNER shopper`)
	for _, db := range []string{"shop", "store"} {
		c.Psql(t, db, "SET ROLE shopper; CREATE TABLE words (w text); INSERT INTO words VALUES ('zero')")
	}
	d := newDaemon(t)
	a := &testApp{d: d, ws: filepath.Join(d.dir, "shop")}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	a.set(t, "zero")
	a.write(t, ".env", "DATABASE_URL="+c.TCP("shopper", "hunter2", "shop")+"\n")
	a.write(t, "compose.yaml", fmt.Sprintf("services:\n  db:\n    image: postgres:15\n    environment:\n      POSTGRES_USER: shopper\n      POSTGRES_PASSWORD: hunter2\n"+
		"      POSTGRES_DB: store\n    ports:\n      - 127.0.0.1:%d:5432\n", c.Port))

	env := append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+filepath.Join(d.dir, "state"), "XDG_CONFIG_HOME="+filepath.Join(d.dir, "config"))
	run := func(args ...string) (string, string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "mulligan"), append(args, "--socket", d.socket)...)
		var out, errOut bytes.Buffer
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, a.ws, &out, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("mulligan %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
		}
		return out.String(), errOut.String()
	}
	t.Cleanup(func() {
		st, err := d.client.Status(context.Background()) // the test's own context is over by now
		if err != nil {
			return // init started none
		}
		_ = unix.Kill(st.PID, unix.SIGTERM) // gone already is as good
		eventually(t, "the daemon that init started ends", func() bool { return unix.Kill(st.PID, 0) != nil })
	})
	said, complaint := run("init", "--yes")
	for _, word := range []string{"database shop: sqlite shop.db", "DATABASE_URL in .env", "service db in compose.yaml", "result\tadded"} {
		if !strings.Contains(said, word) {
			t.Errorf("init says nothing of %q:\n%s", word, said)
		}
	}
	if strings.Contains(said+complaint, "hunter2") || complaint != "" {
		t.Errorf("init says %s%s", said, complaint)
	}
	st, err := d.client.Status(t.Context())
	if err != nil || st.Mode != "user" {
		t.Fatalf("the daemon: %+v, %v", st, err)
	}
	run("create")
	for _, db := range []string{"shop", "store"} {
		c.Psql(t, db, "UPDATE words SET w = 'later'")
	}
	a.set(t, "later")
	diff, _ := run("diff", "1", "--stat")
	for _, word := range []string{"db:shop:words", "db:shop-2:public.words", "db:store:public.words", "as many as before, with other content"} {
		if !strings.Contains(diff, word) {
			t.Errorf("diff says nothing of %q:\n%s", word, diff)
		}
	}
	run("rollback", "1")
	for _, db := range []string{"shop", "store"} {
		if got := c.Psql(t, db, "SELECT w FROM words"); got != "zero" {
			t.Errorf("%s: %q", db, got)
		}
	}
	if got := a.word(t); got != "zero" {
		t.Errorf("the app says %q", got)
	}
	if log, err := os.ReadFile(filepath.Join(d.dir, "state/mulligan/mulligand.log")); err != nil || strings.Contains(string(log), "hunter2") {
		t.Errorf("the log, or a password in it: %v", err)
	}
}
