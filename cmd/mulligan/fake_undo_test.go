package main

import (
	"encoding/json"

	"mulligan/errs"
	"mulligan/ipc"
)

// aim returns the index of the checkpoint that undo or redo goes to. The turns of a fake are the
// checkpoints that agents made.
func (f *fake) aim(a *fakeApp, id ipc.CheckpointID) (int, error) {
	wentTo, failed := map[ipc.CheckpointID]ipc.CheckpointID{}, map[ipc.CheckpointID]bool{}
	for _, e := range a.audit {
		var r ipc.RollbackResult
		if e.Action != "rollback" || json.Unmarshal(e.Detail, &r) != nil || r.SafetyCheckpoint == nil {
			continue
		}
		failed[r.SafetyCheckpoint.ID] = !r.RolledBack
		if r.RolledBack {
			wentTo[r.SafetyCheckpoint.ID] = r.RestoredTo.ID
		}
	}
	for i := 0; i < len(a.points); i++ {
		cp := a.points[i].Checkpoint
		switch {
		case id == ipc.Redo && cp.Trigger == ipc.TriggerPreRollback && !failed[cp.ID]:
			return i, nil
		case id == ipc.Redo:
		case wentTo[cp.ID] != "": // the checkpoints in between are undone
			for a.points[i].ID != wentTo[cp.ID] {
				i++
			}
		case cp.Trigger == ipc.TriggerAgent:
			return i, nil
		}
	}
	if id == ipc.Redo {
		return 0, errs.New(errs.NotFound, "redo", "there is no rollback to redo").WithHint("see `mulligan log`")
	}
	return 0, errs.New(errs.NotFound, "undo", "there is no turn's checkpoint to go to").
		WithHint("`mulligan rollback 1` goes to the newest checkpoint of any kind")
}
