package sqlite

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// nobody is an ordinary user.
const nobody = 65534

// userSite is the folder of a user's app, whose driver runs as that user.
type userSite struct {
	*subject
	top, exe string
}

// newUserSite has a database in WAL mode, which belongs to root.
func newUserSite(t *testing.T) *userSite {
	t.Helper()
	testkit.Need(t, "root")
	u := &userSite{top: testkit.OpenDir(t)}
	u.exe = filepath.Join(u.top, "test")
	check(t, copyFile(os.Args[0], u.exe))
	check(t, os.Chmod(u.exe, 0o755))
	for _, name := range []string{"", "app", "app/data", "state", "store"} {
		check(t, os.MkdirAll(filepath.Join(u.top, name), 0o755))
		check(t, os.Chown(filepath.Join(u.top, name), nobody, nobody))
	}
	u.subject = &subject{client: startClient(t), cfg: fate{Dir: u.top}.config()}
	u.client.do(t, order{Path: u.path(), SQL: []string{"PRAGMA journal_mode=WAL", "CREATE TABLE n(n INT)", "INSERT INTO n VALUES(1)"}})
	check(t, os.Chmod(u.path(), 0o644))
	return u
}

// errand is what a user's driver does in a process of its own.
type errand struct {
	Dir, Do      string
	ID           snap.SnapshotID // of "capture"
	Target, Base snap.SnapshotID // of "prepare"
	Stop         string          // the step at which the process says so, once, and waits for a line
}

// outcome is how an errand ended.
type outcome struct {
	Kind       errs.Kind
	Text, Hint string
	Steps      int // how often the driver came to the errand's step
}

// user is the process of an errand.
func user(arg string) {
	var e errand
	must(json.Unmarshal([]byte(arg), &e))
	var o outcome
	in := bufio.NewReader(os.Stdin)
	cfg := fate{Dir: e.Dir}.config()
	cfg.Failpoint = func(step string) error {
		if step != e.Stop {
			return nil
		}
		if o.Steps++; o.Steps > 1 {
			return nil
		}
		fmt.Println("at the step")
		_, err := in.ReadString('\n')
		return err
	}
	var err error
	cfg.Store, err = cas.Open(filepath.Join(e.Dir, "store"), cas.Options{})
	must(err)
	d, err := New(cfg)
	must(err)
	if err := e.run(d); err != nil {
		o.Kind, o.Text, o.Hint = errs.KindOf(err), err.Error(), errs.HintOf(err)
	}
	must(cfg.Store.Close())
	must(json.NewEncoder(os.Stdout).Encode(o))
}

func (e errand) run(d *Driver) error {
	ctx := context.Background()
	switch e.Do {
	case "capture":
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: e.ID})
		return err
	case "prepare":
		_, err := d.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: e.Target, Base: e.Base})
		return err
	}
	sw, err := d.Resume(ctx, "op-1")
	if err != nil {
		return err
	}
	switch e.Do {
	case "commit":
		return sw.Commit(ctx)
	case "undo":
		return sw.Undo(ctx)
	case "finish":
		return sw.Finish(ctx)
	}
	p, err := sw.Check(ctx)
	if err == nil && !p.Match {
		err = errs.New(errs.Failed, "", "the live state is another one")
	}
	return err
}

// does runs an errand. meanwhile is called while the driver stands at the errand's step.
func (u *userSite) does(t *testing.T, e errand, meanwhile func()) (o outcome) {
	t.Helper()
	e.Dir = u.top
	cmd := command(t, "user", e)
	cmd.Path, cmd.Args = u.exe, []string{u.exe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "at the step" {
			meanwhile()
			_, err := io.WriteString(in, "go on\n")
			check(t, err)
			continue
		}
		check(t, json.Unmarshal(lines.Bytes(), &o))
	}
	check(t, cmd.Wait())
	return o
}

// well runs errands that have to succeed.
func (u *userSite) well(t *testing.T, list ...errand) {
	t.Helper()
	for _, e := range list {
		if o := u.does(t, e, nil); o.Text != "" {
			t.Fatalf("%+v: %s", e, o.Text)
		}
	}
}

// captured returns n of a snapshot.
func (u *userSite) captured(t *testing.T, id snap.SnapshotID) (n int) {
	t.Helper()
	var err error
	u.cfg.Store, err = cas.Open(filepath.Join(u.top, "store"), cas.Options{})
	check(t, err)
	u.Reopen(t)
	db := open(contentOf(t, u.subject, id))
	defer db.Close()
	check(t, db.QueryRow("SELECT n FROM n").Scan(&n))
	check(t, u.cfg.Store.Close())
	check(t, exec.Command("chown", "-R", "65534:65534", filepath.Join(u.top, "store"), filepath.Join(u.top, "state")).Run())
	return n
}

// TestReadOnly: a database that the user's driver may only read is captured, with somebody connected and with nobody, and restores that do not
// change it go on.
func TestReadOnly(t *testing.T) {
	u := newUserSite(t)
	u.well(t, errand{Do: "capture", ID: "db-1"}, errand{Do: "capture", ID: "db-2"},
		errand{Do: "prepare", Target: "db-1", Base: "db-2"}, errand{Do: "commit"}, errand{Do: "check"}, errand{Do: "undo"}, errand{Do: "check"})
	u.client.do(t, order{Path: u.path(), Hold: true, SQL: []string{"UPDATE n SET n = 2"}})
	u.well(t, errand{Do: "capture", ID: "db-3"})
	if one, two := u.captured(t, "db-1"), u.captured(t, "db-3"); one != 1 || two != 2 {
		t.Errorf("the snapshots have n = %d and %d", one, two)
	}
}

// TestConnectedWhileRead: nothing keeps a client from connecting to a database that the driver may only read. What it writes to the database file
// meanwhile is noticed, also when it has left again.
func TestConnectedWhileRead(t *testing.T) {
	for _, hold := range []bool{true, false} {
		u := newUserSite(t)
		write := order{Path: u.path(), Hold: hold, SQL: []string{"UPDATE n SET n = 2", "PRAGMA wal_checkpoint(TRUNCATE)"}}
		o := u.does(t, errand{Do: "capture", ID: "db-1", Stop: "capture: read"}, func() { u.client.do(t, write) })
		if n := u.captured(t, "db-1"); o.Text != "" || o.Steps != 2 || n != 2 {
			t.Errorf("stays connected %t: read %d times, and captured %d: %s", hold, o.Steps, n, o.Text)
		}
	}
}

// TestReadOnlyRefused: a restore that would have to change another user's file is refused before anything is changed.
func TestReadOnlyRefused(t *testing.T) {
	u := newUserSite(t)
	u.well(t, errand{Do: "capture", ID: "db-1"})
	u.client.do(t, order{Path: u.path(), SQL: []string{"UPDATE n SET n = 2"}})
	u.well(t, errand{Do: "capture", ID: "db-2"})
	refused := func(target, base snap.SnapshotID) {
		t.Helper()
		o := u.does(t, errand{Do: "prepare", Target: target, Base: base}, nil)
		if o.Kind != errs.Denied || o.Hint == "" {
			t.Errorf("to %s: %+v", target, o)
		}
	}
	refused("db-1", "db-2")
	check(t, os.Remove(u.path()))
	u.well(t, errand{Do: "capture", ID: "db-none"})
	refused("db-1", "db-none") // nobody but root can make a file of root's
	u.client.do(t, order{Path: u.path(), SQL: []string{"CREATE TABLE n(n INT)"}})
	check(t, os.Chmod(u.path(), 0o644))
	u.well(t, errand{Do: "capture", ID: "db-3"})
	refused("db-none", "db-3")
}

// TestNobodyWrites: a file of the user's own that nobody may write is replaced, and comes back.
func TestNobodyWrites(t *testing.T) {
	for _, mode := range []string{"DELETE", "WAL"} {
		u := newUserSite(t)
		u.client.do(t, order{Path: u.path(), SQL: []string{"PRAGMA journal_mode=" + mode}})
		check(t, os.Chown(u.path(), nobody, nobody))
		u.well(t, errand{Do: "capture", ID: "db-1"})
		u.client.do(t, order{Path: u.path(), SQL: []string{"UPDATE n SET n = 2"}})
		check(t, os.Chmod(u.path(), 0o444))
		u.well(t, errand{Do: "capture", ID: "db-2"}, errand{Do: "prepare", Target: "db-1", Base: "db-2"}, errand{Do: "commit"}, errand{Do: "check"})
		mode := func() os.FileMode {
			info, err := os.Stat(u.path())
			check(t, err)
			return info.Mode()
		}
		if m := mode(); m != 0o644 {
			t.Errorf("the mode is %v", m)
		}
		u.well(t, errand{Do: "undo"}, errand{Do: "check"}, errand{Do: "finish"})
		if m := mode(); m != 0o444 {
			t.Errorf("after Undo the mode is %v", m)
		}
		holder := startClient(t)
		holder.do(t, order{Path: u.path(), Hold: true, SQL: []string{"BEGIN", "SELECT n FROM n"}})
		u.well(t, errand{Do: "prepare", Target: "db-1", Base: "db-2"})
		if o := u.does(t, errand{Do: "commit"}, nil); o.Kind != errs.Busy {
			t.Errorf("while somebody reads it: %+v", o)
		}
	}
}

// TestReadOnlyFilesystem: a database on a filesystem that is mounted for reading only is captured, and a restore that does not change it goes on.
func TestReadOnlyFilesystem(t *testing.T) {
	testkit.Need(t, "root")
	s := newSubject(t, startClient(t), "WAL")
	check(t, unix.Mount(s.cfg.Dir, s.cfg.Dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { check(t, unix.Unmount(s.cfg.Dir, 0)) })
	ctx := t.Context()
	_, err := s.capture(t, "db-1")
	check(t, err)
	s.Mutate(t, 2)
	check(t, unix.Mount("", s.cfg.Dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, id := range []snap.SnapshotID{"db-2", "db-3"} {
		_, err = s.capture(t, id)
		check(t, err)
	}
	_, err = s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-1", Base: "db-3"})
	wants(t, err, errs.Denied)
	sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-2", Target: "db-2", Base: "db-3"})
	check(t, err)
	check(t, sw.Commit(ctx))
	if p, err := sw.Check(ctx); err != nil || !p.Match {
		t.Errorf("%+v, %v", p, err)
	}
	check(t, sw.Undo(ctx))
	check(t, sw.Finish(ctx))
}
