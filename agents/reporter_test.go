package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// fakeDaemon writes down what it is told, and knows two apps.
type fakeDaemon struct {
	mu    sync.Mutex
	told  []string
	turns map[string]bool // app/turn: open
	calls map[string]bool // app/call: open
	asked int             // for apps
	fault error
	// endFault is the error of the end of a turn, which then stays open.
	endFault error
	auto     bool          // the apps have automatic checkpoints
	hangs    string        // the app in which the end of a turn gets no answer
	takes    time.Duration // what the begin of a turn takes
}

func newFakeDaemon() *fakeDaemon {
	return &fakeDaemon{turns: map[string]bool{}, calls: map[string]bool{}}
}

func (d *fakeDaemon) tell(format string, args ...any) error {
	d.told = append(d.told, fmt.Sprintf(format, args...))
	return d.fault
}

func (d *fakeDaemon) AppAt(_ context.Context, dir string) (ipc.App, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	for _, ws := range []string{"/srv/shop", "/srv/blog"} {
		if dir == ws || strings.HasPrefix(dir, ws+"/") {
			return ipc.App{ID: ipc.AppID(filepath.Base(ws)), Auto: d.auto}, d.fault
		}
	}
	return ipc.App{}, errs.New(errs.NotFound, "find the app", "%s", dir)
}

func (d *fakeDaemon) BeginTurn(ctx context.Context, app string, req ipc.BeginTurn) (ipc.Turn, error) {
	if d.takes > 0 {
		time.Sleep(d.takes)
	}
	if ctx.Err() != nil {
		return ipc.Turn{}, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if open, known := d.turns[app+"/"+string(req.TurnID)]; known && !open {
		return ipc.Turn{ID: req.TurnID, EndedAt: new(time.Time)}, d.fault
	}
	d.turns[app+"/"+string(req.TurnID)] = true
	return ipc.Turn{ID: req.TurnID}, d.tell("begin turn %s in %s: %s %s %s", req.TurnID, app, req.ConversationID, req.MessageID, req.Agent)
}

func (d *fakeDaemon) EndTurn(ctx context.Context, app string, turn ipc.TurnID) (ipc.Turn, error) {
	if app == d.hangs {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return ipc.Turn{}, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.turns[app+"/"+string(turn)] {
		return ipc.Turn{}, errs.New(errs.NotFound, "end turn", "%s", turn)
	}
	d.turns[app+"/"+string(turn)] = d.endFault != nil
	return ipc.Turn{}, errs.Also(d.tell("end turn %s in %s", turn, app), d.endFault)
}

func (d *fakeDaemon) BeginCall(_ context.Context, app string, turn ipc.TurnID, req ipc.BeginCall) (ipc.Call, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.turns[app+"/"+string(turn)] {
		return ipc.Call{}, errs.New(errs.NotFound, "begin call", "%s", turn)
	}
	d.calls[app+"/"+string(req.CallID)] = true
	return ipc.Call{}, d.tell("begin call %s of %s in %s: %s", req.CallID, turn, app, req.Tool)
}

func (d *fakeDaemon) EndCall(_ context.Context, app string, turn ipc.TurnID, id ipc.CallID) (ipc.Call, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.calls[app+"/"+string(id)] {
		return ipc.Call{}, errs.New(errs.NotFound, "end call", "%s", id)
	}
	d.calls[app+"/"+string(id)] = false
	return ipc.Call{}, d.tell("end call %s of %s in %s", id, turn, app)
}

func newReporter(t *testing.T, a *Agent) (Reporter, *fakeDaemon) {
	d := newFakeDaemon()
	return Reporter{Agent: a, Daemon: d, Sessions: Sessions{filepath.Join(t.TempDir(), "hooks")}}, d
}

// say tells events of the session s in the shop, and expects what the daemon is told.
func say(t *testing.T, reporter Reporter, d *fakeDaemon, ev Event, want ...string) {
	t.Helper()
	ev.Session = "s"
	if ev.Dirs == nil {
		ev.Dirs = []string{"/srv/shop"}
	}
	d.told = nil
	if err := reporter.Report(t.Context(), ev); err != nil {
		t.Fatalf("%+v: %v", ev, err)
	}
	if i := slices.IndexFunc(d.told, func(line string) bool { return strings.HasPrefix(line, "end turn ") }); i >= 0 {
		slices.Sort(d.told[i:]) // several apps are told at the same time
	}
	if !slices.Equal(d.told, want) {
		t.Fatalf("%+v: the daemon was told\n%q, not\n%q", ev, d.told, want)
	}
}

func TestTellOwnIDs(t *testing.T) {
	reporter, d := newReporter(t, codex)
	say(t, reporter, d, Event{Kind: TurnEnds}) // none is open
	say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t1"}, "begin turn t1 in shop: s t1 codex")
	say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t1"}) // told twice
	asked := d.asked
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t1", Call: "c1", Tool: "Bash"}, "begin call c1 of t1 in shop: Bash")
	say(t, reporter, d, Event{Kind: CallEnds, Turn: "t1", Call: "c1", Tool: "Bash"}, "end call c1 of t1 in shop")
	if d.asked != asked {
		t.Error("the app was asked for again")
	}
	// A folder that is in no app is the turn's app's business; another app joins in.
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t1", Call: "c2", Tool: "Bash", Dirs: []string{"/tmp"}}, "begin call c2 of t1 in shop: Bash")
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t1", Call: "c3", Tool: "Bash", Dirs: []string{"/srv/blog"}},
		"begin turn t1 in blog: s t1 codex", "begin call c3 of t1 in blog: Bash")
	say(t, reporter, d, Event{Kind: CallEnds, Call: "c3"}, "end call c3 of t1 in blog")
	say(t, reporter, d, Event{Kind: TurnEnds, Turn: "t1"}, "end turn t1 in blog", "end turn t1 in shop")
	say(t, reporter, d, Event{Kind: TurnEnds, Turn: "t1"})
	say(t, reporter, d, Event{Kind: CallEnds, Turn: "t1", Call: "c2"}) // too late
	// The turn goes on after its end.
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t1", Call: "c4", Tool: "Bash"}, "begin turn t1-2 in shop: s t1-2 codex", "begin call c4 of t1-2 in shop: Bash")
	// Interrupted: the next prompt ends it.
	say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t2", Message: "m2"}, "begin turn t2 in shop: s m2 codex", "end turn t1-2 in shop")
	// The end of another turn does not end this one.
	say(t, reporter, d, Event{Kind: TurnEnds, Turn: "t1"})
	// The daemon forgot everything.
	clear(d.turns)
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t2", Call: "c5", Tool: "Bash"}, "begin turn t2 in shop: s m2 codex", "begin call c5 of t2 in shop: Bash")
	// The daemon ended the turn in one of its apps, because it was silent for long: its continuation begins.
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t2", Call: "c6", Tool: "Bash", Dirs: []string{"/srv/blog"}},
		"begin turn t2 in blog: s m2 codex", "begin call c6 of t2 in blog: Bash")
	d.turns["shop/t2"] = false
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t2", Call: "c7", Tool: "Bash"}, "begin turn t2-2 in shop: s t2-2 codex", "begin call c7 of t2-2 in shop: Bash")
	say(t, reporter, d, Event{Kind: CallEnds, Turn: "t2", Call: "c7"}, "end call c7 of t2-2 in shop")
	say(t, reporter, d, Event{Kind: TurnEnds}, "end turn t2 in blog", "end turn t2-2 in shop")
}

// An agent that gives no ids gets some: one for a turn, and one for each call,
// the same before and after it.
func TestTellMadeUpIDs(t *testing.T) {
	reporter, d := newReporter(t, gemini)
	tell := func(kind Kind, tool, args string) string {
		t.Helper()
		d.told = nil
		if err := reporter.Report(t.Context(), Event{Kind: kind, Session: "s", Dirs: []string{"/srv/shop"}, Tool: tool, Args: []byte(args)}); err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(d.told[len(d.told)-1])
		return words[2]
	}
	turn := tell(TurnBegins, "", "")
	a, b, c := tell(CallBegins, "write", `{"a":1,"b":2}`), tell(CallBegins, "write", `{"a":1,"b":2}`), tell(CallBegins, "write", `{"a":2}`)
	if a == b || a == c || b == c {
		t.Fatal("two calls have one id")
	}
	if got := tell(CallEnds, "write", `{ "b":2, "a":1 }`); got != a {
		t.Errorf("%s ended, not %s", got, a)
	}
	if got := tell(CallEnds, "write", `{"a":2}`); got != c {
		t.Errorf("%s ended, not %s", got, c)
	}
	if got := tell(CallEnds, "write", `"told differently"`); got != b {
		t.Errorf("%s ended, not %s", got, b)
	}
	say(t, reporter, d, Event{Kind: CallEnds, Tool: "write"}) // one too many
	d.turns["shop/"+turn] = false                             // the daemon ended it, because it was silent for long
	e := tell(CallBegins, "write", `{"a":3}`)
	if got := tell(CallEnds, "write", `{"a":3}`); got != e {
		t.Errorf("%s ended, not %s", got, e)
	}
	old := turn
	if turn = strings.Fields(d.told[0])[4]; turn == old {
		t.Error("the call is of the turn that ended")
	}
	if got := tell(TurnEnds, "", ""); got != turn {
		t.Errorf("%s ended, not %s", got, turn)
	}
	if got := tell(TurnBegins, "", ""); got == turn {
		t.Error("two turns have one id")
	}
	if again := tell(CallBegins, "write", `{"a":1,"b":2}`); again == a {
		t.Error("calls of two turns have one id")
	}
}

func TestTellNoApp(t *testing.T) {
	reporter, d := newReporter(t, claude)
	for _, kind := range []Kind{TurnBegins, CallBegins} {
		for _, dirs := range [][]string{nil, {"/elsewhere"}} {
			if err := reporter.Report(t.Context(), Event{Kind: kind, Session: "s", Dirs: dirs}); errs.KindOf(err) != errs.NotFound {
				t.Errorf("%v", err)
			}
		}
	}
	if len(d.told) > 0 {
		t.Errorf("told %q", d.told)
	}
	d.fault = &errs.Error{Kind: errs.Unavailable, Message: "gone", Err: ipc.ErrNoDaemon}
	if err := reporter.Report(t.Context(), Event{Kind: TurnBegins, Session: "s", Dirs: []string{"/srv/shop"}}); !errors.Is(err, ipc.ErrNoDaemon) {
		t.Errorf("%v", err)
	}
}

// Hooks that run at the same time lose nothing of each other's.
func TestTellAtOnce(t *testing.T) {
	reporter, d := newReporter(t, gemini)
	const n = 40
	all := func(kind Kind) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				ev := Event{Kind: kind, Session: "s", Dirs: []string{"/srv/shop"}, Tool: "write", Args: fmt.Appendf(nil, "%d", i/2)}
				if err := reporter.Report(t.Context(), ev); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	all(CallBegins)
	if len(d.turns) != 1 || len(d.calls) != n {
		t.Errorf("%d turns, %d calls", len(d.turns), len(d.calls))
	}
	all(CallEnds)
	for id, open := range d.calls {
		if open {
			t.Errorf("%s was not ended", id)
		}
	}
}

// A turn begins also if the one before it cannot be ended, and without an error: the person would be told that it has no checkpoint. The end is
// told again until the daemon takes it.
func TestTellEndFails(t *testing.T) {
	reporter, d := newReporter(t, codex)
	d.auto, d.endFault = true, errs.New(errs.Unavailable, "end turn", "the files are not watched yet")
	say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t1"}, "begin turn t1 in shop: s t1 codex")
	say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t2"}, "begin turn t2 in shop: s t2 codex", "end turn t1 in shop")
	say(t, reporter, d, Event{Kind: CallBegins, Turn: "t2", Call: "c", Tool: "Bash"}, "begin call c of t2 in shop: Bash")
	if err := reporter.Report(t.Context(), Event{Kind: TurnEnds, Session: "s", Turn: "t2"}); !errors.Is(err, d.endFault) {
		t.Errorf("%v", err)
	}
	say(t, reporter, d, Event{Kind: CallEnds, Call: "c"}) // too late
	d.endFault = nil
	delete(d.turns, "shop/t1") // the app was registered anew meanwhile
	say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t3"}, "begin turn t3 in shop: s t3 codex", "end turn t2 in shop")
	d.endFault = errs.New(errs.Unavailable, "end turn", "nobody answers")
	if err := reporter.Report(t.Context(), Event{Kind: TurnEnds, Session: "s"}); !errors.Is(err, d.endFault) {
		t.Errorf("%v", err)
	}
	d.endFault = nil
	say(t, reporter, d, Event{Kind: TurnEnds}, "end turn t3 in shop") // the end of the session
	say(t, reporter, d, Event{Kind: TurnEnds})
}

// The end of a turn that gets no answer takes the time neither of the turn that begins, nor of the ends in other apps.
func TestTellEndHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reporter, d := newReporter(t, codex)
		report := func(limit time.Duration, ev Event) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			ev.Session = "s"
			err := reporter.Report(ctx, ev)
			if ctx.Err() != nil {
				t.Errorf("%+v: it took the hook's whole time", ev)
			}
			return err
		}
		shop, blog := []string{"/srv/shop"}, []string{"/srv/blog"}
		say(t, reporter, d, Event{Kind: TurnBegins, Turn: "t1"}, "begin turn t1 in shop: s t1 codex")
		d.hangs, d.takes = "shop", 300*time.Millisecond
		if err := report(500*time.Millisecond, Event{Kind: TurnBegins, Turn: "t2", Dirs: shop}); err != nil || !d.turns["shop/t2"] {
			t.Errorf("a prompt, after an end that gets no answer: %v; %v", err, d.turns)
		}
		if err := report(500*time.Millisecond, Event{Kind: CallBegins, Turn: "t3", Call: "c", Dirs: blog}); err != nil || !d.calls["blog/c"] {
			t.Errorf("a call that begins a turn, after ends that get no answer: %v; %v", err, d.calls)
		}
		if err := report(3*time.Second, Event{Kind: TurnEnds, Turn: "t3"}); !errors.Is(err, context.DeadlineExceeded) || d.turns["blog/t3"] {
			t.Errorf("the end of a turn, with others that get no answer: %v; %v", err, d.turns)
		}
		d.hangs = ""
		say(t, reporter, d, Event{Kind: TurnEnds}, "end turn t1 in shop", "end turn t2 in shop")
	})
}

// A state that is damaged, foreign or locked is no reason to fail, or to wait
// for longer than the hook has.
func TestSessionsDamaged(t *testing.T) {
	reporter, d := newReporter(t, gemini)
	if err := reporter.Report(t.Context(), Event{Kind: TurnBegins, Session: "s", Dirs: []string{"/srv/shop"}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(reporter.Sessions.Dir, "gemini-"+digest("s")+".json")
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	for _, junk := range []string{"", "{", "null", `{"apps":7}`, strings.Repeat(" ", maxState+1)} {
		if err := os.WriteFile(path, []byte(junk), 0o600); err != nil {
			t.Fatal(err)
		}
		d.told = nil
		if err := reporter.Report(t.Context(), Event{Kind: CallBegins, Session: "s", Dirs: []string{"/srv/shop"}, Call: "c"}); err != nil || len(d.told) != 2 {
			t.Errorf("%.10q: %v, %q", junk, err, d.told)
		}
	}
	unlock, err := lock(t.Context(), path+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := reporter.Report(ctx, Event{Kind: TurnEnds, Session: "s"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestSessionsAreForgotten(t *testing.T) {
	s := Sessions{t.TempDir()}
	touch := func(name string) {
		t.Helper()
		if err := s.with(t.Context(), "gemini", name, func(*session) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	touch("old")
	old := filepath.Join(s.Dir, "gemini-"+digest("old")+".json")
	long := time.Now().Add(-forget - time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	touch("new")
	left, err := os.ReadDir(s.Dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

// A turn without a checkpoint is told once in a conversation, and again after one that had its checkpoint.
func TestLacks(t *testing.T) {
	reporter, d := newReporter(t, claude)
	prompt := func(session string) string {
		ev := Event{Kind: TurnBegins, Session: session, Dirs: []string{"/srv/shop"}}
		err := reporter.Report(t.Context(), ev)
		return reporter.Lacks(t.Context(), ev, err)
	}
	const line = "mulligan: this turn has no checkpoint: "
	d.fault = errs.New(errs.Unavailable, "reach the daemon", "nobody").WithHint("start it")
	for _, step := range []struct {
		session string
		fault   error
		auto    bool
		want    string
	}{
		{"a", d.fault, true, line + "nobody; start it"},
		{"a", d.fault, true, ""},
		{"b", d.fault, true, line + "nobody; start it"},
		{"a", nil, true, ""},
		{"a", d.fault, true, line + "nobody; start it"},
		{"c", nil, false, line + "automatic checkpoints are off for this app; `mulligan app set auto=true`"},
		{"c", nil, false, ""},
		{"d", errs.New(errs.NotFound, "find the app", "/tmp is in no app's workspace").WithHint("name an app with --app"), true,
			line + "/tmp is in no app's workspace; `mulligan init` in the project's folder protects it"},
	} {
		d.fault, d.auto = step.fault, step.auto
		if got := prompt(step.session); got != step.want {
			t.Errorf("%+v: %q", step, got)
		}
	}
	if line := reporter.Lacks(t.Context(), Event{Kind: CallBegins, Session: "d"}, errs.New(errs.Failed, "", "x")); line != "" {
		t.Errorf("a call is told: %s", line)
	}
}
