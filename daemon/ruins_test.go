package daemon_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// ruins are what an agent leaves where the app's SQLite file was.
var ruins = map[string]string{
	"text":             `echo oops >"$1/shop.db"`,
	"text beside logs": `head -c 300000 /dev/zero | tr '\0' x >"$1/shop.db"; echo log >"$1/shop.db-wal"; mkdir "$1/shop.db-journal"`,
	"folder":           `rm "$1/shop.db"; mkdir -m 750 "$1/shop.db"; echo hi >"$1/shop.db/f"; ln -s /etc/passwd "$1/shop.db/link"`,
	"fifo":             `rm "$1/shop.db"; mkfifo -m 640 "$1/shop.db"`,
	"link":             `rm "$1/shop.db"; ln -s /etc/passwd "$1/shop.db"`,
	"no header":        `dd if=/dev/zero of="$1/shop.db" bs=100 count=1 conv=notrunc status=none`,
}

// lies lists what lies at the database's names: kinds, modes, owners and contents.
func lies(t *testing.T, w world) string {
	t.Helper()
	return says(t, "", "bash", "-euc", `cd "$1"; find . -path './shop.db*' -printf '%p %y %m %U %G %s %l\n' | sort; find . -path './shop.db*' -type f -exec sha256sum {} + | sort`, "bash", w.ws())
}

// TestRuinedDatabase has an agent ruin the database of a running app: it can be compared
// and taken back like any other, what lay there is kept, and redo brings just that. A run takes some
// of the ruins, and the next run the next ones.
func TestRuinedDatabase(t *testing.T) {
	names := slices.Sorted(maps.Keys(ruins))
	for _, i := range testkit.Sample(t, "ruins", len(names), 2) {
		ruin := ruins[names[i]]
		t.Run(names[i], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			d := w.open(t)
			defer func() { w.close(t, d) }()
			w.runs(t, d, "zero")
			cp := create(t, d)
			w.setFiles(t, "one")
			sh(t, ruin, w.ws())
			before := lies(t, w)

			if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil || !strings.Contains(err.Error(), "shop.db") {
				t.Errorf("a checkpoint of it: %v", err)
			}
			diff, err := d.Diff(t.Context(), root, "shop", cp, ipc.DiffQuery{})
			if err != nil || len(diff.Changes) == 0 || len(diff.Unreadable) != 1 || !strings.HasPrefix(diff.Unreadable[0], "db:shop ") {
				t.Errorf("diff: %d changes, %q, %v", len(diff.Changes), diff.Unreadable, err)
			}
			dry := goBack(t, d, cp, ipc.RollbackRequest{DryRun: true})
			if words := strings.Join(dry.Warnings, "\n"); !strings.Contains(words, "bytes would be kept") {
				t.Errorf("a dry run says %q", words)
			}
			goBack(t, d, cp, ipc.RollbackRequest{Scope: []string{"file1"}})
			goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
			if got := lies(t, w); got != before {
				t.Fatalf("a rollback of a file touched the database: %s", got)
			}

			res := goBack(t, d, cp, ipc.RollbackRequest{})
			w.runs(t, d, "zero")
			safety := res.SafetyCheckpoint
			if !slices.Equal(safety.Raw, []string{"db:shop"}) || !strings.Contains(strings.Join(safety.Warnings, "\n"), "db:shop: its state could not be read") {
				t.Errorf("the safety checkpoint: raw %q, %q", safety.Raw, safety.Warnings)
			}
			if words := strings.Join(res.Warnings, "\n"); !strings.Contains(words, "db:shop could not be read; its bytes were kept") {
				t.Errorf("the receipt says %q", words)
			}
			if !res.Verification.Match || res.Confidence != 1 || len(res.StayedBehind) > 0 {
				t.Errorf("%+v, confidence %v, left behind %q", res.Verification, res.Confidence, res.StayedBehind)
			}
			if v, err := d.Verify(t.Context(), root, "shop", safety.ID, 1); err != nil || !v.OK {
				t.Errorf("%+v, %v", v, err)
			}

			no := false
			goBack(t, d, ipc.Redo, ipc.RollbackRequest{Start: &no})
			if got := lies(t, w); got != before {
				t.Fatalf("after redo there is:\n%s\nwant:\n%s", got, before)
			}
			yes := true
			goBack(t, d, ipc.Redo, ipc.RollbackRequest{Start: &yes})
			w.runs(t, d, "zero")

			// The records know it again, made anew.
			w.close(t, d)
			for _, name := range []string{"mulligan.db", "mulligan.db-wal", "mulligan.db-shm"} {
				os.Remove(filepath.Join(w.state(), name))
			}
			d = w.open(t)
			if again, err := d.Checkpoint(t.Context(), root, "shop", safety.ID); err != nil || !slices.Equal(again.Raw, []string{"db:shop"}) {
				t.Errorf("after a rebuild: %q, %v", again.Raw, err)
			}
		})
	}
}

// TestDatabaseFolderGone: the folder of a database outside of the workspace is deleted. Checkpoints and rollbacks go on, and a rollback that would
// need the folder says so, and how to leave the database out.
func TestDatabaseFolderGone(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	dir := filepath.Join(w.dir, "aside")
	sh(t, `mkdir "$1" && sqlite3 "$1/a.db" "CREATE TABLE t(v)"`, dir)
	w = w.register(t, []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, {Name: "aside", Driver: "sqlite", DSN: filepath.Join(dir, "a.db")}})
	d := w.open(t)
	defer func() { w.close(t, d) }()
	w.runs(t, d, "zero")
	cp := create(t, d)
	sh(t, `rm -r "$1"`, dir)
	w.set(t, "one")
	without, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil || !strings.Contains(strings.Join(without.Warnings, "\n"), "db:aside: There is no folder "+dir) {
		t.Fatalf("a checkpoint without the folder: %q, %v", without.Warnings, err)
	}
	_, err = d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
	if hint := errs.HintOf(err); errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "no folder "+dir) ||
		!strings.Contains(hint, "make the folder") || !strings.Contains(hint, "--without db:aside") {
		t.Errorf("a rollback that needs the folder: %v; %s", err, hint)
	}
	if word := w.word(t); word != "one" {
		t.Errorf("after the refusal the app says %q", word)
	}
	goBack(t, d, cp, ipc.RollbackRequest{Without: []string{"db:aside"}})
	w.runs(t, d, "zero")
	goBack(t, d, without.ID, ipc.RollbackRequest{})
	w.runs(t, d, "one")
	sh(t, `mkdir "$1"`, dir)
	goBack(t, d, cp, ipc.RollbackRequest{})
	w.runs(t, d, "zero")
	if _, err := os.Stat(filepath.Join(dir, "a.db")); err != nil {
		t.Errorf("the database did not come back: %v", err)
	}
}

// TestRuinedTurn: a turn that ruins the database is one undo away; the turn after it has a
// checkpoint that says what it lacks.
func TestRuinedTurn(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	worked(t, d, w, "one")
	begin(t, d, "ruin")
	write(t, w.ws(), "work", "ruin")
	sh(t, ruins["folder"], w.ws())
	end(t, d, "ruin")
	turn := worked(t, d, w, "after")
	cp, err := d.Checkpoint(t.Context(), root, "shop", *turn.CheckpointID)
	if err != nil || len(cp.DBSnapshots) != 0 || !strings.Contains(strings.Join(cp.Warnings, "\n"), "db:shop is not in it") {
		t.Errorf("%+v, %v", cp, err)
	}
	before := lies(t, w)
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{Turns: 2}, "one")
	if word, err := w.sqliteSays(); err != nil || word != "zero" {
		t.Errorf("the database says %q, %v", word, err)
	}
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "after")
	if got := lies(t, w); got != before {
		t.Errorf("after redo there is:\n%s\nwant:\n%s", got, before)
	}
}

// testRuinCutShort cuts a rollback over a ruined database short at one in 24 of its steps, which rotate, and has the
// next daemon end it: the database is at one of its two states, and goes to the other.
func testRuinCutShort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	whole := func(step int) {
		t.Helper()
		if word, err := w.sqliteSays(); err != nil || word != "zero" {
			t.Fatalf("step %d: the database says %q, %v", step, word, err)
		}
	}
	part, parts := testkit.Part(t, 24)
	for step, cuts := 1+part, 0; ; step += parts {
		d := w.open(t)
		cp := create(t, d)
		w.close(t, d)
		sh(t, ruins["text beside logs"], w.ws())
		before := lies(t, w)
		opt := w.options()
		var on atomic.Bool
		var at atomic.Int64
		opt.Failpoint = func(string) error {
			if on.Load() && at.Add(1) >= int64(step) {
				return errs.New(errs.Failed, "step", "cut")
			}
			return nil
		}
		d = w.openAs(t, opt)
		on.Store(true)
		_, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
		on.Store(false)
		w.close(t, d)
		d = w.open(t)
		if word, says := w.sqliteSays(); (says != nil || word != "zero") && lies(t, w) != before {
			t.Fatalf("step %d: the database is neither what it was nor what it should be: %q, %v\n%s", step, word, says, lies(t, w))
		}
		goBack(t, d, cp, ipc.RollbackRequest{})
		whole(step)
		w.close(t, d)
		if err == nil {
			testkit.Tally(t, "cuts", cuts)
			if cuts == 0 {
				t.Errorf("the rollback has no %d steps", step)
			}
			return
		}
		cuts++
	}
}

// TestDatabaseFolderReplaced has something else in the place of the folder of a database. A rollback brings the folder back, redo what was there instead,
// and a redo that is undone the folder again.
func TestDatabaseFolderReplaced(t *testing.T) {
	for name, ruin := range map[string]string{
		"link":         `mv data/deep aside; ln -s ../aside data/deep`,
		"file":         `rm -r data/deep; echo oops >data/deep`,
		"file further": `rm -r data; echo oops >data`,
		"nothing":      `rm -r data`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world{dir: worldDir(t)}
			sh(t, `mkdir -p "$1/data/deep" && sqlite3 "$1/data/deep/a.db" "CREATE TABLE t(v)"`, w.ws())
			w = w.register(t, []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, {Name: "deep", Driver: "sqlite", DSN: "data/deep/a.db"}})
			fails := &failpoint{}
			opt := w.options()
			opt.Failpoint = fails.step
			d := w.openAs(t, opt)
			defer func() { w.close(t, d) }()
			w.runs(t, d, "zero")
			there := func() string {
				t.Helper()
				return says(t, "", "bash", "-euc", `cd "$1"; find . -path './data*' -printf '%p %y %m %l\n' -o -path './aside*' -printf '%p %y %m %l\n' | sort`, "bash", w.ws())
			}
			is := func(when, want string) {
				t.Helper()
				if got := there(); got != want {
					t.Fatalf("%s there is:\n%s\nwant:\n%s", when, got, want)
				}
			}
			whole := there()
			cp := create(t, d)
			sh(t, `cd "$1"; `+ruin, w.ws())
			ruined := there()
			goBack(t, d, cp, ipc.RollbackRequest{})
			is("after the rollback", whole)
			redo := goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
			is("after redo", ruined)
			if words := strings.Join(redo.Warnings, "\n"); !redo.Verification.Match || strings.Contains(words, "stays:") {
				t.Errorf("the receipt of redo says %+v, %q", redo.Verification, words)
			}
			safety := goBack(t, d, cp, ipc.RollbackRequest{}).SafetyCheckpoint.ID
			fails.set("stage " + string(ipc.StageStart))
			res, err := d.Rollback(t.Context(), root, "shop", safety, ipc.RollbackRequest{}, nil)
			if err == nil || !res.Recovered {
				t.Errorf("a rollback that fails after its databases: recovered %t, %v", res.Recovered, err)
			}
			is("after its undo", whole)
			w.runs(t, d, "zero")
		})
	}
}

// TestDatabaseFolderInTheWay has a file in the place of the folder of a database, so that the folder must stay until the database is gone.
func TestDatabaseFolderInTheWay(t *testing.T) {
	prepare := func(t *testing.T, failpoint func(w world, step string) error) (world, *daemon.Daemon, ipc.CheckpointID) {
		t.Parallel()
		w := world{dir: worldDir(t)}
		sh(t, `mkdir "$1/data" && sqlite3 "$1/data/a.db" "CREATE TABLE t(v)"`, w.ws())
		w = w.register(t, []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, {Name: "deep", Driver: "sqlite", DSN: "data/a.db"}})
		opt := w.options()
		opt.Failpoint = func(step string) error { return failpoint(w, step) }
		d := w.openAs(t, opt)
		t.Cleanup(func() { w.close(t, d) })
		w.runs(t, d, "zero")
		cp := create(t, d)
		sh(t, `cd "$1" && rm -r data && echo oops >data`, w.ws())
		return w, d, cp
	}
	t.Run("others write meanwhile", func(t *testing.T) {
		redoes, wrote := false, false
		w, d, cp := prepare(t, func(w world, step string) error {
			if redoes && step == "commit db:deep" {
				wrote = true
				return os.WriteFile(filepath.Join(w.ws(), "autosave"), []byte("by an editor"), 0o644)
			}
			return nil
		})
		goBack(t, d, cp, ipc.RollbackRequest{})
		redoes = true
		res := goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
		if got := read(t, w.ws(), "autosave"); !wrote || got != "by an editor" {
			t.Errorf("the editor wrote: %t, and its file says %q", wrote, got)
		}
		if left, err := os.ReadDir(filepath.Join(w.ws(), "data")); err != nil || len(left) > 0 {
			t.Errorf("the folder of the database holds %v, %v", left, err)
		}
		words := strings.Join(res.Warnings, "\n")
		if !res.Verification.Match || !strings.Contains(words, "/data stays:") || !strings.Contains(words, "the files were not restored again") {
			t.Errorf("the receipt says %+v, %q", res.Verification, words)
		}
	})
	t.Run("the database is undone late", func(t *testing.T) {
		fails, busy := false, false
		w, d, cp := prepare(t, func(w world, step string) error {
			switch {
			case fails && step == "stage "+string(ipc.StageStart):
				return errs.New(errs.Failed, step, "cut")
			case fails && !busy && step == "undo db:deep":
				busy = true
				return errs.New(errs.Busy, step, "somebody has it open")
			}
			return nil
		})
		fails = true
		res, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
		if err == nil || !res.Recovered || !busy {
			t.Errorf("recovered %t, undone twice %t, %v", res.Recovered, busy, err)
		}
		if got, err := os.ReadFile(filepath.Join(w.ws(), "data")); string(got) != "oops\n" {
			t.Errorf("the file in the place of the folder says %q, %v", got, err)
		}
		if back := slices.Sorted(slices.Values(res.PutBack)); len(back) != 3 || len(slices.Compact(back)) != 3 {
			t.Errorf("put back: %q", res.PutBack)
		}
	})
}
