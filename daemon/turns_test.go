package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// openAuto opens a user's daemon with one app that asks for automatic checkpoints.
func openAuto(t *testing.T, gap time.Duration) (*daemon.Daemon, world) {
	t.Helper()
	return openAutoWith(t, gap, ipc.Database{Name: "shop", Driver: "sqlite", DSN: "shop.db"})
}

// openAutoWith is openAuto for an app with this database.
func openAutoWith(t *testing.T, gap time.Duration, db ipc.Database) (*daemon.Daemon, world) {
	t.Helper()
	w := world{dir: t.TempDir()}
	if err := os.Mkdir(w.ws(), 0o755); err != nil {
		t.Fatal(err)
	}
	w.set(t, "zero")
	d := w.openWith(t, gap)
	if _, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Auto: true,
		Databases: []ipc.Database{db},
	}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	return d, w
}

// awaitFollowing waits until the daemon follows the app's files.
func awaitFollowing(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	waitFor(t, "the files are followed", func() bool {
		a, err := d.App(t.Context(), root, "shop")
		return err == nil && a.Following == "watching"
	})
}

func (w world) openWith(t *testing.T, gap time.Duration) *daemon.Daemon {
	t.Helper()
	d, err := daemon.Open(t.Context(), daemon.Options{StateDir: w.state(), User: true, QuietGap: gap, AgentWait: testkit.Patience, CompareTime: testkit.Patience, Steady: steady, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(context.Background()) })
	return d
}

func begin(t *testing.T, d *daemon.Daemon, id ipc.TurnID) {
	t.Helper()
	turn, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: id, ConversationID: "c", MessageID: "m-" + string(id), Agent: "test"})
	if err != nil || turn.ID != id {
		t.Fatalf("%+v, %v", turn, err)
	}
	// The barrier of a first call also waits for the databases.
	if _, err := d.BeginCall(t.Context(), root, "shop", id, ipc.BeginCall{CallID: "first-" + ipc.CallID(id), Tool: "Bash", Before: true, DeadlineMS: 10000}); err != nil {
		t.Fatal(err)
	}
}

func end(t *testing.T, d *daemon.Daemon, id ipc.TurnID) ipc.Turn {
	t.Helper()
	turn, err := d.EndTurn(t.Context(), root, "shop", id)
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func agentCheckpoints(t *testing.T, d *daemon.Daemon) []ipc.Checkpoint {
	t.Helper()
	list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{Trigger: ipc.TriggerAgent})
	if err != nil {
		t.Fatal(err)
	}
	return list.Checkpoints
}

// TestTurnBeforeTheFilesAreRead: a turn that begins while the files are read for the first time starts when they are read. The turn and its
// checkpoint say that what it wrote until then may not be taken back with it.
func TestTurnBeforeTheFilesAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	at, _, release := hold(t, "read first")
	d := w.failing(t, at)
	defer w.close(t, d)
	defer release()
	on := true
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on}); err != nil {
		t.Fatal(err)
	}
	said := func(words []string) bool {
		return strings.Contains(strings.Join(words, "\n"), "may count as written before it: flush files: the files are still being read for the first time")
	}
	turn, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "early"})
	if err != nil || !said(turn.Warnings) {
		t.Fatalf("%+v, %v", turn, err)
	}
	w.setFiles(t, "one")
	release()
	awaitFollowing(t, d)
	w.setFiles(t, "two")
	turn = end(t, d, "early")
	if turn.CheckpointID == nil || turn.Changes.Modified == 0 {
		t.Fatalf("%+v", turn)
	}
	cp, err := d.Checkpoint(t.Context(), root, "shop", *turn.CheckpointID)
	if err != nil || !said(cp.Warnings) {
		t.Errorf("the checkpoint's warnings: %q, %v", cp.Warnings, err)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(w.ws(), "file1")); err != nil || string(text) != "zero" && string(text) != "one" {
		t.Errorf("the file says %q: %v", text, err) // "one" if it was written before the reading came to it
	}
}

// TestTurnEndsAfterKill: the daemon is killed while the end of a turn waits until the files are read for the first time. The turn ends by itself
// when a daemon runs again.
func TestTurnEndsAfterKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	at, _, release := hold(t, "read first")
	d := w.failing(t, at)
	defer func() { w.close(t, d) }()
	defer release()
	on := true
	_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
	check(t, err)
	_, err = d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "early"})
	check(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := d.EndTurn(t.Context(), root, "shop", "early")
		ended <- err
	}()
	waitFor(t, "the end of the turn waits for the files", func() bool { return waitsIn(t, "turns.(*Tracker).Flush(") })
	copyInUse(t, w.state(), filepath.Join(w.dir, "killed")) // what a daemon leaves that is killed now
	release()
	check(t, <-ended)
	w.close(t, d)
	sh(t, `rm -r "$1/state" && mv "$1/killed" "$1/state"`, w.dir)
	d = w.open(t)
	waitFor(t, "the turn ends", func() bool {
		turns, err := d.Turns(t.Context(), root, "shop", "", 0)
		check(t, err)
		return len(turns) == 1 && turns[0].EndedAt != nil
	})
}

// TestTurns has agents work in turns: each that changes something leaves one
// checkpoint, of the state before it, and each goes back exactly.
func TestTurns(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	states := []string{"zero"}
	for i := range 6 {
		id := ipc.TurnID(fmt.Sprintf("t%d", i))
		begin(t, d, id)
		word := fmt.Sprintf("word%d", i)
		w.set(t, word)
		states = append(states, word)
		turn := end(t, d, id)
		if turn.CheckpointID == nil || turn.EndedAt == nil || turn.Changes.Modified < 12 || turn.Changes.Created < 3 || turn.Changes.Deleted < 3 && i > 0 {
			t.Fatalf("%+v", turn)
		}
	}
	begin(t, d, "idle")
	if turn := end(t, d, "idle"); turn.CheckpointID != nil || turn.Changes.Created+turn.Changes.Modified+turn.Changes.Deleted > 0 {
		t.Errorf("a turn that did nothing: %+v", turn)
	}
	cps := agentCheckpoints(t, d)
	if len(cps) != 6 {
		turns, _ := d.Turns(t.Context(), root, "shop", "", 0)
		t.Fatalf("%d checkpoints of 6 turns: %+v", len(cps), turns)
	}
	for _, i := range []int{3, 0, 5, 1} {
		cp := cps[5-i]
		if *cp.TurnID != fmt.Sprintf("t%d", i) || *cp.MessageID != "m-"+*cp.TurnID || len(cp.Warnings) > 0 {
			t.Errorf("%+v", cp)
		}
		if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err != nil {
			t.Fatal(err)
		}
		if got := w.word(t); got != states[i] {
			t.Fatalf("back before turn %d is %q, want %q", i, got, states[i])
		}
	}
	turns, err := d.Turns(t.Context(), root, "shop", "", 0)
	if err != nil || len(turns) != 7 || turns[0].ID != "idle" || len(turns[1].Calls) != 1 {
		t.Fatalf("%+v, %v", turns, err)
	}
	if got := len(agentCheckpoints(t, d)); got != 6 {
		t.Errorf("the rollbacks made turns of their own: %d", got)
	}
}

// TestTurnOfADatabase has a turn that writes no file.
func TestTurnOfADatabase(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	begin(t, d, "t")
	sh(t, `sqlite3 "$1/shop.db" "UPDATE words SET word = 'oops'"`, w.ws())
	turn := end(t, d, "t")
	if turn.CheckpointID == nil {
		t.Fatalf("no checkpoint: %+v", turn)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", *turn.CheckpointID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := w.word(t); got != "zero" {
		t.Errorf("back to %q", got)
	}
	if dbs := turn.Changes.Databases; len(dbs) != 1 || dbs[0].Database != "shop" || dbs[0].Total != 1 || len(dbs[0].Changes) != 1 || !strings.Contains(dbs[0].Changes[0].Path, "words") {
		t.Errorf("the turn changed %+v", dbs)
	}
	begin(t, d, "open")
	sh(t, `sqlite3 "$1/shop.db" "UPDATE words SET word = 'again'"`, w.ws())
	if res, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{}, nil); err != nil || *res.RestoredTo.TurnID != "open" {
		t.Errorf("an undo in the middle of the turn: %+v, %v", res.RestoredTo, err)
	}
	if got := w.word(t); got != "zero" {
		t.Errorf("back to %q", got)
	}
}

// TestUndoOfAnOpenTurn undoes a turn that wrote to two databases and no file: to find that it wrote, one of them is captured.
func TestUndoOfAnOpenTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	sh(t, `sqlite3 "$1/other.db" "CREATE TABLE words (word); INSERT INTO words VALUES ('zero')"`, w.ws())
	var looking atomic.Bool
	var captured atomic.Int32 // while the daemon looks for what the turn wrote
	d := w.patient(t, func(step string) error {
		switch {
		case step == "record checkpoint": // of the turn
			looking.Store(false)
		case looking.Load() && strings.HasPrefix(step, "capture db:"):
			captured.Add(1)
		}
		return nil
	})
	defer w.close(t, d)
	auto := true
	dbs := []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, {Name: "other", Driver: "sqlite", DSN: "other.db"}}
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Auto: &auto, Databases: &dbs}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	begin(t, d, "open")
	sh(t, `cd "$1" && for db in shop other; do sqlite3 $db.db "UPDATE words SET word = 'oops'"; done`, w.ws())
	looking.Store(true)
	res, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{}, nil)
	if err != nil || *res.RestoredTo.TurnID != "open" {
		t.Fatalf("%+v, %v", res.RestoredTo, err)
	}
	if n := captured.Load(); n != 1 || looking.Load() {
		t.Errorf("%d databases were captured to find that the turn wrote", n)
	}
	sh(t, `[ "$(sqlite3 "$1/other.db" "SELECT word FROM words")" = zero ]`, w.ws())
}

// TestInferredTurn writes without telling anybody.
func TestInferredTurn(t *testing.T) {
	d, w := openAuto(t, 3*time.Second) // both writes are within it
	before := read(t, w.ws(), "file3")
	write(t, w.ws(), "file3", "unannounced")
	write(t, w.ws(), "another", "too")
	var turn ipc.Turn
	waitFor(t, "the inferred turn ends", func() bool {
		turns, err := d.Turns(t.Context(), root, "shop", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(turns) > 1 {
			t.Fatalf("%d turns", len(turns))
		}
		if len(turns) == 1 {
			turn = turns[0]
		}
		return turn.EndedAt != nil
	})
	if !turn.Inferred || turn.CheckpointID == nil || turn.Changes.Created != 1 || turn.Changes.Modified < 1 {
		t.Fatalf("%+v", turn)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", *turn.CheckpointID, ipc.RollbackRequest{Scope: []string{"layer:files"}}, nil); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w.ws(), "file3"); got != before {
		t.Errorf("file3 says %q", got)
	}
	if _, err := os.Stat(filepath.Join(w.ws(), "another")); !os.IsNotExist(err) {
		t.Errorf("another: %v", err)
	}
}

// TestInferredTurnTriedAgain has a step of a turn fail that nobody announced, as on a disk that is full for a while. No other write reminds the
// daemon of it, and the turn gets the state before its write all the same. A turn whose end fails goes on.
func TestInferredTurnTriedAgain(t *testing.T) {
	for _, step := range []string{"infer turn", "capture turn", "record end of turn"} {
		t.Run(strings.ReplaceAll(step, " ", "_"), func(t *testing.T) {
			t.Parallel()
			d, w := openAuto(t, 300*time.Millisecond)
			if err := d.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			var failed atomic.Int32
			opt := w.options()
			opt.User, opt.QuietGap = true, 300*time.Millisecond
			opt.Failpoint = func(at string) error {
				if at == step && failed.Add(1) == 1 {
					if step == "record end of turn" {
						write(t, w.ws(), "file2", "unannounced")
					}
					return unix.ENOSPC
				}
				return nil
			}
			d = w.openAs(t, opt)
			defer w.close(t, d)
			awaitFollowing(t, d)
			before := read(t, w.ws(), "file3")
			write(t, w.ws(), "file3", "unannounced")
			var turns []ipc.Turn
			waitFor(t, "the inferred turn ends", func() (ended bool) {
				var err error
				if turns, err = d.Turns(t.Context(), root, "shop", "", 0); err != nil {
					t.Fatal(err)
				}
				return len(turns) > 0 && turns[0].EndedAt != nil
			})
			if n := failed.Load(); n < 2 || len(turns) != 1 || turns[0].CheckpointID == nil || turns[0].Changes.Modified < 1 {
				t.Fatalf("the step was made %d times: %+v", n, turns)
			}
			if wrote := turns[0].Changes.Paths; slices.Contains(wrote, "file2") != (step == "record end of turn") {
				t.Errorf("the turn wrote %q", wrote)
			}
			if step == "capture turn" { // the end of the turn may have made up for it before it is tried again
				ended := time.Now()
				waitFor(t, "the step is tried again", func() bool { return time.Since(ended) > 2*time.Second })
				if turns, err := d.Turns(t.Context(), root, "shop", "", 0); err != nil || len(turns) != 1 {
					t.Errorf("what the turn wrote is another turn's too: %+v, %v", turns, err)
				}
			}
			if _, err := d.Rollback(t.Context(), root, "shop", *turns[0].CheckpointID, ipc.RollbackRequest{Scope: []string{"layer:files"}}, nil); err != nil {
				t.Fatal(err)
			}
			if got := read(t, w.ws(), "file3"); got != before {
				t.Errorf("file3 says %q", got)
			}
		})
	}
}

// TestTurnEndsTheOneBefore announces a turn while one that was inferred is still
// open, and another in the same conversation without an end of the first.
func TestTurnEndsTheOneBefore(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	write(t, w.ws(), "file1", "unannounced")
	waitFor(t, "a turn is inferred", func() bool {
		turns, err := d.Turns(t.Context(), root, "shop", "", 0)
		return err == nil && len(turns) == 1
	})
	for i, conversation := range []string{"c1", "c1", "c2"} {
		id := ipc.TurnID(fmt.Sprint("t", i))
		if _, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: id, ConversationID: conversation}); err != nil {
			t.Fatal(err)
		}
		write(t, w.ws(), fmt.Sprint("made", i), "x")
	}
	end(t, d, "t2")
	turns, err := d.Turns(t.Context(), root, "shop", "", 0)
	if err != nil || len(turns) != 4 {
		t.Fatalf("%+v, %v", turns, err)
	}
	for i, paths := range [][]string{{"made2"}, nil, {"made0"}, {"file1"}} {
		if got := turns[i]; (got.EndedAt == nil) != (paths == nil) || !slices.Equal(got.Changes.Paths, paths) && paths != nil {
			t.Errorf("turn %d: ended %v, changed %q, want %q", i, got.EndedAt, got.Changes.Paths, paths)
		}
	}
}

// TestTurnOverARestart writes while no daemon runs, in the middle of a turn.
func TestTurnOverARestart(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	begin(t, d, "t")
	w.close(t, d)
	w.set(t, "unseen")
	d = w.openWith(t, time.Hour)
	turn := end(t, d, "t")
	if turn.CheckpointID == nil || turn.Changes.Modified < 12 {
		t.Fatalf("%+v", turn)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", *turn.CheckpointID, ipc.RollbackRequest{Scope: []string{"layer:files"}}, nil); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w.ws(), "file7"); got != "zero" {
		t.Errorf("file7 says %q", got)
	}
}

// TestTurnGoesOn has an app recovered and then changed in the middle of a turn, whose databases were captured when it began: the turn's
// checkpoint has them.
func TestTurnGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var fails atomic.Bool
	d := w.patient(t, func(step string) error {
		if step == "prepare: stage" && fails.CompareAndSwap(true, false) {
			return errors.New("no room to prepare")
		}
		return nil
	})
	defer w.close(t, d)
	on := true
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	begin(t, d, "t")
	fails.Store(true)
	if _, err := d.Rollback(t.Context(), root, "shop", create(t, d), ipc.RollbackRequest{Without: []string{"files"}}, nil); err == nil || fails.Load() {
		t.Fatalf("the rollback's preparation did not fail: %v", err)
	}
	create(t, d) // recovers the app first
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{"*.log"}}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	w.set(t, "one")
	turn := end(t, d, "t")
	if turn.CheckpointID == nil {
		t.Fatalf("%+v", turn)
	}
	cp, err := d.Checkpoint(t.Context(), root, "shop", *turn.CheckpointID)
	if err != nil || len(cp.DBSnapshots) != 1 || len(cp.Warnings) > 0 {
		t.Errorf("the turn's checkpoint has the databases %+v, and warns of %q, %v", cp.DBSnapshots, cp.Warnings, err)
	}
	goBack(t, d, cp.ID, ipc.RollbackRequest{})
	if got := w.word(t); got != "zero" {
		t.Errorf("after the rollback the app says %q", got)
	}
}

// openChanging opens a daemon with one app that asks for automatic checkpoints. The returned function calls ask, with the test's function on its
// stack, while the app's tracker is stopped for a change of the app's settings, which goes on once ask waits for it or has returned.
func openChanging(t *testing.T) (*daemon.Daemon, world, func(ask func())) {
	t.Helper()
	w := newWorld(t, nil)
	stopped, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	var armed atomic.Bool
	d := w.failing(t, func(step string) error {
		if step == "write records" && armed.Load() && calledBy("registry.(*Service).enforce") && armed.CompareAndSwap(true, false) {
			close(stopped)
			<-goOn
		}
		return nil
	})
	t.Cleanup(func() { w.close(t, d) })
	t.Cleanup(release)
	on := true
	_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
	check(t, err)
	awaitFollowing(t, d)
	return d, w, func(ask func()) {
		t.Helper()
		var work sync.WaitGroup
		defer work.Wait()
		defer release()
		keep := ipc.DefaultRetention()
		armed.Store(true)
		work.Go(func() {
			if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep}); err != nil {
				t.Error(err)
			}
		})
		<-stopped
		var asked atomic.Bool
		work.Go(func() {
			defer asked.Store(true)
			ask()
		})
		waitFor(t, "it waits for the change, or has returned", func() bool { return asked.Load() || waitsForChange(t) })
	}
}

// waitsForChange reports whether a goroutine that runs a function of this test waits for the app, or for the records, that a change of the app holds.
func waitsForChange(t *testing.T) bool {
	return waitsIn(t, "app.(*App).hold(") || waitsIn(t, "store.(*Store).tx(")
}

// waitsIn reports whether a goroutine that runs a function of this test is in the function called name.
func waitsIn(t *testing.T, name string) bool {
	return inBoth(t, name, "_test."+t.Name()+".")
}

// TestTurnEndsWhileTheAppIsChanged: a turn whose end is announced while the app's tracker is stopped, for a change of the app's settings, has its
// checkpoint and its changes all the same.
func TestTurnEndsWhileTheAppIsChanged(t *testing.T) {
	t.Parallel()
	d, w, duringChange := openChanging(t)
	begin(t, d, "t")
	var turn ipc.Turn
	duringChange(func() {
		w.setFiles(t, "one")
		var err error
		if turn, err = d.EndTurn(t.Context(), root, "shop", "t"); err != nil {
			t.Error(err)
		}
	})
	if turn.EndedAt == nil || turn.CheckpointID == nil || turn.Changes.Modified < 12 {
		t.Fatalf("%+v", turn)
	}
	goBack(t, d, *turn.CheckpointID, ipc.RollbackRequest{Scope: []string{"layer:files"}})
	if got := read(t, w.ws(), "file7"); got != "zero" {
		t.Errorf("file7 says %q", got)
	}
}

// TestCallEndsWhileTheAppIsChanged: what a call wrote is known to be its own, and nothing else is, if its end is announced while the app's tracker is
// stopped.
func TestCallEndsWhileTheAppIsChanged(t *testing.T) {
	t.Parallel()
	d, w, duringChange := openChanging(t)
	begin(t, d, "t")
	_, err := d.BeginCall(t.Context(), root, "shop", "t", ipc.BeginCall{CallID: "call", Tool: "Bash", Before: true, DeadlineMS: 10000})
	check(t, err)
	duringChange(func() {
		write(t, w.ws(), "file7", "one")
		if _, err := d.EndCall(t.Context(), root, "shop", "t", "call"); err != nil {
			t.Error(err)
		}
	})
	write(t, w.ws(), "file8", "a person's")
	end(t, d, "t")
	_, err = d.Revert(t.Context(), root, "shop", ipc.RevertRequest{TurnID: "t"})
	check(t, err)
	if got := read(t, w.ws(), "file7"); got != "zero" {
		t.Errorf("what the call wrote is left: file7 says %q", got)
	}
	if got := read(t, w.ws(), "file8"); got != "a person's" {
		t.Errorf("what a person wrote is gone: file8 says %q", got)
	}
}

// TestTurnBeginsWhileTheAppIsChanged: a turn that begins while the app's tracker is stopped is not told that automatic checkpoints are off, and has
// its checkpoint.
func TestTurnBeginsWhileTheAppIsChanged(t *testing.T) {
	t.Parallel()
	d, w, duringChange := openChanging(t)
	duringChange(func() {
		turn, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "t"})
		if words := strings.Join(turn.Warnings, "\n"); err != nil || !strings.Contains(words, "the app's files are not watched yet") || strings.Contains(words, "are off") {
			t.Errorf("%q, %v", words, err)
		}
	})
	awaitFollowing(t, d)
	w.setFiles(t, "one")
	if turn := end(t, d, "t"); turn.CheckpointID == nil || turn.Changes.Modified < 12 {
		t.Errorf("%+v", turn)
	}
}

// TestTurnEndsWhileFilesAreHeldUp: the end of a turn is refused while its files cannot be followed. Once they can be, the turn ends by itself, with
// its checkpoint and its changes, and what is written later is a turn of its own.
func TestTurnEndsWhileFilesAreHeldUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var failing, held atomic.Bool
	fails := func(step string) error {
		if failing.Load() && (step == "record checkpoint" || step == "append-change" && calledBy("files.(*Driver).Delete")) ||
			held.Load() && step == "append-change" && calledBy("files.(*Driver).Sweep") {
			return errors.New("no")
		}
		return nil
	}
	d := w.failing(t, fails)
	defer func() { w.close(t, d) }()
	on := true
	_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
	check(t, err)
	awaitFollowing(t, d)
	begin(t, d, "t")
	failing.Store(true)
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil {
		t.Fatal("the create was not cut short")
	}
	w.close(t, d)
	failing.Store(false)
	held.Store(true)
	opt := w.options()
	opt.Failpoint, opt.QuietGap = fails, 100*time.Millisecond
	d = w.openAs(t, opt)
	w.setFiles(t, "one")
	if _, err := d.EndTurn(t.Context(), root, "shop", "t"); errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), "stay open") {
		t.Fatalf("the end of a turn whose files are held up (%s): %v", problemsOf(t, d), err)
	}
	held.Store(false)
	awaitFollowing(t, d)
	awaitEnd(t, d, "t")
	awaitInferred(t, d, w, opt.QuietGap)
}

// TestSilentTurnEnds: an announced turn whose end nobody tells, as of an agent that was killed, ends after a long silence, also over a restart. It
// ends where it was last heard of, so what a person wrote since is not its own, and it holds up nothing any more. So does one in the middle of a call.
func TestSilentTurnEnds(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	begin(t, d, "dead")
	write(t, w.ws(), "file1", "the agent's")
	_, err := d.EndCall(t.Context(), root, "shop", "dead", "first-dead")
	check(t, err)
	write(t, w.ws(), "file2", "a person's")
	_, err = d.BeginCall(t.Context(), root, "shop", "dead", ipc.BeginCall{CallID: "own", Tool: "mcp__mulligan__list_checkpoints"}) // writes nothing
	check(t, err)
	_, err = d.EndCall(t.Context(), root, "shop", "dead", "own")
	check(t, err)
	_, err = d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "cut", ConversationID: "another"})
	check(t, err)
	_, err = d.BeginCall(t.Context(), root, "shop", "cut", ipc.BeginCall{CallID: "open", Before: true, DeadlineMS: 10000})
	check(t, err)
	write(t, w.ws(), "file3", "another agent's")
	w.close(t, d)
	opt := w.options()
	opt.User, opt.QuietGap, opt.Silence = true, 100*time.Millisecond, 100*time.Millisecond
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	var turns []ipc.Turn
	waitFor(t, "the turns end", func() bool {
		turns, err = d.Turns(t.Context(), root, "shop", "", 0)
		return err == nil && turns[0].EndedAt != nil && turns[1].EndedAt != nil
	})
	if got := turns[0]; got.ID != "cut" || !slices.Equal(got.Changes.Paths, []string{"file3"}) || got.CheckpointID == nil {
		t.Errorf("%+v", got)
	}
	if got := turns[1]; !slices.Equal(got.Changes.Paths, []string{"file1"}) || got.CheckpointID == nil || !strings.Contains(strings.Join(got.Warnings, "\n"), "nothing was heard of it") ||
		!got.EndedAt.Equal(*got.Calls[1].EndedAt) {
		t.Errorf("%+v", got)
	}
	_, err = d.BeginCall(t.Context(), root, "shop", "dead", ipc.BeginCall{CallID: "late"})
	refused(t, errs.NotFound, err)
	_, err = d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{Turns: 2}, nil)
	if refused(t, errs.Conflict, err); err == nil || !strings.Contains(err.Error(), "file2") {
		t.Errorf("an undo that would take a person's file along: %v", err)
	}
	awaitInferred(t, d, w, opt.QuietGap)
	w.close(t, d)
	d = w.openWith(t, time.Hour)
	keep := ipc.DefaultRetention()
	keep.KeepTurns, keep.KeepLast, keep.DailyDays = 1, 1, 0
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep})
	check(t, err)
	awaitFollowing(t, d)
	begin(t, d, "next")
	write(t, w.ws(), "file1", "again")
	end(t, d, "next")
	_, err = d.Prune(t.Context(), root, "shop", false)
	check(t, err)
	turns, err = d.Turns(t.Context(), root, "shop", "", 0)
	if check(t, err); slices.ContainsFunc(turns, func(turn ipc.Turn) bool { return turn.ID == "dead" }) {
		t.Error("the turn is remembered, and the journal kept since it began")
	}
}

// awaitInferred writes until the daemon begins a turn for it.
func awaitInferred(t *testing.T, d *daemon.Daemon, w world, gap time.Duration) {
	t.Helper()
	var wrote time.Time
	waitFor(t, "a later write is a turn of its own", func() bool {
		if time.Since(wrote) > 3*gap { // what is written sooner after the turn, or after another write, is of no turn
			wrote = time.Now()
			w.setFiles(t, wrote.String())
		}
		turns, err := d.Turns(t.Context(), root, "shop", "", 0)
		check(t, err)
		return len(turns) > 1 && turns[0].Inferred
	})
}

// TestTurnEndTriedAgain: the end of a turn cannot be recorded when it is announced, as on a disk that is full for a while. The turn ends by itself,
// also if the app was changed meanwhile.
func TestTurnEndTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var full, fuller atomic.Bool // fuller: nor can it be recorded that the end was announced
	d := w.failing(t, func(step string) error {
		if full.Load() && (step == "record end of turn" || step == "write records" && fuller.Load() && calledBy("store.(*Store).NoteEnding")) {
			return unix.ENOSPC
		}
		return nil
	})
	defer w.close(t, d)
	on := true
	_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
	check(t, err)
	awaitFollowing(t, d)
	for _, id := range []ipc.TurnID{"t", "changed", "unrecorded"} {
		begin(t, d, id)
		w.setFiles(t, string(id))
		full.Store(true)
		fuller.Store(id == "unrecorded")
		if _, err := d.EndTurn(t.Context(), root, "shop", id); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the end of %s on a full disk: %v", id, err)
		}
		if id != "t" {
			_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{"*." + string(id)}})
			check(t, err)
		}
		full.Store(false)
		awaitEnd(t, d, id)
	}
}

// awaitEnd waits until the daemon has ended a turn that modified files, and expects it to have a checkpoint.
func awaitEnd(t *testing.T, d *daemon.Daemon, id ipc.TurnID) {
	t.Helper()
	var turn ipc.Turn
	waitFor(t, "the turn ends", func() bool {
		turns, err := d.Turns(t.Context(), root, "shop", "", 0)
		check(t, err)
		turn = turns[slices.IndexFunc(turns, func(turn ipc.Turn) bool { return turn.ID == id })]
		return turn.EndedAt != nil
	})
	if turn.CheckpointID == nil || turn.Changes.Modified < 12 {
		t.Fatalf("%+v", turn)
	}
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	testkit.Eventually(t, what, f)
}

// TestLateCapture has an agent not wait until its turn's databases are captured: the
// turn's checkpoint says so.
func TestLateCapture(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	hold, held := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	d := w.failing(t, func(step string) error {
		if step == "capture db:shop" && armed.CompareAndSwap(true, false) {
			close(held)
			<-hold
		}
		return nil
	})
	defer w.close(t, d)
	auto := true
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Auto: &auto}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	armed.Store(true)
	if _, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "t", ConversationID: "c", Agent: "test"}); err != nil {
		t.Fatal(err)
	}
	<-held
	call, err := d.BeginCall(t.Context(), root, "shop", "t", ipc.BeginCall{CallID: "call", Before: true, DeadlineMS: 1})
	if err != nil || call.Exact {
		t.Fatalf("%+v, %v", call, err)
	}
	close(hold)
	write(t, w.ws(), "work", "one")
	end(t, d, "t")
	cps := agentCheckpoints(t, d)
	if len(cps) != 1 {
		t.Fatalf("%+v", cps)
	}
	// Which of the two it is depends on whether the write was seen before the capture ended.
	if words := strings.Join(cps[0].Warnings, "\n"); !strings.Contains(words, "did not wait") && !strings.Contains(words, "after the first write that followed") {
		t.Errorf("%q", words)
	}
}

// TestTurnBeginsBeforeTheLastIsCaptured: a turn begins while the databases of the one before it are still captured. The agent does not wait for that;
// the turn before ends where the new one begins, also if the daemon is killed meanwhile, and both have their checkpoints, in that order.
func TestTurnBeginsBeforeTheLastIsCaptured(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"announced", "inferred", "killed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			at, held, release := hold(t, "capture db:shop")
			d := w.patient(t, at)
			defer func() { w.close(t, d) }()
			defer release()
			on := true
			_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
			check(t, err)
			awaitFollowing(t, d)
			if name != "inferred" {
				_, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "t1", ConversationID: "c"})
				check(t, err)
			}
			write(t, w.ws(), "file1", "one")
			<-held
			patient, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			_, err = d.BeginTurn(patient, root, "shop", ipc.BeginTurn{TurnID: "t2", ConversationID: "c"})
			check(t, err)
			write(t, w.ws(), "file2", "two")
			if name == "killed" {
				copyInUse(t, w.state(), filepath.Join(w.dir, "killed")) // what a daemon leaves that is killed now
				release()
				w.close(t, d)
				sh(t, `rm -r "$1/state" && mv "$1/killed" "$1/state"`, w.dir)
				d = w.open(t)
				awaitFollowing(t, d)
			}
			release()
			end(t, d, "t2")
			var turns []ipc.Turn
			waitFor(t, "the turn before ends", func() bool {
				turns, err = d.Turns(t.Context(), root, "shop", "", 0)
				return err == nil && len(turns) == 2 && turns[1].EndedAt != nil
			})
			for i, path := range []string{"file2", "file1"} {
				if got := turns[i]; !slices.Equal(got.Changes.Paths, []string{path}) || got.CheckpointID == nil {
					t.Errorf("turn %s changed %q, and its checkpoint is %v", got.ID, got.Changes.Paths, got.CheckpointID)
				}
			}
			goBack(t, d, ipc.Undo, ipc.RollbackRequest{})
			if one, two := read(t, w.ws(), "file1"), read(t, w.ws(), "file2"); one != "one" || two != "zero" {
				t.Errorf("after the undo of the newest turn the files say %q and %q", one, two)
			}
		})
	}
}

// TestWriteWhileATurnEnds: a file is written while the end of a turn that changed nothing looks at the databases. That turn has no checkpoint, and the
// one of another turn that is open has its databases.
func TestWriteWhileATurnEnds(t *testing.T) { // alone, so that it sees its own goroutines only
	w := newWorld(t, nil)
	var armed atomic.Bool
	at, held, release := hold(t, "capture db:shop")
	d := w.patient(t, func(step string) error {
		if armed.Load() {
			return at(step)
		}
		return nil
	})
	defer w.close(t, d)
	defer release()
	on := true
	_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
	check(t, err)
	awaitFollowing(t, d)
	begin(t, d, "idle")
	_, err = d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: "other", ConversationID: "another"})
	check(t, err)
	_, err = d.BeginCall(t.Context(), root, "shop", "other", ipc.BeginCall{CallID: "call", Before: true, DeadlineMS: 10000})
	check(t, err)
	armed.Store(true)
	ended := make(chan ipc.Turn, 1)
	go func() {
		turn, err := d.EndTurn(t.Context(), root, "shop", "idle")
		if err != nil {
			t.Error(err)
		}
		ended <- turn
	}()
	<-held
	write(t, w.ws(), "file7", "one")
	waitFor(t, "a checkpoint waits for the end of the turn", func() bool { return inBoth(t, "turns.(*Tracker).checkpoint(", "app.(*App).hold(") })
	release()
	if turn := <-ended; turn.EndedAt == nil || turn.CheckpointID != nil {
		t.Errorf("the turn that changed nothing: %+v", turn)
	}
	waitFor(t, "the other turn has its checkpoint", func() bool { return len(agentCheckpoints(t, d)) > 0 })
	end(t, d, "other")
	for _, cp := range agentCheckpoints(t, d) {
		if *cp.TurnID != "other" || len(cp.DBSnapshots) != 1 {
			t.Errorf("the checkpoint of turn %s has the databases %+v", *cp.TurnID, cp.DBSnapshots)
		}
	}
}

// inBoth reports whether a goroutine is in both functions.
func inBoth(t *testing.T, outer, inner string) bool {
	var all bytes.Buffer
	check(t, pprof.Lookup("goroutine").WriteTo(&all, 2))
	for g := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(g, outer) && strings.Contains(g, inner) {
			return true
		}
	}
	return false
}

// TestTurnInRepository compares what is told of a turn that wrote into the git repository with what its undo says that it would do.
func TestTurnInRepository(t *testing.T) {
	d, w := openAuto(t, time.Hour)
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(w.ws(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, d, "before")
	put(".git/HEAD", "ref: refs/heads/main\n")
	put(".git/objects/aa/bb", "old")
	put("page", "one")
	end(t, d, "before")
	begin(t, d, "t1")
	put("page", "two")
	put("new", "new")
	put(".git/index", "index")
	for _, name := range []string{"11/22", "33/44", "aa/cc"} {
		put(".git/objects/"+name, name)
	}
	turn := end(t, d, "t1")
	res, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{DryRun: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := res.Preview.Layers[0]
	if c := turn.Changes; c.Created != 1 || c.Modified != 2 || c.Deleted != 0 || !slices.Contains(c.Paths, ".git") || len(c.Paths) != 3 ||
		files.Layer != "files" || files.Create != c.Created || files.Modify != c.Modified || files.Delete != c.Deleted || res.ChangesTotal != 3 {
		t.Errorf("the turn changed %+v, and its undo would change %+v", c, files)
	}
}

// TestDatabasesAfterFiles has the agent act while its turn's databases are still being captured. The checkpoint says so, and whether files were
// written meanwhile.
func TestDatabasesAfterFiles(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	gates := make(chan chan struct{}, 1)
	opt := w.options()
	opt.User, opt.QuietGap, opt.AgentWait = true, time.Hour, testkit.Patience
	opt.Failpoint = func(step string) error {
		if step != "capture db:shop" {
			return nil
		}
		select {
		case gate := <-gates:
			<-gate
		default:
		}
		return nil
	}
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	awaitFollowing(t, d)
	turn := func(id ipc.TurnID, early bool) string {
		t.Helper()
		gate := make(chan struct{})
		gates <- gate
		if _, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: id, ConversationID: "c", Agent: "test"}); err != nil {
			t.Fatal(err)
		}
		call := ipc.CallID("call-" + id)
		if c, err := d.BeginCall(t.Context(), root, "shop", id, ipc.BeginCall{CallID: call, Tool: "Bash", Before: true, DeadlineMS: 1}); err != nil || c.Exact {
			t.Fatalf("%+v %v", c, err)
		}
		if early {
			write(t, w.ws(), "work", string(id))
		}
		if _, err := d.EndCall(t.Context(), root, "shop", id, call); err != nil { // what was written is seen
			t.Fatal(err)
		}
		close(gate)
		write(t, w.ws(), "more", string(id))
		end(t, d, id)
		return strings.Join(agentCheckpoints(t, d)[0].Warnings, "\n")
	}
	if words := turn("early", true); !strings.Contains(words, "after the first write that followed") {
		t.Errorf("files were written while the databases were captured, and the checkpoint says %q", words)
	}
	if words := turn("late", false); !strings.Contains(words, "did not wait until its databases were captured") && !strings.Contains(words, "after the first write that followed") {
		t.Errorf("a call began while the databases were captured, and the checkpoint says %q", words)
	}
	begin(t, d, "patient")
	write(t, w.ws(), "work", "patient")
	end(t, d, "patient")
	if words := agentCheckpoints(t, d)[0].Warnings; len(words) > 0 {
		t.Errorf("the databases were captured before the first write, and the checkpoint says %q", words)
	}
}
