package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mulligan/ipc"
)

// TestClaudeCode drives the real Claude Code, in a home of the test's own, with
// a stand-in for its model on loopback that has it write one file with Bash and
// one with Edit. mulligan install has set it up; nothing else is told of it.
func TestClaudeCode(t *testing.T) {
	claude := filepath.Join(fromNPM(t, "claude", 240), "@anthropic-ai", "claude-code-linux-x64", "claude")
	c := newClient(t, 20)
	c.offline = false // the stand-in is on the host's loopback
	d, a, home := c.d, c.app, c.home
	a.write(t, "edit.txt", "as it was\n")
	before := a.files(t)
	c.mulligan("install", "claude-code")
	payloads := filepath.Join(d.dir, "payloads")
	overhear(t, filepath.Join(home, ".claude", "settings.json"), payloads)

	stood := make(chan []ipc.Checkpoint, 1) // when the model asked for the edit
	m := newModel(t, a.ws, func(tool string) {
		if tool == "Bash" {
			think(t, d, 0) // a hook waits for the databases for a moment only
			return
		}
		var list ipc.CheckpointList
		eventually(t, "the turn has its checkpoint", func() bool { // which the daemon makes while the hooks go on
			var err error
			if list, err = d.client.Checkpoints(t.Context(), "shop", ipc.CheckpointQuery{Trigger: ipc.TriggerAgent}); err != nil {
				t.Error(err)
			}
			return err != nil || len(list.Checkpoints) > 0
		})
		select {
		case stood <- list.Checkpoints:
		default: // it asked again
		}
	})
	c.env = append(c.env, "ANTHROPIC_BASE_URL="+m.URL, "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_SANDBOX=1")
	out := c.run(claude, "-p", "change two files", "--dangerously-skip-permissions", "--output-format", "text")
	if !strings.Contains(out, "all done") {
		t.Fatalf("Claude Code said %q\n%s", out, m.log())
	}
	for file, want := range map[string]string{"bash.txt": "by bash\n", "edit.txt": "as it is\n"} {
		if b, err := os.ReadFile(filepath.Join(a.ws, file)); err != nil || string(b) != want {
			t.Fatalf("%s: %q, %v\n%s", file, b, err, m.log())
		}
	}

	c.quiet()
	want := []string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"}
	if got := overheard(t, payloads); !slices.Equal(got, want) {
		b, _ := os.ReadFile(payloads)
		t.Log(string(b))
		t.Errorf("the hooks that fired, each at its first time: %v", got)
	}
	eventually(t, "the turn has ended", func() bool { return claudeTurn(t, d).EndedAt != nil })
	turn := claudeTurn(t, d)
	if turn.CheckpointID == nil {
		t.Fatalf("the turn: %+v", turn)
	}
	if list := <-stood; !slices.ContainsFunc(list, func(cp ipc.Checkpoint) bool { return cp.ID == *turn.CheckpointID }) {
		t.Errorf("the turn's checkpoint is %s; when the model asked for the edit there were %+v", *turn.CheckpointID, list)
	}
	calls := map[string]ipc.Call{}
	for _, c := range turn.Calls {
		calls[string(c.ID)] = c
	}
	for id, tool := range map[string]string{"toolu_bash": "Bash", "toolu_edit": "Edit"} {
		if c := calls[id]; c.Tool != tool || c.EndedAt == nil || !c.Exact {
			t.Errorf("call %s: %+v", id, c)
		}
	}
	if len(calls) != 3 { // with the thinking
		t.Errorf("calls: %+v", turn.Calls)
	}
	d.must("rollback", string(*turn.CheckpointID), "--app", "shop")
	sameListing(t, "rolled back", a.files(t), before)
}

// overhear has the installed hooks keep what they are told in a file, too.
func overhear(t *testing.T, settings, file string) {
	t.Helper()
	text, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "mulligan")
	if strings.Count(string(text), program+" hook claude-code") != 8 {
		t.Fatalf("the settings:\n%s", text)
	}
	text = []byte(strings.ReplaceAll(string(text), program, "tee -a "+file+" | "+program))
	if err := os.WriteFile(settings, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// overheard are the names of the events, each at its first time.
func overheard(t *testing.T, file string) (names []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var p struct {
			Name string `json:"hook_event_name"`
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return names
		} else if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
}

// claudeTurn is the one turn that Claude Code told of.
func claudeTurn(t *testing.T, d *daemonProcess) ipc.Turn {
	t.Helper()
	var found []ipc.Turn
	for _, turn := range ask[ipc.TurnList](d, "turns", "--app", "shop").Turns {
		if turn.Agent == "claude-code" {
			found = append(found, turn)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d turns of Claude Code: %+v", len(found), found)
	}
	return found[0]
}

// model stands in for Claude Code's model: it answers as the Messages API does,
// with what a script says comes after the tool results so far.
type model struct {
	*httptest.Server
	ws      string
	command string            // what it runs with Bash
	before  func(tool string) // is called when it asks for Bash and for Edit
	mu      sync.Mutex
	seen    strings.Builder
}

func newModel(t *testing.T, ws string, before func(tool string)) *model {
	m := &model{ws: ws, command: "echo by bash >bash.txt", before: before}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *model) log() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen.String()
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	m.mu.Lock()
	fmt.Fprintf(&m.seen, "%s %s %d bytes %v\n", r.Method, r.URL.Path, len(body), err)
	m.mu.Unlock()
	switch {
	case r.URL.Path == "/v1/messages/count_tokens":
		fmt.Fprint(w, `{"input_tokens":10}`)
	case r.URL.Path == "/v1/messages":
		m.answer(w, body)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"type":"error","error":{"type":"not_found_error","message":"not here"}}`)
	}
}

// answer is one turn of the script. Requests without tools are Claude Code's
// own small questions, as for a title.
func (m *model) answer(w http.ResponseWriter, body []byte) {
	var req struct {
		Stream bool `json:"stream"`
		Tools  []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	file := filepath.Join(m.ws, "edit.txt")
	var uses []toolUse
	if len(req.Tools) > 0 {
		use := func(id, name string, input any) { uses = []toolUse{{id, name, input}} }
		done := func(id string) bool { return strings.Contains(string(body), `"tool_use_id":"`+id+`"`) }
		switch {
		case !done("toolu_bash"):
			m.before("Bash")
			use("toolu_bash", "Bash", map[string]any{"command": m.command, "description": "Write a file"})
		case !done("toolu_read"): // Edit wants a file to be read first
			use("toolu_read", "Read", map[string]any{"file_path": file})
		case !done("toolu_edit"):
			m.before("Edit")
			use("toolu_edit", "Edit", map[string]any{"file_path": file, "old_string": "as it was", "new_string": "as it is"})
		}
	}
	replyWith(w, req.Stream, uses)
}
