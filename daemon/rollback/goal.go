package rollback

import (
	"context"
	"fmt"
	"math"
	"slices"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// goal is what an operation makes of an app: what a checkpoint holds, or the present without some
// writes. The stages, the plan and the recovery are the same for every goal.
type goal interface {
	// kind is what the records call the operation.
	kind() string
	// words says what the operation is, for people.
	words() string
	// stopsApp reports whether the app may not run while the layers are switched.
	stopsApp() bool
	// narrows reports whether the caller could have asked for less, so that a hint may say so.
	narrows() bool
	// prepare prepares one layer beside the live one.
	prepare(ctx context.Context, p *part) error
	// changes lists what the switch of a layer changes, and says how many there are.
	changes(p *part) (list []snap.Change, total int)
	// lacks says which layers the safety checkpoint holds nothing of, as its warnings.
	lacks() []string
	// resume picks up what the plan names, after a crash.
	resume(ctx context.Context) error
	// undoNext is where undo goes afterwards.
	undoNext(ctx context.Context) (*ipc.CheckpointID, error)
	// behind names the layers that are as they were while others went back, afterwards.
	behind(ctx context.Context) ([]string, error)
	// audit writes down how an operation ended that was finished after a crash.
	audit(ctx context.Context, err error)
}

// toCheckpoint is the goal of a rollback.
type toCheckpoint struct{ r *rollback }

func (g *toCheckpoint) kind() string   { return KindRollback }
func (g *toCheckpoint) words() string  { return "rollback to " + string(g.r.plan.Target) }
func (g *toCheckpoint) stopsApp() bool { return true }
func (g *toCheckpoint) narrows() bool  { return true }

// lacks names the layers that the safety checkpoint does not hold, as its warnings.
func (g *toCheckpoint) lacks() (list []string) {
	for _, l := range g.r.a.Layers() {
		if !g.r.parts.has(l.Name) {
			list = append(list, fmt.Sprintf("%s is not in it: the rollback left it as it was", l.Name))
		}
	}
	return list
}

// prepare prepares a layer's switch to its snapshot in the target.
func (g *toCheckpoint) prepare(ctx context.Context, p *part) (err error) {
	r := g.r
	req := snap.RestoreRequest{ID: snap.RestoreID(r.op), Target: p.target, Base: p.base}
	if p.Name == snap.Files && len(r.paths) > 0 {
		scoped, ok := p.Driver.(snap.ScopedPreparer)
		if !ok {
			return errs.New(errs.Unsupported, "", "%s cannot restore single paths", p.About)
		}
		p.sw, err = scoped.PrepareScoped(ctx, req, r.paths)
	} else {
		p.sw, err = p.Driver.Prepare(ctx, req)
	}
	if err != nil {
		r.a.RequestRecovery(nil) // it may have left something where it cannot reach it now
	}
	return r.hints.ofStored(p, err)
}

// changes lists the changes of the files with those of the git repository in one line.
func (g *toCheckpoint) changes(p *part) (list []snap.Change, total int) {
	if p.Name != snap.Files {
		return p.sw.Changes(maxChanges)
	}
	list, _ = p.sw.Changes(math.MaxInt)
	now := g.r.safety.Ref
	if g.r.safety.ID == "" { // a crash came before the safety checkpoint was recorded
		now = app.HeadOf(g.r.a.Rec())
	}
	return checkpoint.FoldRepository(list, now, g.r.target.Ref)
}

func (g *toCheckpoint) resume(ctx context.Context) (err error) {
	g.r.target, err = g.r.d.store.Checkpoint(ctx, g.r.a.Rec().ID, g.r.plan.Target)
	return err
}

// undoNext returns where undo goes after the rollback. The agent's own rollback within its turn
// is a part of the turn; one of a part leaves the rest of each act in the app.
func (g *toCheckpoint) undoNext(ctx context.Context) (*ipc.CheckpointID, error) {
	r := g.r
	back := r.target.UndoTo
	switch {
	case r.plan.Turn != "":
		return &r.safety.ID, r.d.turns.Adopt(ctx, r.a, r.plan.Turn, r.safety.ID)
	case r.plan.UndoRedo:
		return back, nil
	case r.plan.Scoped:
		return r.safety.UndoTo, nil
	}
	head := r.safety.UndoTo
	if head == nil || *head == "" {
		return back, nil
	}
	open, err := r.d.store.OpenTurns(ctx, r.a.Rec().ID)
	if slices.ContainsFunc(open, func(t store.Turn) bool { return t.CheckpointID != nil && *t.CheckpointID == *head }) {
		return head, err
	}
	return back, err
}

// behind returns the layers that are behind once this rollback is done: those that were behind, except
// for those that it restores whole, and those that it left as they were. A redo starts from the layers
// that were behind before the rollback that it goes over.
func (g *toCheckpoint) behind(ctx context.Context) ([]string, error) {
	r := g.r
	l, err := r.d.checkpoints.LineOf(ctx, r.a)
	if err != nil {
		return nil, err
	}
	was := l.BehindOf()
	if at := l.Find(r.target.ID); at >= 0 && r.target.Trigger == ipc.TriggerPreRollback {
		was = l[at+1:].BehindOf()
	}
	var now []string
	for _, name := range was {
		restored := r.parts.has(snap.Layer(name)) && (name != string(snap.Files) || !r.plan.Paths)
		if _, there := r.a.Layer(snap.Layer(name)); there && !restored {
			now = append(now, name)
		}
	}
	if r.target.Trigger != ipc.TriggerPreRollback { // that lacks what its own rollback left
		now = append(now, r.plan.Behind...)
	} else {
		now = append(now, r.plan.Without...)
	}
	slices.Sort(now)
	return slices.Compact(now), nil
}

func (g *toCheckpoint) audit(ctx context.Context, err error) {
	g.r.d.events.WriteAudit(ctx, g.r.a.Rec(), accounts.Self(), KindRollback, string(g.r.plan.Target), g.r.plan.Reason, err, g.r.receipt(ctx, err))
}

// withoutWrites is the goal of a revert: a state that never was, the present one without some writes
// to files. The app runs on, as while an editor writes.
type withoutWrites struct {
	r   *rollback
	v   *revert       // nil after a crash: nothing is prepared then
	how snap.Reverted // set by prepare
}

func (g *withoutWrites) kind() string    { return KindRevert }
func (g *withoutWrites) words() string   { return "revert of " + g.r.plan.Revert }
func (g *withoutWrites) stopsApp() bool  { return false }
func (g *withoutWrites) narrows() bool   { return false }
func (g *withoutWrites) lacks() []string { return nil } // it serves the revert alone

func (g *withoutWrites) prepare(ctx context.Context, p *part) error {
	_, r, err := g.v.layer()
	if err != nil {
		return err
	}
	sw, how, err := r.PrepareRevert(ctx, g.v.request(g.r.op, p.base))
	if err == nil && sw == nil {
		err = errs.New(errs.Conflict, "", "the files to undo changed while the restore was prepared").WithHint("try again")
	}
	p.sw, g.how = sw, how
	return err
}

// changes lists every path.
func (g *withoutWrites) changes(p *part) (list []snap.Change, total int) {
	return p.sw.Changes(math.MaxInt)
}

func (g *withoutWrites) resume(context.Context) error { return nil }

func (g *withoutWrites) undoNext(context.Context) (*ipc.CheckpointID, error) {
	return &g.r.safety.ID, nil
}

func (g *withoutWrites) behind(context.Context) ([]string, error) {
	return g.r.safety.StayedBehind, nil
}

func (g *withoutWrites) audit(ctx context.Context, err error) {
	safety := g.r.d.checkpoints.ShowOrBare(ctx, g.r.a, g.r.safety)
	res := ipc.RevertResult{SafetyCheckpoint: &safety, RestoredPaths: []string{}}
	for _, c := range g.r.parts.list[0].list {
		res.RestoredPaths = append(res.RestoredPaths, c.Path)
	}
	g.r.d.events.WriteAudit(ctx, g.r.a.Rec(), accounts.Self(), KindRevert, g.r.plan.Revert, g.r.plan.Reason, err, res)
}
