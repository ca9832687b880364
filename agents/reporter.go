package agents

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// Daemon has the calls of the daemon that a hook needs. *ipc.Client implements it.
type Daemon interface {
	AppAt(ctx context.Context, dir string) (ipc.App, error)
	BeginTurn(ctx context.Context, app string, req ipc.BeginTurn) (ipc.Turn, error)
	EndTurn(ctx context.Context, app string, id ipc.TurnID) (ipc.Turn, error)
	BeginCall(ctx context.Context, app string, turn ipc.TurnID, req ipc.BeginCall) (ipc.Call, error)
	EndCall(ctx context.Context, app string, turn ipc.TurnID, id ipc.CallID) (ipc.Call, error)
}

// Reporter reports the events of one agent to the daemon. Not safe for concurrent use.
type Reporter struct {
	Agent    *Agent
	Daemon   Daemon
	Sessions Sessions

	off bool // the app of the last event has no automatic checkpoints
}

const (
	// barrier bounds how long a call waits until earlier writes are in the journal.
	barrier = 250 * time.Millisecond
	// longEnd bounds how long an agent waits until the daemon is told the ends of earlier turns.
	longEnd = time.Second
)

// Report reports an event to the daemon. The id of a turn is the agent's own, or is generated when the turn begins. A call
// outside of any turn begins a turn.
func (r *Reporter) Report(ctx context.Context, ev Event) error {
	switch ev.Kind {
	case TurnBegins:
		return r.beginTurn(ctx, ev)
	case TurnEnds:
		return r.endTurn(ctx, ev)
	case CallBegins:
		return r.beginCall(ctx, ev)
	case CallEnds:
		return r.endCall(ctx, ev)
	}
	return nil
}

func (r *Reporter) with(ctx context.Context, ev Event, f func(*session) error) error {
	return r.Sessions.with(ctx, r.Agent.Name, ev.Session, f)
}

func (r *Reporter) beginTurn(ctx context.Context, ev Event) error {
	app, err := r.app(ctx, ev)
	if err != nil {
		return err
	}
	var ending []endedTurn
	err = r.with(ctx, ev, func(s *session) error {
		if s.Turn == "" || ev.Turn == "" || s.Own != ev.Turn { // else the event was reported twice
			ending = s.next(ev, app)
		}
		return r.begunIn(ctx, ev, s, app)
	})
	if err == nil {
		r.tellEarlier(ctx, ev, ending)
	}
	return err
}

// errAutoOff is why turns of an app without automatic checkpoints have none. The daemon records them all the same.
var errAutoOff = errs.New(errs.Unsupported, "begin turn", "automatic checkpoints are off for this app").
	WithHint("`mulligan app set auto=true`")

// Lacks returns a line for the person if a turn that begins with ev has no checkpoint, because reporting it ended with err or the app
// asks for none; else "". It returns the line once in a conversation, until a turn is reported well.
func (r *Reporter) Lacks(ctx context.Context, ev Event, err error) string {
	if ev.Kind != TurnBegins {
		return ""
	}
	if err == nil && r.off {
		err = errAutoOff
	}
	line := ""
	failed := r.with(ctx, ev, func(s *session) error {
		if err != nil && !s.Told {
			body := ipc.Body(err)
			if body.Kind == errs.NotFound { // here nobody can name an app with a flag
				body.Hint = "`mulligan init` in the project's folder protects it"
			}
			line = "mulligan: this turn has no checkpoint: " + body.Message
			if body.Hint != "" {
				line += "; " + body.Hint
			}
		}
		s.Told = err != nil
		return nil
	})
	if failed != nil { // it would be told again and again
		return ""
	}
	return line
}

// next makes ev's turn, in app, the session's open one, and returns those that ended before it, also by a person's interruption, and of which the
// daemon is still to be told. It is told once the turn has begun, which must not wait for them.
func (s *session) next(ev Event, app string) []endedTurn {
	s.close()
	s.open(ev)
	s.at(ev, app)
	return s.Ending
}

// open makes ev's turn the open one.
func (s *session) open(ev Event) {
	switch {
	case ev.Turn == "":
		s.Own, s.Round, s.Turn = "", 0, newTurn()
	case ev.Turn == s.Own:
		// The turn was ended and continues, as after a hook told the agent to continue.
		s.Round++
		s.Turn = id(ev.Turn + "-" + strconv.Itoa(s.Round+1))
	default:
		s.Own, s.Round, s.Turn = ev.Turn, 0, id(ev.Turn)
	}
	s.Message = id(ev.Message)
	if s.Message == "" {
		s.Message = s.Turn // so that users can name it
	}
	s.Apps, s.Where, s.Calls, s.Open = nil, nil, 0, nil
}

// close closes the open turn. The daemon is still to be told.
func (s *session) close() {
	if len(s.Apps) > 0 {
		s.Ending = append(s.Ending, endedTurn{s.Turn, s.Apps})
		s.Ending = s.Ending[max(0, len(s.Ending)-maxEnding):]
	}
	s.Turn, s.Apps, s.Where, s.Open = "", nil, nil, nil
}

// has reports whether the open turn is that of ev.
func (s *session) has(ev Event) bool { return s.Turn != "" && (ev.Turn == "" || ev.Turn == s.Own) }

func newTurn() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return "turn-" + hex.EncodeToString(b)
}

// begunIn begins the open turn in app, unless it has begun there. If the daemon has ended the turn, as one that was silent for long, its
// continuation begins.
func (r *Reporter) begunIn(ctx context.Context, ev Event, s *session, app string) error {
	if slices.Contains(s.Apps, app) {
		return nil
	}
	turn, err := r.beginIn(ctx, ev, s, app)
	if err == nil && turn.EndedAt != nil {
		calls, running := s.Calls, s.Open
		s.next(ev, app)
		s.Calls, s.Open = calls, running
		_, err = r.beginIn(ctx, ev, s, app)
	}
	if err == nil {
		s.Apps = append(s.Apps, app)
	}
	return err
}

func (r *Reporter) beginIn(ctx context.Context, ev Event, s *session, app string) (ipc.Turn, error) {
	return r.Daemon.BeginTurn(ctx, app, ipc.BeginTurn{
		TurnID: ipc.TurnID(s.Turn), ConversationID: id(ev.Session), MessageID: s.Message, Agent: r.Agent.Name, Title: ipc.Title(ev.Prompt),
	})
}

// endTurn ends the open turn. What the daemon could not be told, because it is away for a moment or the hook's time is up, is told when the session's
// next turn begins or ends.
func (r *Reporter) endTurn(ctx context.Context, ev Event) error {
	var ending []endedTurn
	err := r.with(ctx, ev, func(s *session) error {
		if s.has(ev) {
			s.close()
		}
		ending = s.Ending
		return nil
	})
	return errs.Also(err, r.tellEnds(ctx, ev, ending))
}

// tellEarlier tells the daemon, after a turn began, of the ends of those before it. An error is no reason to report the new turn as failed: they
// are told again later.
func (r *Reporter) tellEarlier(ctx context.Context, ev Event, ending []endedTurn) {
	short, cancel := briefly(ctx)
	defer cancel()
	_ = r.tellEnds(short, ev, ending)
}

// briefly bounds ctx for the ends of earlier turns.
func briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	wait := longEnd
	if until, bound := ctx.Deadline(); bound {
		wait = min(wait, time.Until(until)/2) // the rest is for what else the hook does
	}
	return context.WithTimeout(ctx, wait)
}

// tellEnds tells the daemon that turns of ev's session ended, and forgets those of which it was told. While it is told, which may take long, other
// hooks of the session are not excluded.
func (r *Reporter) tellEnds(ctx context.Context, ev Event, ending []endedTurn) error {
	if len(ending) == 0 {
		return nil
	}
	left, err := r.sendEnds(ctx, ending)
	return errs.Also(err, r.with(ctx, ev, func(s *session) error {
		s.Ending = append(left, slices.DeleteFunc(s.Ending, func(t endedTurn) bool {
			return slices.ContainsFunc(ending, func(o endedTurn) bool { return o.Turn == t.Turn })
		})...)
		return nil
	}))
}

// sendEnds tells the daemon that turns ended, and returns those of which it could not be told. Each app is told by itself, so that one that takes
// long, as while its files are read, keeps no other waiting. Only the last of the turns has the whole time of ctx: the daemon probably knows the
// end of the others, and does not answer because it is still at work on it.
func (r *Reporter) sendEnds(ctx context.Context, ending []endedTurn) (left []endedTurn, err error) {
	short, cancel := briefly(ctx)
	defer cancel()
	apps := map[string]bool{}
	for _, t := range ending {
		left = append(left, endedTurn{Turn: t.Turn})
		for _, app := range t.Apps {
			apps[app] = true
		}
	}
	var work sync.WaitGroup
	var mu sync.Mutex // guards left and err
	for app := range apps {
		work.Go(func() {
			for i, t := range ending {
				if !slices.Contains(t.Apps, app) {
					continue
				}
				bound := short
				if i == len(ending)-1 {
					bound = ctx
				}
				_, failed := r.Daemon.EndTurn(bound, app, ipc.TurnID(t.Turn))
				if failed != nil && errs.KindOf(failed) != errs.NotFound { // an app that is gone has no open turn
					mu.Lock()
					left[i].Apps, err = append(left[i].Apps, app), errs.Also(err, failed)
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	return slices.DeleteFunc(left, func(t endedTurn) bool { return len(t.Apps) == 0 }), err
}

func (r *Reporter) beginCall(ctx context.Context, ev Event) error {
	var app, turn string
	var ending []endedTurn
	req := ipc.BeginCall{CallID: ipc.CallID(id(ev.Call)), Tool: id(ev.Tool), Before: true, DeadlineMS: int(barrier.Milliseconds())}
	within := func(s *session) (err error) {
		if app, err = r.where(ctx, ev, s); err != nil {
			return err
		}
		if !s.has(ev) {
			ending = s.next(ev, app)
		}
		if req.CallID == "" {
			req.CallID = ipc.CallID(s.begun(r.Agent.Name, ev))
		}
		err = r.begunIn(ctx, ev, s, app)
		turn = s.Turn
		return err
	}
	err := r.with(ctx, ev, within)
	if err == nil {
		_, err = r.Daemon.BeginCall(ctx, app, ipc.TurnID(turn), req)
	}
	if errs.KindOf(err) == errs.NotFound && turn != "" {
		// The daemon has ended the turn or does not know it any more, or the app was registered anew.
		err = r.with(ctx, ev, func(s *session) error {
			s.Apps, s.Where = slices.DeleteFunc(s.Apps, func(a string) bool { return a == app }), nil
			return within(s)
		})
		if err == nil {
			_, err = r.Daemon.BeginCall(ctx, app, ipc.TurnID(turn), req)
		}
	}
	if err == nil {
		r.tellEarlier(ctx, ev, ending)
	}
	return err
}

// where returns the app of the event. It asks the daemon once for each turn and folder.
func (r *Reporter) where(ctx context.Context, ev Event, s *session) (string, error) {
	if app, known := s.Where[strings.Join(ev.Dirs, "\x00")]; known && s.has(ev) {
		return app, nil
	}
	app, err := r.app(ctx, ev)
	if errs.KindOf(err) == errs.NotFound && s.has(ev) && len(s.Apps) > 0 {
		app, err = s.Apps[0], nil // the agent works in another folder now, but its turn is in this app
	}
	if err == nil {
		s.at(ev, app)
	}
	return app, err
}

// at records the app of the event's folders.
func (s *session) at(ev Event, app string) {
	if s.Where == nil || len(s.Where) > maxOpen {
		s.Where = map[string]string{}
	}
	s.Where[strings.Join(ev.Dirs, "\x00")] = app
}

// begun returns an id for a call of an agent that has no ids of calls. It derives the id from all fields of the call and its
// number in the turn.
func (s *session) begun(agent string, ev Event) string {
	args := digest(sameArgs(ev.Args))
	call := openCall{Tool: ev.Tool, Args: args, ID: "call-" + digest(agent, ev.Session, s.Turn, strconv.Itoa(s.Calls), ev.Tool, args)}
	s.Calls++
	if s.Open = append(s.Open, call); len(s.Open) > maxOpen {
		s.Open = s.Open[1:]
	}
	return call.ID
}

// ended returns the id of the call that ends: the oldest open one with these arguments or, because the agent may change them,
// the oldest of this tool. Otherwise it returns "".
func (s *session) ended(ev Event) string {
	args := digest(sameArgs(ev.Args))
	i := slices.IndexFunc(s.Open, func(c openCall) bool { return c.Tool == ev.Tool && c.Args == args })
	if i < 0 {
		i = slices.IndexFunc(s.Open, func(c openCall) bool { return c.Tool == ev.Tool })
	}
	if i < 0 {
		return ""
	}
	call := s.Open[i]
	s.Open = slices.Delete(s.Open, i, i+1)
	return call.ID
}

func (r *Reporter) endCall(ctx context.Context, ev Event) error {
	var apps []string
	var turn string
	call := id(ev.Call)
	err := r.with(ctx, ev, func(s *session) error {
		turn, apps = s.Turn, s.Apps
		if call == "" {
			call = s.ended(ev)
		}
		return nil
	})
	if err != nil || turn == "" || call == "" {
		return err // the call ended with its turn, or never began
	}
	err = errs.New(errs.NotFound, "end the call", "the daemon knows no call %s that has begun", call)
	for _, app := range apps {
		_, err = r.Daemon.EndCall(ctx, app, ipc.TurnID(turn), ipc.CallID(call))
		if errs.KindOf(err) != errs.NotFound {
			return err
		}
	}
	return err
}

// app returns the app of the event: that of the first of its folders which is in an app.
func (r *Reporter) app(ctx context.Context, ev Event) (string, error) {
	err := error(errs.New(errs.NotFound, "find the app", "%s does not name its working folder", r.Agent.Title))
	for _, dir := range ev.Dirs {
		var app ipc.App
		if app, err = r.Daemon.AppAt(ctx, dir); err == nil {
			r.off = !app.Auto
			return string(app.ID), nil
		}
		if k := errs.KindOf(err); k != errs.NotFound && k != errs.Invalid { // a folder may be behind a link that leads nowhere
			return "", err
		}
	}
	return "", err
}
