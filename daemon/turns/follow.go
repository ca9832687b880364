package turns

import (
	"cmp"
	"context"
	"errors"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/errs"
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
	_, held := l.Driver.(*layer.Held)
	a.NoteUntracked(held && a.Rec().Auto)
	if !ok || !a.Rec().Auto {
		svc.left.Delete(a.Rec().ID)
		return // ShareWatches follows the others
	}
	j, ok := l.Driver.(snap.Journal)
	if !ok {
		return
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &Tracker{
		svc: svc, a: a, driver: l.Driver, j: j, run: run, cancel: cancel,
		ready: make(chan struct{}), wake: make(chan struct{}, 1), open: map[ipc.TurnID]*openTurn{},
	}
	t.mu.Lock() // whoever finds the tracker waits until it has the open turns: BeginTurn records some while there is no tracker
	a.SetFollower(t)
	err := t.resume(run)
	t.mu.Unlock()
	if err != nil {
		t.note("read open turns", err)
	}
	t.done.Go(func() {
		if err := j.Follow(run, t.notify); err != nil && run.Err() == nil {
			t.note("follow the files", err)
		}
	})
	t.done.Go(t.awaitFiles)
	t.done.Go(func() { t.loop(run) })
}

// StopTracker ends the app's tracker. Open turns stay open in the records, and the app's next tracker goes on with them.
func (svc *Service) StopTracker(a *app.App) {
	switch f := a.SetFollower(nil).(type) {
	case *Tracker:
		f.cancel()
		f.done.Wait()
		svc.left.Store(a.Rec().ID, f.copyOpen())
	case *notes:
		f.stop()
	}
}

// TrackerOf returns the app's tracker, or nil.
func TrackerOf(a *app.App) *Tracker {
	t, _ := a.Following().(*Tracker)
	return t
}

// tracker returns the app's tracker, or nil if the app asks for no automatic checkpoints. It waits for the operation that stopped the tracker,
// and for the app's recovery, as long as ctx allows. The error of a tracker that cannot be started yet is of kind errs.Unavailable.
func (svc *Service) tracker(ctx context.Context, a *app.App) (*Tracker, error) {
	if t := TrackerOf(a); t != nil || !a.Rec().Auto {
		return t, nil
	}
	release, err := svc.apps.AcquireBrief(ctx, a, "follow the files")
	if err != nil {
		return nil, err
	}
	defer release()
	if TrackerOf(a) == nil {
		svc.StartTracker(ctx, a)
	}
	if t := TrackerOf(a); t != nil || !a.Rec().Auto {
		return t, nil
	}
	return nil, errs.New(errs.Unavailable, "", "the files of %s are not watched yet, so its turns and calls stay open", a.Rec().Slug).
		WithHint("`mulligan status` says what they wait for")
}

// copyOpen returns copies of the open turns: somebody who waits for one may still have it.
func (t *Tracker) copyOpen() map[ipc.TurnID]*openTurn {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := map[ipc.TurnID]*openTurn{}
	for id, o := range t.open {
		next := *o
		open[id] = &next
	}
	return open
}

// Captured returns the ids of the snapshots that the app's open turns have for their checkpoints. The caller must have acquired
// the app, so that no turn captures meanwhile.
func (svc *Service) Captured(a *app.App) map[string]bool {
	held := map[string]bool{}
	left, _ := svc.left.Load(a.Rec().ID)
	open, _ := left.(map[ipc.TurnID]*openTurn)
	if t := TrackerOf(a); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		open = t.open
	}
	for _, o := range open {
		for _, s := range o.dbs {
			held[string(s.ID)] = true
		}
	}
	return held
}

// resume takes over the turns that are open: from the tracker before, or from the records, if they were open when the last daemon ended.
// Tracker.mu is locked.
func (t *Tracker) resume(ctx context.Context) error {
	recs, err := t.svc.store.OpenTurns(ctx, t.a.Rec().ID)
	if err != nil {
		return err
	}
	left, _ := t.svc.left.LoadAndDelete(t.a.Rec().ID)
	open, _ := left.(map[ipc.TurnID]*openTurn)
	for _, rec := range recs {
		o := open[rec.ID]
		rec.Ending = rec.Ending || rec.End != "" || o != nil && o.Rec.Ending // on a full disk, the announcement is in memory alone
		if rec.Ending {
			t.poke()
		}
		if o != nil {
			o.Rec.Ending, o.Rec.End = rec.Ending, cmp.Or(o.Rec.End, rec.End)
			t.open[rec.ID] = o
			continue
		}
		o = &openTurn{Rec: rec, ready: make(chan struct{}), before: t.databasesIn(ctx, rec.CheckpointID)}
		close(o.ready)
		if rec.CheckpointID == nil {
			o.lacks = append(o.lacks, "the daemon was restarted during the turn: databases are not in its checkpoint")
		}
		t.open[rec.ID] = o
	}
	return nil
}

// awaitFiles waits until the journal is current, but for what cannot be read. The first time, this takes as long as reading all
// files. Turns that began or ended meanwhile do so at that position.
func (t *Tracker) awaitFiles() {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, retryFirst) { // no longer: operations wait for the journal
		mark, err := t.j.Flush(t.run)
		if mark != "" && errors.As(err, &snap.UnreadableError{}) {
			t.note("read the files", err)
			err = nil
		}
		if err == nil {
			t.mu.Lock()
			t.begun = mark
			for _, o := range t.open {
				o.Rec.Start = cmp.Or(o.Rec.Start, mark)
				if o.Rec.Ending {
					o.Rec.End = cmp.Or(o.Rec.End, mark)
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
