package daemon_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
)

func idsOf(cps []ipc.Checkpoint) (list []ipc.CheckpointID) {
	for _, cp := range cps {
		list = append(list, cp.ID)
	}
	return list
}

// failpoint makes one step of a daemon fail, while it is set.
type failpoint struct {
	mu sync.Mutex
	at string
}

func (f *failpoint) set(step string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = step
}

func (f *failpoint) step(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == f.at {
		return unix.EIO
	}
	return nil
}

// testRefusalsComeFirst asks for rollbacks that can't be: no checkpoint is made for
// them, and none is pruned.
func testRefusalsComeFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	sh(t, `mkdir -p "$1/src/deep" && echo x >"$1/src/main.go" && echo x >"$1/layer:odd"`, w.ws())
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.DailyDays, keep.KeepSafety = 3, 0, 2
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep, Exclude: &[]string{"*.log"}}); err != nil {
		t.Fatal(err)
	}
	w.set(t, "zero")
	var cp ipc.Checkpoint
	for i := range 3 {
		var err error
		if cp, err = d.Create(t.Context(), root, "shop", ipc.CreateRequest{Notes: fmt.Sprint("KEEP ME ", i)}); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, `rm -r "$1/src/deep" && echo y >"$1/new" && echo z >"$1/debug.log"`, w.ws())
	before := idsOf(listed(t, d))
	pid := w.pid(t)
	for _, c := range []struct {
		scope []string
		kind  errs.Kind
		hint  string
	}{
		{[]string{"../x"}, errs.Invalid, "below"}, {[]string{"/etc"}, errs.Invalid, "below"}, {[]string{"src/../../x"}, errs.Invalid, ""},
		{[]string{""}, errs.Invalid, ""}, {[]string{"layer:nosuch"}, errs.Invalid, "db:shop"},
		{[]string{"srd"}, errs.NotFound, `did you mean "src"?`}, {[]string{"src/mian.go"}, errs.NotFound, `did you mean "src/main.go"?`},
		{[]string{"src", "src/nothing like it"}, errs.NotFound, "layer:NAME"}, {[]string{"shop"}, errs.NotFound, "layer:db:shop"},
		{[]string{"files"}, errs.NotFound, "file"}, {[]string{"debug.log"}, errs.NotFound, "excluded"},
		{[]string{"shop.db"}, errs.Invalid, "layer:db:shop"}, {[]string{"src/main.go/x"}, errs.NotFound, ""},
	} {
		for _, dry := range []bool{true, false} {
			_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{Scope: c.scope, DryRun: dry}, nil)
			if errs.KindOf(err) != c.kind || !strings.Contains(errs.HintOf(err), c.hint) {
				t.Errorf("%q: %v (%s), of kind %s; want %s (%s)", c.scope, err, errs.HintOf(err), errs.KindOf(err), c.kind, c.hint)
			}
		}
	}
	if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{OnUnhealthy: "whatever"}, nil); errs.KindOf(err) != errs.Invalid {
		t.Errorf("on_unhealthy: %v", err)
	}
	if got := idsOf(listed(t, d)); !slices.Equal(got, before) {
		t.Errorf("left are %v, there were %v", got, before)
	}
	if now := w.pid(t); now != pid {
		t.Errorf("the program was started anew: pid %s, was %s", now, pid)
	}
	for _, scope := range [][]string{{"src/deep"}, {"new"}, {"./layer:odd"}, {"./src/"}, {"."}} { // on one side, or both
		if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{Scope: scope}, nil); err != nil {
			t.Errorf("%q: %v", scope, err)
		}
	}
	got := listed(t, d)
	safety := slices.DeleteFunc(slices.Clone(got), func(cp ipc.Checkpoint) bool { return cp.Trigger != ipc.TriggerPreRollback })
	if manual := slices.DeleteFunc(idsOf(got), func(id ipc.CheckpointID) bool { return !slices.Contains(before, id) }); !slices.Equal(manual, before) || len(safety) != 2 {
		t.Errorf("after five rollbacks %d safety checkpoints are left, and of %v %v", len(safety), before, manual)
	}
}

// TestCalledOffLeavesNothing has rollbacks fail before they change anything, once while
// the app runs and once when it is stopped, and one that is undone.
func TestCalledOffLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var fail failpoint
	opt := w.options()
	opt.Failpoint = fail.step
	d := w.openAs(t, opt)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	before := idsOf(listed(t, d))
	for _, step := range []string{"prepare files", "prepare db:shop", "stop unit", "plan switching"} {
		fail.set(step)
		res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		if err == nil || res.RolledBack || res.SafetyCheckpoint != nil {
			t.Errorf("%s: %v, %+v", step, err, res)
		}
		if got := idsOf(listed(t, d)); !slices.Equal(got, before) {
			t.Errorf("%s: left are %v, there were %v", step, got, before)
		}
	}
	fail.set("commit db:shop")
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err == nil || !res.Recovered || res.SafetyCheckpoint == nil || !res.SafetyCheckpoint.CalledOff {
		t.Errorf("%v, %+v", err, res)
	}
	if all := listed(t, d); len(all) != len(before)+1 || !all[0].CalledOff || w.word(t) != "one" {
		t.Errorf("%+v", all)
	}
	fail.set("")
	res, err = d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err != nil || res.SafetyCheckpoint.CalledOff || !res.SafetyCheckpoint.Quiesced || listed(t, d)[0].CalledOff {
		t.Errorf("%v, %+v", err, res.SafetyCheckpoint)
	}
}

// testLayerThatCannotBeSwitched: the error of a layer that can be captured, and not prepared or committed, names the command that leaves the layer out,
// and the command takes the rest back. On a full disk, and where nothing else is in the scope, the command would not help.
func testLayerThatCannotBeSwitched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var fail failpoint
	var why atomic.Value
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if fail.step(step) != nil {
			return why.Load().(unix.Errno)
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	w.set(t, "one")
	for _, step := range []string{"prepare: stage", "phase: committing"} { // of the database's driver
		fail.set(step)
		for _, c := range []struct {
			why   unix.Errno
			scope []string
			helps bool
		}{{unix.EIO, nil, true}, {unix.ENOSPC, nil, false}, {unix.EIO, []string{"layer:db:shop"}, false}} {
			why.Store(c.why)
			_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{Scope: c.scope}, nil)
			if !errors.Is(err, c.why) {
				t.Fatalf("a rollback that fails at %s: %v", step, err)
			}
			if says := strings.Contains(errs.HintOf(err), fmt.Sprintf("`mulligan rollback %s --without db:shop`", cp.ID)); says != c.helps {
				t.Errorf("a rollback that fails at %s (%v), scope %q: the hint is %q", step, c.why, c.scope, errs.HintOf(err))
			}
			if word := w.word(t); word != "one" {
				t.Errorf("after a rollback that failed at %s all says %q", step, word)
			}
		}
		fail.set("")
		goBack(t, d, cp.ID, ipc.RollbackRequest{Without: []string{"db:shop"}})
		if files, db, _, err := w.words(); err != nil || files != "zero" || db != "one" {
			t.Errorf("without the database the files say %q, the database %q: %v", files, db, err)
		}
		goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	}
}

// TestMaxBytes keeps what somebody asked for although it is too much, says so, and lets
// automatic checkpoints go.
func TestMaxBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer func() { w.close(t, d) }()
	keep := ipc.DefaultRetention()
	keep.MaxBytes = 1 << 20
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	noise := func() { sh(t, `head -c 700K /dev/urandom >"$1/noise"`, w.ws()) }
	create := func() ipc.Checkpoint {
		noise()
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return cp
	}
	first := create()
	noise()
	goBack(t, d, first.ID, ipc.RollbackRequest{}) // its safety checkpoint is as large
	second := create()
	if got, want := idsOf(listed(t, d)), []ipc.CheckpointID{second.ID, first.ID}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	if p := d.Status(root).Problems; len(p) != 1 || !strings.Contains(p[0], "max_bytes") {
		t.Errorf("problems: %q", p)
	}
	w.close(t, d)
	d = w.open(t)
	waitFor(t, "the next daemon says so too", func() bool { return strings.Contains(strings.Join(d.Status(root).Problems, ""), "max_bytes") })
	if err := d.Delete(t.Context(), root, "shop", first.ID); err != nil {
		t.Fatal(err)
	}
	if res, err := d.Prune(t.Context(), root, "shop", false); err != nil || len(res.Warnings)+len(res.Deleted)+len(d.Status(root).Problems) > 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestExpiredTarget goes to a checkpoint whose time is over.
func TestExpiredTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	opt := w.options()
	var skew atomic.Int64 // the daemon asks for the time in the background too
	opt.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	d := w.openAs(t, opt)
	defer w.close(t, d)
	keep := ipc.DefaultRetention()
	keep.ExpireAfter = "1h"
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	skew.Store(int64(2 * time.Hour))
	if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); errs.KindOf(err) != errs.Expired {
		t.Errorf("%v", err)
	}
	if all := listed(t, d); len(all) != 1 {
		t.Errorf("%v", idsOf(all))
	}
	if _, err := os.Stat(filepath.Join(w.ws(), "file0")); err != nil {
		t.Error(err)
	}
}

// TestRedoPassesCalledOff has the last rollback called off, before and after it changed
// something: redo goes back over the one that was done before.
func TestRedoPassesCalledOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var fail failpoint
	opt := w.options()
	opt.Failpoint = fail.step
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	for _, step := range []string{"prepare db:shop", "commit db:shop"} {
		fail.set(step)
		if res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err == nil || res.RolledBack {
			t.Fatalf("%v, %+v", err, res)
		}
		_, err := d.Rollback(t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{}, nil)
		if errs.KindOf(err) != errs.NotFound || step == "commit db:shop" && !strings.Contains(errs.HintOf(err), "called off") {
			t.Errorf("redo after %s: %v (%s)", step, err, errs.HintOf(err))
		}
	}
	calledOff := listed(t, d)[0].ID
	fail.set("")
	goBack(t, d, cp.ID, ipc.RollbackRequest{})
	w.set(t, "two")
	fail.set("commit db:shop")
	if res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err == nil || !res.Recovered {
		t.Fatalf("%v, %+v", err, res)
	}
	fail.set("")
	w.close(t, d)
	d = w.openAs(t, opt)
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	if got := w.word(t); got != "one" {
		t.Errorf("redo goes to %q", got)
	}
	// By its id, it can be gone to all the same, with a warning.
	res := goBack(t, d, calledOff, ipc.RollbackRequest{})
	if !strings.Contains(strings.Join(res.Warnings, "\n"), "different moments") {
		t.Errorf("warnings: %q", res.Warnings)
	}
}

// TestRedoOfPart goes back over a rollback of a part: what was written elsewhere since
// stays.
func TestRedoOfPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	goBack(t, d, cp.ID, ipc.RollbackRequest{Scope: []string{"layer:files"}})
	w.setSQLite(t, "two")
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	if files, db, _, err := w.words(); err != nil || files != "one" || db != "two" {
		t.Errorf("the files say %q, SQLite says %q, %v", files, db, err)
	}
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	if files, db, _, err := w.words(); err != nil || files != "zero" || db != "two" {
		t.Errorf("the files say %q, SQLite says %q, %v", files, db, err)
	}
}

// TestFailedRegistrationLeavesNoRecord: an app whose command does not start is none, and
// does not count for its owner; one that has checkpoints of before keeps them.
func TestFailedRegistrationLeavesNoRecord(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	d := w.open(t)
	bad := ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"/nonexistent/program"}}
	if _, err := d.AddApp(t.Context(), root, bad); err == nil {
		t.Fatal("it was registered")
	}
	w.close(t, d)
	records := func() (n int) {
		t.Helper()
		db, err := sql.Open("sqlite", filepath.Join(w.state(), "mulligan.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.QueryRow(`SELECT count(*) FROM apps`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := records(); n != 0 {
		t.Errorf("%d records of apps", n)
	}
	d = w.open(t)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws()}); err != nil {
		t.Fatal(err)
	}
	cp := create(t, d)
	if err := d.RemoveApp(t.Context(), root, "shop", false); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddApp(t.Context(), root, bad); err == nil {
		t.Fatal("it was registered")
	}
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws()}); err != nil {
		t.Fatal(err)
	}
	if list := listed(t, d); len(list) != 1 || list[0].ID != cp {
		t.Errorf("%+v", list)
	}
	w.close(t, d)
}

// TestPinnedWhileRollingBack pins the safety checkpoint of a rollback, and has the app write, just before the app is stopped: it stays pinned
// as it is brought up to date, both where the rollback is done and where it is called off, which drops one that nobody pinned.
func TestPinnedWhileRollingBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var d *daemon.Daemon
	var fail failpoint
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == "stage stop-unit" {
			if _, err := d.Pin(t.Context(), root, "shop", listed(t, d)[0].ID, true); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(w.ws(), "late"), nil, 0o644); err != nil {
				return err
			}
		}
		return fail.step(step)
	}
	d = w.openAs(t, opt)
	defer w.close(t, d)
	cp := create(t, d)
	for _, step := range []string{"", "plan switching"} {
		w.set(t, "one")
		fail.set(step)
		before := len(listed(t, d))
		res, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
		if step == "" && !strings.Contains(stage(res, ipc.StageStop).Notes, "brought up to date") || (err == nil) != (step == "") {
			t.Fatalf("failing at %q: %v, %+v", step, err, res)
		}
		all := listed(t, d)
		if len(all) != before+1 || all[0].Trigger != ipc.TriggerPreRollback || !all[0].Pinned || all[0].CalledOff != (step != "") {
			t.Errorf("failing at %q: of %d checkpoints, the newest is %+v", step, len(all), all[0])
		}
	}
}

// TestDiscardIsRefusedWhole: a file that is to be deleted for good stays where the request
// also names one that cannot be.
func TestDiscardIsRefusedWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	cp := create(t, d)
	made := filepath.Join(w.ws(), "made")
	if err := os.WriteFile(made, []byte("since"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{Discard: []string{"made", "nosuch"}}, nil)
	if errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(made); err != nil {
		t.Errorf("a request that was refused deleted a file: %v", err)
	}
}

// TestDiscardSparesOthers: nothing is deleted for good that another session's turn wrote, and nothing for an undo that is then refused.
func TestDiscardSparesOthers(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	a, b := &talk{t: t, d: d, w: w, name: "a"}, &talk{t: t, d: d, w: w, name: "b"}
	b.say("m")
	b.call("b1", "echo 1 >of-b")
	a.say("m")
	a.call("a1", "mkdir src && echo 1 >src/core-a && echo 1 >of-a")
	b.call("b2", "echo 2 >src/core-b")
	discards := func(path string, req ipc.RollbackRequest) error {
		req.Discard = []string{path}
		_, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, req, nil)
		return err
	}
	left := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if w.says(t, name) == "" {
				t.Errorf("%s was deleted", name)
			}
		}
	}
	err := discards("src", ipc.RollbackRequest{})
	if refused(t, errs.Conflict, err); err == nil || !strings.Contains(err.Error(), "delete for good") || !strings.Contains(err.Error(), "core-b") {
		t.Errorf("an undo that would delete another session's file: %v", err)
	}
	left("src/core-a", "src/core-b", "of-a")
	err = discards("src/core-a", ipc.RollbackRequest{})
	if refused(t, errs.Conflict, err); err == nil || !strings.Contains(err.Error(), "also undo") {
		t.Errorf("an undo that would take another session's file along: %v", err)
	}
	left("src/core-a", "src/core-b", "of-a")
	b.shell("rm src/core-b") // in its open turn
	write(t, w.ws(), "mine", "a person's")
	end(t, d, b.turn)
	end(t, d, a.turn)
	write(t, w.ws(), "later", "a person's")
	err = discards("src/core-a", ipc.RollbackRequest{Force: true})
	if refused(t, errs.Conflict, err); err == nil || !strings.Contains(err.Error(), "without an agent") {
		t.Errorf("an undo that would take a person's file along: %v", err)
	}
	left("src/core-a", "later", "of-a")
	check(t, discards("src", ipc.RollbackRequest{Force: true, IncludeOthers: true}))
	if w.says(t, "src/core-a")+w.says(t, "of-a") != "" || w.says(t, "of-b") != "1" {
		t.Error("it is not as before the turn")
	}
}

// TestDiscardLeavesWhatIsNotOfTheFiles: what no checkpoint's files have, because it is a database's or excluded, was not made since,
// and stays where a request names it to be deleted for good. The database is written to while that is asked.
func TestDiscardLeavesWhatIsNotOfTheFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{"*.log", "out/", "!kept"}}); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", w.sqlite()+"&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sh(t, `cd "$1" && mkdir -p out/deep src`, w.ws())
	cp := create(t, d)
	if _, err := db.Exec(`UPDATE words SET word = 'later'`); err != nil {
		t.Fatal(err)
	}
	sh(t, `cd "$1" && touch debug.log out/x out/kept out/deep/kept src/debug.log`, w.ws())
	files := []string{"shop.db", "shop.db-wal", "debug.log", "out/x", "out/kept", "out/deep/kept", "src/debug.log"}
	for _, p := range append([]string{"out", "out/deep", "src"}, files...) {
		_, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{Discard: []string{p}}, nil)
		if errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), strconv.Quote(p)+" is no file") {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, p := range files {
		if _, err := os.Stat(filepath.Join(w.ws(), p)); err != nil {
			t.Errorf("it was deleted: %v", err)
		}
	}
	if got, err := w.sqliteSays(); got != "later" {
		t.Errorf("the database says %q, %v", got, err)
	}
}

// TestStateFolderApart: nobody, not even root, makes an app of what the daemon keeps, or of a folder that has it in it.
func TestStateFolderApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	sub := filepath.Join(w.state(), "sub")
	check(t, os.Mkdir(sub, 0o755))
	for what, dir := range map[string]string{"it": w.state(), "a folder in it": sub, "a folder above it": w.dir} {
		_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "grab", Workspace: dir})
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), "must not contain each other") || errs.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNewFolderWithExcluded: a folder that was made since the checkpoint and holds what is excluded stays, with a warning, and the rollback is
// proven all the same, although somebody writes to the workspace after that. The receipt names what was removed, without the folder. So it is on the way
// forward again.
func TestNewFolderWithExcluded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	opt, wrote := w.options(), false
	opt.Failpoint = func(step string) error {
		if step == "commit db:shop" && !wrote {
			wrote = true
			return os.WriteFile(filepath.Join(w.ws(), "autosave"), []byte("by an editor"), 0o644)
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{"node_modules/"}}); err != nil {
		t.Fatal(err)
	}
	cp := create(t, d)
	sh(t, `cd "$1" && mkdir -p web/node_modules/x && echo new >web/page && echo x >web/node_modules/x/y`, w.ws())
	res := goBack(t, d, cp, ipc.RollbackRequest{})
	if v := res.Verification; v == nil || !v.Layers["files"].Match || !strings.Contains(strings.Join(res.Warnings, " "), "/web stays") {
		t.Errorf("%+v", res)
	}
	if got := read(t, w.ws(), "autosave"); !wrote || got != "by an editor" {
		t.Errorf("the editor wrote: %t, and its file says %q", wrote, got)
	}
	removed := slices.ContainsFunc(res.Warnings, func(w string) bool {
		return strings.HasPrefix(w, `made since the checkpoint and removed: "web/page" (`)
	})
	if !removed || len(res.ChangesReverted) != 1 || res.ChangesTotal != 1 || res.ChangesReverted[0].Path != "web/page" {
		t.Errorf("of web, the page alone was removed: %q, %+v", res.Warnings, res.ChangesReverted)
	}
	if entries, err := os.ReadDir(filepath.Join(w.ws(), "web")); err != nil || len(entries) != 1 || read(t, w.ws(), "web/node_modules/x/y") != "x\n" {
		t.Errorf("%v, %v", entries, err)
	}
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	if read(t, w.ws(), "web/page") != "new\n" {
		t.Error("the way forward lacks the page")
	}
}

// TestExcludedThen: what was excluded at the checkpoint, and a database that was the app's then, stay at a rollback although they are ordinary files
// now: the checkpoint could not have them. The receipt says so, and not that they were made since.
func TestExcludedThen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{".env", "uploads/"}}); err != nil {
		t.Fatal(err)
	}
	sh(t, `cd "$1" && mkdir uploads && echo secret >.env && echo photo >uploads/p`, w.ws())
	cp := create(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{}, Databases: &[]ipc.Database{}}); err != nil {
		t.Fatal(err)
	}
	db := read(t, w.ws(), "shop.db")
	sh(t, `cd "$1" && echo new >page`, w.ws())
	dry := goBack(t, d, cp, ipc.RollbackRequest{DryRun: true})
	res := goBack(t, d, cp, ipc.RollbackRequest{})
	if dry.ChangesTotal != 1 || res.ChangesTotal != 1 || res.ChangesReverted[0].Path != "page" {
		t.Errorf("foreseen %+v, done %+v", dry.ChangesReverted, res.ChangesReverted)
	}
	if v := res.Verification; v == nil || !v.Layers["files"].Match || !strings.Contains(strings.Join(res.Warnings, "\n"), "/.env and 2 more stay as they are") {
		t.Errorf("%+v, %q", v, res.Warnings)
	}
	if read(t, w.ws(), ".env") != "secret\n" || read(t, w.ws(), "uploads/p") != "photo\n" || read(t, w.ws(), "shop.db") != db {
		t.Error("what the checkpoint could not have is not as it was")
	}
	if _, err := os.Stat(filepath.Join(w.ws(), "page")); !os.IsNotExist(err) {
		t.Errorf("what was made since: %v", err)
	}
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	if read(t, w.ws(), "page") != "new\n" || read(t, w.ws(), ".env") != "secret\n" {
		t.Error("the way forward lacks something")
	}
}
