package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/ipc"
)

// mulligand runs the daemon's program for a command of its own.
func (d *daemonProcess) mulligand(args ...string) (out string, err error) {
	b, err := exec.Command(filepath.Join(bin, "mulligand"), args...).CombinedOutput()
	return string(b), err
}

// testRebuild makes mulligan.db anew by hand, and then has a start do it: all checkpoints
// are there with what they had, and whoever asks is told.
func testRebuild(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 5)
	a.set(t, "one")
	d.must("create", "--app", "shop", "--notes", "first", "--pin")
	a.set(t, "two")
	d.must("create", "--app", "shop", "--notes", "second")
	want := a.checkpoints()
	state := filepath.Join(d.dir, "state")
	rebuild := []string{"rebuild", "--user", "--state-dir", state}
	if out, err := d.mulligand(rebuild...); err == nil || !strings.Contains(out, "stop it first") {
		t.Errorf("beside a daemon: %v, %s", err, out)
	}
	d.stop()
	if out, err := d.mulligand("rebuild", "--user", "--state-dir", filepath.Join(d.dir, "nowhere")); err == nil || !strings.Contains(out, "no state folder") {
		t.Errorf("without a state folder: %v, %s", err, out)
	}
	db := filepath.Join(state, "mulligan.db")
	if err := os.Truncate(db, 5000); err != nil {
		t.Fatal(err)
	}
	out, err := d.mulligand(rebuild...)
	if err != nil || !strings.Contains(out, "1 apps, removed ones too, and 2 checkpoints") || !strings.Contains(out, "the old one is kept as mulligan.db.damaged-") {
		t.Errorf("%v, %s", err, out)
	}
	same := func(when string) {
		t.Helper()
		got := a.checkpoints()
		if len(got) != len(want) {
			t.Fatalf("%s there are %+v, and there were %+v", when, got, want)
		}
		for i := range got {
			if got[i].ID != want[i].ID || *got[i].Notes != *want[i].Notes || got[i].Pinned != want[i].Pinned || got[i].Damaged != "" {
				t.Errorf("%s there is %+v, and there was %+v", when, got[i], want[i])
			}
		}
	}
	d.start()
	same("after rebuild")
	d.must("rollback", string(want[1].ID), "--app", "shop")
	if word := a.word(t); word != "one" {
		t.Errorf("the rollback is to %s", word)
	}
	want = a.checkpoints()
	d.stop()
	if err := os.WriteFile(db, []byte("no database at all, whatever it was before"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	same("after a start")
	if st := ask[ipc.Status](d, "status"); len(st.Problems) < 2 || !strings.Contains(strings.Join(st.Recovered, "; "), "made anew") {
		t.Errorf("the status says %+v", st)
	}
	if out, _, _ := d.mulligan("doctor"); !strings.Contains(out, "mulligan.db.damaged-") {
		t.Errorf("the doctor says nothing: %s", out)
	}
	if !strings.Contains(d.log.String(), "made anew") {
		t.Error("the log says nothing")
	}
}
