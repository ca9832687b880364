package rollback

import (
	"context"
	"encoding/json"
	"time"

	"mulligan/daemon/store"
	"mulligan/ipc"
	"mulligan/snap"
)

// The kinds of operations, as the records call them.
const (
	KindRollback = "rollback"
	KindRevert   = "revert" // its plan is a rollback's
)

// phase is how far a rollback got: what recovery goes by.
type phase string

// The phases. The step from preparing to switching is the commit point: a
// crash before it leads back, a crash after it leads forward.
const (
	preparing phase = "preparing" // no layer has been changed
	switching phase = "switching" // some layers may have been
	undoing   phase = "undoing"   // something failed: every layer goes back
	undone    phase = "undone"    // all layers are back, the app may be up
	switched  phase = "switched"  // all layers are at the target, the app may be up
)

// rollbackPlan is the durable plan of a rollback.
type rollbackPlan struct {
	Phase  phase            `json:"phase"`
	Target ipc.CheckpointID `json:"target"`
	Safety ipc.CheckpointID `json:"safety"`
	// Running: the unit was up before, or going to be; putting the app back starts it.
	Running bool `json:"running"`
	// Limping: it was not well up, so that one which does not start when it is put back
	// is as it was.
	Limping bool `json:"limping,omitempty"`
	// Start: the rollback starts the app at its end. WhyDown says why not. Without
	// either, as in older plans, Running decides.
	Start   bool         `json:"start,omitempty"`
	WhyDown string       `json:"why_down,omitempty"`
	Layers  []snap.Layer `json:"layers"`
	Verify  bool         `json:"verify"`
	Aimed   bool         `json:"aimed,omitempty"`  // it is an undo or a redo
	Scoped  bool         `json:"scoped,omitempty"` // it is of a part of the app
	Turn    ipc.TurnID   `json:"turn,omitempty"`   // an agent's that begins with it
	Paths   bool         `json:"paths,omitempty"`  // it is of some paths of the files
	// Without are the layers that were asked to stay as they are. Behind are these and
	// those in scope that the target holds nothing of.
	Without []string  `json:"without,omitempty"`
	Behind  []string  `json:"behind,omitempty"`
	Actor   string    `json:"actor"`
	Reason  string    `json:"reason"`
	Begun   time.Time `json:"begun"`
	// Revert is what a revert undoes, in words; "" for a rollback. It has no target,
	// and leaves the unit alone.
	Revert string `json:"revert,omitempty"`
}

// writePlan makes the plan durable, with a new phase.
func (r *rollback) writePlan(ctx context.Context, p phase) error {
	if err := r.d.opt.Failpoint.At("plan " + string(p)); err != nil {
		return err
	}
	r.plan.Phase = p
	plan, err := json.Marshal(r.plan)
	if err != nil {
		return err
	}
	return r.d.store.PutOperation(ctx, store.Operation{ID: r.op, AppID: r.a.Rec().ID, Kind: r.goal.kind(), Plan: plan}, r.d.opt.Now())
}
