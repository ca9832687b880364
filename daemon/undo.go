package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
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

func (l line) find(id ipc.CheckpointID) int {
	return slices.IndexFunc(l, func(cp store.Checkpoint) bool { return cp.ID == id })
}

// undo is the checkpoint before the n-th newest act that is in the app.
func (l line) undo(n int) (ipc.CheckpointID, error) {
	id := l.head()
	for i := 1; ; i++ {
		at := l.find(id)
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

// redo is the safety checkpoint of the last rollback or revert that was done.
func (l line) redo() (ipc.CheckpointID, error) {
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

// holds reports whether the act after the checkpoint id is in the app.
func (l line) holds(id ipc.CheckpointID) bool {
	seen := map[ipc.CheckpointID]bool{}
	for at := l.find(l.head()); at >= 0 && !seen[l[at].ID]; at = l.find(l.before(at)) {
		if l[at].ID == id {
			return true
		}
		seen[l[at].ID] = true
	}
	return false
}

// lineOf reads an app's.
func (d *Daemon) lineOf(ctx context.Context, a *app) (line, error) {
	return d.store.Checkpoints(ctx, a.rec().ID)
}

// aim finds the checkpoint that undo or redo goes to, and the scope that it goes with:
// a revert, and a rollback of a part, are gone back over as far as they went.
func (d *Daemon) aim(ctx context.Context, a *app, id ipc.CheckpointID, req *ipc.RollbackRequest) (ipc.CheckpointID, error) {
	if id != ipc.Undo && id != ipc.Redo {
		return id, nil
	}
	l, err := d.lineOf(ctx, a)
	if err != nil {
		return "", err
	}
	if req.Reason == "" {
		req.Reason = string(id)
	}
	if req.Turns < 0 || id == ipc.Redo && req.Turns > 1 {
		return "", errs.New(errs.Invalid, "", "%d is not a number of turns", req.Turns).WithHint("undo takes 1 or more, redo goes over one rollback")
	}
	to, err := l.redo()
	if id == ipc.Undo {
		req.Turns = max(1, req.Turns)
		to, err = l.undo(req.Turns)
	} else {
		req.Turns = 0
	}
	if err != nil {
		return "", err
	}
	var scope []string
	if id == ipc.Redo || !d.isTurns(ctx, a, to) { // a turn is undone as a whole
		scope, err = d.scopeOf(ctx, a, to)
	}
	if len(req.Scope) == 0 && (id == ipc.Redo || req.Turns <= 1) {
		req.Scope = scope
	}
	if cp := l[l.find(to)]; id == ipc.Redo && req.Start == nil && cp.Running != nil && !*cp.Running && !ailing(cp) && a.unit() != nil {
		req.Start = cp.Running // somebody had stopped the app
	}
	return to, err
}

// isTurns reports whether the checkpoint is the one of a turn.
func (d *Daemon) isTurns(ctx context.Context, a *app, id ipc.CheckpointID) bool {
	turns, err := d.store.Turns(ctx, a.rec().ID, 0)
	return err == nil && slices.ContainsFunc(turns, func(t store.Turn) bool { return t.CheckpointID != nil && *t.CheckpointID == id })
}

// scopeOf is what a safety checkpoint's rollback or revert was of; nil is everything.
func (d *Daemon) scopeOf(ctx context.Context, a *app, safety ipc.CheckpointID) ([]string, error) {
	trail, err := d.store.AuditTrail(ctx, a.rec().ID, 0)
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
		if e.Action != kindRollback && e.Action != kindRevert || json.Unmarshal(e.Detail, &r) != nil ||
			r.SafetyCheckpoint == nil || r.SafetyCheckpoint.ID != safety {
			continue
		}
		if e.Action == kindRollback {
			return r.Scope, nil
		}
		return scopeOfRevert(r.RestoredPaths), nil
	}
	return nil, nil
}

// scopeOfRevert is the scope that undoes a revert: what it changed, and nothing that was
// done since.
func scopeOfRevert(paths []string) []string {
	const most = 1000
	odd := func(p string) bool { return strings.ContainsRune(p, utf8.RuneError) } // not what it is on disk
	if len(paths) == 0 || len(paths) > most || slices.ContainsFunc(paths, odd) {
		return []string{"layer:" + string(snap.Files)}
	}
	var scope []string
	for _, p := range paths {
		scope = append(scope, "./"+p) // it may be called layer:x
	}
	return scope
}

// marks sets the marks of a checkpoint that is about to be recorded.
func (d *Daemon) marks(ctx context.Context, a *app, cp *store.Checkpoint) error {
	l, err := d.lineOf(ctx, a)
	if err != nil {
		return err
	}
	head := l.head()
	cp.UndoTo = &head
	if !isAct(*cp) {
		return nil
	}
	if cp.TurnID == nil { // within a turn, it is the turn that is undone
		open, err := d.store.OpenTurns(ctx, a.rec().ID)
		if err != nil || slices.ContainsFunc(open, func(t store.Turn) bool { return !t.Inferred }) {
			return err
		}
	}
	cp.UndoNext = &cp.ID
	return nil
}

// next is where undo goes after the rollback. The agent's own rollback within its turn
// is a part of the turn; one of a part leaves the rest of each act in the app.
func (r *rollback) next(ctx context.Context) (*ipc.CheckpointID, error) {
	back := r.target.UndoTo
	switch {
	case r.plan.Turn != "":
		return &r.safety.ID, r.d.adopt(ctx, r.a, r.plan.Turn, r.safety.ID)
	case r.plan.Revert != "":
		return &r.safety.ID, nil
	case r.plan.Aimed:
		return back, nil
	case r.plan.Scoped:
		return r.safety.UndoTo, nil
	}
	head := r.safety.UndoTo
	if head == nil || *head == "" {
		return back, nil
	}
	open, err := r.d.store.OpenTurns(ctx, r.a.rec().ID)
	if slices.ContainsFunc(open, func(t store.Turn) bool { return t.CheckpointID != nil && *t.CheckpointID == *head }) {
		return head, err
	}
	return back, err
}

// opens is the turn that begins with this rollback, if one does: an agent's that is open
// and changed nothing so far. The agent says who it is, or it is in the middle of a call.
func (r *rollback) opens(ctx context.Context) (ipc.TurnID, error) {
	open, err := r.d.store.OpenTurns(ctx, r.a.rec().ID)
	if err != nil {
		return "", err
	}
	for _, t := range slices.Backward(open) {
		if t.Inferred || t.CheckpointID != nil {
			continue
		}
		calls, err := r.d.store.Calls(ctx, t.Seq)
		if err != nil {
			return "", err
		}
		said := r.req.ConversationID != "" && r.req.ConversationID == t.ConversationID ||
			slices.ContainsFunc(calls, func(c store.Call) bool { return r.req.CallID != "" && c.ID == r.req.CallID })
		at := slices.ContainsFunc(calls, func(c store.Call) bool { return c.EndedAt == nil })
		if said || at && !r.plan.Aimed { // an undo in the middle of a call is likely a person's
			return t.ID, nil
		}
	}
	return "", nil
}

// adopt takes the safety checkpoint of the rollback that a turn began with for the turn's
// checkpoint: one undo takes back the rollback and what the turn did after it.
func (d *Daemon) adopt(ctx context.Context, a *app, turn ipc.TurnID, cp ipc.CheckpointID) error {
	rec, err := d.store.Turn(ctx, a.rec().ID, turn)
	if err != nil {
		return err
	}
	if t := trackerOf(a); t != nil {
		if o := t.openTurn(turn); o != nil {
			t.mu.Lock()
			o.rec.CheckpointID = &cp
			rec = o.rec
			t.mu.Unlock()
		}
	}
	rec.CheckpointID = &cp
	return d.store.PutTurn(ctx, &rec)
}

// rejoin notes that a turn that was undone while it went on did something again.
func (d *Daemon) rejoin(ctx context.Context, a *app, act ipc.CheckpointID) error {
	l, err := d.lineOf(ctx, a)
	if err != nil || l.find(act) < 0 || l.holds(act) {
		return err
	}
	newest := l[0]
	newest.UndoNext = &act
	return d.store.PutCheckpoint(ctx, newest, "")
}

// allTurns refuses an undo while the newest turn's checkpoint could not be made: it would
// undo the turn before that one.
func (r *rollback) allTurns(ctx context.Context) error {
	t := trackerOf(r.a)
	if t == nil || !r.plan.Aimed || r.req.Turns == 0 {
		return nil
	}
	for _, o := range t.withoutCheckpoint() {
		if o.rec.Inferred {
			continue
		}
		short, cancel := context.WithTimeout(ctx, flushLong)
		_, err := t.flush(short)
		cancel()
		if err == nil {
			t.mu.Lock()
			err = errors.New(cmp.Or(t.failed, "it is not made yet"))
			t.mu.Unlock()
		}
		return (&errs.Error{Kind: errs.Failed, Op: "make the checkpoint of the newest turn", Err: err}).
			WithHint("%s", cmp.Or(errs.HintOf(err), "try again; mulligan list shows what there is to go back to"))
	}
	return nil
}

// spareOthers refuses an undo that would take along what was written in between by
// nobody's turn, unless it is to. A dry run says so.
func (r *rollback) spareOthers(ctx context.Context) error {
	t := trackerOf(r.a)
	if t == nil || !r.plan.Aimed || r.req.Turns == 0 || !r.has(snap.Files) {
		return nil
	}
	paths, err := r.unannounced(ctx, t)
	if err != nil {
		r.warn("mulligan could not find out what was written in between without an agent: %v", err)
		return nil
	}
	if len(paths) == 0 {
		return nil
	}
	what := "what was written in between without an agent: " + few(paths)
	switch {
	case r.req.IncludeOthers:
		r.warn("it also undoes %s", what)
	case r.req.DryRun:
		r.warn("it would also undo %s; only --include-others does that", what)
	default:
		return errs.New(errs.Conflict, "", "it would also undo %s", what).
			WithHint("mulligan undo --dry-run shows what; mulligan undo --include-others undoes it too; mulligan revert undoes an agent's writes alone")
	}
	return nil
}

// unannounced lists the paths in scope that were written since the target outside of
// all announced turns, and not by mulligan.
func (r *rollback) unannounced(ctx context.Context, t *tracker) ([]string, error) {
	short, cancel := context.WithTimeout(ctx, flushLong)
	defer cancel()
	now, err := t.flush(short)
	if err != nil {
		return nil, err
	}
	turns, err := r.d.store.Turns(ctx, r.a.rec().ID, 0)
	if err != nil {
		return nil, err
	}
	var stints []*stint
	for _, turn := range turns {
		end := turn.End
		if turn.EndedAt == nil {
			end = now
		}
		if !turn.Inferred && turn.Start != "" && end != "" {
			stints = append(stints, &stint{turn: turn, from: turn.Start, to: end})
		}
	}
	l, err := r.d.ledgerOf(ctx, t, stints, nil)
	if err != nil {
		return nil, err
	}
	late, err := r.lateWrites(ctx, t, now)
	var paths []string
	for _, w := range late {
		p := place{w.Path, w.At}
		if !l.ours[p] && len(l.owners[p]) == 0 && inScope(r.scope, w.Path) && !slices.Contains(paths, w.Path) {
			paths = append(paths, w.Path)
		}
	}
	return withoutRefresh(paths), err
}

// withoutRefresh leaves git's index out where nothing else of the repository changed:
// git status writes it too.
func withoutRefresh(paths []string) []string {
	other := func(p string) bool { return strings.HasPrefix(p, ".git/") && !isIndex(p) }
	if slices.ContainsFunc(paths, other) {
		return paths
	}
	return slices.DeleteFunc(paths, isIndex)
}

func isIndex(p string) bool { return p == ".git/index" || p == ".git/index.lock" || p == ".git" }
