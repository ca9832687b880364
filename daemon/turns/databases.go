package turns

import (
	"context"
	"strings"

	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/ipc"
	"mulligan/snap"
)

// maxListed bounds the changes of a database that a turn's record has.
const maxListed = 20

// quickly reports whether the databases were captured in a moment when the turn began. If they were not, capturing them again at its
// end, only to say what the turn did to them, would keep the agent and the app waiting.
func (t *Tracker) quickly(ctx context.Context, o *openTurn) bool {
	select {
	case <-o.ready:
	case <-ctx.Done():
		return false
	}
	return o.took <= t.svc.opt.CompareTime
}

// databasesDiffer reports whether anything but files differs from its state at the turn's start. It looks no further than to the first
// difference: a rollback waits for it.
func (t *Tracker) databasesDiffer(ctx context.Context, o *openTurn) bool {
	_, changed := t.compareAll(ctx, o, false)
	return changed
}

// databaseChanges compares the databases with their states at the turn's start, and lists what changed in them. changed reports whether
// anything but files differs.
func (t *Tracker) databaseChanges(ctx context.Context, o *openTurn) (list []ipc.DatabaseChanges, changed bool) {
	return t.compareAll(ctx, o, true)
}

// compareAll compares the databases with their states at the turn's start: all of them, and lists the changes, or up to the first that
// differs. A layer that cannot be read in time counts as changed: an unnecessary checkpoint does no harm.
func (t *Tracker) compareAll(ctx context.Context, o *openTurn, all bool) (list []ipc.DatabaseChanges, changed bool) {
	select {
	case <-o.ready:
	case <-ctx.Done():
		return nil, false
	}
	t.mu.Lock()
	before := o.before
	t.mu.Unlock()
	if len(before) == 0 {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, t.svc.opt.CompareTime)
	defer cancel()
	release, err := t.svc.apps.AcquireBrief(ctx, t.a, "look for changes of turn "+string(o.Rec.ID))
	if err != nil {
		return nil, true
	}
	defer release()
	for _, b := range before {
		if changed && !all {
			break
		}
		l, ok := t.a.Layer(b.Layer)
		if !ok {
			continue
		}
		if l.Kind == layer.Disk {
			changed = true // a guest writes at any time; its writes are attributed to the turn
			continue
		}
		differs, known, found := t.compare(ctx, l, b, all)
		if changed = changed || differs; differs && known {
			found.Database = strings.TrimPrefix(string(b.Layer), "db:")
			list = append(list, found)
		}
	}
	return list, changed
}

// compare captures a layer and compares it with its snapshot of the turn's start. known is false if it cannot be captured, or
// its snapshots do not tell whether it changed. found has the changes if list is set.
func (t *Tracker) compare(ctx context.Context, l layer.Layer, before store.Snapshot, list bool) (differs, known bool, found ipc.DatabaseChanges) {
	now, _, err := t.svc.checkpoints.CaptureLayer(snap.WithLoginTime(ctx, loginTime), t.a, l, checkpoint.How{})
	if err != nil {
		return true, false, found
	}
	defer func() {
		if err := t.svc.checkpoints.Drop(context.WithoutCancel(ctx), t.a, []store.Snapshot{now}); err != nil {
			t.note("drop a snapshot", err)
		}
	}()
	if now.Hash == before.Hash && (!now.Hash.IsZero() || now.Position == before.Position) {
		return false, true, found
	}
	if now.Hash.IsZero() { // a position in a log, which also moves when nothing changed; a comparison would start servers
		return true, false, found
	}
	found.Changes = []ipc.Change{}
	differ, ok := l.Driver.(snap.Differ)
	if !ok || !list {
		return true, true, found
	}
	changes, err := differ.Diff(ctx, before.ID, now.ID, nil)
	if err != nil {
		return true, true, found
	}
	found.Total = len(changes)
	for _, c := range changes[:min(len(changes), maxListed)] {
		found.Changes = append(found.Changes, ipc.Change{Path: c.Path, Operation: string(c.Operation), Summary: c.Summary})
	}
	return true, true, found
}

// databasesIn returns the snapshots that a checkpoint has of other layers than files; none if it cannot be read.
func (t *Tracker) databasesIn(ctx context.Context, id *ipc.CheckpointID) (list []store.Snapshot) {
	if id == nil {
		return nil
	}
	cp, err := t.svc.store.Checkpoint(ctx, t.a.Rec().ID, *id)
	if err != nil {
		return nil
	}
	for _, s := range cp.Snapshots {
		if s.Layer != snap.Files {
			list = append(list, s)
		}
	}
	return list
}
