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

// Prune applies the app's retention rules now, or says what they would drop.
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
	res, err := svc.prune(ctx, a, who, dryRun)
	if !dryRun && (err != nil || len(res.Deleted) == 0) {
		svc.events.WriteAudit(ctx, a.Rec(), who, "prune", "", "", err, res)
	}
	return res, errs.Wrap(errs.Failed, op, err)
}

// PruneAfter prunes behind an operation that is done already: trouble is
// logged and does not make that operation a failure.
func (svc *Service) PruneAfter(ctx context.Context, a *app.App, who ipc.Caller, protected ...ipc.CheckpointID) {
	res, err := svc.prune(ctx, a, who, false, protected...)
	if err != nil {
		svc.opt.Log.Error("pruning failed", "app", a.Rec().Slug, "err", err)
		svc.events.WriteAudit(ctx, a.Rec(), who, "prune", "", "", err, res)
	}
}

// prune applies the rules. What is deleted by them is in the audit trail as soon as it is decided.
func (svc *Service) prune(ctx context.Context, a *app.App, who ipc.Caller, dryRun bool, protected ...ipc.CheckpointID) (ipc.PruneResult, error) {
	res := ipc.PruneResult{Deleted: []ipc.CheckpointID{}}
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return res, err
	}
	doomed, over, err := svc.doomed(ctx, a, cps, protected)
	if err != nil {
		return res, err
	}
	if res.Warnings = tooMuch(a.Rec().Retention.MaxBytes, over); !dryRun {
		a.NoteSize(res.Warnings)
	}
	var drop []store.Checkpoint
	for _, cp := range cps {
		if slices.Contains(doomed, cp.ID) {
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

// Reweigh finds out once, when the daemon has started, which apps exceed max_bytes: the
// prunes of the daemon before knew.
func (svc *Service) Reweigh(ctx context.Context) {
	for _, a := range svc.apps.All() {
		if a.Rec().Retention.MaxBytes <= 0 {
			continue
		}
		if err := svc.reweighApp(ctx, a); err != nil && ctx.Err() == nil {
			svc.opt.Log.Warn("see whether what is kept exceeds max_bytes", "app", a.Rec().Slug, "err", err)
		}
	}
}

func (svc *Service) reweighApp(ctx context.Context, a *app.App) error {
	release, err := svc.apps.AcquireBrief(ctx, a, "see what is kept")
	if err != nil {
		return err
	}
	defer release()
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return err
	}
	_, over, err := svc.doomed(ctx, a, cps, nil)
	if err == nil {
		a.NoteSize(tooMuch(a.Rec().Retention.MaxBytes, over))
	}
	return err
}

// tooMuch says, in no or one sentence, that what somebody asked for needs more than
// max_bytes.
func tooMuch(limit, over int64) []string {
	if over <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("the checkpoints take %d bytes more than max_bytes (%d), and those that somebody asked for are not deleted for their size: "+
		"delete or unpin some, or raise retention.max_bytes", over, limit)}
}

// kindOf is what a checkpoint is for. turns are those of the app: a checkpoint that an
// older daemon made does not say by itself that its turn was inferred.
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

// doomed applies the retention rules. over is by how many bytes what stays exceeds
// max_bytes.
func (svc *Service) doomed(ctx context.Context, a *app.App, cps []store.Checkpoint, protected []ipc.CheckpointID) (ids []ipc.CheckpointID, over int64, err error) {
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
	all := int64(-1) // what all of them and the journal occupy, once it is asked for
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

// parted parts checkpoints into those that are to be dropped and the others.
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

// trimTurns forgets the turns that are beyond the app's allowance and have no
// checkpoint any more, and lets the journal forget what nothing needs.
func (svc *Service) trimTurns(ctx context.Context, a *app.App, kept []store.Checkpoint) error {
	recs, err := svc.store.Turns(ctx, a.Rec().ID, 0)
	if err != nil {
		return err
	}
	alive := aliveIn(kept)
	oldest := -1
	allowed := allowance(recs, a.Rec().Retention.KeepTurns)
	for i, rec := range recs {
		if allowed[i] || rec.EndedAt == nil || alive(rec) {
			oldest = i
		}
	}
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

// dropTurns forgets what is recorded of the turns before the oldest that stays.
func (svc *Service) dropTurns(ctx context.Context, a *app.App, oldest store.Turn) error {
	if err := svc.store.DropTurns(ctx, a.Rec().ID, oldest.Seq); err != nil {
		return err
	}
	if err := svc.store.DropPointers(ctx, a.Rec().ID, oldest.Seq); err != nil {
		return err
	}
	return svc.store.DropOwnWrites(ctx, a.Rec().ID, oldest.StartedAt)
}

// neededFrom is the position from which on the journal is needed: the start of
// the oldest turn that is open, or has its checkpoint and is among the keep
// newest. A checkpoint that is older than all of those needs no journal.
func neededFrom(newestFirst []store.Turn, keep int, kept []store.Checkpoint) snap.Mark {
	alive, from, allowed := aliveIn(kept), newestMark(newestFirst), allowance(newestFirst, keep)
	for i, rec := range newestFirst {
		if (rec.EndedAt == nil || allowed[i] && alive(rec)) && rec.Start != "" {
			from = rec.Start
		}
	}
	return from
}

// allowance tells which turns are among the keep newest of their kind: those that
// were told of, and those that were inferred.
func allowance(newestFirst []store.Turn, keep int) []bool {
	allowed, seen := make([]bool, len(newestFirst)), map[bool]int{}
	for i, rec := range newestFirst {
		allowed[i] = seen[rec.Inferred] < keep
		seen[rec.Inferred]++
	}
	return allowed
}

// newestMark is the last position that is known of an app's journal, "" if none is.
func newestMark(newestFirst []store.Turn) snap.Mark {
	if len(newestFirst) == 0 {
		return ""
	}
	if rec := newestFirst[0]; rec.End == "" {
		return rec.Start
	}
	return newestFirst[0].End
}

// aliveIn tells whether a turn's checkpoint is among those.
func aliveIn(kept []store.Checkpoint) func(store.Turn) bool {
	ids := map[ipc.CheckpointID]bool{}
	for _, cp := range kept {
		ids[cp.ID] = true
	}
	return func(rec store.Turn) bool { return rec.CheckpointID != nil && ids[*rec.CheckpointID] }
}
