package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/retention"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Prune applies the app's retention rules. With dryRun it only returns what they would delete.
func (svc *Service) Prune(ctx context.Context, who ipc.Caller, ref string, dryRun bool) (ipc.PruneResult, error) {
	const op = "prune"
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.PruneResult{}, err
	}
	ctx = context.WithoutCancel(ctx)
	release, err := svc.apps.Acquire(ctx, a, op, who)
	if err != nil {
		return ipc.PruneResult{}, err
	}
	defer release()
	if !dryRun {
		svc.store.GiveToDelete()
	}
	res, err := svc.prune(ctx, a, who, dryRun)
	if !dryRun && (err != nil || len(res.Deleted) == 0) {
		svc.events.WriteAudit(ctx, a.Rec(), who, "prune", "", "", err, res)
	}
	return res, errs.Wrap(errs.Failed, op, err)
}

// PruneAfter prunes after another operation has succeeded. It logs errors and does not return
// them, since that operation must not fail by them.
func (svc *Service) PruneAfter(ctx context.Context, a *app.App, who ipc.Caller, protected ...ipc.CheckpointID) {
	res, err := svc.prune(ctx, a, who, false, protected...)
	if err != nil {
		svc.opt.Log.Error("pruning failed", "app", a.Rec().Slug, "err", err)
		svc.events.WriteAudit(ctx, a.Rec(), who, "prune", "", "", err, res)
	}
}

// prune applies the rules. The deletions are in the audit trail as soon as they are decided.
func (svc *Service) prune(ctx context.Context, a *app.App, who ipc.Caller, dryRun bool, protected ...ipc.CheckpointID) (ipc.PruneResult, error) {
	res := ipc.PruneResult{Deleted: []ipc.CheckpointID{}}
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return res, err
	}
	toDelete, over, err := svc.toDelete(ctx, a, cps, protected)
	if err != nil {
		return res, err
	}
	if res.Warnings = tooMuch(a.Rec().Retention.MaxBytes, over); !dryRun {
		a.NoteSize(res.Warnings)
	}
	var drop []store.Checkpoint
	for _, cp := range cps {
		if slices.Contains(toDelete, cp.ID) {
			drop = append(drop, cp)
			res.Deleted = append(res.Deleted, cp.ID)
		}
	}
	res.Kept = len(cps) - len(drop)
	if dryRun {
		return res, nil
	}
	if len(drop) > 0 {
		entry := svc.events.Entry(a.Rec(), who, "prune", "", "", nil, res)
		if err := svc.DeleteCheckpoints(ctx, a, &entry, drop...); err != nil {
			return res, err
		}
	}
	return res, svc.trimTurns(ctx, a, slices.DeleteFunc(cps, func(cp store.Checkpoint) bool {
		return slices.Contains(res.Deleted, cp.ID)
	}))
}

// CheckSizes finds out, once after a start, which apps exceed max_bytes. Later prunes find that
// out themselves.
func (svc *Service) CheckSizes(ctx context.Context) {
	for _, a := range svc.apps.All() {
		if a.Rec().Retention.MaxBytes <= 0 {
			continue
		}
		if err := svc.checkAppSize(ctx, a); err != nil && ctx.Err() == nil {
			svc.opt.Log.Warn("see whether what is kept exceeds max_bytes", "app", a.Rec().Slug, "err", err)
		}
	}
}

func (svc *Service) checkAppSize(ctx context.Context, a *app.App) error {
	release, err := svc.apps.AcquireBrief(ctx, a, "see what is kept")
	if err != nil {
		return err
	}
	defer release()
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return err
	}
	_, over, err := svc.toDelete(ctx, a, cps, nil)
	if err == nil {
		a.NoteSize(tooMuch(a.Rec().Retention.MaxBytes, over))
	}
	return err
}

// tooMuch returns a warning if the checkpoints that somebody asked for exceed max_bytes; over is
// by how many bytes.
func tooMuch(limit, over int64) []string {
	if over <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("the checkpoints take %d bytes more than max_bytes (%d), and those that somebody asked for are not deleted for their size: "+
		"delete or unpin some, or raise retention.max_bytes", over, limit)}
}

// kindOf returns the kind of a checkpoint for the retention rules. turns are the app's turns: a
// checkpoint of an older daemon does not record that its turn was inferred.
func kindOf(cp store.Checkpoint, turns []store.Turn) retention.Kind {
	switch {
	case cp.CalledOff:
		return retention.CalledOff
	case cp.Trigger == ipc.TriggerPreRollback:
		return retention.Safety
	case cp.TurnID == nil:
		return retention.Asked
	case cp.Inferred, slices.ContainsFunc(turns, func(t store.Turn) bool { return t.Inferred && string(t.ID) == *cp.TurnID }):
		return retention.Inferred
	}
	return retention.Turn
}

// toDelete applies the retention rules and returns the checkpoints to delete. over is by how many
// bytes the remaining ones exceed max_bytes.
func (svc *Service) toDelete(ctx context.Context, a *app.App, cps []store.Checkpoint, protected []ipc.CheckpointID) (ids []ipc.CheckpointID, over int64, err error) {
	turns, err := svc.store.Turns(ctx, a.Rec().ID, 0)
	if err != nil {
		return nil, 0, err
	}
	var items []retention.Item
	for _, cp := range cps {
		items = append(items, retention.Item{
			ID: cp.ID, CreatedAt: cp.CreatedAt, Kind: kindOf(cp, turns), Pinned: cp.Pinned,
			ExpiresAt: cp.ExpiresAt, Protected: cp.Damaged != "" || slices.Contains(protected, cp.ID),
		})
	}
	all := int64(-1) // the size of all checkpoints and the journal; -1 until it is measured
	return retention.Plan(svc.opt.Now(), a.Rec().Retention, items, func(drop []ipc.CheckpointID) (int64, error) {
		if all < 0 {
			n, err := a.FreedBy(ctx, newestMark(turns), cps...)
			if err != nil {
				return 0, err
			}
			all = n
		}
		gone, kept := parted(cps, drop)
		freed, err := a.FreedBy(ctx, neededFrom(turns, a.Rec().Retention.KeepTurns, kept), gone...)
		return all - freed, err
	})
}

// parted splits checkpoints into those that drop lists and the others.
func parted(cps []store.Checkpoint, drop []ipc.CheckpointID) (gone, kept []store.Checkpoint) {
	for _, cp := range cps {
		if slices.Contains(drop, cp.ID) {
			gone = append(gone, cp)
		} else {
			kept = append(kept, cp)
		}
	}
	return gone, kept
}

// trimTurns forgets turns that are beyond the app's allowance and have no checkpoint any more. It
// then truncates the journal as far as nothing needs it.
func (svc *Service) trimTurns(ctx context.Context, a *app.App, kept []store.Checkpoint) error {
	recs, err := svc.store.Turns(ctx, a.Rec().ID, 0)
	if err != nil {
		return err
	}
	oldest := oldestRemembered(recs, a.Rec().Retention.KeepTurns, kept)
	if oldest >= 0 && oldest < len(recs)-1 {
		if err := svc.dropTurns(ctx, a, recs[oldest]); err != nil {
			return err
		}
	}
	from := neededFrom(recs, a.Rec().Retention.KeepTurns, kept)
	f := a.Following()
	if f == nil || from == "" {
		return nil
	}
	svc.store.WakeCollector()
	return f.Driver().(snap.Journal).Trim(ctx, from)
}

// oldestRemembered returns the place of the oldest turn that is not forgotten: it is open, among the keep newest, or still has its checkpoint. It is -1
// if there is none.
func oldestRemembered(newestFirst []store.Turn, keep int, kept []store.Checkpoint) int {
	alive, oldest, allowed := aliveIn(kept), -1, allowance(newestFirst, keep)
	for i, rec := range newestFirst {
		if allowed[i] || rec.EndedAt == nil || alive(rec) {
			oldest = i
		}
	}
	return oldest
}

// dropTurns deletes the records of the turns older than oldest.
func (svc *Service) dropTurns(ctx context.Context, a *app.App, oldest store.Turn) error {
	if err := svc.store.DropTurns(ctx, a.Rec().ID, oldest.Seq); err != nil {
		return err
	}
	return svc.store.DropOwnWrites(ctx, a.Rec().ID, oldest.StartedAt)
}

// neededFrom returns the position from which on the journal is needed: the start of the oldest
// turn that is open, or that is among the keep newest and still has its checkpoint. Checkpoints of
// older turns do not need the journal.
func neededFrom(newestFirst []store.Turn, keep int, kept []store.Checkpoint) snap.Mark {
	alive, from, allowed := aliveIn(kept), newestMark(newestFirst), allowance(newestFirst, keep)
	for i, rec := range newestFirst {
		if (rec.EndedAt == nil || allowed[i] && alive(rec)) && rec.Start != "" {
			from = rec.Start
		}
	}
	return from
}

// allowance reports for each turn whether it is among the keep newest of its kind. Announced and
// inferred turns are the two kinds.
func allowance(newestFirst []store.Turn, keep int) []bool {
	allowed, seen := make([]bool, len(newestFirst)), map[bool]int{}
	for i, rec := range newestFirst {
		allowed[i] = seen[rec.Inferred] < keep
		seen[rec.Inferred]++
	}
	return allowed
}

// newestMark returns the last known position of an app's journal, or "".
func newestMark(newestFirst []store.Turn) snap.Mark {
	if len(newestFirst) == 0 {
		return ""
	}
	if rec := newestFirst[0]; rec.End == "" {
		return rec.Start
	}
	return newestFirst[0].End
}

// aliveIn returns a function that reports whether a turn's checkpoint is among kept.
func aliveIn(kept []store.Checkpoint) func(store.Turn) bool {
	ids := map[ipc.CheckpointID]bool{}
	for _, cp := range kept {
		ids[cp.ID] = true
	}
	return func(rec store.Turn) bool { return rec.CheckpointID != nil && ids[*rec.CheckpointID] }
}
