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

// phase is how far a rollback got. Recovery decides by it.
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
	// Running says that the unit was up before, or about to be: putting the app back starts it.
	Running bool `json:"running"`
	// Limping says that the unit was not well up before: if it does not start when the app is put
	// back, it is as it was.
	Limping bool `json:"limping,omitempty"`
	// Start says that the rollback starts the app at its end, and WhyDown why it does not. Without
	// either, as in older plans, Running decides.
	Start    bool         `json:"start,omitempty"`
	WhyDown  string       `json:"why_down,omitempty"`
	Layers   []snap.Layer `json:"layers"`
	Verify   bool         `json:"verify"`
	UndoRedo bool         `json:"aimed,omitempty"`  // the rollback is an undo or a redo
	Scoped   bool         `json:"scoped,omitempty"` // the request names a scope
	Turn     ipc.TurnID   `json:"turn,omitempty"`   // the agent's turn that begins with the rollback
	Paths    bool         `json:"paths,omitempty"`  // the scope is some paths of the files
	// Without are the layers that the request leaves as they are. Behind are these, and the layers
	// in scope that the target does not hold.
	Without []string  `json:"without,omitempty"`
	Behind  []string  `json:"behind,omitempty"`
	Actor   string    `json:"actor"`
	Reason  string    `json:"reason"`
	Begun   time.Time `json:"begun"`
	// Revert is what a revert undoes, in words; "" for a rollback. A revert has no target and leaves
	// the unit alone.
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
