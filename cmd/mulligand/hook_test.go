package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mulligan/ipc"
	"mulligan/testkit/benchtable"
)

// hooks runs mulligan hook as agents do.
type hooks struct {
	t     testing.TB
	d     *daemonProcess
	agent string
	dir   string
}

// run feeds the hook one payload and gives what it prints and how long it took.
func (h hooks) run(payload string) (string, time.Duration) {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "mulligan"), "hook", h.agent)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "MULLIGAN_SOCKET="+h.d.socket, "XDG_STATE_HOME="+filepath.Join(h.d.dir, "xdg"), "MULLIGAN_STATE_DIR=")
	cmd.Stdin = strings.NewReader(payload)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	begin := time.Now()
	err := cmd.Run()
	took := time.Since(begin)
	if err != nil || errOut.Len() > 0 {
		h.t.Errorf("hook %s: %v: %s", h.agent, err, errOut.String())
	}
	return out.String(), took
}

// claude is a payload of Claude Code's.
func (h hooks) claude(event, more string) string {
	return fmt.Sprintf(`{"session_id":"s1","transcript_path":"/nowhere","cwd":%q,"permission_mode":"default","hook_event_name":%q%s}`, h.dir, event, more)
}

func (h hooks) log() string {
	b, err := os.ReadFile(filepath.Join(h.d.dir, "xdg", "mulligan", "hook.log"))
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	return string(b)
}

func (h hooks) turns() []ipc.Turn {
	return ask[ipc.TurnList](h.d, "turns", "--app", "shop").Turns
}

// newHooked is an app with automatic checkpoints, and an agent's hooks in it.
func newHooked(t testing.TB, agent string) (*testApp, hooks) {
	t.Helper()
	return newHookedAt(t, startDaemon(t), agent)
}

// newHookedAt is newHooked at a daemon that runs already.
func newHookedAt(t testing.TB, d *daemonProcess, agent string) (*testApp, hooks) {
	t.Helper()
	a := newApp(t, d, 20)
	d.must("app", "set", "--app", "shop", "auto=true")
	eventually(t, "the files are followed", func() bool {
		app, err := d.client.App(t.Context(), "shop")
		return err == nil && app.Following == "watching"
	})
	return a, hooks{t, d, agent, a.ws}
}

// A turn that hooks tell of has its checkpoint from before its first write,
// whoever wrote, and is undone as a whole. Its end is told again until the daemon hears it.
func TestHookTurn(t *testing.T) {
	a, h := newHooked(t, "claude-code")
	if out, _ := h.run(h.claude("UserPromptSubmit", `,"prompt":"go"`)); out != "" {
		t.Errorf("Claude Code's model was told %q", out)
	}
	think(t, h.d, 0)                                         // a hook waits for the databases for a moment only
	eventually(t, "the call's begin is exact", func() bool { // a hook waits for earlier writes for a quarter of a second
		h.run(h.claude("PreToolUse", `,"tool_name":"Bash","tool_use_id":"toolu_1","tool_input":{"command":"make"}`))
		c := h.turns()[0].Calls
		return len(c) == 2 && c[1].Exact
	})
	a.write(t, "made.txt", "by a shell\n")
	a.write(t, "src/d0/f1", "by a shell\n")
	h.run(h.claude("PostToolUse", `,"tool_name":"Bash","tool_use_id":"toolu_1","tool_input":{},"tool_response":{}`))
	// While the turn ends, the daemon is away for a moment. The end of the session tells it.
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	rename(h.d.socket, h.d.socket+".away")
	h.run(h.claude("Stop", ""))
	rename(h.d.socket+".away", h.d.socket)
	if turns := h.turns(); len(turns) == 0 || turns[0].EndedAt != nil {
		t.Fatalf("the daemon was told: %+v", turns)
	}
	h.run(h.claude("SessionEnd", ""))
	h.over()
	turns := h.turns()
	if len(turns) == 0 || turns[0].Inferred || turns[0].Agent != "claude-code" || turns[0].ConversationID != "s1" || turns[0].CheckpointID == nil || turns[0].EndedAt == nil {
		t.Fatalf("turns: %+v\n%s", turns, h.log())
	}
	if c := turns[0].Calls; len(c) != 2 || c[1].ID != "toolu_1" || c[1].Tool != "Bash" || c[1].EndedAt == nil || !c[1].Exact {
		t.Errorf("calls: %+v", c)
	}
	h.d.must("rollback", string(*turns[0].CheckpointID), "--app", "shop")
	if a.word(t) != "zero" {
		t.Error("the app is not as it was")
	}
	if _, err := os.Stat(filepath.Join(a.ws, "made.txt")); !os.IsNotExist(err) {
		t.Errorf("the file that the turn made: %v", err)
	}
}

// TestHookInGoneFolder: an agent that names no folder works in the current one, also after that was removed.
func TestHookInGoneFolder(t *testing.T) {
	t.Parallel()
	_, h := newHooked(t, "claude-code")
	cmd := exec.Command("sh", "-c", `mkdir gone && cd gone && rmdir ../gone && exec "$0" hook claude-code`, filepath.Join(bin, "mulligan"))
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "MULLIGAN_SOCKET="+h.d.socket, "XDG_STATE_HOME="+filepath.Join(h.d.dir, "xdg"), "MULLIGAN_STATE_DIR=")
	cmd.Stdin = strings.NewReader(`{"session_id":"s1","hook_event_name":"UserPromptSubmit","prompt":"go"}`)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	turns := h.turns() // also one of nobody's, if the folder was seen before it was removed
	if !slices.ContainsFunc(turns, func(turn ipc.Turn) bool { return turn.ConversationID == "s1" }) {
		t.Errorf("turns: %+v\n%s", turns, h.log())
	}
}

// Twenty hooks, four at a time, tell of twenty calls, in one turn. With more at once on a slow machine a hook would give up, rightly.
func TestHooksAtOnce(t *testing.T) {
	_, h := newHooked(t, "gemini") // has no ids of turns and calls
	const n = 20
	all := func(event string) {
		var wg sync.WaitGroup
		running := make(chan struct{}, 4)
		for i := range n {
			running <- struct{}{}
			wg.Go(func() {
				defer func() { <-running }()
				h.run(fmt.Sprintf(`{"session_id":"g","cwd":%q,"hook_event_name":%q,"tool_name":"write_file","tool_input":{"n":%d}}`, h.dir, event, i/2))
			})
		}
		wg.Wait()
	}
	all("BeforeTool") // none of them was told of the turn
	all("AfterTool")
	turns := slices.DeleteFunc(h.turns(), func(t ipc.Turn) bool { return t.Inferred })
	if len(turns) != 1 {
		t.Fatalf("turns: %+v\n%s", turns, h.log())
	}
	ended := 0
	for _, c := range turns[0].Calls {
		if c.EndedAt != nil {
			ended++
		}
	}
	if len(turns[0].Calls) != n || ended != n {
		t.Errorf("%d calls, %d ended\n%s", len(turns[0].Calls), ended, h.log())
	}
}

// A hook that finds its daemon leaves nothing in the log, one that finds none a
// line each.
func TestHookLog(t *testing.T) {
	const runs = 5
	_, h := newHooked(t, "claude-code")
	h.run(h.claude("UserPromptSubmit", `,"prompt":"go"`))
	for i := range runs {
		h.run(h.edit("PreToolUse", i))
		h.run(h.edit("PostToolUse", i))
	}
	if log := h.log(); log != "" {
		t.Errorf("the log:\n%s", log)
	}
	h.d.stop()
	for i := range runs {
		h.run(h.edit("PreToolUse", i))
	}
	if log := h.log(); strings.Count(log, "\n") != runs {
		t.Errorf("%d hooks that found no daemon, the log:\n%s", runs, log)
	}
}

// edit is a payload about the n-th edit of a turn.
func (h hooks) edit(event string, n int) string {
	return h.claude(event, fmt.Sprintf(`,"tool_name":"Edit","tool_use_id":"toolu_%d","tool_input":{}`, n))
}

// BenchmarkHook is what a hook costs an agent: a whole process, from its start to
// its end. ns/op is the mean; the median is what an agent mostly sees.
func BenchmarkHook(b *testing.B) {
	_, h := newHooked(b, "claude-code")
	h.run(h.claude("UserPromptSubmit", `,"prompt":"go"`))
	measure := func(name, event string, median, p99 float64) {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				_, d := h.run(h.edit(event, len(took)))
				took = append(took, d)
			}
			slices.Sort(took)
			for _, r := range []benchtable.Row{
				{What: name + ", median", Mulligan: took[len(took)/2].Seconds() * 1000, Below: median},
				{What: name + ", 99th percentile", Mulligan: took[len(took)*99/100].Seconds() * 1000, Below: p99},
			} {
				r.Part, r.Unit, r.Smaller = "what a hook costs an agent", "ms", len(took) < 100
				benchtable.Report(b, r)
			}
		})
	}
	measure("before a call", "PreToolUse", 5, 15)
	measure("after a call", "PostToolUse", 5, 15)
	h.d.stop()
	measure("without a daemon", "PreToolUse", 500, 500)
}

// Whatever goes wrong, the agent reads what it expects and a 0, and the log has a line.
func TestHookTrouble(t *testing.T) {
	dir, err := os.MkdirTemp("", "mg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &daemonProcess{t: t, dir: dir, socket: filepath.Join(dir, "s.sock")}
	h := hooks{t, d, "gemini", dir}
	lines := 0
	logged := func(what, text string) {
		t.Helper()
		lines++
		if log := h.log(); strings.Count(log, "\n") != lines || !strings.Contains(log, text) {
			t.Errorf("%s: the log:\n%s", what, log)
		}
	}
	begin := fmt.Sprintf(`{"session_id":"g","cwd":%q,"hook_event_name":"BeforeAgent","prompt":"go"}`, dir)
	for _, junk := range []string{"", "null", "{", `{"session_id":{}}`, "\xff\x00", strings.Repeat("[", 1<<20)} {
		if out, _ := h.run(junk); out != "{}" {
			t.Errorf("%.10q: it printed %q", junk, out)
		}
		logged("junk", "not an event of Gemini CLI")
	}
	if out, _ := h.run(begin); !strings.HasPrefix(out, `{"systemMessage":"mulligan: this turn has no checkpoint: `) || !strings.Contains(out, "no daemon is listening") {
		t.Errorf("without a daemon it printed %q", out)
	}
	logged("no daemon", "reach the daemon")
	if out, _ := h.run(begin); out != "{}" {
		t.Errorf("without a daemon it printed %q again", out)
	}
	logged("still no daemon", "reach the daemon")
	h.agent = "hal-9000"
	if out, _ := h.run(begin); out != "" {
		t.Errorf("an agent that is not known: it printed %q", out)
	}
	logged("no such agent", "hal-9000")
	h.agent = "gemini"

	// A daemon that hangs: nobody takes the call.
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, took := h.run(begin)
	if out != "{}" || took > hookPatience {
		t.Errorf("with a daemon that hangs it printed %q after %s", out, took)
	}
	lines++ // the context may end the call first: then that is what is told
	if n := strings.Count(h.log(), "\n"); n != lines {
		t.Errorf("the log:\n%s", h.log())
	}
	if _, again := h.run(begin); again > took/2 {
		t.Errorf("the next hook waited %s, after %s", again, took)
	}
}

// hookPatience is how long a test lets a hook take that gives up after three
// seconds: the machine may be busy.
const hookPatience = 20 * time.Second

// Daemons that take the call and are no use: the agent reads what it expects,
// and a 0, and the log has a line.
func TestHookBadDaemons(t *testing.T) {
	answer := func(status int, contentType, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body) // the hook may be gone
		}
	}
	old := http.NewServeMux() // it knows apps, and no turns
	old.HandleFunc("GET /api/apps", answer(200, "application/json", `{"apps":[{"app_id":"app-1","slug":"shop","workspace":"/"}]}`))
	old.HandleFunc("GET /api/apps/{app}", answer(200, "application/json", `{"app_id":"app-1","slug":"shop","workspace":"/"}`))
	for name, handler := range map[string]http.Handler{
		"old":     old,
		"new":     answer(200, "application/json", `{"apps":"are numbers now","app_id":7}`),
		"junk":    answer(200, "application/json", "\xff{"),
		"broken":  answer(500, "text/html", "<h1>oops</h1>"),
		"endless": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { drip(w, r.Context()) }),
		"silent":  nil, // it takes the call, and says nothing
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "mg")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			h := hooks{t, &daemonProcess{t: t, dir: dir, socket: filepath.Join(dir, "s.sock")}, "gemini", dir}
			l, err := net.Listen("unix", h.d.socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			if handler == nil {
				go hold(l)
			} else {
				srv := httptest.NewUnstartedServer(handler)
				srv.Listener.Close()
				srv.Listener = l
				srv.Start()
				t.Cleanup(srv.Close)
			}
			for _, event := range []string{"BeforeAgent", "BeforeTool", "AfterAgent"} {
				out, took := h.run(fmt.Sprintf(`{"session_id":"g","cwd":%q,"hook_event_name":%q,"tool_name":"write_file","tool_input":{}}`, dir, event))
				told := strings.Contains(out, "this turn has no checkpoint")
				if told != (event == "BeforeAgent") || !told && out != "{}" || took > hookPatience {
					t.Errorf("%s: it printed %q after %s", event, out, took)
				}
			}
			// The end of a turn that never began is no trouble.
			if log := h.log(); strings.Count(log, "\n") != 2 {
				t.Errorf("the log:\n%s", log)
			}
		})
	}
}

// hold takes calls and keeps them.
func hold(l net.Listener) {
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		held = append(held, c)
	}
}

// drip answers with something that has no end, until the hook is gone.
func drip(w http.ResponseWriter, gone context.Context) {
	w.Header().Set("Content-Type", "application/json")
	for tick := time.Tick(10 * time.Millisecond); gone.Err() == nil; <-tick {
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // the next write says it
	}
}

// An app that is not there is no trouble either.
func TestHookNoApp(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	h := hooks{t, d, "claude-code", d.dir}
	if out, _ := h.run(h.claude("UserPromptSubmit", "")); !strings.Contains(out, "this turn has no checkpoint: "+d.dir+" is in no app's workspace") {
		t.Errorf("it printed %q", out)
	}
	if out, _ := h.run(h.claude("UserPromptSubmit", "")); out != "" {
		t.Errorf("it printed %q again", out)
	}
	if log := h.log(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "find the app") {
		t.Errorf("the log:\n%s", log)
	}
}
