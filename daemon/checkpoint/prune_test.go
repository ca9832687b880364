package checkpoint

import (
	"testing"
	"time"

	"mulligan/daemon/store"
	"mulligan/ipc"
	"mulligan/snap"
)

// TestWhatTurnsNeed: the journal is kept from the start of the oldest turn that is open, or that could be undone; a turn is remembered
// for longer if its checkpoint is there.
func TestWhatTurnsNeed(t *testing.T) {
	now := time.Now()
	turn := func(start snap.Mark, more ...func(*store.Turn)) store.Turn {
		id := ipc.CheckpointID("cp-" + start)
		rec := store.Turn{Start: start, End: start + "-end"}
		rec.EndedAt, rec.CheckpointID = &now, &id
		for _, change := range more {
			change(&rec)
		}
		return rec
	}
	open := func(rec *store.Turn) { rec.EndedAt, rec.End, rec.CheckpointID = nil, "", nil }
	inferred := func(rec *store.Turn) { rec.Inferred = true }
	unread := func(rec *store.Turn) { rec.Start = "" }
	kept := func(marks ...ipc.CheckpointID) (cps []store.Checkpoint) {
		for _, m := range marks {
			var cp store.Checkpoint
			cp.ID = "cp-" + m
			cps = append(cps, cp)
		}
		return cps
	}
	for name, c := range map[string]struct {
		turns []store.Turn // newest first
		keep  int
		kept  []store.Checkpoint
		want  snap.Mark
		known int // how many turns are remembered
	}{
		"no turn":                           {nil, 2, nil, "", 0},
		"no checkpoint":                     {[]store.Turn{turn("b"), turn("a")}, 2, nil, "b-end", 2},
		"all":                               {[]store.Turn{turn("b"), turn("a")}, 2, kept("a", "b"), "a", 2},
		"the newest":                        {[]store.Turn{turn("c"), turn("b"), turn("a")}, 2, kept("a", "b", "c"), "b", 3},
		"the newest without a checkpoint":   {[]store.Turn{turn("b"), turn("a")}, 2, kept("a"), "a", 2},
		"an old one that is open":           {[]store.Turn{turn("c"), turn("b"), turn("a", open)}, 1, kept("b", "c"), "a", 3},
		"an open one alone":                 {[]store.Turn{turn("a", open)}, 1, nil, "a", 1},
		"none is to be kept, one is open":   {[]store.Turn{turn("b", open), turn("a")}, 0, kept("a"), "b", 2},
		"an inferred one beside the others": {[]store.Turn{turn("c"), turn("b"), turn("a", inferred)}, 2, kept("a", "b", "c"), "a", 3},
		"inferred ones that are too old":    {[]store.Turn{turn("c", inferred), turn("b", inferred), turn("a", inferred)}, 2, kept("a", "b", "c"), "b", 3},
		"ended ones without checkpoints":    {[]store.Turn{turn("c"), turn("b"), turn("a")}, 1, kept("c"), "c", 1},
		"one that is open and too old":      {[]store.Turn{turn("c"), turn("b", open), turn("a")}, 1, kept("c"), "b", 2},
		"one whose start is not known":      {[]store.Turn{turn("b"), turn("a", unread)}, 2, kept("a", "b"), "b", 2},
	} {
		if got := neededFrom(c.turns, c.keep, c.kept); got != c.want {
			t.Errorf("%s: the journal is needed from %q, want %q", name, got, c.want)
		}
		if got := 1 + oldestRemembered(c.turns, c.keep, c.kept); got != c.known {
			t.Errorf("%s: %d turns are remembered, want %d", name, got, c.known)
		}
	}
}
