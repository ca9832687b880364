package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/testkit"
)

// followed waits until the app's files are followed.
func followed(ctx context.Context, d *daemon.Daemon) error {
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); {
		a, err := d.App(ctx, root, "shop")
		if err != nil {
			return err
		}
		if a.Following == "watching" {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // nothing reports it
	}
	return errors.New("the files are not followed")
}

// tree is what is in the workspace, by path.
func (w world) tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(w.ws(), func(p string, e fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(filepath.Base(p), "shop.db") {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		what := fi.Mode().String()
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += " " + string(b)
		}
		all[strings.TrimPrefix(p, w.ws())] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// testKillInRevert kills daemons at the steps of a revert: the files are as they were
// before it or as they are after it, and from there the other way goes too.
func testKillInRevert(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.shell("seq 1 30 >lines; mkdir old; echo o >old/o")
	c.say("m1")
	c.call("call", "for i in 1 2 3 4 5 6; do echo changed >file$i; done; mkdir -p new/deep; echo n >new/n; echo d >new/deep/d; rm -r old; chmod 600 file7; sed -i s/^3$/three/ lines; ln -s file1 link")
	c.shell("sed -i s/^28$/twenty-eight/ lines; echo mine >mine")
	c.done()
	w.close(t, d)
	before := w.tree(t)

	r := &round{world: w, plan: fate{State: w.state(), Do: "revert"}, tally: map[string]int{}}
	names, _, killed := r.victim(t, 0, 0)
	if killed || len(names) < 10 {
		t.Fatalf("steps %q, killed %v", names, killed)
	}
	after := w.tree(t)
	if maps.Equal(before, after) || after["/new"] != "" || after["/old/o"] == "" || !strings.Contains(after["/lines"], "twenty-eight") || strings.Contains(after["/lines"], "three\n") {
		t.Fatalf("reverted to %v", after)
	}
	r.undoRevert(t, before)
	steps := pick(t, names)
	for _, i := range steps {
		what := fmt.Sprintf("killed at step %d (%s)", i+1, names[i])
		a := aimAt(names, i)
		for r.fire(t, a); !a.hit && !a.over(); r.fire(t, a) {
			r.undoRevert(t, before)
		}
		if !a.hit {
			t.Fatalf("never %s", what)
		}
		d := w.openWith(t, time.Hour)
		if s := d.Status(root); len(s.Problems) > 0 {
			t.Errorf("%s: problems: %v", what, s.Problems)
		}
		got := w.tree(t)
		w.close(t, d)
		switch {
		case maps.Equal(got, before):
			r.tally["back"]++
		case maps.Equal(got, after):
			r.tally["forward"]++
			r.undoRevert(t, before)
		default:
			t.Fatalf("%s: neither before nor after: %v", what, got)
		}
	}
	testkit.Tally(t, "kills", len(steps))
	t.Logf("%d of %d steps, which are of %d kinds: %v", len(steps), len(names), kinds(names), r.tally)
	const enough = 16 // of fewer steps, picked at random, all may be on one side
	if len(steps) > enough && (r.tally["back"] == 0 || r.tally["forward"] == 0) {
		t.Error("all went one way")
	}
}

// undoRevert goes to the newest safety checkpoint, which is the last revert's.
func (r *round) undoRevert(t *testing.T, before map[string]string) {
	t.Helper()
	d := r.openWith(t, time.Hour)
	defer r.close(t, d)
	list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{Trigger: ipc.TriggerPreRollback, Limit: 1})
	if err != nil || len(list.Checkpoints) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", list.Checkpoints[0].ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := r.tree(t); !maps.Equal(got, before) {
		t.Fatalf("the revert undone is %v", got)
	}
}
