package turns

import (
	"context"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/app"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Tracker follows the files of one app and makes the automatic checkpoints of
// its turns. Whatever fails in it is logged and shown by status; the agent's
// work goes on.
type Tracker struct {
	svc    *Service
	a      *app.App
	driver snap.Driver  // of the files
	j      snap.Journal // the same one

	run    context.Context // ends with the tracker
	cancel context.CancelFunc
	done   sync.WaitGroup
	ready  chan struct{} // closed once the files are followed
	wake   chan struct{} // there is something for loop to do

	mu     sync.Mutex
	muted  int         // what is written now is mulligan's own doing
	first  *snap.Batch // the first batch that loop has not seen
	last   time.Time   // of a write, or of an agent's sign of life
	open   map[ipc.TurnID]*openTurn
	failed string // what went wrong last, "" when the last thing went well
}

// Driver is the driver of the files that the tracker follows by.
func (t *Tracker) Driver() snap.Driver { return t.driver }

// State says in a word how the files are followed.
func (t *Tracker) State() string {
	select {
	case <-t.ready:
		return string(t.j.Following().State)
	default:
		return "starting"
	}
}

// Flush is the journal's barrier. While the files are not followed yet, it waits for that.
func (t *Tracker) Flush(ctx context.Context) (snap.Mark, error) {
	select {
	case <-t.ready:
		return t.j.Flush(ctx)
	case <-ctx.Done():
		return "", errs.New(errs.Unavailable, "flush files", "the files are still being read for the first time")
	case <-t.run.Done():
		return "", errs.New(errs.Unavailable, "flush files", "the app is no longer followed")
	}
}

// note keeps and logs what went wrong.
func (t *Tracker) note(what string, err error) {
	t.mu.Lock()
	t.failed = what + ": " + err.Error()
	t.mu.Unlock()
	t.svc.opt.Log.Warn("automatic checkpoints: "+what, "app", t.a.Rec().Slug, "err", err)
}

// Problems says what people should know of the tracker.
func (t *Tracker) Problems() []string {
	var list []string
	t.mu.Lock()
	if t.failed != "" {
		list = append(list, "automatic checkpoints: "+t.failed)
	}
	t.mu.Unlock()
	if f := t.j.Following(); t.State() == string(snap.Degraded) {
		list = append(list, "files are not watched: "+f.Detail+" "+f.Remedy)
	}
	return list
}

// notify is the journal's word of changes. It must not block.
func (t *Tracker) notify(b snap.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.muted > 0 {
		return
	}
	if t.first == nil {
		t.first = &b
	}
	t.poke()
}

func (t *Tracker) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Mute has the tracker look away while mulligan itself writes. The function
// that it returns ends that: what was written until then is nobody's turn, and
// no call's.
func (t *Tracker) Mute(ctx context.Context) (unmute func(context.Context)) {
	if t == nil {
		return func(context.Context) {}
	}
	own, err := t.beginOwn(ctx)
	if err != nil {
		t.note("note what mulligan itself writes", err)
	}
	owing := t.WithoutCheckpoint() // on a full disk, say: their checkpoints are still of their beginnings
	t.mu.Lock()
	t.muted++
	t.mu.Unlock()
	return func(ctx context.Context) {
		mark, err := t.Flush(ctx) // with an error, as far as it got
		if own != 0 && mark != "" {
			err = errs.Also(err, t.svc.store.EndOwnWrites(ctx, t.a.Rec().ID, own, mark))
		}
		if err != nil {
			t.note("look at the restored files", err)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if err == nil {
			t.failed = ""
		}
		t.muted--
		for _, o := range t.open {
			if o.Rec.CheckpointID == nil && mark != "" && !slices.Contains(owing, o) {
				o.Rec.Start = mark
			}
			if o.undone {
				o.since = mark
			}
		}
	}
}

// beginOwn notes that mulligan writes from now on; 0 where the journal cannot tell.
func (t *Tracker) beginOwn(ctx context.Context) (int64, error) {
	select {
	case <-t.ready:
	default:
		return 0, nil // nobody's writes are recorded yet
	}
	short, cancel := context.WithTimeout(ctx, FlushLong)
	defer cancel()
	mark, err := t.Flush(short)
	if err != nil || mark == "" {
		return 0, err
	}
	return t.svc.store.BeginOwnWrites(ctx, t.a.Rec().ID, mark, t.svc.opt.Now())
}

// loop makes checkpoints as writes come, and ends inferred turns after a quiet time.
func (t *Tracker) loop(ctx context.Context) {
	gap := t.svc.opt.QuietGap
	quiet := time.NewTimer(gap)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			t.handle(ctx)
			quiet.Reset(gap)
		case <-quiet.C:
			t.endQuiet(ctx)
		}
	}
}

// handle sees to it that each open turn has its checkpoint, now that something
// was written; with none open, a turn is inferred.
func (t *Tracker) handle(ctx context.Context) {
	t.mu.Lock()
	b := t.first
	t.first = nil
	quiet := time.Since(t.last) >= t.svc.opt.QuietGap
	none := len(t.open) == 0
	t.mu.Unlock()
	if b == nil || none && !t.changed(ctx, b.Before) {
		return
	}
	t.mu.Lock()
	t.last = time.Now()
	t.mu.Unlock()
	if none && quiet {
		if err := t.infer(ctx, *b); err != nil {
			t.note("begin a turn", err)
			return
		}
	}
	t.rejoin(ctx)
	for _, o := range t.WithoutCheckpoint() {
		if err := t.checkpoint(ctx, o); err != nil && ctx.Err() == nil {
			t.note("make the checkpoint of turn "+string(o.Rec.ID), err)
		}
	}
}

// NoteUndone notes which open turns are no longer in the app, now that a rollback was
// done. A nil tracker has none.
func (t *Tracker) NoteUndone(ctx context.Context) {
	if t == nil {
		return
	}
	l, err := t.svc.checkpoints.LineOf(ctx, t.a)
	if err != nil {
		t.note("see what was undone", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.open {
		o.undone = !o.Rec.Inferred && o.Rec.CheckpointID != nil && !l.Holds(*o.Rec.CheckpointID)
	}
}

// rejoin takes open turns that were undone and go on for what they are: something to
// be undone again.
func (t *Tracker) rejoin(ctx context.Context) {
	t.mu.Lock()
	var back []*openTurn
	for _, o := range t.open {
		if o.undone {
			back = append(back, o)
		}
	}
	t.mu.Unlock()
	for _, o := range back {
		if !t.changed(ctx, o.since) {
			continue
		}
		release, err := t.svc.apps.AcquireBrief(ctx, t.a, "note that a turn goes on")
		if err == nil {
			err = t.svc.checkpoints.Rejoin(ctx, t.a, *o.Rec.CheckpointID)
			release()
		}
		if err != nil {
			t.note("note that a turn goes on", err)
			continue
		}
		t.mu.Lock()
		o.undone = false
		t.mu.Unlock()
	}
}

// CatchUp makes the checkpoints that open turns lack by now: what was just written may
// not have been looked at yet. A nil tracker has no turns.
func (t *Tracker) CatchUp(ctx context.Context) {
	if t == nil {
		return
	}
	short, cancel := context.WithTimeout(ctx, flushDeadline)
	defer cancel()
	if _, err := t.Flush(short); err != nil {
		return // the files are being read, and nothing is recorded yet
	}
	t.rejoin(ctx)
	for _, o := range t.WithoutCheckpoint() {
		if err := t.checkpoint(ctx, o); err != nil {
			t.note("make the checkpoint of turn "+string(o.Rec.ID), err)
		}
	}
}

// WithoutCheckpoint lists the open turns that changed something and have no checkpoint.
func (t *Tracker) WithoutCheckpoint() []*openTurn {
	t.mu.Lock()
	var list []*openTurn
	since := map[*openTurn]snap.Mark{}
	for _, o := range t.open {
		if o.Rec.CheckpointID == nil {
			list = append(list, o)
			since[o] = o.Rec.Start
		}
	}
	t.mu.Unlock()
	return slices.DeleteFunc(list, func(o *openTurn) bool { return !t.changed(t.run, since[o]) })
}

// changed reports whether anything is other than at the mark: a file may have been
// touched without a change. What cannot be told counts as changed.
func (t *Tracker) changed(ctx context.Context, since snap.Mark) bool {
	mark, err := t.Flush(ctx)
	if err != nil {
		return true
	}
	writes, err := t.j.Writes(ctx, since, mark)
	return err != nil || len(writes) > 0
}

// Journal is the journal of the files that the tracker follows.
func (t *Tracker) Journal() snap.Journal { return t.j }

// LastFailure says what went wrong last; "" when the last thing went well.
func (t *Tracker) LastFailure() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}
