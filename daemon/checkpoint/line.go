package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Undo and redo follow two marks that each checkpoint has. An act is what an agent did
// in one go: an announced turn, everything after a checkpoint that an agent asked for
// outside of turns, or a revert. For each act there is a checkpoint of the state before it.
//
//   - UndoTo is the checkpoint before the newest act that the checkpoint's state contains.
//     Undo goes there from the checkpoint's state. "" means that there is none.
//   - UndoNext is UndoTo of the state that followed the checkpoint: the checkpoint itself if
//     an act followed it; for the safety checkpoint of a completed rollback, UndoTo of
//     the rollback's target.
//
// So the marks of the newest checkpoint describe the present state, and following UndoTo
// from there visits the acts in it, newest first, and skips those that were undone.

// line is the list of an app's checkpoints, newest first, on which undo and redo work.
type line []store.Checkpoint

// head returns the checkpoint before the newest act in the present state, or "".
func (l line) head() ipc.CheckpointID {
	if len(l) == 0 {
		return ""
	}
	if next := l[0].UndoNext; next != nil {
		return *next
	}
	if l[0].UndoTo == nil && isAct(l[0]) {
		return l[0].ID
	}
	return l.before(0)
}

// before returns UndoTo of the i-th newest checkpoint. A checkpoint of an older daemon has no
// marks: for it, before returns the next older checkpoint of a turn.
func (l line) before(i int) ipc.CheckpointID {
	if to := l[i].UndoTo; to != nil {
		return *to
	}
	for j := i + 1; j < len(l); j++ {
		if isAct(l[j]) {
			return l[j].ID
		}
	}
	return ""
}

// isAct reports whether an act followed the checkpoint.
func isAct(cp store.Checkpoint) bool { return cp.Trigger == ipc.TriggerAgent && !cp.Inferred }

func (l line) Find(id ipc.CheckpointID) int {
	return slices.IndexFunc(l, func(cp store.Checkpoint) bool { return cp.ID == id })
}

// Undo returns the checkpoint before the n-th newest act in the present state.
func (l line) Undo(n int) (ipc.CheckpointID, error) {
	id := l.head()
	for i := 1; ; i++ {
		at := l.Find(id)
		switch {
		case id == "" && i == 1:
			return "", errs.New(errs.NotFound, "", "there is no turn's checkpoint to go to").
				WithHint("`mulligan rollback 1` goes to the newest checkpoint of any kind")
		case id == "":
			return "", errs.New(errs.NotFound, "", "there are only %d turns to undo, not %d", i-1, n).WithHint("`mulligan turns` lists them")
		case at < 0:
			return "", errs.New(errs.NotFound, "", "%s, the checkpoint before the turn, is no longer kept", id).
				WithHint("`mulligan list` shows the checkpoints; `mulligan rollback` goes to any of them")
		case i == n:
			return id, nil
		}
		id = l.before(at)
	}
}

// Redo returns the safety checkpoint of the last completed rollback or revert.
func (l line) Redo() (ipc.CheckpointID, error) {
	called := false
	for _, cp := range l {
		if cp.Trigger == ipc.TriggerPreRollback && !cp.CalledOff {
			return cp.ID, nil
		}
		called = called || cp.CalledOff
	}
	e := errs.New(errs.NotFound, "", "there is no rollback to redo")
	if called {
		return "", e.WithHint("the last rollback was called off before it changed anything: see `mulligan log`")
	}
	return "", e.WithHint("see `mulligan log`")
}

// Holds reports whether the act after the checkpoint id is in the present state.
func (l line) Holds(id ipc.CheckpointID) bool {
	seen := map[ipc.CheckpointID]bool{}
	for at := l.Find(l.head()); at >= 0 && !seen[l[at].ID]; at = l.Find(l.before(at)) {
		if l[at].ID == id {
			return true
		}
		seen[l[at].ID] = true
	}
	return false
}

// LineOf reads the app's checkpoints.
func (svc *Service) LineOf(ctx context.Context, a *app.App) (line, error) {
	return svc.store.Checkpoints(ctx, a.Rec().ID)
}

// marks sets UndoTo and UndoNext of a checkpoint that is about to be recorded.
func (svc *Service) marks(ctx context.Context, a *app.App, cp *store.Checkpoint) error {
	l, err := svc.LineOf(ctx, a)
	if err != nil {
		return err
	}
	head := l.head()
	cp.UndoTo = &head
	if !isAct(*cp) {
		return nil
	}
	if cp.TurnID == nil { // a checkpoint within a turn starts no act: undo takes back the whole turn
		open, err := svc.store.OpenTurns(ctx, a.Rec().ID)
		if err != nil || slices.ContainsFunc(open, func(t store.Turn) bool { return !t.Inferred && !t.Ending }) {
			return err
		}
	}
	cp.UndoNext = &cp.ID
	return nil
}

// Rejoin records that a turn wrote again after it was undone, so that it can be undone again.
func (svc *Service) Rejoin(ctx context.Context, a *app.App, act ipc.CheckpointID) error {
	l, err := svc.LineOf(ctx, a)
	if err != nil || l.Find(act) < 0 || l.Holds(act) {
		return err
	}
	newest := l[0]
	newest.UndoNext = &act
	return svc.store.PutCheckpoint(ctx, newest, "")
}

// BehindOf returns the layers that the last completed rollback left as they were while others went
// back.
func (l line) BehindOf() []string {
	for _, cp := range l {
		if cp.Trigger == ipc.TriggerPreRollback && !cp.CalledOff {
			return cp.StayedBehind
		}
	}
	return nil
}

// NoteBehind sets the app's warnings about layers that the last rollback left out.
func (svc *Service) NoteBehind(ctx context.Context, a *app.App) {
	l, err := svc.LineOf(ctx, a)
	if err != nil {
		return // the next operation reports that the store fails
	}
	words := behindWords(l)
	a.NoteBehind(words)
}

// behindWords returns a warning for each layer that the last rollback left out, with its remedy.
func behindWords(l line) (list []string) {
	for _, name := range l.BehindOf() {
		list = append(list, fmt.Sprintf("the last rollback left %s as it was, so it may not match the rest of the app: roll back with this layer included, or run `mulligan redo`", name))
	}
	return list
}
