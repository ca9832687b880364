package daemon_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
)

// worked has an agent work for a turn that writes a word to the file "work".
func worked(t *testing.T, d *daemon.Daemon, w world, word string) ipc.Turn {
	t.Helper()
	begin(t, d, ipc.TurnID(word))
	write(t, w.ws(), "work", word)
	turn := end(t, d, ipc.TurnID(word))
	if turn.CheckpointID == nil {
		t.Fatalf("turn %s left no checkpoint: %+v", word, turn)
	}
	return turn
}

// undoing goes back or forward and checks what is in the file "work".
func undoing(t *testing.T, d *daemon.Daemon, w world, way ipc.CheckpointID, req ipc.RollbackRequest, want string) ipc.RollbackResult {
	t.Helper()
	if way == ipc.Undo && req.Turns == 0 {
		req.Turns = 1
	}
	res := goBack(t, d, way, req)
	if got := read(t, w.ws(), "work"); got != want {
		t.Fatalf("after %s %d work says %q, want %q", way, req.Turns, got, want)
	}
	return res
}

// TestUndo goes from turn to turn, back and forward, by one and by several.
func TestUndo(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	refused := func(way ipc.CheckpointID, turns int, kind errs.Kind) {
		t.Helper()
		if _, err := d.Rollback(t.Context(), root, "shop", way, ipc.RollbackRequest{Turns: turns}, nil); errs.KindOf(err) != kind {
			t.Fatalf("%s %d: %v", way, turns, err)
		}
	}
	refused(ipc.Undo, 1, errs.NotFound)
	refused(ipc.Redo, 0, errs.NotFound)
	write(t, w.ws(), "work", "zero")
	waitFor(t, "the write is a turn", func() bool { return len(agentCheckpoints(t, d)) == 1 })
	refused(ipc.Undo, 1, errs.NotFound) // it is nobody's
	for _, word := range []string{"one", "two", "three", "four"} {
		worked(t, d, w, word)
	}
	refused(ipc.Undo, 5, errs.NotFound)
	refused(ipc.Undo, -1, errs.Invalid)
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "three")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{Turns: 2}, "one")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "three")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "one")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "three")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "two")
	worked(t, d, w, "five")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "two")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "one")
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "zero")
	refused(ipc.Undo, 1, errs.NotFound)
	// A rollback by hand is gone back over, and counts for where it went.
	goBack(t, d, *mustTurn(t, d, "four").CheckpointID, ipc.RollbackRequest{})
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "two")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "three")
}

func turnsOf(t *testing.T, d *daemon.Daemon) []ipc.Turn {
	t.Helper()
	turns, err := d.Turns(t.Context(), root, "shop", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return turns
}

func mustTurn(t *testing.T, d *daemon.Daemon, id ipc.TurnID) ipc.Turn {
	t.Helper()
	turns := turnsOf(t, d)
	i := slices.IndexFunc(turns, func(o ipc.Turn) bool { return o.ID == id })
	if i < 0 {
		t.Fatalf("no turn %s among %+v", id, turns)
	}
	return turns[i]
}

// TestUndoOfTurnWithRollback has an agent roll back within its turn, and a person undo
// a turn that goes on: one turn is one undo.
func TestUndoOfTurnWithRollback(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	write(t, w.ws(), "work", "zero")
	worked(t, d, w, "one")
	begin(t, d, "two")
	write(t, w.ws(), "work", "a mess")
	waitFor(t, "the turn has its checkpoint", func() bool { return mustTurn(t, d, "two").CheckpointID != nil })
	goBack(t, d, *mustTurn(t, d, "two").CheckpointID, ipc.RollbackRequest{ConversationID: "c"})
	write(t, w.ws(), "work", "better")
	end(t, d, "two")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "one")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "better")
	begin(t, d, "three")
	write(t, w.ws(), "work", "worse")
	waitFor(t, "the turn has its checkpoint", func() bool { return mustTurn(t, d, "three").CheckpointID != nil })
	goBack(t, d, *mustTurn(t, d, "one").CheckpointID, ipc.RollbackRequest{}) // far back
	write(t, w.ws(), "work", "worst")
	end(t, d, "three")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "better")
	begin(t, d, "four")
	write(t, w.ws(), "work", "on and on")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "better")
	write(t, w.ws(), "work", "and on")
	end(t, d, "four")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "better")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "one")
}

func endCall(t *testing.T, d *daemon.Daemon, id ipc.CallID) {
	t.Helper()
	if _, err := d.EndCall(t.Context(), root, "shop", "", id); err != nil {
		t.Fatal(err)
	}
}

// testUndoOfTurnThatBeginsWithRollback has agents begin a turn with a rollback, of the
// whole app or of a part, that they say is theirs or make within a call: one turn is
// one undo. What a person rolls back while an agent thinks is no part of the turn.
func testUndoOfTurnThatBeginsWithRollback(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]ipc.RollbackRequest{
		"the agent says who it is": {ConversationID: "c"}, "in a call": {}, "of a part": {ConversationID: "c", Scope: []string{"work"}}, "of the call": {CallID: "first-three"},
	} {
		t.Run(name, func(t *testing.T) {
			d, w := openAuto(t, time.Hour)
			write(t, w.ws(), "work", "zero")
			worked(t, d, w, "one")
			worked(t, d, w, "two")
			begin(t, d, "three")
			if name != "in a call" && req.CallID == "" {
				endCall(t, d, "first-three")
			}
			goBack(t, d, *mustTurn(t, d, "one").CheckpointID, req)
			if got := read(t, w.ws(), "work"); got != "zero" {
				t.Fatalf("the agent's own rollback is to %q", got)
			}
			write(t, w.ws(), "work", "three")
			write(t, w.ws(), "more", "of it")
			end(t, d, "three")
			undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "two")
			if _, err := os.Stat(filepath.Join(w.ws(), "more")); !os.IsNotExist(err) {
				t.Errorf("the turn is undone in part: %v", err)
			}
			undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "three")
			undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "two")
			undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "one")
		})
	}
	d, w := openAuto(t, time.Hour)
	write(t, w.ws(), "work", "zero")
	worked(t, d, w, "one")
	begin(t, d, "two")
	endCall(t, d, "first-two")
	goBack(t, d, *mustTurn(t, d, "one").CheckpointID, ipc.RollbackRequest{})
	write(t, w.ws(), "work", "two")
	end(t, d, "two")
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "zero")
}

// TestUndoSparesOthers has people and programs write after an agent's turn: git's own
// refreshing is nothing, all else is named and asked for.
func TestUndoSparesOthers(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Millisecond)
	sh(t, `cd "$1" && git init -q . && git -c user.name=x -c user.email=x@y add -A && git -c user.name=x -c user.email=x@y commit -qm one && touch -d '1 hour ago' file0`, w.ws())
	write(t, w.ws(), "work", "zero")
	worked(t, d, w, "one")
	worked(t, d, w, "two")
	before := len(agentCheckpoints(t, d))
	sh(t, `cd "$1" && git status >/dev/null`, w.ws())
	waitFor(t, "the refreshed index is a turn", func() bool { return len(agentCheckpoints(t, d)) > before })
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "one")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "two")

	write(t, w.ws(), "mine", "a person's")
	_, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{}, nil)
	if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), `"mine"`) || !strings.Contains(errs.HintOf(err), "--include-others") {
		t.Errorf("%v (%s)", err, errs.HintOf(err))
	}
	res := goBack(t, d, ipc.Undo, ipc.RollbackRequest{DryRun: true})
	if !strings.Contains(strings.Join(res.Warnings, "\n"), `"mine"`) || read(t, w.ws(), "work") != "two" {
		t.Errorf("the preview says %q", res.Warnings)
	}
	res = undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{IncludeOthers: true}, "one")
	if !strings.Contains(strings.Join(res.Warnings, "\n"), `"mine"`) {
		t.Errorf("the receipt says %q", res.Warnings)
	}
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "two")
	if got := read(t, w.ws(), "mine"); got != "a person's" {
		t.Errorf("mine says %q", got)
	}
}

// TestUndoThatDiscardsOnAFullDisk: a turn writes until the disk is full, so that its checkpoint cannot be made, or, if it was undone before, that it goes on
// cannot be recorded. An undo that first makes room takes back that turn and no other, and deletes only what that turn made. It deletes nothing if it is refused then.
func TestUndoThatDiscardsOnAFullDisk(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ballast", "none", "new"} { // whether there is room for records before something is deleted; in the last case, the turn is a new one
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			var full atomic.Bool
			var failed atomic.Int32
			d := w.patient(t, func(step string) error {
				rejoins := step == "write records" && calledBy("checkpoint.(*Service).Rejoin") && (name != "ballast" || calledBy("turns.(*Tracker).loop"))
				if !full.Load() || !rejoins && step != "capture turn" {
					return nil
				}
				if _, err := os.Stat(filepath.Join(w.ws(), "made")); err != nil {
					return nil
				}
				failed.Add(1)
				return unix.ENOSPC
			})
			defer w.close(t, d)
			on := true
			_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Auto: &on})
			check(t, err)
			awaitFollowing(t, d)
			c, other := &talk{t: t, d: d, w: w, name: "c"}, &talk{t: t, d: d, w: w, name: "other"}
			if name == "new" {
				other.say("m0")
				other.call("call-0", "echo zero >theirs")
			}
			c.say("m1")
			c.call("call-1", "echo one >file1 && echo one >first")
			c.say("m2")
			if name != "new" {
				c.call("call-2", "echo two >file2")
				goBack(t, d, ipc.Undo, ipc.RollbackRequest{})
			}
			full.Store(true)
			c.call("call-3", "echo again >file2 && echo again >made")
			waitFor(t, "the disk is full", func() bool { return failed.Load() > 0 })
			_, err = d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{Discard: []string{"first"}}, nil)
			refused(t, errs.NotFound, err)
			if name == "new" {
				other.call("call-4", "echo again >theirs")
				_, err := d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{Discard: []string{"made"}}, nil)
				refused(t, errs.Conflict, err)
				if got := read(t, w.ws(), "made"); got != "again\n" {
					t.Errorf("the undo is refused, and made says %q", got)
				}
			}
			goBack(t, d, ipc.Undo, ipc.RollbackRequest{Discard: []string{"made"}, Force: name == "new"})
			if one, two := read(t, w.ws(), "file1"), read(t, w.ws(), "file2"); one != "one\n" || two != "zero" {
				t.Errorf("the files say %q and %q", one, two)
			}
		})
	}
}

// TestInferredTurnsApart makes more turns that nobody told of than are kept: those that
// agents told of stay.
func TestInferredTurnsApart(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Millisecond)
	keep := ipc.DefaultRetention()
	keep.KeepTurns = 2
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	write(t, w.ws(), "work", "zero")
	first, second := worked(t, d, w, "one"), worked(t, d, w, "two")
	for i := range 5 {
		before := turnsOf(t, d)
		write(t, w.ws(), "mine", strings.Repeat("x", i+1))
		waitFor(t, "a turn is inferred, and ends", func() bool {
			now := turnsOf(t, d)
			return now[0].ID != before[0].ID && now[0].Inferred && now[0].EndedAt != nil && now[0].CheckpointID != nil
		})
	}
	var inferred int
	kept := map[ipc.CheckpointID]bool{}
	for _, cp := range agentCheckpoints(t, d) {
		kept[cp.ID] = true
		if cp.Inferred {
			inferred++
		}
	}
	if inferred != 2 || !kept[*first.CheckpointID] || !kept[*second.CheckpointID] {
		t.Errorf("%d inferred ones are kept, of the others %v and %v", inferred, kept[*first.CheckpointID], kept[*second.CheckpointID])
	}
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{Turns: 2, IncludeOthers: true}, "zero")
}
