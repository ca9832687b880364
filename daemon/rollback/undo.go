package rollback

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// resolveTarget returns the checkpoint that undo or redo goes to, and fills in the scope that follows
// from what is undone: going back over a revert, or over a rollback of a part, changes no more than it
// did. Any other id is returned as it is.
func (d *Service) resolveTarget(ctx context.Context, a *app.App, id ipc.CheckpointID, req *ipc.RollbackRequest) (ipc.CheckpointID, error) {
	if id != ipc.Undo && id != ipc.Redo {
		return id, nil
	}
	l, err := d.checkpoints.LineOf(ctx, a)
	if err != nil {
		return "", err
	}
	if req.Reason == "" {
		req.Reason = string(id)
	}
	if req.Turns < 0 || id == ipc.Redo && req.Turns > 1 {
		return "", errs.New(errs.Invalid, "", "%d is not a number of turns", req.Turns).WithHint("give undo a number from 1; redo takes no number")
	}
	to, err := l.Redo()
	if id == ipc.Undo {
		req.Turns = max(1, req.Turns)
		to, err = l.Undo(req.Turns)
	} else {
		req.Turns = 0
	}
	if err != nil {
		return "", err
	}
	var scope []string
	if id == ipc.Redo || !d.isOfTurn(ctx, a, to) { // a turn is undone as a whole
		scope, err = d.scopeOf(ctx, a, to)
	}
	if len(req.Scope) == 0 && (id == ipc.Redo || req.Turns <= 1) {
		req.Scope = scope
	}
	if cp := l[l.Find(to)]; id == ipc.Redo && req.Start == nil && cp.Running != nil && !*cp.Running && !checkpoint.Ailing(cp) && a.Unit() != nil {
		req.Start = cp.Running // somebody had stopped the app
	}
	return to, err
}

// isOfTurn reports whether the checkpoint is a turn's.
func (d *Service) isOfTurn(ctx context.Context, a *app.App, id ipc.CheckpointID) bool {
	turns, err := d.store.Turns(ctx, a.Rec().ID, 0)
	return err == nil && slices.ContainsFunc(turns, func(t store.Turn) bool { return t.CheckpointID != nil && *t.CheckpointID == id })
}

// scopeOf returns the scope of the rollback or revert that made a safety checkpoint; nil is everything.
func (d *Service) scopeOf(ctx context.Context, a *app.App, safety ipc.CheckpointID) ([]string, error) {
	trail, err := d.store.AuditTrail(ctx, a.Rec().ID, 0)
	if err != nil {
		return nil, err
	}
	for _, e := range trail {
		var r struct {
			SafetyCheckpoint *struct {
				ID ipc.CheckpointID `json:"checkpoint_id"`
			} `json:"safety_checkpoint"`
			Scope         []string `json:"scope"`
			RestoredPaths []string `json:"restored_paths"`
		}
		if e.Action != KindRollback && e.Action != KindRevert || json.Unmarshal(e.Detail, &r) != nil ||
			r.SafetyCheckpoint == nil || r.SafetyCheckpoint.ID != safety {
			continue
		}
		if e.Action == KindRollback {
			return r.Scope, nil
		}
		return scopeOfRevert(r.RestoredPaths), nil
	}
	return nil, nil
}

// scopeOfRevert returns the scope that undoes a revert: the paths that the revert changed.
func scopeOfRevert(paths []string) []string {
	const most = 1000
	odd := func(p string) bool { return strings.ContainsRune(p, utf8.RuneError) } // the path on disk has other bytes
	if len(paths) == 0 || len(paths) > most || slices.ContainsFunc(paths, odd) {
		return []string{"layer:" + string(snap.Files)}
	}
	var scope []string
	for _, p := range paths {
		scope = append(scope, "./"+p) // it may be called layer:x
	}
	return scope
}

// turnThatBegins returns the turn that begins with this rollback, or "": an agent's turn that is open
// and changed nothing so far. Either the request names the agent's session or call, or it names none and
// the agent is in the middle of a call.
func (r *rollback) turnThatBegins(ctx context.Context) (ipc.TurnID, error) {
	open, err := r.d.store.OpenTurns(ctx, r.a.Rec().ID)
	if err != nil {
		return "", err
	}
	for _, t := range slices.Backward(open) {
		if t.Inferred || t.Ending || t.CheckpointID != nil {
			continue
		}
		calls, err := r.d.store.Calls(ctx, t.Seq)
		if err != nil {
			return "", err
		}
		said := r.req.ConversationID != "" && r.req.ConversationID == t.ConversationID ||
			slices.ContainsFunc(calls, func(c store.Call) bool { return r.req.CallID != "" && c.ID == r.req.CallID })
		at := r.req.ConversationID == "" && r.req.CallID == "" && slices.ContainsFunc(calls, func(c store.Call) bool { return c.EndedAt == nil })
		if said || at && !r.plan.UndoRedo { // an undo in the middle of a call is likely a person's
			return t.ID, nil
		}
	}
	return "", nil
}

// requireTurnCheckpoint refuses an undo if the newest turn's checkpoint could not be made, because the
// undo would go back over the turn before that one.
func (r *rollback) requireTurnCheckpoint(ctx context.Context) error {
	if len(r.hints.owing) == 0 {
		return nil
	}
	t := turns.TrackerOf(r.a)
	short, cancel := context.WithTimeout(ctx, turns.FlushLong)
	defer cancel()
	_, err := t.Flush(short)
	if err == nil {
		err = errors.New(cmp.Or(t.LastFailure(), "it is not made yet"))
	}
	return (&errs.Error{Kind: errs.Failed, Op: "make the checkpoint of the newest turn", Err: err}).
		WithHint("%s", cmp.Or(errs.HintOf(err), "try again; `mulligan list` shows what there is to go back to"))
}
