package daemon

import (
	"context"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// tracker follows the files of one app and makes the automatic checkpoints of
// its turns. Whatever fails in it is logged and shown by status; the agent's
// work goes on.
type tracker struct {
	d      *Daemon
	a      *app
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

// openTurn is a turn that has not ended. Its fields are the tracker's.
type openTurn struct {
	rec   store.Turn
	ref   *string          // the workspace's commit at its start
	dbs   []store.Snapshot // the databases at its start; no checkpoint holds them yet
	lacks []string         // what they lack
	ready chan struct{}    // closed once dbs is filled
	// running and healthy are the app's at its start, once that is known.
	running, healthy *bool
	late             bool // a call began before dbs was filled
	// undone: it was undone while it went on, and did nothing since.
	undone bool
	since  snap.Mark // where it was undone
}

// startTracker starts following an app that asks for automatic checkpoints.
func (d *Daemon) startTracker(ctx context.Context, a *app) {
	d.stopTracker(a)
	l, ok := a.layer(snap.Files)
	if !ok || !a.rec().Auto {
		return
	}
	j, ok := l.Driver.(snap.Journal)
	_, held := l.Driver.(*layer.Held)
	a.noteUntracked(held)
	if !ok {
		return
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &tracker{
		d: d, a: a, driver: l.Driver, j: j, run: run, cancel: cancel,
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
	a.setFollower(t)
}

// stopTracker ends the following. Open turns stay open in the records.
func (d *Daemon) stopTracker(a *app) {
	if t, ok := a.setFollower(nil).(*tracker); ok {
		t.cancel()
		t.done.Wait()
	}
}

// trackerOf is the app's tracker, or nil when it does not ask for one.
func trackerOf(a *app) *tracker {
	t, _ := a.following().(*tracker)
	return t
}

// Driver is the driver of the files that the tracker follows by.
func (t *tracker) Driver() snap.Driver { return t.driver }

// resume takes up the turns that were open when the last daemon ended.
func (t *tracker) resume(ctx context.Context) {
	recs, err := t.d.store.OpenTurns(ctx, t.a.rec().ID)
	if err != nil {
		t.note("read open turns", err)
		return
	}
	for _, rec := range recs {
		o := &openTurn{rec: rec, ready: make(chan struct{})}
		close(o.ready)
		if rec.CheckpointID == nil {
			o.lacks = append(o.lacks, "the daemon was restarted during the turn: databases are not in its checkpoint")
		}
		t.open[rec.ID] = o
	}
}

// awaitFiles waits until the files are followed, which takes as long as it takes to
// read them when nothing of them is stored yet. Turns that began meanwhile begin
// from there.
func (t *tracker) awaitFiles() {
	const pause = 20 * time.Millisecond
	for {
		mark, err := t.j.Flush(t.run)
		if err == nil {
			t.mu.Lock()
			for _, o := range t.open {
				if o.rec.Start == "" {
					o.rec.Start = mark
				}
			}
			t.mu.Unlock()
			// What a killed daemon wrote, this one has finished or undone by now.
			if err := t.d.store.EndOwnWrites(t.run, t.a.rec().ID, 0, mark); err != nil {
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

// followPatience is how long a registration waits for the files to be followed:
// small trees are by then, and the first turn after it is exact.
const followPatience = 2 * time.Second

// await waits a moment until the files are followed. A nil tracker follows nothing.
func (t *tracker) await(ctx context.Context) {
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

// State says in a word how the files are followed.
func (t *tracker) State() string {
	select {
	case <-t.ready:
		return string(t.j.Following().State)
	default:
		return "starting"
	}
}

// flush is the journal's barrier. While the files are not followed yet, it waits for that.
func (t *tracker) flush(ctx context.Context) (snap.Mark, error) {
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
func (t *tracker) note(what string, err error) {
	t.mu.Lock()
	t.failed = what + ": " + err.Error()
	t.mu.Unlock()
	t.d.opt.Log.Warn("automatic checkpoints: "+what, "app", t.a.rec().Slug, "err", err)
}

// Problems says what people should know of the tracker.
func (t *tracker) Problems() []string {
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
func (t *tracker) notify(b snap.Batch) {
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

func (t *tracker) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// mute has the tracker look away while mulligan itself writes. The function
// that it returns ends that: what was written until then is nobody's turn, and
// no call's.
func (t *tracker) mute(ctx context.Context) (unmute func(context.Context)) {
	if t == nil {
		return func(context.Context) {}
	}
	own, err := t.beginOwn(ctx)
	if err != nil {
		t.note("note what mulligan itself writes", err)
	}
	owing := t.withoutCheckpoint() // on a full disk, say: their checkpoints are still of their beginnings
	t.mu.Lock()
	t.muted++
	t.mu.Unlock()
	return func(ctx context.Context) {
		mark, err := t.flush(ctx) // with an error, as far as it got
		if own != 0 && mark != "" {
			err = errs.Also(err, t.d.store.EndOwnWrites(ctx, t.a.rec().ID, own, mark))
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
			if o.rec.CheckpointID == nil && mark != "" && !slices.Contains(owing, o) {
				o.rec.Start = mark
			}
			if o.undone {
				o.since = mark
			}
		}
	}
}

// beginOwn notes that mulligan writes from now on; 0 where the journal cannot tell.
func (t *tracker) beginOwn(ctx context.Context) (int64, error) {
	select {
	case <-t.ready:
	default:
		return 0, nil // nobody's writes are recorded yet
	}
	short, cancel := context.WithTimeout(ctx, flushLong)
	defer cancel()
	mark, err := t.flush(short)
	if err != nil || mark == "" {
		return 0, err
	}
	return t.d.store.BeginOwnWrites(ctx, t.a.rec().ID, mark, t.d.opt.Now())
}

// loop makes checkpoints as writes come, and ends inferred turns after a quiet time.
func (t *tracker) loop(ctx context.Context) {
	gap := t.d.opt.QuietGap
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
func (t *tracker) handle(ctx context.Context) {
	t.mu.Lock()
	b := t.first
	t.first = nil
	quiet := time.Since(t.last) >= t.d.opt.QuietGap
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
	for _, o := range t.withoutCheckpoint() {
		if err := t.checkpoint(ctx, o); err != nil && ctx.Err() == nil {
			t.note("make the checkpoint of turn "+string(o.rec.ID), err)
		}
	}
}

// noteUndone notes which open turns are no longer in the app, now that a rollback was
// done. A nil tracker has none.
func (t *tracker) noteUndone(ctx context.Context) {
	if t == nil {
		return
	}
	l, err := t.d.lineOf(ctx, t.a)
	if err != nil {
		t.note("see what was undone", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.open {
		o.undone = !o.rec.Inferred && o.rec.CheckpointID != nil && !l.holds(*o.rec.CheckpointID)
	}
}

// rejoin takes open turns that were undone and go on for what they are: something to
// be undone again.
func (t *tracker) rejoin(ctx context.Context) {
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
		release, err := t.d.acquireBrief(ctx, t.a, "note that a turn goes on")
		if err == nil {
			err = t.d.rejoin(ctx, t.a, *o.rec.CheckpointID)
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

// catchUp makes the checkpoints that open turns lack by now: what was just written may
// not have been looked at yet. A nil tracker has no turns.
func (t *tracker) catchUp(ctx context.Context) {
	if t == nil {
		return
	}
	short, cancel := context.WithTimeout(ctx, flushDeadline)
	defer cancel()
	if _, err := t.flush(short); err != nil {
		return // the files are being read, and nothing is recorded yet
	}
	t.rejoin(ctx)
	for _, o := range t.withoutCheckpoint() {
		if err := t.checkpoint(ctx, o); err != nil {
			t.note("make the checkpoint of turn "+string(o.rec.ID), err)
		}
	}
}

// withoutCheckpoint lists the open turns that changed something and have no checkpoint.
func (t *tracker) withoutCheckpoint() []*openTurn {
	t.mu.Lock()
	var list []*openTurn
	since := map[*openTurn]snap.Mark{}
	for _, o := range t.open {
		if o.rec.CheckpointID == nil {
			list = append(list, o)
			since[o] = o.rec.Start
		}
	}
	t.mu.Unlock()
	return slices.DeleteFunc(list, func(o *openTurn) bool { return !t.changed(t.run, since[o]) })
}

// changed reports whether anything is other than at the mark: a file may have been
// touched without a change. What cannot be told counts as changed.
func (t *tracker) changed(ctx context.Context, since snap.Mark) bool {
	mark, err := t.flush(ctx)
	if err != nil {
		return true
	}
	writes, err := t.j.Writes(ctx, since, mark)
	return err != nil || len(writes) > 0
}

// infer begins a turn that nobody announced, from before the batch.
func (t *tracker) infer(ctx context.Context, b snap.Batch) error {
	o := &openTurn{ready: make(chan struct{}), ref: headOf(t.a.rec())}
	o.rec.Turn = ipc.Turn{
		ID: ipc.TurnID(records.NewID("turn-")), AppID: t.a.rec().ID, Inferred: true, StartedAt: b.First.UTC(),
	}
	o.rec.Start = b.Before
	if len(t.a.layers()) > 1 {
		o.lacks = append(o.lacks, "the start of the turn was not reported: the layers other than files were captured after its first write")
	}
	if err := t.d.store.PutTurn(ctx, &o.rec); err != nil {
		return err
	}
	t.mu.Lock()
	t.open[o.rec.ID] = o
	t.mu.Unlock()
	t.done.Go(func() { t.look(t.run, o) })
	t.captureRest(ctx, o)
	return nil
}

// endBefore ends, at the mark, the turns that are over when one of the
// conversation begins: a conversation has one turn at a time, and what somebody
// announces is no longer to be inferred.
func (t *tracker) endBefore(ctx context.Context, conversation string, mark snap.Mark) {
	t.endWhere(ctx, mark, func(o *openTurn) bool {
		return o.rec.Inferred || conversation != "" && o.rec.ConversationID == conversation
	})
}

// endQuiet ends the turn that nobody announced, after a quiet time.
func (t *tracker) endQuiet(ctx context.Context) {
	mark, err := t.flush(ctx)
	if err != nil {
		t.note("end a turn", err)
		return
	}
	t.endWhere(ctx, mark, func(o *openTurn) bool { return o.rec.Inferred })
}

// endWhere ends the open turns that over picks.
func (t *tracker) endWhere(ctx context.Context, mark snap.Mark, over func(*openTurn) bool) {
	t.mu.Lock()
	var list []*openTurn
	for _, o := range t.open {
		if over(o) {
			list = append(list, o)
		}
	}
	t.mu.Unlock()
	for _, o := range list {
		if _, err := t.endAt(ctx, o, mark); err != nil && ctx.Err() == nil {
			t.note("end a turn", err)
		}
	}
}

// look notes how the app is at a turn's start.
func (t *tracker) look(ctx context.Context, o *openTurn) {
	now, err := t.a.status(ctx)
	if err != nil {
		return
	}
	running, healthy := t.d.condition(ctx, t.a, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	o.running, o.healthy = running, healthy
}

// captureRest captures what is not files, as far as it can be captured while
// the app runs; what can't is named in the turn's checkpoint.
func (t *tracker) captureRest(ctx context.Context, o *openTurn) {
	defer close(o.ready)
	release, err := t.d.acquireBrief(ctx, t.a, "capture for turn "+string(o.rec.ID))
	if err != nil {
		o.lacks = append(o.lacks, "databases are not in it: "+err.Error())
		return
	}
	defer release()
	for _, l := range t.a.layers() {
		if l.Name == snap.Files {
			continue
		}
		if h, ok := l.Driver.(*layer.Held); ok {
			o.lacks = append(o.lacks, string(l.Name)+" is not in it: "+h.Unfit().Error())
			continue
		}
		if lc, ok := l.Driver.(snap.LiveCapturer); !ok || !lc.CapturesLive() {
			o.lacks = append(o.lacks, string(l.Name)+" is not in it: it can't be captured while the app runs")
			continue
		}
		s, warnings, err := t.d.captureLayer(ctx, t.a, l, taking{})
		if err != nil {
			o.lacks = append(o.lacks, string(l.Name)+" is not in it: "+err.Error())
			continue
		}
		o.dbs = append(o.dbs, s)
		for _, w := range warnings {
			o.lacks = append(o.lacks, string(l.Name)+": "+w)
		}
	}
}

// checkpoint records the state before the turn, once.
func (t *tracker) checkpoint(ctx context.Context, o *openTurn) error {
	select {
	case <-o.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	release, err := t.d.acquireBrief(ctx, t.a, "checkpoint of turn "+string(o.rec.ID))
	if err != nil {
		return err
	}
	defer release()
	t.mu.Lock()
	start, made := o.rec.Start, o.rec.CheckpointID != nil
	t.mu.Unlock()
	if made {
		return nil
	}
	cp, err := t.captureAt(ctx, o, start)
	if err != nil {
		return err
	}
	t.mu.Lock()
	o.rec.CheckpointID, o.dbs, t.failed = &cp.ID, nil, ""
	rec := o.rec
	t.mu.Unlock()
	if err := t.d.store.PutTurn(ctx, &rec); err != nil {
		return err
	}
	t.d.Publish(t.a.rec().ID, "checkpoint", public(cp))
	t.d.pruneAfter(ctx, t.a, accounts.Self(), cp.ID)
	return nil
}

// captureAt records a checkpoint of the files at a mark, with the databases as
// they were captured at the turn's start.
func (t *tracker) captureAt(ctx context.Context, o *openTurn, start snap.Mark) (store.Checkpoint, error) {
	if err := t.d.opt.Failpoint.At("capture turn"); err != nil {
		return store.Checkpoint{}, err
	}
	ids, made := announced(t.a, []layer.Layer{{Name: snap.Files}})
	if err := t.d.store.PutDisposals(ctx, made...); err != nil {
		return store.Checkpoint{}, err
	}
	s, err := t.driver.Capture(ctx, snap.CaptureRequest{ID: ids[0], At: start})
	if err != nil {
		return store.Checkpoint{}, err
	}
	var cp store.Checkpoint
	cp.ID, cp.AppID, cp.Trigger, cp.Ref = ipc.CheckpointID(records.NewID("cp-")), t.a.rec().ID, ipc.TriggerAgent, o.ref
	cp.TurnID, cp.Inferred = optional(string(o.rec.ID)), o.rec.Inferred
	cp.ConversationID, cp.MessageID = optional(o.rec.ConversationID), optional(o.rec.MessageID)
	t.mu.Lock()
	cp.Running, cp.Healthy = o.running, o.healthy
	late := o.late && len(o.dbs) > 0
	t.mu.Unlock()
	cp.Warnings = append(append([]string{}, o.rec.Warnings...), o.lacks...)
	if late {
		cp.Warnings = append(cp.Warnings, "the turn's first call did not wait until its databases were captured: what it wrote to them at once may be in this checkpoint")
	}
	cp.Warnings = append(cp.Warnings, s.Warnings...)
	files := store.Snapshot{Layer: snap.Files, ID: s.ID, Driver: s.Driver, Hash: s.Hash, Position: s.Position}
	cp.Snapshots = append([]store.Snapshot{files}, o.dbs...)
	if err := t.d.record(ctx, t.a, &cp, ""); err != nil {
		return store.Checkpoint{}, errs.Also(err, t.d.drop(ctx, t.a, cp.Snapshots[:1]))
	}
	return cp, nil
}

// end ends a turn: makes its checkpoint if it changed anything, and sums up what.
func (t *tracker) end(ctx context.Context, o *openTurn) (store.Turn, error) {
	mark, err := t.flush(ctx)
	if err != nil {
		return store.Turn{}, err
	}
	return t.endAt(ctx, o, mark)
}

// endAt ends a turn at a position that was just flushed.
func (t *tracker) endAt(ctx context.Context, o *openTurn, mark snap.Mark) (store.Turn, error) {
	t.mu.Lock()
	if o.rec.Start == "" { // the files were not followed when it began, and what it wrote since can't be told
		o.rec.Start = mark
	}
	start := o.rec.Start
	t.mu.Unlock()
	writes, err := t.j.Writes(ctx, start, mark)
	if err != nil {
		return store.Turn{}, err
	}
	changes := sumUp(writes)
	if changes.Paths, err = t.a.seen(changes.Paths); err != nil {
		return store.Turn{}, err
	}
	if len(writes) > 0 || t.databasesChanged(ctx, o) {
		if err := t.checkpoint(ctx, o); err != nil {
			return store.Turn{}, err
		}
	}
	t.rejoin(ctx)
	t.mu.Lock()
	now := t.d.opt.Now().UTC()
	o.rec.End, o.rec.EndedAt, o.rec.Changes = mark, &now, changes
	rec, unused := o.rec, o.dbs
	o.dbs = nil
	delete(t.open, rec.ID)
	t.last = time.Now()
	t.mu.Unlock()
	if err := t.d.store.PutTurn(ctx, &rec); err != nil {
		return rec, err
	}
	if err := t.d.endCalls(ctx, rec); err != nil {
		return rec, err
	}
	t.d.Publish(t.a.rec().ID, "turn", shownTurn(rec))
	return rec, t.dropUnused(ctx, unused)
}

// dropUnused drops the databases' snapshots of a turn that changed nothing.
func (t *tracker) dropUnused(ctx context.Context, snaps []store.Snapshot) error {
	if len(snaps) == 0 {
		return nil
	}
	release, err := t.d.acquireBrief(ctx, t.a, "end a turn")
	if err != nil {
		return err
	}
	defer release()
	return t.d.drop(ctx, t.a, snaps)
}

// databasesChanged reports whether a database is not as it was at the turn's
// start. A database that cannot be asked counts as changed: a checkpoint too
// many loses nothing.
func (t *tracker) databasesChanged(ctx context.Context, o *openTurn) bool {
	select {
	case <-o.ready:
	case <-ctx.Done():
		return false
	}
	t.mu.Lock()
	before := o.dbs
	t.mu.Unlock()
	if len(before) == 0 {
		return false
	}
	release, err := t.d.acquireBrief(ctx, t.a, "look for changes of turn "+string(o.rec.ID))
	if err != nil {
		return true
	}
	defer release()
	for _, b := range before {
		l, ok := t.a.layer(b.Layer)
		if !ok {
			continue
		}
		if !l.IsDB() {
			return true // a guest writes by itself: what it wrote is taken for the turn's
		}
		now, _, err := t.d.captureLayer(ctx, t.a, l, taking{})
		if err != nil {
			return true
		}
		changed := now.Hash != b.Hash || now.Hash.IsZero() && now.Position != b.Position
		if err := t.d.drop(ctx, t.a, []store.Snapshot{now}); err != nil {
			t.note("drop a snapshot", err)
		}
		if changed {
			return true
		}
	}
	return false
}

// sumUp counts what writes did to paths, over all: a path that was made and
// taken away again did not change.
func sumUp(writes []snap.Write) ipc.TurnChanges {
	type span struct{ before, after snap.Hash }
	spans := map[string]*span{}
	var order []string
	for _, w := range writes {
		if s, ok := spans[w.Path]; ok {
			s.after = w.After
			continue
		}
		spans[w.Path] = &span{w.Before, w.After}
		order = append(order, w.Path)
	}
	c := ipc.TurnChanges{Paths: []string{}}
	for _, path := range order {
		s := spans[path]
		switch {
		case s.before == s.after:
			continue
		case s.before.IsZero():
			c.Created++
		case s.after.IsZero():
			c.Deleted++
		default:
			c.Modified++
		}
		if len(c.Paths) < 20 {
			c.Paths = append(c.Paths, path)
		}
	}
	return c
}
