package checkpoint

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Public returns a checkpoint's record as clients see it, without its size.
func Public(cp store.Checkpoint) ipc.Checkpoint {
	v := cp.Checkpoint
	v.DBSnapshots, v.VolumeSnapshots = []ipc.DBSnapshot{}, nil
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
			if name, ok := strings.CutPrefix(string(s.Layer), "volume:"); ok {
				v.VolumeSnapshots = append(v.VolumeSnapshots, ipc.VolumeSnapshot{Volume: name, SnapshotID: id})
				continue
			}
			v.DBSnapshots = append(v.DBSnapshots, ipc.DBSnapshot{
				Database: string(s.Layer)[len("db:"):], SnapshotID: id, Driver: s.Driver, Position: s.Position, Rehearsed: s.Rehearsed(),
			})
			if ok := s.Rehearsed(); ok != nil && (v.Rehearsed == nil || *v.Rehearsed) {
				v.Rehearsed = ok
			}
			if r := s.Rehearsal; r != nil && r.Problem != "" {
				v.Warnings = append(slices.Clip(v.Warnings), string(s.Layer)+": "+app.CannotBeRestored(r.Problem))
			}
		}
	}
	if len(v.DBSnapshots) > 0 {
		v.DBSnapshotID = &v.DBSnapshots[0].SnapshotID
	}
	return v
}

// show returns a checkpoint with its size.
func (svc *Service) show(ctx context.Context, a *app.App, cp store.Checkpoint) (ipc.Checkpoint, error) {
	v := Public(cp)
	all := a.KnownSizes()
	size, known := all.Each[cp.ID]
	damage := all.Damage[cp.ID]
	var err error
	if !known {
		size, damage, err = a.MeasureFreed(ctx, "", cp)
	}
	v.SizeBytes, v.Damaged = size, cmp.Or(v.Damaged, damage)
	return v, err
}

// sized returns the size of each checkpoint and of all together. It keeps them until the next
// operation on the app.
func (svc *Service) sized(ctx context.Context, a *app.App, cps []store.Checkpoint) (app.Sizes, error) {
	s := a.KnownSizes()
	if s.Each != nil && len(s.Each) == len(cps) {
		return s, nil
	}
	s = app.Sizes{Each: make(map[ipc.CheckpointID]int64, len(cps)), Damage: map[ipc.CheckpointID]string{}}
	for _, cp := range cps {
		n, missing, err := a.MeasureFreed(ctx, "", cp)
		if err != nil {
			return s, err
		}
		if s.Each[cp.ID] = n; missing != "" {
			s.Damage[cp.ID] = missing
		}
	}
	turns, err := svc.store.Turns(ctx, a.Rec().ID, 1)
	if err != nil && errs.KindOf(err) != errs.Corrupt { // damage leaves the journal's size unknown
		return s, err
	}
	if s.Total, err = a.FreedBy(ctx, newestMark(turns), cps...); err != nil {
		return s, err
	}
	a.KeepSizes(s)
	return s, nil
}

// measured reads the app's checkpoints and their sizes. If a checkpoint is deleted meanwhile, it
// reads both again.
func (svc *Service) measured(ctx context.Context, a *app.App) (cps []store.Checkpoint, s app.Sizes, err error) {
	const tries = 3
	for range tries {
		was := len(cps)
		if cps, err = svc.store.Checkpoints(ctx, a.Rec().ID); err != nil {
			return nil, s, err
		}
		if s, err = svc.sized(ctx, a, cps); err != nil || len(s.Damage) == 0 || was == len(cps) {
			break
		}
	}
	return cps, s, err
}

// Checkpoints returns the app's checkpoints, newest first, and their sizes.
func (svc *Service) Checkpoints(ctx context.Context, who ipc.Caller, ref string, q ipc.CheckpointQuery) (ipc.CheckpointList, error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.CheckpointList{}, err
	}
	cps, sizes, err := svc.measured(ctx, a)
	if err != nil {
		return ipc.CheckpointList{}, err
	}
	list := ipc.CheckpointList{Checkpoints: []ipc.Checkpoint{}, StorageUsage: ipc.StorageUsage{
		CheckpointCount: len(cps), TotalBytes: sizes.Total,
		KeepLast: a.Rec().Retention.KeepLast, DailyDays: a.Rec().Retention.DailyDays,
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
		v := Public(cp)
		v.SizeBytes, v.Damaged = sizes.Each[cp.ID], cmp.Or(v.Damaged, sizes.Damage[cp.ID])
		list.Checkpoints = append(list.Checkpoints, v)
	}
	all := make([]*ipc.Checkpoint, len(list.Checkpoints))
	for i := range list.Checkpoints {
		all[i] = &list.Checkpoints[i]
	}
	svc.Entitle(ctx, a, all...)
	return list, nil
}

// KeepsTitles reports whether the titles of an app's turns are kept.
func (svc *Service) KeepsTitles(a *app.App) bool {
	titles := a.Rec().Titles
	return !svc.opt.NoTitles && (titles == nil || *titles)
}

// Entitle adds the titles and agents of their turns to checkpoints, and to safety checkpoints what the checkpoint that their rollback
// went to is called. They are not parts of the checkpoints' records, so that they get into nothing that leaves this host, nor into the
// audit trail. A nil checkpoint is left out; so are turns that are forgotten or cannot be read.
func (svc *Service) Entitle(ctx context.Context, a *app.App, cps ...*ipc.Checkpoint) {
	if !slices.ContainsFunc(cps, func(cp *ipc.Checkpoint) bool { return cp != nil && (cp.TurnID != nil || cp.RollbackTo != "") }) {
		return
	}
	names, err := svc.store.TurnNames(ctx, a.Rec().ID)
	if err != nil {
		return
	}
	keep := svc.KeepsTitles(a)
	for _, cp := range cps {
		if cp == nil {
			continue
		}
		if cp.TurnID != nil {
			name := names[*cp.TurnID]
			if cp.Agent = name.Agent; keep {
				cp.Title = name.Title
			}
		}
		if cp.RollbackTo == "" {
			continue
		}
		to, err := svc.store.Checkpoint(ctx, a.Rec().ID, cp.RollbackTo)
		switch {
		case err != nil:
		case keep && to.TurnID != nil && to.Trigger == ipc.TriggerAgent && names[*to.TurnID].Title != "":
			cp.RollbackTitle = names[*to.TurnID].Title
		case to.Notes != nil && to.Trigger != ipc.TriggerPreRollback:
			cp.RollbackTitle = *to.Notes
		}
	}
}

// Checkpoint returns one checkpoint with its size.
func (svc *Service) Checkpoint(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID) (ipc.Checkpoint, error) {
	a, cp, err := svc.FindCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	v, err := svc.show(ctx, a, cp)
	svc.Entitle(ctx, a, &v)
	return v, err
}

func (svc *Service) FindCheckpoint(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID) (*app.App, store.Checkpoint, error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return nil, store.Checkpoint{}, err
	}
	cp, err := svc.store.Checkpoint(ctx, a.Rec().ID, id)
	return a, cp, err
}

// Pin pins or unpins a checkpoint.
func (svc *Service) Pin(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, pinned bool) (ipc.Checkpoint, error) {
	a, cp, err := svc.FindCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	action := "unpin"
	if pinned {
		action = "pin"
	}
	if err := svc.store.SetPinned(ctx, a.Rec().ID, id, pinned); err != nil {
		return ipc.Checkpoint{}, err
	}
	svc.events.WriteAudit(ctx, a.Rec(), who, action, string(id), "", nil, nil)
	cp.Pinned = pinned
	shown, err := svc.show(ctx, a, cp)
	svc.Entitle(ctx, a, &shown)
	if err == nil {
		svc.events.Publish(a.Rec().ID, "checkpoint", shown)
	}
	return shown, err
}

// Verify checks that everything stored for a checkpoint is present, or reads every byte of it.
// Damage is part of the result; an error means that the check was not possible.
func (svc *Service) Verify(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, depth snap.Depth) (ipc.VerifyResult, error) {
	a, cp, err := svc.FindCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.VerifyResult{}, err
	}
	if err := svc.apps.EnsureOpen(ctx, a, "verify"); err != nil {
		return ipc.VerifyResult{}, err
	}
	res := ipc.VerifyResult{CheckpointID: id, OK: true, Problems: []ipc.VerifyProblem{}}
	for _, s := range cp.Snapshots {
		l, ok := a.Layer(s.Layer)
		if !ok {
			res.Warnings = append(res.Warnings, fmt.Sprintf("the app no longer has the layer %s, so its snapshot was not checked", s.Layer))
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

// Audit returns the app's audit trail, newest first. If verify is set, it checks the chain of
// hashes.
func (svc *Service) Audit(ctx context.Context, who ipc.Caller, ref string, limit int, verify bool) (list ipc.AuditList, err error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return list, err
	}
	if list.Entries, err = svc.store.AuditTrail(ctx, a.Rec().ID, limit); err != nil || !verify {
		return list, err
	}
	n, head, err := svc.store.VerifyAudit(ctx)
	list.Check = &ipc.AuditCheck{OK: err == nil, Entries: n, Head: head.String()}
	if errs.KindOf(err) == errs.Corrupt {
		list.Check.Problem, err = err.Error(), nil
	}
	return list, err
}

// ShowOrBare returns a checkpoint with its size, or without if the size is unknown.
func (svc *Service) ShowOrBare(ctx context.Context, a *app.App, cp store.Checkpoint) ipc.Checkpoint {
	if shown, err := svc.show(ctx, a, cp); err == nil {
		return shown
	}
	return Public(cp)
}
