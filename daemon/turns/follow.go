package turns

import (
	"context"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/ipc"
	"mulligan/snap"
)

// StartTracker begins to follow an app, if it asks for automatic checkpoints. If the titles of its turns are not to be kept, those
// that were kept so far are deleted.
func (svc *Service) StartTracker(ctx context.Context, a *app.App) {
	svc.StopTracker(a)
	if !svc.checkpoints.KeepsTitles(a) {
		if err := svc.store.ForgetTitles(ctx, a.Rec().ID); err != nil {
			svc.opt.Log.Error("delete the titles of turns", "app", a.Rec().Slug, "err", err)
		}
	}
	l, ok := a.Layer(snap.Files)
	if !ok || !a.Rec().Auto {
		return // ShareWatches follows the others
	}
	j, ok := l.Driver.(snap.Journal)
	_, held := l.Driver.(*layer.Held)
	a.NoteUntracked(held)
	if !ok {
		return
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &Tracker{
		svc: svc, a: a, driver: l.Driver, j: j, run: run, cancel: cancel,
		ready: make(chan struct{}), wake: make(chan struct{}, 1), open: map[ipc.TurnID]*openTurn{},
	}
	t.resume(ctx)
	t.done.Go(func() {
		if err := j.Follow(run, t.notify); err != nil && run.Err() == nil {
			t.note("follow the files", err)
		}
	})
	t.done.Go(t.awaitFiles)
	t.done.Go(func() { t.loop(run) })
	a.SetFollower(t)
}

// StopTracker ends the app's tracker. Open turns stay open in the records.
func (svc *Service) StopTracker(a *app.App) {
	switch f := a.SetFollower(nil).(type) {
	case *Tracker:
		f.cancel()
		f.done.Wait()
	case *notes:
		f.stop()
	}
}

// TrackerOf returns the app's tracker, or nil.
func TrackerOf(a *app.App) *Tracker {
	t, _ := a.Following().(*Tracker)
	return t
}

// resume loads the turns that were open when the last daemon ended.
func (t *Tracker) resume(ctx context.Context) {
	recs, err := t.svc.store.OpenTurns(ctx, t.a.Rec().ID)
	if err != nil {
		t.note("read open turns", err)
		return
	}
	for _, rec := range recs {
		o := &openTurn{Rec: rec, ready: make(chan struct{}), before: t.databasesIn(ctx, rec.CheckpointID)}
		close(o.ready)
		if rec.CheckpointID == nil {
			o.lacks = append(o.lacks, "the daemon was restarted during the turn: databases are not in its checkpoint")
		}
		t.open[rec.ID] = o
	}
}

// awaitFiles waits until the journal is current. The first time, this takes as long as reading all
// files. Turns that began meanwhile start at that position.
func (t *Tracker) awaitFiles() {
	const pause = 20 * time.Millisecond
	for {
		mark, err := t.j.Flush(t.run)
		if err == nil {
			t.mu.Lock()
			for _, o := range t.open {
				if o.Rec.Start == "" {
					o.Rec.Start = mark
				}
			}
			t.mu.Unlock()
			// By now, this daemon has finished or undone what a killed one was writing.
			if err := t.svc.store.EndOwnWrites(t.run, t.a.Rec().ID, 0, mark); err != nil {
				t.note("note what mulligan itself wrote", err)
			}
			close(t.ready)
			return
		}
		select {
		case <-t.run.Done():
			return
		case <-time.After(pause):
		}
	}
}

// followPatience bounds how long a registration waits until the journal is current. A small
// workspace is read by then, so its first turn is exact.
const followPatience = 2 * time.Second

// Await waits, for a limited time, until the journal is current. It does nothing for a nil
// tracker.
func (t *Tracker) Await(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followPatience)
	defer cancel()
	select {
	case <-t.ready:
	case <-ctx.Done():
	case <-t.run.Done():
	}
}
