package turns

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// MaxName bounds the ids that agents give, in bytes.
const MaxName = 512

// BeginTurn records that a turn of an agent begins. It returns quickly: the turn's warnings say
// what it did not wait for.
func (svc *Service) BeginTurn(ctx context.Context, who ipc.Caller, ref string, req ipc.BeginTurn) (ipc.Turn, error) {
	const op = "begin turn"
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.Turn{}, err
	}
	if max(len(req.TurnID), len(req.ConversationID), len(req.MessageID), len(req.Agent)) > MaxName {
		return ipc.Turn{}, errs.New(errs.Invalid, op, "an id is longer than %d bytes", MaxName)
	}
	if req.TurnID == "" {
		req.TurnID = ipc.TurnID(records.NewID("turn-"))
	}
	if rec, err := svc.store.Turn(ctx, a.Rec().ID, req.TurnID); err == nil {
		return shownTurn(rec), nil // the agent announced this turn before
	}
	o := &openTurn{ready: make(chan struct{}), ref: app.HeadOf(a.Rec())}
	o.Rec.Turn = ipc.Turn{
		ID: req.TurnID, AppID: a.Rec().ID, ConversationID: req.ConversationID, MessageID: req.MessageID,
		Agent: req.Agent, StartedAt: svc.opt.Now().UTC(),
	}
	if svc.checkpoints.KeepsTitles(a) {
		o.Rec.Title = ipc.Title(req.Title)
	}
	t := TrackerOf(a)
	if t == nil {
		warning := "automatic checkpoints are off for this app: `mulligan app set auto=true`"
		if a.Rec().Auto { // the next tracker takes the turn over
			warning = lateStart + "the app's files are not watched yet"
		}
		o.Rec.Warnings = append(o.Rec.Warnings, warning)
		err := svc.store.PutTurn(ctx, &o.Rec)
		if t = TrackerOf(a); err != nil || t == nil || t.openTurn(o.Rec.ID) != nil {
			return shownTurn(o.Rec), errs.Wrap(errs.Failed, op, err)
		} // else a tracker was started meanwhile, and had read the open turns before
	}
	rec, err := t.begin(ctx, o)
	return shownTurn(rec), errs.Wrap(errs.Failed, op, err)
}

// lateStart begins the warning of a turn that starts in the journal later than it began.
const lateStart = "files that the turn writes at its beginning may count as written before it: "

// begin opens a turn at the journal's present position, and returns its record.
func (t *Tracker) begin(ctx context.Context, o *openTurn) (store.Turn, error) {
	short, cancel := context.WithTimeout(ctx, t.svc.opt.AgentWait)
	defer cancel()
	starting := t.starting()
	mark, err := t.Flush(short)
	t.beginning.Lock()
	defer t.beginning.Unlock()
	switch {
	case err == nil:
	case mark == "": // the turn starts when the files are read, see awaitFiles
		o.Rec.Warnings = append(o.Rec.Warnings, lateStart+err.Error())
	default:
		o.Rec.Warnings = append(o.Rec.Warnings, "files that were written just before the turn may count as written in it: "+err.Error())
	}
	o.Rec.Start, o.began = mark, time.Now()
	if err := t.svc.store.PutTurn(ctx, &o.Rec); err != nil {
		return o.Rec, err
	}
	t.mu.Lock()
	if starting { // the first reading of the files may have ended since
		o.Rec.Start = cmp.Or(o.Rec.Start, t.begun)
	}
	rec := o.Rec
	over := t.endBefore(rec)
	t.open[o.Rec.ID] = o
	t.last = time.Now()
	t.mu.Unlock()
	for _, id := range over {
		if err := t.svc.store.NoteEnding(context.WithoutCancel(ctx), rec.AppID, id, rec.Start); err != nil {
			t.note("note the end of a turn", err)
		}
	}
	t.done.Go(func() { t.look(t.run, o) })
	t.done.Go(func() {
		t.captureRest(t.run, o)
		t.poke() // the turns before it end after that: its databases are to be of its start
	})
	return rec, nil
}

// shownTurn returns a turn as clients see it. Its lists are never null.
func shownTurn(rec store.Turn) ipc.Turn {
	t := rec.Turn
	if t.Calls == nil {
		t.Calls = []ipc.Call{}
	}
	if t.Warnings == nil {
		t.Warnings = []string{}
	}
	if t.Changes.Paths == nil {
		t.Changes.Paths = []string{}
	}
	return t
}

// EndTurn records that a turn ended, and returns it with a summary of its changes. If that fails, the app's tracker ends the turn as soon as it
// can: an agent announces an end only once.
func (svc *Service) EndTurn(ctx context.Context, who ipc.Caller, ref string, id ipc.TurnID) (ipc.Turn, error) {
	const op = "end turn"
	a, rec, err := svc.findTurn(ctx, who, ref, id)
	if err != nil {
		return ipc.Turn{}, err
	}
	if rec.EndedAt != nil {
		return shownTurn(rec), nil
	}
	ctx = context.WithoutCancel(ctx)
	if t := TrackerOf(a); t == nil || t.starting() { // the wait for the files may outlast the daemon
		_ = svc.store.NoteEnding(ctx, a.Rec().ID, id, "") // noteEnding tries again
	}
	rec, err = svc.endTurn(ctx, a, rec)
	if err != nil {
		err = errs.Also(err, svc.noteEnding(ctx, a, id))
	}
	return shownTurn(rec), errs.Wrap(errs.Failed, op, err)
}

func (svc *Service) endTurn(ctx context.Context, a *app.App, rec store.Turn) (store.Turn, error) {
	for {
		t, err := svc.tracker(ctx, a)
		if err != nil {
			return rec, err
		}
		if t == nil {
			break
		}
		o := t.openTurn(rec.ID)
		if o == nil {
			break
		}
		ended, err := t.end(ctx, o)
		if err == nil || t.run.Err() == nil {
			return ended, err
		} // else the tracker was stopped meanwhile, and the app's next one goes on with the turn
	}
	rec, err := svc.store.Turn(ctx, a.Rec().ID, rec.ID)
	if err != nil || rec.EndedAt != nil { // its tracker ended it meanwhile
		return rec, err
	}
	now := svc.opt.Now().UTC()
	rec.EndedAt = &now
	if err := svc.store.PutTurn(ctx, &rec); err != nil {
		return rec, err
	}
	return rec, svc.endCalls(ctx, rec)
}

// noteEnding has the app's tracker, or its next one, end a turn.
func (svc *Service) noteEnding(ctx context.Context, a *app.App, id ipc.TurnID) error {
	err := svc.store.NoteEnding(ctx, a.Rec().ID, id, "")
	if t := TrackerOf(a); t != nil { // it may have read the record before
		t.mu.Lock()
		defer t.mu.Unlock()
		if o := t.open[id]; o != nil {
			o.Rec.Ending = true
			t.poke()
		}
	}
	return err
}

// endCalls ends the calls that are still open when their turn ends, for example of tools that were
// denied or failed.
func (svc *Service) endCalls(ctx context.Context, turn store.Turn) error {
	calls, err := svc.store.Calls(ctx, turn.Seq)
	if err != nil {
		return err
	}
	for i, c := range calls {
		if c.EndedAt != nil {
			continue
		}
		c.EndedAt, c.Untold, c.End = turn.EndedAt, true, endOfOpen(calls[i+1:], turn.End)
		if err := svc.store.PutCall(ctx, turn.Seq, c); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tracker) openTurn(id ipc.TurnID) *openTurn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[id]
}

func (svc *Service) findTurn(ctx context.Context, who ipc.Caller, ref string, id ipc.TurnID) (*app.App, store.Turn, error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return nil, store.Turn{}, err
	}
	rec, err := svc.store.Turn(ctx, a.Rec().ID, id)
	return a, rec, err
}

// BeginCall records that a tool call of a turn begins. If req.Before is set, it waits a moment
// until earlier writes are in the journal: then the turn's checkpoint and the writes attributed to
// the call are exact. It does not wait for a call of mulligan's own tools.
func (svc *Service) BeginCall(ctx context.Context, who ipc.Caller, ref string, turn ipc.TurnID, req ipc.BeginCall) (ipc.Call, error) {
	const op = "begin call"
	a, rec, err := svc.findTurn(ctx, who, ref, turn)
	if err != nil {
		return ipc.Call{}, err
	}
	if max(len(req.CallID), len(req.Tool)) > MaxName {
		return ipc.Call{}, errs.New(errs.Invalid, op, "an id is longer than %d bytes", MaxName)
	}
	if rec.EndedAt != nil {
		return ipc.Call{}, errs.New(errs.NotFound, op, "turn %.64q is over", string(turn)).WithHint("begin another turn: this one ended, or nothing was heard of it for long")
	}
	if req.CallID == "" {
		req.CallID = ipc.CallID(records.NewID("call-"))
	}
	c := store.Call{Call: ipc.Call{ID: req.CallID, TurnID: turn, Tool: req.Tool, StartedAt: svc.opt.Now().UTC()}}
	if t := TrackerOf(a); t != nil && !own(c) {
		wait := t.svc.opt.AgentWait
		if req.DeadlineMS > 0 {
			wait = min(time.Duration(req.DeadlineMS)*time.Millisecond, 10*time.Second)
		}
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		c.Start, err = t.Flush(short)
		ready := t.restReady(short, turn)
		c.Exact = err == nil && ready
	}
	// The call is recorded also if its caller has given up waiting: the caller tells the call's end later.
	return c.Call, errs.Wrap(errs.Failed, op, svc.store.PutCall(context.WithoutCancel(ctx), rec.Seq, c))
}

// restReady waits until the databases at the turn's start are captured.
func (t *Tracker) restReady(ctx context.Context, turn ipc.TurnID) bool {
	o := t.openTurn(turn)
	if o == nil {
		return true
	}
	select {
	case <-o.ready:
		return true
	default:
	}
	select {
	case <-o.ready:
		return true
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		o.late = true
		return false
	}
}

// EndCall records that a tool call ended. If no turn is named, the newest turn with such a call is
// meant.
func (svc *Service) EndCall(ctx context.Context, who ipc.Caller, ref string, in ipc.TurnID, id ipc.CallID) (ipc.Call, error) {
	const op = "end call"
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.Call{}, err
	}
	turn, c, err := svc.callIn(ctx, a, in, id)
	if err != nil {
		return ipc.Call{}, err
	}
	if c.EndedAt != nil {
		return c.Call, nil
	}
	// If there is no tracker, the caller is not waited for longer than it waits: afterwards, others' writes would count as the call's. The call then
	// stays open, and ends where the next one begins, or with its turn.
	if !own(c) {
		t, err := svc.tracker(ctx, a)
		if err == nil && t != nil {
			c.End, err = t.Flush(context.WithoutCancel(ctx))
		}
		if err != nil {
			return ipc.Call{}, errs.Wrap(errs.Failed, op, err)
		}
	}
	ctx = context.WithoutCancel(ctx)
	now := svc.opt.Now().UTC()
	c.EndedAt = &now
	return c.Call, errs.Wrap(errs.Failed, op, svc.store.PutCall(ctx, turn.Seq, c))
}

func (svc *Service) callIn(ctx context.Context, a *app.App, in ipc.TurnID, id ipc.CallID) (store.Turn, store.Call, error) {
	if in == "" {
		return svc.store.Call(ctx, a.Rec().ID, id)
	}
	turn, err := svc.store.Turn(ctx, a.Rec().ID, in)
	if err != nil {
		return turn, store.Call{}, err
	}
	calls, err := svc.store.Calls(ctx, turn.Seq)
	if err != nil {
		return turn, store.Call{}, err
	}
	i := slices.IndexFunc(calls, func(c store.Call) bool { return c.ID == id })
	if i < 0 {
		return turn, store.Call{}, errs.New(errs.NotFound, "", "turn %.64q has no call %.64q", string(in), string(id)).
			WithHint("`mulligan turns --json` lists the turns and their calls")
	}
	return turn, calls[i], nil
}

// Turns returns the app's turns, or those of one conversation, newest first, with their calls.
func (svc *Service) Turns(ctx context.Context, who ipc.Caller, ref, conversation string, limit int) ([]ipc.Turn, error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return nil, err
	}
	recs, err := svc.store.Turns(ctx, a.Rec().ID, limit)
	if conversation != "" {
		recs, err = svc.store.ConversationTurns(ctx, a.Rec().ID, conversation)
		slices.Reverse(recs)
		recs = recs[:min(len(recs), limitOr(limit, len(recs)))]
	}
	if err != nil {
		return nil, err
	}
	turns := []ipc.Turn{}
	for _, rec := range recs {
		calls, err := svc.store.Calls(ctx, rec.Seq)
		if err != nil {
			return nil, err
		}
		for _, c := range calls {
			rec.Calls = append(rec.Calls, c.Call)
		}
		turns = append(turns, shownTurn(rec))
	}
	return turns, nil
}

// limitOr returns limit, or all if limit is 0.
func limitOr(limit, all int) int {
	if limit == 0 {
		return all
	}
	return limit
}
