package daemon_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// recorded is an app with checkpoints whose records are going to be damaged: what
// mulligan.db, and its log, are like when the daemon is killed.
type recorded struct {
	world
	random  *rand.Rand
	want    []ipc.Checkpoint // newest first
	deleted ipc.CheckpointID // there was one more
}

// newRecorded makes checkpoints in two lives of a daemon: those of the first are in
// the database, those of the second in its log.
func newRecorded(t *testing.T) *recorded {
	t.Helper()
	r := &recorded{world: newWorld(t, nil), random: testkit.Rand(t)}
	d := r.open(t)
	keep := ipc.DefaultRetention()
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	r.take(t, d, "one", ipc.CreateRequest{})
	r.deleted = r.take(t, d, "gone", ipc.CreateRequest{})
	r.take(t, d, "two", ipc.CreateRequest{Trigger: ipc.TriggerDeploy, DeployID: "d-7"})
	r.close(t, d)

	d = r.open(t)
	three := r.take(t, d, "three", ipc.CreateRequest{})
	if _, err := d.Pin(t.Context(), root, "shop", three, true); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(t.Context(), root, "shop", r.deleted); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", three, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	r.take(t, d, "four", ipc.CreateRequest{Pinned: true})
	r.want = listed(t, d)
	check(t, os.Mkdir(filepath.Join(r.dir, "template"), 0o700))
	for _, name := range []string{"ws", "state"} { // the daemon is idle, and not closed
		copyInUse(t, filepath.Join(r.dir, name), filepath.Join(r.dir, "template", name))
	}
	r.close(t, d)
	for _, name := range []string{"mulligan.db", "mulligan.db-wal"} {
		if info, err := os.Stat(filepath.Join(r.dir, "template", "state", name)); err != nil || info.Size() < 16<<10 {
			t.Fatalf("there is no %s to damage: %v, %v", name, info, err)
		}
	}
	return r
}

func (r *recorded) take(t *testing.T, d *daemon.Daemon, word string, req ipc.CreateRequest) ipc.CheckpointID {
	t.Helper()
	r.set(t, word)
	req.Notes = word
	cp, err := d.Create(t.Context(), root, "shop", req)
	if err != nil {
		t.Fatal(err)
	}
	return cp.ID
}

// again puts everything back to what it was.
func (r *recorded) again(t *testing.T) {
	t.Helper()
	sh(t, `rm -rf "$1/ws" "$1/state" && cp -a "$1/template/ws" "$1/template/state" "$1"`, r.dir)
}

// pick draws a place in the database or, as often, in its log.
func (r *recorded) pick(t *testing.T) (path string, at int64) {
	t.Helper()
	db, wal := filepath.Join(r.state(), "mulligan.db"), filepath.Join(r.state(), "mulligan.db-wal")
	a, err := os.Stat(db)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(wal)
	if err != nil {
		t.Fatal(err)
	}
	if r.random.IntN(2) == 0 {
		return db, r.random.Int64N(a.Size())
	}
	return wal, r.random.Int64N(b.Size())
}

// testDamagedRecords flips single bits of mulligan.db and its log, and cuts them off. The
// daemon starts, all checkpoints are listed with all that they had, each is whole, and a
// rollback leads where it should. What was deleted is not back, or said to be damaged.
func testDamagedRecords(t *testing.T) {
	t.Parallel()
	flips, cuts := 24, 8
	if long() {
		flips, cuts = 300, 100
	}
	r := newRecorded(t)
	tally := map[string]int{}
	for i := range flips + cuts {
		r.again(t)
		path, at := r.pick(t)
		where := fmt.Sprintf("%s cut to %d bytes", filepath.Base(path), at)
		if i < flips {
			bit := byte(1) << r.random.IntN(8)
			where = fmt.Sprintf("bit %08b of byte %d of %s", bit, at, filepath.Base(path))
			flipBit(t, path, at, bit)
		} else if err := os.Truncate(path, at); err != nil {
			t.Fatal(err)
		}
		tally[r.survives(t, where)]++
		if t.Failed() {
			return
		}
		progress(t, "%d: %s", i, where)
	}
	t.Logf("%d of 300 flipped bits, %d of 100 truncations: %v", flips, cuts, tally)
	if n := tally["nothing said"]; n == flips+cuts {
		t.Error("no damage was found: what does this test damage?")
	}
}

func flipBit(t *testing.T, path string, at int64, bit byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= bit
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// survives starts a daemon on damaged records, checks that all is there, and gives what the daemon says.
func (r *recorded) survives(t *testing.T, where string) string {
	t.Helper()
	d, err := daemon.Open(t.Context(), r.options())
	if err != nil {
		t.Errorf("%s: the daemon does not start: %v", where, err)
		return ""
	}
	r.allListed(t, d, where)
	for _, cp := range r.want {
		if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || !res.OK {
			t.Errorf("%s: %s is damaged: %+v, %v", where, cp.ID, res, err)
		}
	}
	if to := r.want[r.random.IntN(len(r.want))]; to.Trigger != ipc.TriggerPreRollback {
		_, err := d.Rollback(t.Context(), root, "shop", to.ID, ipc.RollbackRequest{}, nil)
		if word := r.word(t); err != nil || word != *to.Notes {
			t.Errorf("%s: a rollback to %q is to %q, %v", where, *to.Notes, word, err)
		}
	}
	status := d.Status(root)
	r.close(t, d)
	kept, err := filepath.Glob(filepath.Join(r.state(), "mulligan.db.damaged-*"))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(status.Recovered, "; ")
	switch {
	case len(kept) == 0 && words == "":
		return "nothing said"
	case len(kept) == 0:
		return "lost changes put back"
	case len(status.Problems) < len(kept) || !strings.Contains(words, "was damaged"):
		t.Errorf("%s: %q is kept, and the daemon says %q and %q", where, kept, status.Recovered, status.Problems)
	}
	if strings.Contains(words, "made anew") {
		return "made anew"
	}
	return "log damaged"
}

func (r *recorded) allListed(t *testing.T, d *daemon.Daemon, where string) {
	t.Helper()
	list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{})
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	got := slices.DeleteFunc(list.Checkpoints, func(cp ipc.Checkpoint) bool {
		return cp.ID == r.deleted && (cp.Damaged != "" || r.wholeAgain(t, d))
	})
	if len(got) != len(r.want) {
		t.Errorf("%s: %d checkpoints are listed, and there were %d", where, len(got), len(r.want))
		return
	}
	for i, want := range r.want {
		if a, b := plain(got[i]), plain(want); a != b {
			t.Errorf("%s: a checkpoint was\n%s\nand is\n%s", where, b, a)
		}
	}
}

// wholeAgain reports whether the deletion did not happen at all.
func (r *recorded) wholeAgain(t *testing.T, d *daemon.Daemon) bool {
	t.Helper()
	res, err := d.Verify(t.Context(), root, "shop", r.deleted, snap.Full)
	return err == nil && res.OK
}

// plain is a checkpoint in JSON, less its size, which depends on others.
func plain(cp ipc.Checkpoint) string {
	cp.SizeBytes = 0
	b, err := cp.MarshalJSON()
	must(err)
	return string(b)
}

// testLostRecords removes mulligan.db altogether.
func testLostRecords(t *testing.T) {
	t.Parallel()
	r := newRecorded(t)
	for _, what := range []string{"mulligan.db*", "mulligan.db", "mulligan.db-wal"} {
		r.again(t)
		sh(t, `cd "$1" && rm $2`, r.state(), what)
		if word := r.survives(t, "without "+what); word == "nothing said" && what != "mulligan.db-wal" {
			t.Errorf("without %s: %s", what, word)
		}
	}
}

// TestDamageHidesNothing takes one content of one checkpoint away: it is listed as
// damaged, and the others can be listed, verified, gone back to and deleted.
func TestDamageHidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	one, _ := w.twoPoints(t)
	d := w.open(t)
	w.set(t, "three")
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Notes: "three"})
	if err != nil {
		t.Fatal(err)
	}
	w.close(t, d)
	w.dropRoot(t, "files/", *cp.FilesSnapshot)

	d = w.open(t)
	defer w.close(t, d)
	for _, c := range listed(t, d) {
		if (c.Damaged != "") != (c.ID == cp.ID) {
			t.Errorf("%s says of its damage: %q", c.ID, c.Damaged)
		}
	}
	if res, err := d.Verify(t.Context(), root, "shop", one, snap.Full); err != nil || !res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || res.OK {
		t.Errorf("what is missing is whole: %+v, %v", res, err)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err == nil {
		t.Error("a rollback to what is missing is done")
	}
	if _, err := d.Rollback(t.Context(), root, "shop", one, ipc.RollbackRequest{}, nil); err != nil || w.word(t) != "one" {
		t.Errorf("the rollback to another: %v", err)
	}
	for _, id := range []ipc.CheckpointID{listed(t, d)[0].ID, cp.ID} {
		if err := d.Delete(t.Context(), root, "shop", id); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := d.Prune(t.Context(), root, "shop", false); err != nil {
		t.Error(err)
	}
}

// TestDamagedRecordIsKept: a checkpoint whose record cannot be read is left to people, by a prune that takes the others.
func TestDamagedRecordIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	retain := func(keep ipc.Retention) {
		t.Helper()
		if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep}); err != nil {
			t.Fatal(err)
		}
	}
	retain(ipc.DefaultRetention())
	damaged, other := create(t, d), create(t, d)
	create(t, d)
	records, err := sql.Open("sqlite", filepath.Join(w.state(), "mulligan.db"))
	if err == nil {
		_, err = records.Exec(`UPDATE checkpoints SET sum = x'00' WHERE id = ?`, damaged)
	}
	if err = errors.Join(err, records.Close()); err != nil {
		t.Fatal(err)
	}
	retain(ipc.Retention{KeepLast: 1, ExpireAfter: "0"})
	res, err := d.Prune(t.Context(), root, "shop", false)
	if err != nil || !slices.Equal(res.Deleted, []ipc.CheckpointID{other}) {
		t.Errorf("a prune took %q, want %s: %v", res.Deleted, other, err)
	}
	if list := listed(t, d); len(list) != 2 || list[1].ID != damaged || !strings.Contains(list[1].Damaged, "its record is damaged") {
		t.Errorf("after it there are %+v", list)
	}
}

// TestDeleteCutShort kills a delete after it is decided: the next start carries it
// out, and does not take the checkpoint's description for a lost record.
func TestDeleteCutShort(t *testing.T) {
	t.Parallel()
	r := newRecorded(t)
	opt := r.options()
	opt.Failpoint = func(step string) error {
		if step == "drop snapshots" {
			return errs.New(errs.Failed, "", "killed")
		}
		return nil
	}
	d, err := daemon.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	victim := r.want[len(r.want)-1]
	if err := d.Delete(t.Context(), root, "shop", victim.ID); err == nil {
		t.Fatal("nothing failed")
	}
	before := r.roots(t, *victim.FilesSnapshot)
	r.close(t, d)
	if before != 1 {
		t.Fatalf("%d contents are there before the next start", before)
	}
	d = r.open(t)
	defer r.close(t, d)
	if slices.ContainsFunc(listed(t, d), func(cp ipc.Checkpoint) bool { return cp.ID == victim.ID }) {
		t.Error("it is listed again")
	}
	waitFor(t, "it is gone", func() bool { return r.roots(t, *victim.FilesSnapshot)+r.roots(t, string(victim.ID)) == 0 })
}

// dropRoot takes a content out of the store of a daemon that is not running.
func (w world) dropRoot(t *testing.T, prefix, id string) {
	t.Helper()
	s, err := cas.Open(filepath.Join(w.state(), "store"), cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.Roots(prefix) {
		if strings.HasSuffix(r.Name, "/"+id) {
			if err := s.Delete(r.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// roots counts the names in a running daemon's content store that end in an id.
func (w world) roots(t *testing.T, id string) (n int) {
	t.Helper()
	for _, name := range rootsIn(t, filepath.Join(w.state(), "store")) {
		if strings.HasSuffix(name, "/"+id) {
			n++
		}
	}
	return n
}

// copyInUse copies a folder of a daemon that runs. It copies the folder again where a file went away meanwhile, as those of a content store do
// that is tidied up: cp fails then.
func copyInUse(t *testing.T, from, to string) {
	t.Helper()
	testkit.Eventually(t, "a copy of "+from, func() bool {
		check(t, os.RemoveAll(to))
		out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
		if err != nil {
			t.Logf("%v: %s", err, out)
		}
		return err == nil
	})
}

// rootsIn returns the names of the roots in a content store, which may be open.
func rootsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	look := filepath.Join(t.TempDir(), "look")
	copyInUse(t, dir, look)
	s, err := cas.Open(look, cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.Roots("") {
		names = append(names, r.Name)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return names
}

// TestOldRecords puts records back that were copied while an operation was under way, as
// after the loss of all later changes: the operation is not done again, and what it made is there.
func TestOldRecords(t *testing.T) {
	t.Parallel()
	for step, recovered := range map[string]string{
		"capture files":   "was cut short was finished",
		"commit files":    "had ended, but the records did not say so",
		"commit db:shop":  "had ended, but the records did not say so",
		"finish db:shop":  "was finished",
		"drop snapshots":  "",
		"write records 1": "",
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			r := &recorded{world: newWorld(t, nil), random: testkit.Rand(t)}
			one, _ := r.twoPoints(t)
			r.keepRecordsAt(t, step, one)
			sh(t, `cd "$1" && rm -f mulligan.db* && cp -a old/. .`, r.state())
			d := r.open(t)
			defer r.close(t, d)
			if word := r.word(t); word != "one" {
				t.Errorf("the app is in state %q", word)
			}
			if said := strings.Join(d.Status(root).Recovered, "; "); !strings.Contains(said, recovered) {
				t.Errorf("the daemon says %q, and not %q", said, recovered)
			}
			r.allListed(t, d, step)
			for _, cp := range r.want {
				if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || !res.OK {
					t.Errorf("%s is damaged: %+v, %v", cp.ID, res, err)
				}
			}
		})
	}
}

// keepRecordsAt makes and deletes checkpoints and rolls back, and copies the records when one of
// these first comes to a step.
func (r *recorded) keepRecordsAt(t *testing.T, step string, to ipc.CheckpointID) {
	t.Helper()
	name, _, _ := strings.Cut(step, " 1")
	opt, copied, armed := r.options(), false, false
	opt.Failpoint = func(at string) error {
		if armed && at == name && !copied {
			copied = true
			sh(t, `cd "$1" && mkdir old && cp -a mulligan.db mulligan.db-wal old`, r.state())
		}
		return nil
	}
	d, err := daemon.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	armed = true
	r.take(t, d, "two", ipc.CreateRequest{})
	r.deleted = r.take(t, d, "two", ipc.CreateRequest{})
	if err := d.Delete(t.Context(), root, "shop", r.deleted); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	r.want = listed(t, d)
	r.close(t, d)
	if !copied {
		t.Fatalf("no step is called %q", name)
	}
}
