package turns

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Tracker follows the files of one app and makes the automatic checkpoints of its turns. It logs
// its errors and shows them in the status; it never blocks the agent's work.
type Tracker struct {
	svc    *Service
	a      *app.App
	driver snap.Driver  // of the layer files
	j      snap.Journal // driver, as a Journal

	run    context.Context // cancelled when the tracker stops
	cancel context.CancelFunc
	done   sync.WaitGroup
	ready  chan struct{} // closed once the journal is current
	wake   chan struct{} // wakes loop

	// beginning is held while a turn begins: a write then infers no turn, and an inferred turn that is seen is one that can be ended.
	beginning sync.Mutex

	mu     sync.Mutex
	muted  int         // how many operations of mulligan are writing now; their writes belong to no turn
	begun  snap.Mark   // the journal's position when ready was closed
	first  *snap.Batch // the first batch of writes that loop has not handled
	again  bool        // loop could not handle first, and tries again
	last   time.Time   // the time of the last write, or of the last call by an agent
	open   map[ipc.TurnID]*openTurn
	failed string // the last error, "" after a success
}

// Driver returns the files driver that the tracker uses.
func (t *Tracker) Driver() snap.Driver { return t.driver }

// State returns, in one word, how the files are followed.
func (t *Tracker) State() string {
	if t.starting() {
		return "starting"
	}
	return string(t.j.Following().State)
}

// starting reports whether the journal is not current yet.
func (t *Tracker) starting() bool {
	select {
	case <-t.ready:
		return false
	default:
		return true
	}
}

// Flush waits until all writes made so far are in the journal, and returns the journal's position.
// Before the first reading of the files is complete, it waits for that too. What may not be read, or cannot be because the disk is damaged, is
// missing in the journal, and is no error: if it is in the scope of an operation, the capture refuses the operation.
func (t *Tracker) Flush(ctx context.Context) (snap.Mark, error) {
	select {
	case <-t.ready:
		mark, err := t.j.Flush(ctx)
		if mark != "" && errors.As(err, &snap.UnreadableError{}) {
			err = nil
		}
		return mark, err
	case <-ctx.Done():
		return "", errs.New(errs.Unavailable, "flush files", "the files are still being read for the first time")
	case <-t.run.Done():
		return "", unwatched("flush files")
	}
}

// unwatched is the error of a tracker that was stopped.
func unwatched(op string) error {
	return errs.New(errs.Unavailable, op, "the app's files are no longer watched")
}

// note keeps and logs an error.
func (t *Tracker) note(what string, err error) {
	t.mu.Lock()
	t.failed = what + ": " + err.Error()
	t.mu.Unlock()
	t.svc.opt.Log.Warn("automatic checkpoints: "+what, "app", t.a.Rec().Slug, "err", err)
}

// Problems returns what about the tracker needs a person's attention.
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

// notify is the journal's callback for new writes. It must not block.
func (t *Tracker) notify(b snap.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.muted > 0 {
		return
	}
	if t.first == nil {
		t.first = &b
	}
	for _, o := range t.open {
		if o.wrote.IsZero() && b.First.After(o.began) {
			o.wrote = b.First
		}
	}
	t.poke()
}

func (t *Tracker) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Mute excludes the writes that mulligan makes from turns and calls, until the returned function
// is called.
func (t *Tracker) Mute(ctx context.Context) (unmute func(context.Context)) {
	if t == nil {
		return func(context.Context) {}
	}
	short, cancel := context.WithTimeout(ctx, FlushLong)
	defer cancel()
	own, err := t.beginOwn(short)
	if err != nil {
		t.note("note what mulligan itself writes", err)
	}
	owing, back := t.WithoutCheckpoint(short), t.wroteAgain(short) // turns of which something could not be recorded, for example on a full disk
	t.mu.Lock()
	t.muted++
	for _, o := range back {
		o.back = true
	}
	t.mu.Unlock()
	return func(ctx context.Context) {
		if t.starting() { // the first reading of the files may never end, and while the tracker is muted, writes belong to no turn
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, FlushLong)
			defer cancel()
		}
		mark, err := t.Flush(ctx) // if it fails, mark is the last position it reached
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
			if o.Rec.CheckpointID == nil && o.Rec.End == "" && mark != "" && !slices.Contains(owing, o) {
				o.Rec.Start = mark
			}
			if o.undone && !o.back {
				o.since = mark
			}
		}
	}
}

// beginOwn records that mulligan begins to write, and returns the id of that record; 0 if the
// journal has no position yet.
func (t *Tracker) beginOwn(ctx context.Context) (int64, error) {
	if t.starting() {
		return 0, nil // the journal records no writes yet
	}
	mark, err := t.Flush(ctx)
	if err != nil || mark == "" {
		return 0, err
	}
	return t.svc.store.BeginOwnWrites(ctx, t.a.Rec().ID, mark, t.svc.opt.Now())
}

// The pauses after which the loop tries again what failed, as on a full disk: each is twice as long as the one before.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// loop makes checkpoints when writes arrive, and ends turns that are over. What failed is tried again.
func (t *Tracker) loop(ctx context.Context) {
	gap := t.svc.opt.QuietGap
	quiet, again, silent := time.NewTimer(gap), time.NewTimer(retryMost), time.NewTimer(0)
	again.Stop()
	defer quiet.Stop()
	defer again.Stop()
	defer silent.Stop()
	pause := retryFirst
	handle := func() {
		defer quiet.Reset(gap)
		if t.handle(ctx) {
			pause = retryFirst
			return
		}
		again.Reset(pause)
		pause = min(2*pause, retryMost)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			handle()
		case <-again.C:
			handle()
		case <-quiet.C:
			if !t.endQuiet(ctx) {
				quiet.Reset(min(gap, retryMost))
			}
		case <-silent.C:
			t.noteSilent(ctx)
			silent.Reset(t.svc.opt.Silence / 16)
		}
	}
}

// handle ends the turns whose end was announced before, and makes the missing checkpoints of open turns after a write. If no turn is open, it
// infers one. If it returns false, something failed, and handle must be called once more.
func (t *Tracker) handle(ctx context.Context) bool {
	ended := t.endAnnounced(ctx)
	t.mu.Lock()
	b := t.first
	t.first, t.again = nil, false
	quiet := time.Since(t.last) >= t.svc.opt.QuietGap
	none := len(t.open) == 0
	t.mu.Unlock()
	if b == nil || none && !t.changed(ctx, b.Before, "") {
		return ended
	}
	err := t.take(ctx, *b, none && quiet)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.first, t.again = b, true // a turn that is inferred later begins before this write all the same
		return false
	}
	t.last = time.Now()
	return ended
}

// take does the work of handle for a batch that changed something. It has noted the errors that it returns.
func (t *Tracker) take(ctx context.Context, b snap.Batch, infer bool) error {
	if infer {
		if err := t.infer(ctx, b); err != nil {
			t.note("begin a turn", err)
			return err
		}
	}
	err := t.rejoin(ctx)
	for _, o := range t.WithoutCheckpoint(ctx) {
		if e := t.checkpoint(ctx, o); e != nil && ctx.Err() == nil {
			t.note("make the checkpoint of turn "+string(o.Rec.ID), e)
			err = errs.Also(err, e)
		}
	}
	return err
}

// NoteUndone records which open turns a completed rollback undid. It does nothing for a nil
// tracker.
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
		o.undone, o.back = !o.Rec.Inferred && o.Rec.CheckpointID != nil && !l.Holds(*o.Rec.CheckpointID), false
	}
}

// rejoin records the open turns that were undone and wrote again, so that they can be undone
// again. It has noted the error that it returns.
func (t *Tracker) rejoin(ctx context.Context) (failed error) {
	for _, o := range t.wroteAgain(ctx) {
		release, err := t.svc.apps.AcquireBrief(ctx, t.a, "note that a turn goes on")
		if err == nil {
			err = t.svc.checkpoints.Rejoin(ctx, t.a, *o.Rec.CheckpointID)
			release()
		}
		if err != nil {
			t.note("note that a turn goes on", err)
			failed = errs.Also(failed, err)
			continue
		}
		t.mu.Lock()
		o.undone = false
		t.mu.Unlock()
	}
	return failed
}

// wroteAgain returns the open turns that were undone and wrote again, oldest first.
func (t *Tracker) wroteAgain(ctx context.Context) []*openTurn {
	list := t.openWhere(func(o *openTurn) bool { return o.undone })
	return slices.DeleteFunc(list, func(o *openTurn) bool {
		t.mu.Lock()
		since, until := o.since, o.Rec.End
		t.mu.Unlock()
		return !t.changed(ctx, since, until)
	})
}

// catchUpWait bounds how long a rollback waits until the journal is current, unless the files are still being read for the first time. While the
// journal lacks writes of the newest turn, that turn may have no checkpoint, and an undo would be refused.
const catchUpWait = 5 * time.Second

// CatchUp makes the checkpoints that open turns lack: the tracker may not have handled the newest
// writes yet. It does nothing for a nil tracker.
func (t *Tracker) CatchUp(ctx context.Context) {
	if t == nil {
		return
	}
	wait := t.svc.opt.AgentWait
	if !t.starting() {
		wait = max(wait, catchUpWait)
	}
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if _, err := t.Flush(short); err != nil {
		return // the first reading of the files is not complete, or the disk is slow
	}
	_ = t.rejoin(ctx)
	for _, o := range t.WithoutCheckpoint(ctx) {
		if err := t.checkpoint(ctx, o); err != nil {
			t.note("make the checkpoint of turn "+string(o.Rec.ID), err)
		}
	}
	for _, o := range t.openWhere(func(o *openTurn) bool { return o.Rec.CheckpointID == nil && !o.Rec.Inferred }) {
		if !t.databasesDiffer(ctx, o) {
			continue
		}
		if err := t.checkpoint(ctx, o); err != nil {
			t.note("make the checkpoint of turn "+string(o.Rec.ID), err)
		}
	}
}

// openWhere returns the open turns for which f returns true, oldest first. f is called with Tracker.mu locked.
func (t *Tracker) openWhere(f func(*openTurn) bool) (list []*openTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.open {
		if f(o) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(x, y *openTurn) int { return cmp.Compare(x.Rec.Seq, y.Rec.Seq) })
	return list
}

// WithoutCheckpoint returns the open turns that wrote something and have no checkpoint, oldest first.
func (t *Tracker) WithoutCheckpoint(ctx context.Context) []*openTurn {
	list := t.openWhere(func(o *openTurn) bool { return o.Rec.CheckpointID == nil })
	return slices.DeleteFunc(list, func(o *openTurn) bool {
		t.mu.Lock()
		since, until := o.Rec.Start, o.Rec.End
		t.mu.Unlock()
		return !t.changed(ctx, since, until)
	})
}

// Owing returns the announced turns that an undo would go back over and cannot yet, because it could not be recorded that they have a checkpoint, or
// wrote again after they were undone: newest first. It returns none for a nil tracker.
func (t *Tracker) Owing(ctx context.Context) (list []store.Turn) {
	if t == nil {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, FlushLong)
	defer cancel()
	for _, o := range append(t.wroteAgain(short), t.WithoutCheckpoint(short)...) {
		if !o.Rec.Inferred {
			t.mu.Lock()
			list = append(list, o.Rec)
			t.mu.Unlock()
		}
	}
	slices.Reverse(list)
	return list
}

// CreatedSince returns the paths that were created since a mark.
func (t *Tracker) CreatedSince(ctx context.Context, since snap.Mark) (map[string]bool, error) {
	short, cancel := context.WithTimeout(ctx, FlushLong)
	defer cancel()
	now, err := t.Flush(short)
	if err != nil {
		return nil, err
	}
	writes, err := t.j.Writes(ctx, since, now)
	created := map[string]bool{}
	for _, w := range writes {
		if _, later := created[w.Path]; !later {
			created[w.Path] = w.Before.IsZero()
		}
	}
	return created, err
}

// changed reports whether the files differ between two marks: a write may leave a file as it was. Without the mark until, it is their present state
// that counts. If the comparison fails, changed returns true.
func (t *Tracker) changed(ctx context.Context, since, until snap.Mark) bool {
	if until == "" {
		var err error
		if until, err = t.Flush(ctx); err != nil {
			return true
		}
	}
	writes, err := t.j.Writes(ctx, since, until)
	return err != nil || len(writes) > 0
}

// Journal returns the journal of the files.
func (t *Tracker) Journal() snap.Journal { return t.j }

// LastFailure returns the last error, or "" after a success.
func (t *Tracker) LastFailure() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}
