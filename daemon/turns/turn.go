package turns

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// openTurn is a turn that has not ended. Tracker.mu guards its fields.
type openTurn struct {
	Rec      store.Turn
	ref      *string          // the git commit at the turn's start
	dbs      []store.Snapshot // the databases at the turn's start, until a checkpoint refers to them; whoever changes it has the app
	before   []store.Snapshot // the same, until the turn ends
	took     time.Duration    // how long they took to capture
	lacks    []string         // warnings about these snapshots
	ready    chan struct{}    // closed once dbs is set
	began    time.Time        // when the turn's position in the journal was taken
	captured time.Time        // when the last of dbs was captured
	wrote    time.Time        // when the turn's first write to files was seen; zero: none was
	over     time.Time        // when the turn ended, if its end is recorded later than that
	// running and healthy are the app's state at the turn's start; nil if unknown.
	running, healthy *bool
	late             bool // a call began before dbs was set
	// undone: a rollback undid the turn, and it is not recorded that it has written something since.
	undone bool
	since  snap.Mark // the journal's position at that rollback
	back   bool      // it has written something, which could not be recorded yet
}

// infer begins a turn that no agent announced, at the position before the batch.
func (t *Tracker) infer(ctx context.Context, b snap.Batch) error {
	o := &openTurn{ready: make(chan struct{}), ref: app.HeadOf(t.a.Rec()), began: time.Now()}
	o.Rec.Turn = ipc.Turn{
		ID: ipc.TurnID(records.NewID("turn-")), AppID: t.a.Rec().ID, Inferred: true, StartedAt: b.First.UTC(),
	}
	o.Rec.Start = b.Before
	if len(t.a.Layers()) > 1 {
		o.lacks = append(o.lacks, "the start of the turn was not reported: the layers other than files were captured after its first write")
	}
	if began, err := t.putInferred(ctx, o); err != nil || !began {
		return err
	}
	t.done.Go(func() { t.look(t.run, o) })
	t.captureRest(ctx, o)
	return nil
}

// putInferred opens an inferred turn, unless an agent announced one meanwhile.
func (t *Tracker) putInferred(ctx context.Context, o *openTurn) (began bool, err error) {
	t.beginning.Lock()
	defer t.beginning.Unlock()
	t.mu.Lock()
	other := len(t.open) > 0
	t.mu.Unlock()
	if other {
		return false, nil
	}
	err = t.svc.opt.Failpoint.At("infer turn")
	if err == nil {
		err = t.svc.store.PutTurn(ctx, &o.Rec)
	}
	if err != nil {
		return false, err
	}
	t.mu.Lock()
	t.open[o.Rec.ID] = o
	t.mu.Unlock()
	return true, nil
}

// endBefore notes that the turns end where the next one begins that must be over then: the last turn of its conversation, and an inferred turn.
// It returns their ids. The loop ends them: an agent does not wait until their databases are captured. Tracker.mu is locked.
func (t *Tracker) endBefore(next store.Turn) (ids []ipc.TurnID) {
	for id, o := range t.open {
		if o.Rec.Inferred || next.ConversationID != "" && o.Rec.ConversationID == next.ConversationID {
			o.Rec.Ending, o.Rec.End, o.over = true, cmp.Or(o.Rec.End, next.Start), cmp.Or(o.over, next.StartedAt)
			ids = append(ids, id)
		}
	}
	return ids
}

// endOlder ends the turns that are known to be over and began before o. Undo follows the order in which checkpoints were made, so theirs come before
// the one of o.
func (t *Tracker) endOlder(ctx context.Context, o *openTurn) {
	t.endWhere(ctx, func(p *openTurn) bool { return p.Rec.Ending && p.Rec.Seq < o.Rec.Seq })
}

// endQuiet ends the inferred turn after the quiet time. It returns false if that failed: then the turn goes on, so that what is written before the next
// try belongs to a turn too.
func (t *Tracker) endQuiet(ctx context.Context) bool {
	inferred := t.openWhere(func(o *openTurn) bool { return o.Rec.Inferred && !o.Rec.Ending })
	ended := t.endWhere(ctx, func(o *openTurn) bool { return o.Rec.Inferred })
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range inferred {
		if o.Rec.EndedAt != nil && t.again {
			// The writes in first, which loop could not handle, are the ended turn's. A turn that is inferred next begins where this one ended.
			t.first = &snap.Batch{Before: o.Rec.End, First: *o.Rec.EndedAt, Last: *o.Rec.EndedAt}
		}
	}
	for _, o := range t.open {
		if o.Rec.Inferred && !o.Rec.Ending {
			o.Rec.End = ""
		}
	}
	return ended
}

// endAnnounced ends the turns that are known to be over. It returns false if one did not end.
func (t *Tracker) endAnnounced(ctx context.Context) bool {
	return t.endWhere(ctx, func(o *openTurn) bool { return o.Rec.Ending })
}

// noteSilent notes that announced turns are over of which nothing was heard for long: the agent was killed, or its terminal closed, and nobody will
// tell their end. They ended when they were last heard of: what others wrote since is not theirs.
func (t *Tracker) noteSilent(ctx context.Context) {
	now, silence := t.svc.opt.Now(), t.svc.opt.Silence
	for _, o := range t.openWhere(func(o *openTurn) bool { return !o.Rec.Inferred && !o.Rec.Ending && now.Sub(o.Rec.StartedAt) >= silence }) {
		at, mark, err := t.lastHeard(ctx, o)
		if err != nil {
			if ctx.Err() == nil {
				t.note("see whether a turn is over", err)
			}
			continue
		}
		if now.Sub(at) < silence {
			continue
		}
		t.mu.Lock()
		o.Rec.Ending, o.Rec.End, o.over = true, cmp.Or(o.Rec.End, mark), at.UTC()
		o.Rec.Warnings = append(o.Rec.Warnings, "nobody told the end of the turn: it ended because nothing was heard of it for long")
		t.mu.Unlock()
		t.poke()
	}
}

// lastHeard returns when and where in the journal an open turn was last heard of: at its begin, or at the begin or the end of a call. While a call
// may still run, and in a turn that tells no calls, a write counts too, whoever made it.
func (t *Tracker) lastHeard(ctx context.Context, o *openTurn) (at time.Time, mark snap.Mark, err error) {
	calls, err := t.svc.store.Calls(ctx, o.Rec.Seq)
	if err != nil {
		return at, mark, err
	}
	at = o.Rec.StartedAt
	works := !slices.ContainsFunc(calls, func(c store.Call) bool { return !own(c) })
	var ended time.Time
	for _, c := range calls {
		at = later(at, c.StartedAt)
		if c.EndedAt != nil {
			at = later(at, *c.EndedAt)
		}
		switch {
		case own(c):
		case c.EndedAt == nil:
			works = true
		case !c.EndedAt.Before(ended):
			ended, mark = *c.EndedAt, c.End
		}
	}
	if !works {
		return at, mark, nil
	}
	if mark, err = t.Flush(ctx); err != nil {
		return at, mark, err
	}
	t.mu.Lock()
	start := o.Rec.Start
	t.mu.Unlock()
	writes, err := t.j.Writes(ctx, start, mark)
	if n := len(writes); n > 0 {
		at = later(at, writes[n-1].Seen)
	}
	return at, mark, err
}

func later(x, y time.Time) time.Time {
	if y.After(x) {
		return y
	}
	return x
}

// endWhere ends the open turns for which over returns true. It returns false if one did not end.
func (t *Tracker) endWhere(ctx context.Context, over func(*openTurn) bool) bool {
	all := true
	for _, o := range t.openWhere(over) {
		if _, err := t.end(ctx, o); err != nil && ctx.Err() == nil {
			t.note("end a turn", err)
			all = false
		}
	}
	return all
}

// look records the app's state at a turn's start.
func (t *Tracker) look(ctx context.Context, o *openTurn) {
	now, err := t.a.Status(ctx)
	if err != nil {
		return
	}
	running, healthy := t.svc.apps.Condition(ctx, t.a, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	o.running, o.healthy = running, healthy
}

// loginTime bounds how long a server may take to let a capture in that an agent waits for. A
// server that is stopped or overloaded would hold up the agent, and everything else of the app, for half a minute.
const loginTime = 5 * time.Second

// captureRest captures the databases, as far as that is possible while the app runs, all at once: each moment that a capture takes
// longer is one in which the agent may write already. The turn's checkpoint has warnings about the rest.
func (t *Tracker) captureRest(ctx context.Context, o *openTurn) {
	defer func() {
		t.mu.Lock()
		o.captured = time.Now()
		t.mu.Unlock()
		o.before, o.took = o.dbs, o.captured.Sub(o.began)
		close(o.ready)
	}()
	ctx = snap.WithLoginTime(ctx, loginTime)
	release, err := t.svc.apps.AcquireBrief(ctx, t.a, "capture for turn "+string(o.Rec.ID))
	if err != nil {
		o.lacks = append(o.lacks, "databases are not in it: "+err.Error())
		return
	}
	defer release()
	layers := t.a.Layers()
	found := make([]capturedLayer, len(layers))
	var work sync.WaitGroup
	for i, l := range layers {
		if l.Name != snap.Files {
			work.Go(func() { found[i] = t.captureLive(ctx, l) })
		}
	}
	work.Wait()
	for _, f := range found {
		if f.snapshot != nil {
			o.dbs = append(o.dbs, *f.snapshot)
		}
		o.lacks = append(o.lacks, f.lacks...)
	}
}

// capturedLayer is the snapshot of a layer at a turn's start, nil if there is none, with warnings.
type capturedLayer struct {
	snapshot *store.Snapshot
	lacks    []string
}

// captureLive captures a layer while the app runs, if that is possible.
func (t *Tracker) captureLive(ctx context.Context, l layer.Layer) (c capturedLayer) {
	if h, ok := l.Driver.(*layer.Held); ok {
		c.lacks = append(c.lacks, string(l.Name)+" is not in it: "+h.Unfit().Error())
		return c
	}
	if lc, ok := l.Driver.(snap.LiveCapturer); !ok || !lc.CapturesLive() {
		c.lacks = append(c.lacks, string(l.Name)+" is not in it: it can't be captured while the app runs")
		return c
	}
	s, warnings, err := t.svc.checkpoints.CaptureLayer(ctx, t.a, l, checkpoint.How{})
	if err != nil {
		c.lacks = append(c.lacks, string(l.Name)+" is not in it: "+err.Error())
		return c
	}
	c.snapshot = &s
	for _, w := range warnings {
		c.lacks = append(c.lacks, string(l.Name)+": "+w)
	}
	return c
}

// apart says, in a sentence, how the turn's files and databases may differ in time, and is "" if both are of before its first write.
// Tracker.mu is locked.
func (o *openTurn) apart() string {
	behind := o.captured.Sub(o.wrote)
	switch {
	case len(o.dbs) == 0 || o.Rec.Inferred: // an inferred turn says so already
		return ""
	case !o.wrote.IsZero() && behind > 0:
		return fmt.Sprintf("the files are of the turn's start, and the databases of up to %s after the first write that followed: what was written to them in between may be in this checkpoint",
			behind.Round(time.Millisecond))
	case o.late:
		return "the turn's first call did not wait until its databases were captured: what it wrote to them at once may be in this checkpoint"
	}
	return ""
}

// checkpoint records the state before the turn, unless that was done.
func (t *Tracker) checkpoint(ctx context.Context, o *openTurn) error {
	select {
	case <-o.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.endOlder(ctx, o)
	release, err := t.svc.apps.AcquireBrief(ctx, t.a, "checkpoint of turn "+string(o.Rec.ID))
	if err != nil {
		return err
	}
	defer release()
	t.mu.Lock()
	start, over := o.Rec.Start, o.Rec.CheckpointID != nil || o.Rec.EndedAt != nil
	t.mu.Unlock()
	if over { // with a checkpoint, or without one because it changed nothing
		return nil
	}
	if t.run.Err() != nil { // the next tracker makes it, and two checkpoints must not have the same snapshots
		return unwatched("")
	}
	cp, err := t.captureAt(ctx, o, start)
	if err != nil {
		return err
	}
	t.mu.Lock()
	o.Rec.CheckpointID, o.dbs, t.failed = &cp.ID, nil, ""
	rec := o.Rec
	t.mu.Unlock()
	if err := t.svc.store.PutTurn(ctx, &rec); err != nil {
		return err
	}
	shown := checkpoint.Public(cp)
	t.svc.checkpoints.Entitle(ctx, t.a, &shown)
	t.svc.events.Publish(t.a.Rec().ID, "checkpoint", shown)
	t.svc.checkpoints.PruneAfter(ctx, t.a, accounts.Self(), cp.ID)
	return nil
}

// captureAt records a checkpoint of the files at a mark, together with the databases as captured
// at the turn's start.
func (t *Tracker) captureAt(ctx context.Context, o *openTurn, start snap.Mark) (store.Checkpoint, error) {
	if err := t.svc.opt.Failpoint.At("capture turn"); err != nil {
		return store.Checkpoint{}, err
	}
	ids, made := checkpoint.Announced(t.a, []layer.Layer{{Name: snap.Files}})
	if err := t.svc.store.PutDisposals(ctx, made...); err != nil {
		return store.Checkpoint{}, err
	}
	s, err := t.driver.Capture(ctx, snap.CaptureRequest{ID: ids[0], At: start})
	if err != nil {
		return store.Checkpoint{}, err
	}
	var cp store.Checkpoint
	cp.ID, cp.AppID, cp.Trigger, cp.Ref = ipc.CheckpointID(records.NewID("cp-")), t.a.Rec().ID, ipc.TriggerAgent, o.ref
	cp.TurnID, cp.Inferred = checkpoint.Optional(string(o.Rec.ID)), o.Rec.Inferred
	cp.ConversationID, cp.MessageID = checkpoint.Optional(o.Rec.ConversationID), checkpoint.Optional(o.Rec.MessageID)
	t.mu.Lock()
	cp.Running, cp.Healthy = o.running, o.healthy
	apart := o.apart()
	cp.Warnings = append(append([]string{}, o.Rec.Warnings...), o.lacks...)
	t.mu.Unlock()
	if apart != "" {
		cp.Warnings = append(cp.Warnings, apart)
	}
	cp.Warnings = append(cp.Warnings, s.Warnings...)
	files := store.Snapshot{Layer: snap.Files, ID: s.ID, Driver: s.Driver, Hash: s.Hash, Position: s.Position}
	cp.Snapshots = append([]store.Snapshot{files}, o.dbs...)
	if err := t.svc.checkpoints.Record(ctx, t.a, &cp, ""); err != nil {
		return store.Checkpoint{}, errs.Also(err, t.svc.checkpoints.Drop(ctx, t.a, cp.Snapshots[:1]))
	}
	return cp, nil
}

// bounds returns the marks between which a turn wrote that is over. Its end stays the same if it must be tried again, but for an inferred turn.
func (t *Tracker) bounds(ctx context.Context, o *openTurn) (start, end snap.Mark, err error) {
	t.mu.Lock()
	end = o.Rec.End
	t.mu.Unlock()
	if end == "" {
		if end, err = t.Flush(ctx); err != nil {
			return "", "", err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o.Rec.End = cmp.Or(o.Rec.End, end)
	if o.Rec.Start == "" { // the journal was not current when the turn began, so its writes are unknown
		o.Rec.Start = o.Rec.End
	}
	return o.Rec.Start, o.Rec.End, nil
}

// end ends a turn. If the turn changed anything, end makes its checkpoint and sums the changes up. If it fails, the turn stays open, so that its end
// is tried again.
func (t *Tracker) end(ctx context.Context, o *openTurn) (store.Turn, error) {
	start, mark, err := t.bounds(ctx, o)
	if err != nil {
		return store.Turn{}, err
	}
	writes, err := t.j.Writes(ctx, start, mark)
	if err != nil {
		return store.Turn{}, err
	}
	changes := sumUp(writes)
	if changes.Paths, err = t.a.RedactPaths(changes.Paths); err != nil {
		return store.Turn{}, err
	}
	changed := false
	if len(writes) == 0 || t.quickly(ctx, o) {
		changes.Databases, changed = t.databaseChanges(ctx, o)
	}
	if len(writes) > 0 || changed {
		if err := t.checkpoint(ctx, o); err != nil {
			return store.Turn{}, err
		}
	}
	_ = t.rejoin(ctx)
	return t.recordEnd(ctx, o, changes)
}

// recordEnd records that a turn ended, and drops the snapshots of its databases if no checkpoint has them. It has the app, so that no checkpoint of
// the turn is made meanwhile.
func (t *Tracker) recordEnd(ctx context.Context, o *openTurn, changes ipc.TurnChanges) (store.Turn, error) {
	release, err := t.svc.apps.AcquireBrief(ctx, t.a, "end a turn")
	if err != nil {
		return store.Turn{}, err
	}
	defer release()
	if t.run.Err() != nil { // the next tracker has the turn
		return store.Turn{}, unwatched("")
	}
	t.mu.Lock()
	rec, ended := o.Rec, cmp.Or(o.over, t.svc.opt.Now().UTC())
	t.mu.Unlock()
	if rec.EndedAt != nil { // somebody else ended it meanwhile
		return rec, nil
	}
	rec.EndedAt, rec.Changes = &ended, changes
	err = t.svc.opt.Failpoint.At("record end of turn")
	if err == nil {
		err = t.svc.store.PutTurn(ctx, &rec)
	}
	if err != nil {
		return rec, err
	}
	t.mu.Lock()
	o.Rec.EndedAt, o.Rec.Changes = rec.EndedAt, changes
	unused := o.dbs
	o.dbs = nil
	delete(t.open, rec.ID)
	t.last = time.Now()
	t.mu.Unlock()
	if err := t.svc.endCalls(ctx, rec); err != nil {
		return rec, err
	}
	t.svc.events.Publish(t.a.Rec().ID, "turn", shownTurn(rec))
	return rec, t.svc.checkpoints.Drop(ctx, t.a, unused)
}

// sumUp returns the net effect of writes on paths: a path that was created and deleted again did
// not change. What changed within the git repository is one change, of .git, as in the preview of a rollback.
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
	const repository = ".git"
	inside, itself := false, false
	c := ipc.TurnChanges{Paths: []string{}}
	add := func(path string) {
		if len(c.Paths) < 20 {
			c.Paths = append(c.Paths, path)
		}
	}
	for _, path := range order {
		s := spans[path]
		switch {
		case s.before == s.after:
			continue
		case strings.HasPrefix(path, repository+"/"):
			inside = true
			continue
		case s.before.IsZero():
			c.Created++
		case s.after.IsZero():
			c.Deleted++
		default:
			c.Modified++
		}
		itself = itself || path == repository
		add(path)
	}
	if inside && !itself {
		c.Modified++
		add(repository)
	}
	return c
}

// Adopt makes the safety checkpoint of the rollback with which a turn began the turn's own
// checkpoint, so that one undo takes back the rollback and what the turn did after it.
func (svc *Service) Adopt(ctx context.Context, a *app.App, turn ipc.TurnID, cp ipc.CheckpointID) error {
	rec, err := svc.store.Turn(ctx, a.Rec().ID, turn)
	if err != nil {
		return err
	}
	if t := TrackerOf(a); t != nil {
		if o := t.openTurn(turn); o != nil {
			t.mu.Lock()
			o.Rec.CheckpointID = &cp
			rec = o.Rec
			t.mu.Unlock()
		}
	}
	rec.CheckpointID = &cp
	return svc.store.PutTurn(ctx, &rec)
}
