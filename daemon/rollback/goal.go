package rollback

import (
	"context"
	"math"

	"mulligan/daemon/accounts"
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
	changes(p part, sw snap.Switch) (list []snap.Change, total int)
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

func (g *toCheckpoint) kind() string    { return KindRollback }
func (g *toCheckpoint) words() string   { return "rollback to " + string(g.r.plan.Target) }
func (g *toCheckpoint) stopsApp() bool  { return true }
func (g *toCheckpoint) narrows() bool   { return true }
func (g *toCheckpoint) lacks() []string { return g.r.lacks() }

func (g *toCheckpoint) prepare(ctx context.Context, p *part) error { return g.r.prepareTarget(ctx, p) }

// changes lists those of files with the repository's in one line.
func (g *toCheckpoint) changes(p part, sw snap.Switch) (list []snap.Change, total int) {
	if p.Name != snap.Files {
		return sw.Changes(maxChanges)
	}
	list, _ = sw.Changes(math.MaxInt)
	return g.r.fold(list)
}

func (g *toCheckpoint) resume(ctx context.Context) (err error) {
	g.r.target, err = g.r.d.store.Checkpoint(ctx, g.r.a.Rec().ID, g.r.plan.Target)
	return err
}

func (g *toCheckpoint) undoNext(ctx context.Context) (*ipc.CheckpointID, error) { return g.r.next(ctx) }
func (g *toCheckpoint) behind(ctx context.Context) ([]string, error)            { return g.r.behind(ctx) }

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
func (g *withoutWrites) lacks() []string { return nil } // it is for the revert alone

func (g *withoutWrites) prepare(ctx context.Context, p *part) error {
	_, r, err := g.v.layer()
	if err != nil {
		return err
	}
	sw, how, err := r.PrepareRevert(ctx, g.v.request(g.r.op, p.base))
	if err == nil && sw == nil {
		err = errs.New(errs.Conflict, "", "the files to undo changed meanwhile").WithHint("try again")
	}
	p.sw, g.how = sw, how
	return err
}

// changes lists every path.
func (g *withoutWrites) changes(_ part, sw snap.Switch) (list []snap.Change, total int) {
	return sw.Changes(math.MaxInt)
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
	for _, c := range g.r.parts[0].list {
		res.RestoredPaths = append(res.RestoredPaths, c.Path)
	}
	g.r.d.events.WriteAudit(ctx, g.r.a.Rec(), accounts.Self(), KindRevert, g.r.plan.Revert, g.r.plan.Reason, err, res)
}
