package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"mulligan/daemon/events"
	"mulligan/daemon/retention"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// public is a checkpoint's record as clients see it, but for its size.
func public(cp store.Checkpoint) ipc.Checkpoint {
	v := cp.Checkpoint
	v.DBSnapshots = []ipc.DBSnapshot{}
	v.VMSnapshotID, v.DBSnapshotID, v.FilesSnapshot, v.FilesHash = nil, nil, nil, nil
	for _, s := range cp.Snapshots {
		id := string(s.ID)
		if s.Raw {
			v.Raw = append(v.Raw, string(s.Layer))
		}
		switch s.Layer {
		case snap.Files:
			hash := s.Hash.String()
			v.FilesSnapshot, v.FilesHash = &id, &hash
		case snap.Disk:
			v.VMSnapshotID = &id
		default:
			v.DBSnapshots = append(v.DBSnapshots, ipc.DBSnapshot{
				Database: string(s.Layer)[len("db:"):], SnapshotID: id, Driver: s.Driver, Position: s.Position, Rehearsed: s.Rehearsed(),
			})
			if ok := s.Rehearsed(); ok != nil && (v.Rehearsed == nil || *v.Rehearsed) {
				v.Rehearsed = ok
			}
			if r := s.Rehearsal; r != nil && r.Problem != "" {
				v.Warnings = append(slices.Clip(v.Warnings), string(s.Layer)+": "+cannotBeRestored(r.Problem))
			}
		}
	}
	if len(v.DBSnapshots) > 0 {
		v.DBSnapshotID = &v.DBSnapshots[0].SnapshotID
	}
	return v
}

// show is a checkpoint with its size.
func (d *Daemon) show(ctx context.Context, a *app, cp store.Checkpoint) (ipc.Checkpoint, error) {
	v := public(cp)
	all := a.knownSizes()
	size, known := all.each[cp.ID]
	damage := all.damage[cp.ID]
	var err error
	if !known {
		size, damage, err = a.measure(ctx, "", cp)
	}
	v.SizeBytes, v.Damaged = size, cmp.Or(v.Damaged, damage)
	return v, err
}

// sized gives each checkpoint's size and that of all of them. They are kept
// until the next operation on the app.
func (d *Daemon) sized(ctx context.Context, a *app, cps []store.Checkpoint) (sizes, error) {
	s := a.knownSizes()
	if s.each != nil && len(s.each) == len(cps) {
		return s, nil
	}
	s = sizes{each: make(map[ipc.CheckpointID]int64, len(cps)), damage: map[ipc.CheckpointID]string{}}
	for _, cp := range cps {
		n, missing, err := a.measure(ctx, "", cp)
		if err != nil {
			return s, err
		}
		if s.each[cp.ID] = n; missing != "" {
			s.damage[cp.ID] = missing
		}
	}
	turns, err := d.store.Turns(ctx, a.rec().ID, 1)
	if err != nil && errs.KindOf(err) != errs.Corrupt { // of a damaged one the journal's size is not known
		return s, err
	}
	if s.total, err = a.held(ctx, newestMark(turns), cps...); err != nil {
		return s, err
	}
	a.keepSizes(s)
	return s, nil
}

// measured reads an app's checkpoints and their sizes. One that is deleted in
// between is in the records and not in the store: they are read again then.
func (d *Daemon) measured(ctx context.Context, a *app) (cps []store.Checkpoint, s sizes, err error) {
	const tries = 3
	for range tries {
		was := len(cps)
		if cps, err = d.store.Checkpoints(ctx, a.rec().ID); err != nil {
			return nil, s, err
		}
		if s, err = d.sized(ctx, a, cps); err != nil || len(s.damage) == 0 || was == len(cps) {
			break
		}
	}
	return cps, s, err
}

// Checkpoints lists an app's checkpoints, newest first, and what they occupy.
func (d *Daemon) Checkpoints(ctx context.Context, who ipc.Caller, ref string, q ipc.CheckpointQuery) (ipc.CheckpointList, error) {
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.CheckpointList{}, err
	}
	cps, sizes, err := d.measured(ctx, a)
	if err != nil {
		return ipc.CheckpointList{}, err
	}
	list := ipc.CheckpointList{Checkpoints: []ipc.Checkpoint{}, StorageUsage: ipc.StorageUsage{
		CheckpointCount: len(cps), TotalBytes: sizes.total,
		KeepLast: a.rec().Retention.KeepLast, DailyDays: a.rec().Retention.DailyDays,
	}}
	if q.Before != "" {
		i := slices.IndexFunc(cps, func(c store.Checkpoint) bool { return c.ID == q.Before })
		if i < 0 {
			return ipc.CheckpointList{}, errs.New(errs.NotFound, "list checkpoints", "no checkpoint %.64q", string(q.Before))
		}
		for _, cp := range cps[:i+1] {
			if cp.Pinned {
				list.StorageUsage.PinnedCount++
			}
		}
		cps = cps[i+1:]
	}
	for _, cp := range cps {
		if cp.Pinned {
			list.StorageUsage.PinnedCount++
		}
		if q.Trigger != "" && cp.Trigger != q.Trigger || q.Conversation != "" && (cp.ConversationID == nil || *cp.ConversationID != q.Conversation) ||
			q.Limit > 0 && len(list.Checkpoints) >= q.Limit {
			continue
		}
		v := public(cp)
		v.SizeBytes, v.Damaged = sizes.each[cp.ID], cmp.Or(v.Damaged, sizes.damage[cp.ID])
		list.Checkpoints = append(list.Checkpoints, v)
	}
	return list, nil
}

// Checkpoint gives one.
func (d *Daemon) Checkpoint(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID) (ipc.Checkpoint, error) {
	a, cp, err := d.findCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	return d.show(ctx, a, cp)
}

func (d *Daemon) findCheckpoint(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID) (*app, store.Checkpoint, error) {
	a, err := d.find(who, ref)
	if err != nil {
		return nil, store.Checkpoint{}, err
	}
	cp, err := d.store.Checkpoint(ctx, a.rec().ID, id)
	return a, cp, err
}

// Pin pins or unpins a checkpoint.
func (d *Daemon) Pin(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, pinned bool) (ipc.Checkpoint, error) {
	a, cp, err := d.findCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	action := "unpin"
	if pinned {
		action = "pin"
	}
	if err := d.store.SetPinned(ctx, a.rec().ID, id, pinned); err != nil {
		return ipc.Checkpoint{}, err
	}
	d.WriteAudit(ctx, a.rec(), who, action, string(id), "", nil, nil)
	cp.Pinned = pinned
	shown, err := d.show(ctx, a, cp)
	if err == nil {
		d.Publish(a.rec().ID, "checkpoint", shown)
	}
	return shown, err
}

// Verify checks what is stored for a checkpoint: that it is there, or byte by
// byte. Damage is in the result; an error means that it could not be checked.
func (d *Daemon) Verify(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, depth snap.Depth) (ipc.VerifyResult, error) {
	a, cp, err := d.findCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.VerifyResult{}, err
	}
	res := ipc.VerifyResult{CheckpointID: id, OK: true, Problems: []ipc.VerifyProblem{}}
	for _, s := range cp.Snapshots {
		l, ok := a.layer(s.Layer)
		if !ok {
			res.Warnings = append(res.Warnings, fmt.Sprintf("the app no longer has %s: what is stored of it was not checked", s.Layer))
			continue
		}
		err := l.Driver.Verify(ctx, s.ID, depth)
		if err == nil {
			continue
		}
		if k := errs.KindOf(err); k != errs.Corrupt && k != errs.NotFound {
			return ipc.VerifyResult{}, err
		}
		res.OK = false
		res.Problems = append(res.Problems, ipc.VerifyProblem{Layer: string(s.Layer), Message: err.Error()})
	}
	return res, nil
}

// Delete drops a checkpoint; a pinned one is errs.Pinned.
func (d *Daemon) Delete(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID) error {
	const op = "delete checkpoint"
	a, _, err := d.findCheckpoint(ctx, who, ref, id)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	release, err := d.acquire(ctx, a, op, who)
	if err != nil {
		return err
	}
	defer release()
	cp, err := d.store.Checkpoint(ctx, a.rec().ID, id)
	if err == nil {
		entry := d.Entry(a.rec(), who, "delete", string(id), "", nil, nil)
		err = d.deleteCheckpoints(ctx, a, &entry, cp)
	}
	if err != nil {
		d.WriteAudit(ctx, a.rec(), who, "delete", string(id), "", err, nil)
	}
	return errs.Wrap(errs.Failed, op, err)
}

// deleteCheckpoints forgets checkpoints, then drops their snapshots. What a crash
// leaves in between the next start drops, by the disposals that were written down
// together with the entry of the audit trail.
func (d *Daemon) deleteCheckpoints(ctx context.Context, a *app, entry *ipc.AuditEntry, cps ...store.Checkpoint) error {
	var ids []ipc.CheckpointID
	var snaps []store.Snapshot
	for _, cp := range cps {
		ids = append(ids, cp.ID)
		snaps = append(snaps, cp.Snapshots...)
	}
	if err := d.store.DeleteCheckpoints(ctx, entry, ids...); err != nil {
		return err
	}
	d.Operations.WithLabelValues(entry.Action, events.ResultOf(nil)).Inc()
	a.dropSizes()
	if len(ids) > 0 {
		d.Publish(a.rec().ID, "deleted", ids)
	}
	if err := d.opt.Failpoint.At("drop snapshots"); err != nil {
		return err
	}
	for _, id := range ids {
		d.store.WasDisposed(store.Disposal{Kind: store.DisposeCheckpoint, ID: string(id), AppID: a.rec().ID})
	}
	return d.drop(ctx, a, snaps)
}

// Prune applies the app's retention rules now, or says what they would drop.
func (d *Daemon) Prune(ctx context.Context, who ipc.Caller, ref string, dryRun bool) (ipc.PruneResult, error) {
	const op = "prune"
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.PruneResult{}, err
	}
	ctx = context.WithoutCancel(ctx)
	release, err := d.acquire(ctx, a, op, who)
	if err != nil {
		return ipc.PruneResult{}, err
	}
	defer release()
	res, err := d.prune(ctx, a, who, dryRun)
	if !dryRun && (err != nil || len(res.Deleted) == 0) {
		d.WriteAudit(ctx, a.rec(), who, "prune", "", "", err, res)
	}
	return res, errs.Wrap(errs.Failed, op, err)
}

// pruneAfter prunes behind an operation that is done already: trouble is
// logged and does not make that operation a failure.
func (d *Daemon) pruneAfter(ctx context.Context, a *app, who ipc.Caller, protected ...ipc.CheckpointID) {
	res, err := d.prune(ctx, a, who, false, protected...)
	if err != nil {
		d.opt.Log.Error("pruning failed", "app", a.rec().Slug, "err", err)
		d.WriteAudit(ctx, a.rec(), who, "prune", "", "", err, res)
	}
}

// prune applies the rules. What is deleted by them is in the audit trail as soon as it is decided.
func (d *Daemon) prune(ctx context.Context, a *app, who ipc.Caller, dryRun bool, protected ...ipc.CheckpointID) (ipc.PruneResult, error) {
	res := ipc.PruneResult{Deleted: []ipc.CheckpointID{}}
	cps, err := d.store.Checkpoints(ctx, a.rec().ID)
	if err != nil {
		return res, err
	}
	doomed, over, err := d.doomed(ctx, a, cps, protected)
	if err != nil {
		return res, err
	}
	if res.Warnings = tooMuch(a.rec().Retention.MaxBytes, over); !dryRun {
		a.noteSize(res.Warnings)
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
		entry := d.Entry(a.rec(), who, "prune", "", "", nil, res)
		if err := d.deleteCheckpoints(ctx, a, &entry, drop...); err != nil {
			return res, err
		}
	}
	return res, d.trimTurns(ctx, a, slices.DeleteFunc(cps, func(cp store.Checkpoint) bool {
		return slices.Contains(res.Deleted, cp.ID)
	}))
}

// reweigh finds out once, when the daemon has started, which apps exceed max_bytes: the
// prunes of the daemon before knew.
func (d *Daemon) reweigh(ctx context.Context) {
	for _, a := range d.all() {
		if a.rec().Retention.MaxBytes <= 0 {
			continue
		}
		if err := d.reweighApp(ctx, a); err != nil && ctx.Err() == nil {
			d.opt.Log.Warn("see whether what is kept exceeds max_bytes", "app", a.rec().Slug, "err", err)
		}
	}
}

func (d *Daemon) reweighApp(ctx context.Context, a *app) error {
	release, err := d.acquireBrief(ctx, a, "see what is kept")
	if err != nil {
		return err
	}
	defer release()
	cps, err := d.store.Checkpoints(ctx, a.rec().ID)
	if err != nil {
		return err
	}
	_, over, err := d.doomed(ctx, a, cps, nil)
	if err == nil {
		a.noteSize(tooMuch(a.rec().Retention.MaxBytes, over))
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
func (d *Daemon) doomed(ctx context.Context, a *app, cps []store.Checkpoint, protected []ipc.CheckpointID) (ids []ipc.CheckpointID, over int64, err error) {
	turns, err := d.store.Turns(ctx, a.rec().ID, 0)
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
	return retention.Plan(d.opt.Now(), a.rec().Retention, items, func(drop []ipc.CheckpointID) (int64, error) {
		if all < 0 {
			n, err := a.held(ctx, newestMark(turns), cps...)
			if err != nil {
				return 0, err
			}
			all = n
		}
		gone, kept := parted(cps, drop)
		freed, err := a.held(ctx, neededFrom(turns, a.rec().Retention.KeepTurns, kept), gone...)
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

// Audit lists an app's audit trail, newest first, and checks it where verify is set.
func (d *Daemon) Audit(ctx context.Context, who ipc.Caller, ref string, limit int, verify bool) (list ipc.AuditList, err error) {
	a, err := d.find(who, ref)
	if err != nil {
		return list, err
	}
	if list.Entries, err = d.store.AuditTrail(ctx, a.rec().ID, limit); err != nil || !verify {
		return list, err
	}
	n, head, err := d.store.VerifyAudit(ctx)
	list.Check = &ipc.AuditCheck{OK: err == nil, Entries: n, Head: head.String()}
	if errs.KindOf(err) == errs.Corrupt {
		list.Check.Problem, err = err.Error(), nil
	}
	return list, err
}
