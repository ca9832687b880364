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

// Undo and redo find their way by two marks that checkpoints carry. What an agent did
// is an act: an announced turn, what followed a checkpoint that an agent asked for
// outside of turns, or a revert. Each act has the checkpoint of the state before it.
//
//   - UndoTo is the checkpoint before the newest act that is in the checkpoint's state:
//     where undo goes from there. "" is none.
//   - UndoNext is the same of the state that followed: the checkpoint itself, where it
//     is the one before an act; the target's UndoTo for the safety checkpoint of a
//     rollback that was done.
//
// So the marks of the newest checkpoint tell of the present, and following UndoTo from
// there leads from act to act, past those that are undone.

// line is an app's checkpoints, newest first, as undo and redo see them.
type line []store.Checkpoint

// head is the checkpoint before the newest act that is in the app now; "" where there
// is none.
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

// before is UndoTo of the i-th newest. Checkpoints of older daemons have no marks: the
// next older one of a turn counts.
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

// isAct reports whether an agent did something after the checkpoint was made.
func isAct(cp store.Checkpoint) bool { return cp.Trigger == ipc.TriggerAgent && !cp.Inferred }

func (l line) Find(id ipc.CheckpointID) int {
	return slices.IndexFunc(l, func(cp store.Checkpoint) bool { return cp.ID == id })
}

// Undo is the checkpoint before the n-th newest act that is in the app.
func (l line) Undo(n int) (ipc.CheckpointID, error) {
	id := l.head()
	for i := 1; ; i++ {
		at := l.Find(id)
		switch {
		case id == "" && i == 1:
			return "", errs.New(errs.NotFound, "", "there is no turn's checkpoint to go to").
				WithHint("`mulligan rollback 1` goes to the newest checkpoint of any kind")
		case id == "":
			return "", errs.New(errs.NotFound, "", "there are %d turns to undo, and not %d", i-1, n).WithHint("mulligan turns lists them")
		case at < 0:
			return "", errs.New(errs.NotFound, "", "%s, the checkpoint before the turn, is no longer kept", id).
				WithHint("mulligan list shows those there are; mulligan rollback goes to any of them")
		case i == n:
			return id, nil
		}
		id = l.before(at)
	}
}

// Redo is the safety checkpoint of the last rollback or revert that was done.
func (l line) Redo() (ipc.CheckpointID, error) {
	called := false
	for _, cp := range l {
		if cp.Trigger == ipc.TriggerPreRollback && !cp.CalledOff {
			return cp.ID, nil
		}
		called = called || cp.CalledOff
	}
	e := errs.New(errs.NotFound, "", "the app was not rolled back")
	if called {
		return "", e.WithHint("the last rollback was called off, so there is nothing to redo: see `mulligan log`")
	}
	return "", e.WithHint("see `mulligan log`")
}

// Holds reports whether the act after the checkpoint id is in the app.
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

// LineOf reads an app's.
func (svc *Service) LineOf(ctx context.Context, a *app.App) (line, error) {
	return svc.store.Checkpoints(ctx, a.Rec().ID)
}

// marks sets the marks of a checkpoint that is about to be recorded.
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
	if cp.TurnID == nil { // within a turn, it is the turn that is undone
		open, err := svc.store.OpenTurns(ctx, a.Rec().ID)
		if err != nil || slices.ContainsFunc(open, func(t store.Turn) bool { return !t.Inferred }) {
			return err
		}
	}
	cp.UndoNext = &cp.ID
	return nil
}

// Rejoin notes that a turn that was undone while it went on did something again.
func (svc *Service) Rejoin(ctx context.Context, a *app.App, act ipc.CheckpointID) error {
	l, err := svc.LineOf(ctx, a)
	if err != nil || l.Find(act) < 0 || l.Holds(act) {
		return err
	}
	newest := l[0]
	newest.UndoNext = &act
	return svc.store.PutCheckpoint(ctx, newest, "")
}

// BehindOf names the layers that are as they were while others went back, as the newest
// safety checkpoint of a rollback that was done has them.
func (l line) BehindOf() []string {
	for _, cp := range l {
		if cp.Trigger == ipc.TriggerPreRollback && !cp.CalledOff {
			return cp.StayedBehind
		}
	}
	return nil
}

// NoteBehind keeps, for problems, which layers stayed behind.
func (svc *Service) NoteBehind(ctx context.Context, a *app.App) {
	l, err := svc.LineOf(ctx, a)
	if err != nil {
		return // whoever asks next is told
	}
	words := behindWords(l)
	a.NoteBehind(words)
}

// behindWords says which layers stayed behind, and what takes them along.
func behindWords(l line) (list []string) {
	for _, name := range l.BehindOf() {
		list = append(list, fmt.Sprintf("%s stayed as it was at a rollback, and may not agree with the rest: a rollback that takes it along, or mulligan redo, ends that", name))
	}
	return list
}
