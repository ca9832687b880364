package agents

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// Daemon is what a hook needs of the daemon; *ipc.Client has it.
type Daemon interface {
	AppAt(ctx context.Context, dir string) (ipc.App, error)
	BeginTurn(ctx context.Context, app string, req ipc.BeginTurn) (ipc.Turn, error)
	EndTurn(ctx context.Context, app string, id ipc.TurnID) (ipc.Turn, error)
	BeginCall(ctx context.Context, app string, turn ipc.TurnID, req ipc.BeginCall) (ipc.Call, error)
	EndCall(ctx context.Context, app string, turn ipc.TurnID, id ipc.CallID) (ipc.Call, error)
}

// Reporter tells the daemon of one agent's events.
type Reporter struct {
	Agent    *Agent
	Daemon   Daemon
	Sessions Sessions
}

const (
	// barrier bounds how long a call waits for what was written before it.
	barrier = 250 * time.Millisecond
	// longEnd bounds how long a prompt waits for the end of the turn before it,
	// which the daemon finishes by itself.
	longEnd = time.Second
)

// Report tells the daemon what an event means. A turn is the agent's own, or one
// that is made up when it begins; a call outside of any turn begins one.
func (r Reporter) Report(ctx context.Context, ev Event) error {
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

func (r Reporter) with(ctx context.Context, ev Event, f func(*session) error) error {
	return r.Sessions.with(ctx, r.Agent.Name, ev.Session, f)
}

func (r Reporter) beginTurn(ctx context.Context, ev Event) error {
	app, err := r.app(ctx, ev)
	if err != nil {
		return err
	}
	return r.with(ctx, ev, func(s *session) error {
		if s.Turn != "" && ev.Turn != "" && s.Own == ev.Turn {
			return r.begunIn(ctx, ev, s, app) // told twice
		}
		if err := r.end(ctx, s); err != nil {
			return err
		}
		s.open(ev)
		s.at(ev, app)
		return r.begunIn(ctx, ev, s, app)
	})
}

// end ends the turn that the agent left open, as when a person interrupts it.
func (r Reporter) end(ctx context.Context, s *session) error {
	short, cancel := context.WithTimeout(ctx, longEnd)
	defer cancel()
	err := r.endIn(short, s.Apps, s.Turn)
	s.close()
	if errs.KindOf(err) == errs.Unavailable && ctx.Err() == nil && short.Err() != nil {
		return nil // it is being ended
	}
	return err
}

// open makes ev's turn the session's open one.
func (s *session) open(ev Event) {
	switch {
	case ev.Turn == "":
		s.Own, s.Round, s.Turn = "", 0, newTurn()
	case ev.Turn == s.Own:
		// It was ended, and goes on: as when a hook told the agent to.
		s.Round++
		s.Turn = id(ev.Turn + "-" + strconv.Itoa(s.Round+1))
	default:
		s.Own, s.Round, s.Turn = ev.Turn, 0, id(ev.Turn)
	}
	s.Message = id(ev.Message)
	if s.Message == "" {
		s.Message = s.Turn // so that it can be named
	}
	s.Apps, s.Where, s.Calls, s.Open = nil, nil, 0, nil
}

func (s *session) close() { s.Turn, s.Apps, s.Where, s.Open = "", nil, nil, nil }

// has tells whether the open turn is ev's.
func (s *session) has(ev Event) bool { return s.Turn != "" && (ev.Turn == "" || ev.Turn == s.Own) }

func newTurn() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return "turn-" + hex.EncodeToString(b)
}

// begunIn sees to it that the open turn is begun in app.
func (r Reporter) begunIn(ctx context.Context, ev Event, s *session, app string) error {
	if slices.Contains(s.Apps, app) {
		return nil
	}
	_, err := r.Daemon.BeginTurn(ctx, app, ipc.BeginTurn{
		TurnID: ipc.TurnID(s.Turn), ConversationID: id(ev.Session), MessageID: s.Message, Agent: r.Agent.Name,
	})
	if err == nil {
		s.Apps = append(s.Apps, app)
	}
	return err
}

func (r Reporter) endTurn(ctx context.Context, ev Event) error {
	var apps []string
	var turn string
	err := r.with(ctx, ev, func(s *session) error {
		if s.has(ev) {
			turn, apps = s.Turn, s.Apps
			s.close()
		}
		return nil
	})
	return errs.Also(err, r.endIn(ctx, apps, turn))
}

func (r Reporter) endIn(ctx context.Context, apps []string, turn string) (err error) {
	for _, app := range apps {
		_, failed := r.Daemon.EndTurn(ctx, app, ipc.TurnID(turn))
		if errs.KindOf(failed) != errs.NotFound { // gone is over too
			err = errs.Also(err, failed)
		}
	}
	return err
}

func (r Reporter) beginCall(ctx context.Context, ev Event) error {
	var app, turn string
	req := ipc.BeginCall{CallID: ipc.CallID(id(ev.Call)), Tool: id(ev.Tool), Before: true, DeadlineMS: int(barrier.Milliseconds())}
	within := func(s *session) (err error) {
		if app, err = r.where(ctx, ev, s); err != nil {
			return err
		}
		if !s.has(ev) {
			s.open(ev)
			s.at(ev, app)
		}
		turn = s.Turn
		if req.CallID == "" {
			req.CallID = ipc.CallID(s.begun(r.Agent.Name, ev))
		}
		return r.begunIn(ctx, ev, s, app)
	}
	err := r.with(ctx, ev, within)
	if err == nil {
		_, err = r.Daemon.BeginCall(ctx, app, ipc.TurnID(turn), req)
	}
	if errs.KindOf(err) != errs.NotFound || turn == "" {
		return err
	}
	// The daemon has forgotten the turn, or the app is another one now.
	err = r.with(ctx, ev, func(s *session) error {
		s.Apps, s.Where = nil, nil
		return within(s)
	})
	if err == nil {
		_, err = r.Daemon.BeginCall(ctx, app, ipc.TurnID(turn), req)
	}
	return err
}

// where is the app that the event is about, asked for once a turn and folder.
func (r Reporter) where(ctx context.Context, ev Event, s *session) (string, error) {
	if app, known := s.Where[strings.Join(ev.Dirs, "\x00")]; known && s.has(ev) {
		return app, nil
	}
	app, err := r.app(ctx, ev)
	if errs.KindOf(err) == errs.NotFound && s.has(ev) && len(s.Apps) > 0 {
		app, err = s.Apps[0], nil // the agent went elsewhere; its turn is here
	}
	if err == nil {
		s.at(ev, app)
	}
	return app, err
}

// at remembers which app the event's folders are in.
func (s *session) at(ev Event, app string) {
	if s.Where == nil || len(s.Where) > maxOpen {
		s.Where = map[string]string{}
	}
	s.Where[strings.Join(ev.Dirs, "\x00")] = app
}

// begun gives a call an id, for agents that don't: derived from all that is
// known of it and its place in the turn.
func (s *session) begun(agent string, ev Event) string {
	args := digest(sameArgs(ev.Args))
	call := openCall{Tool: ev.Tool, Args: args, ID: "call-" + digest(agent, ev.Session, s.Turn, strconv.Itoa(s.Calls), ev.Tool, args)}
	s.Calls++
	if s.Open = append(s.Open, call); len(s.Open) > maxOpen {
		s.Open = s.Open[1:]
	}
	return call.ID
}

// ended gives the id of the call that ends: the oldest with these arguments,
// else, since agents may tell them differently, the oldest of this tool. Else "".
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

func (r Reporter) endCall(ctx context.Context, ev Event) error {
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
		return err // it ended with its turn, or was never begun
	}
	err = errs.New(errs.NotFound, "end the call", "%s was not begun", call)
	for _, app := range apps {
		_, err = r.Daemon.EndCall(ctx, app, ipc.TurnID(turn), ipc.CallID(call))
		if errs.KindOf(err) != errs.NotFound {
			return err
		}
	}
	return err
}

// app is the app that the event is about: that of the first of its folders
// that is in one.
func (r Reporter) app(ctx context.Context, ev Event) (string, error) {
	err := error(errs.New(errs.NotFound, "find the app", "%s does not name its working folder", r.Agent.Title))
	for _, dir := range ev.Dirs {
		var app ipc.App
		if app, err = r.Daemon.AppAt(ctx, dir); err == nil {
			return string(app.ID), nil
		}
		if k := errs.KindOf(err); k != errs.NotFound && k != errs.Invalid { // a folder may be gone
			return "", err
		}
	}
	return "", err
}
