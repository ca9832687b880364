package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
)

// mulliganTools are the tools that every client must be offered.
var mulliganTools = []string{
	"create_checkpoint", "delete_checkpoint", "diff_checkpoint", "drop_fork", "fork_app", "keep_fork", "list_checkpoints", "list_forks", "pin_checkpoint", "revert_conversation_writes",
	"rollback_app", "set_conversation_checkpoint",
}

// testCodex drives the real Codex CLI's app-server: it starts mulligan's server as
// a thread would, lists its tools, calls them, and reads the hooks.
func testCodex(t *testing.T) {
	c := newClient(t, 20)
	c.mulligan("install", "codex")
	s := newCodex(t, c)
	var status struct {
		Data []struct {
			Name  string
			Tools map[string]struct{ InputSchema, OutputSchema json.RawMessage }
		}
	}
	s.ask("mcpServerStatus/list", map[string]any{}, &status)
	if len(status.Data) != 1 || status.Data[0].Name != "mulligan" {
		t.Fatalf("the servers: %+v", status)
	}
	for _, name := range mulliganTools {
		if tool := status.Data[0].Tools[name]; len(tool.InputSchema) == 0 || len(tool.OutputSchema) == 0 {
			t.Errorf("the tool %s: %+v", name, tool)
		}
	}
	s.hooks("userPromptSubmit", "preToolUse", "postToolUse", "stop", "interrupt", "sessionEnd")

	s.startThread()
	before := c.app.files(t)
	var cp struct {
		ID     string `json:"checkpoint_id"`
		Notes  string
		Pinned bool
	}
	s.call("create_checkpoint", map[string]any{"notes": "by Codex", "pinned": true}, &cp)
	if cp.Notes != "by Codex" || !cp.Pinned {
		t.Errorf("created: %+v", cp)
	}
	c.app.write(t, "src/d0/f1", "broken\n")
	c.app.write(t, "new.txt", "new\n")
	var done struct {
		RolledBack bool `json:"rolled_back"`
		Stages     []any
	}
	s.call("rollback_app", map[string]any{"checkpoint_id": cp.ID, "reason": "Codex asked"}, &done)
	if !done.RolledBack || len(done.Stages) != 6 {
		t.Errorf("rolled back: %+v", done)
	}
	sameListing(t, "rolled back", c.app.files(t), before)
	type listed struct {
		ID      string `json:"checkpoint_id"`
		Trigger ipc.Trigger
	}
	var list struct{ Checkpoints []listed }
	s.call("list_checkpoints", map[string]any{}, &list)
	// What the test wrote was announced by nobody: if the daemon got to it before the rollback, it
	// has a checkpoint of its own.
	asked := slices.DeleteFunc(slices.Clone(list.Checkpoints), func(cp listed) bool { return cp.Trigger == ipc.TriggerAgent })
	if len(asked) != 2 || asked[0].Trigger != ipc.TriggerPreRollback || asked[1].ID != cp.ID {
		t.Errorf("listed: %+v", list)
	}

	s.refused("pinned", "delete_checkpoint", map[string]any{"checkpoint_id": cp.ID})
	s.call("pin_checkpoint", map[string]any{"checkpoint_id": cp.ID, "pinned": false}, &cp)
	s.call("delete_checkpoint", map[string]any{"checkpoint_id": cp.ID}, &struct{}{})
	s.refused("not_found", "rollback_app", map[string]any{"checkpoint_id": cp.ID})
	s.refused("invalid", "rollback_app", map[string]any{"checkpoint_id": "0"})
	s.refused("invalid", "create_checkpoint", map[string]any{"colour": "blue"})
	c.d.stop()
	s.refused("unavailable", "list_checkpoints", map[string]any{})
	c.d.start()
	s.call("list_checkpoints", map[string]any{}, &list)
	s.close()
	c.quiet()
}

// A server that is told to confirm has Codex ask its user before a rollback, and
// does nothing without a yes. Looking is not asked for.
func testCodexElicitation(t *testing.T) {
	c := newClient(t, 20)
	c.mulligan("install", "codex")
	config := filepath.Join(c.home, ".codex", "config.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	c.write(".codex/config.toml", strings.Replace(string(text), `["mcp"]`, `["mcp", "--confirm"]`, 1))
	s := newCodex(t, c)
	s.startThread()
	var cp struct {
		ID string `json:"checkpoint_id"`
	}
	s.call("create_checkpoint", map[string]any{}, &cp)
	was := c.app.files(t)
	c.app.write(t, "new.txt", "new\n")
	now := c.app.files(t)
	rollback := map[string]any{"checkpoint_id": cp.ID}
	s.call("rollback_app", map[string]any{"checkpoint_id": cp.ID, "dry_run": true}, &struct{}{})

	for _, answer := range []map[string]any{{"action": "decline"}, {"action": "cancel"}, {"action": "accept", "content": map[string]any{"confirm": false}}} {
		asked := 0
		s.asked = func(method string, params json.RawMessage) any {
			asked++
			if method != "mcpServer/elicitation/request" || !strings.Contains(string(params), "Roll shop back to "+cp.ID) {
				t.Errorf("%s: %s", method, params)
			}
			return answer
		}
		s.refused("denied", "rollback_app", rollback)
		if asked != 1 {
			t.Errorf("Codex asked %d times", asked)
		}
		sameListing(t, "not confirmed", c.app.files(t), now)
	}
	s.asked = func(string, json.RawMessage) any {
		return map[string]any{"action": "accept", "content": map[string]any{"confirm": true}}
	}
	s.call("rollback_app", rollback, &struct{}{})
	sameListing(t, "confirmed", c.app.files(t), was)
	s.close()
}

// codex is an app-server, spoken to as an editor would: JSON-RPC, a line each.
type codex struct {
	t      *testing.T
	c      *client
	in     io.WriteCloser
	out    *bufio.Scanner
	wait   func() error
	id     int
	thread string
	// asked answers what the server asks of its user.
	asked func(method string, params json.RawMessage) any
}

// newCodex starts the pinned Codex.
func newCodex(t *testing.T, c *client) *codex {
	t.Helper()
	program := filepath.Join(fromNPM(t, "codex", 400), "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
	cmd := c.command(program, "app-server")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said syncBuffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &codex{t: t, c: c, in: in, out: bufio.NewScanner(out), wait: cmd.Wait}
	s.out.Buffer(nil, 16<<20)
	t.Cleanup(func() {
		_ = in.Close() // it has ended, or ends now
		_ = cmd.Process.Kill()
		if t.Failed() {
			t.Logf("Codex said:\n%s", &said)
		}
	})
	s.ask("initialize", map[string]any{
		"clientInfo": map[string]any{"name": "mulligan-test", "title": "test", "version": "1"}, "capabilities": map[string]any{"experimentalApi": true},
	}, &struct{}{})
	s.send(map[string]any{"method": "initialized"})
	return s
}

func (s *codex) send(message map[string]any) {
	s.t.Helper()
	if err := json.NewEncoder(s.in).Encode(message); err != nil {
		s.t.Fatal(err)
	}
}

// ask makes a request and decodes its result. What comes before it is news, or
// a question to the user.
func (s *codex) ask(method string, params map[string]any, result any) {
	s.t.Helper()
	s.id++
	s.send(map[string]any{"id": s.id, "method": method, "params": params})
	for s.out.Scan() {
		var m struct {
			ID            json.RawMessage
			Method        string
			Params        json.RawMessage
			Result, Error json.RawMessage
		}
		if err := json.Unmarshal(s.out.Bytes(), &m); err != nil {
			s.t.Fatalf("%v in %s", err, s.out.Text())
		}
		switch {
		case m.Method != "" && len(m.ID) > 0:
			if s.asked == nil {
				s.t.Fatalf("Codex asks %s: %s", m.Method, m.Params)
			}
			s.send(map[string]any{"id": m.ID, "result": s.asked(m.Method, m.Params)})
		case string(m.ID) == fmt.Sprint(s.id):
			if len(m.Error) > 0 {
				s.t.Fatalf("%s: %s", method, m.Error)
			}
			if err := json.Unmarshal(m.Result, result); err != nil {
				s.t.Fatalf("%s: %v in %s", method, err, m.Result)
			}
			return
		}
	}
	s.t.Fatalf("%s: it has ended: %v", method, s.out.Err())
}

// hooks checks that Codex has mulligan's hooks of these events, and no others.
func (s *codex) hooks(want ...string) {
	s.t.Helper()
	var found struct {
		Data []struct {
			Hooks []struct {
				EventName, Command string
				Enabled            bool
			}
			Warnings, Errors []any
		}
	}
	s.ask("hooks/list", map[string]any{"cwds": []string{s.c.app.ws}}, &found)
	var names []string
	for _, d := range found.Data {
		for _, h := range d.Hooks {
			if !h.Enabled || h.Command != filepath.Join(bin, "mulligan")+" hook codex || true" {
				s.t.Errorf("the hook %+v", h)
			}
			names = append(names, h.EventName)
		}
		if len(d.Warnings)+len(d.Errors) > 0 {
			s.t.Errorf("Codex says of its hooks: %v %v", d.Warnings, d.Errors)
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		s.t.Errorf("the hooks of %v", names)
	}
}

func (s *codex) startThread() {
	s.t.Helper()
	var started struct{ Thread struct{ ID string } }
	s.ask("thread/start", map[string]any{"cwd": s.c.app.ws}, &started)
	s.thread = started.Thread.ID
}

// toolResult is what Codex makes of a tool's answer.
type toolResult struct {
	Content           []struct{ Text string }
	StructuredContent json.RawMessage
	IsError           bool
}

func (s *codex) tool(name string, args map[string]any) (r toolResult) {
	s.t.Helper()
	s.ask("mcpServer/tool/call", map[string]any{"threadId": s.thread, "server": "mulligan", "tool": name, "arguments": args}, &r)
	return r
}

// call calls a tool that must succeed, and decodes what it gives.
func (s *codex) call(name string, args map[string]any, out any) {
	s.t.Helper()
	r := s.tool(name, args)
	if r.IsError {
		s.t.Fatalf("%s: %+v", name, r)
	}
	if err := json.Unmarshal(r.StructuredContent, out); err != nil {
		s.t.Fatalf("%s: %v in %s", name, err, r.StructuredContent)
	}
}

// refused calls a tool that must fail with an error of a kind, and say what to
// do next.
func (s *codex) refused(kind, name string, args map[string]any) {
	s.t.Helper()
	r := s.tool(name, args)
	if !r.IsError || len(r.Content) != 1 || !strings.Contains(r.Content[0].Text, `"kind":"`+kind+`"`) || !strings.Contains(r.Content[0].Text, `"next":"`) {
		s.t.Errorf("%s(%v): %+v", name, args, r)
	}
}

// close ends the server as an editor does that goes away.
func (s *codex) close() {
	s.t.Helper()
	if err := s.in.Close(); err != nil {
		s.t.Fatal(err)
	}
	for s.out.Scan() { // to the end
	}
	if err := s.wait(); err != nil {
		s.t.Errorf("Codex ended with %v", err)
	}
}

// TestDoctorAsksCodex has doctor ask the real Codex whether it runs the hooks, before and after a person trusts them.
func TestDoctorAsksCodex(t *testing.T) {
	c := newClient(t, 5)
	c.mulligan("install", "codex")
	s := newCodex(t, c)
	var found struct {
		Data []struct {
			Hooks []struct{ Key, CurrentHash string }
		}
	}
	s.ask("hooks/list", map[string]any{"cwds": []string{c.app.ws}}, &found)
	s.close()
	program := filepath.Join(fromNPM(t, "codex", 400), "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin")
	c.env = append(c.env, "PATH="+program+":"+os.Getenv("PATH"))
	look := func() (said string) {
		t.Helper()
		out, _ := c.command(filepath.Join(bin, "mulligan"), "doctor", "--json").Output() // other problems of this host are not the test's
		var r struct {
			Checks []struct{ Name, State, Finding string }
		}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		for _, check := range r.Checks {
			if check.Name == "codex" {
				said += check.State + ": " + check.Finding
			}
		}
		return said
	}
	finding := func() (said string) {
		t.Helper()
		eventually(t, "Codex answers in the time that doctor gives it", func() bool {
			said = look()
			return !strings.Contains(said, "could not be asked")
		})
		return said
	}
	if said := finding(); !strings.HasPrefix(said, "problem: Codex does not run mulligan's hooks until you trust them (") {
		t.Errorf("untrusted: %s", said)
	}
	config := filepath.Join(c.home, ".codex", "config.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	trust := string(text)
	for _, d := range found.Data {
		for _, h := range d.Hooks {
			trust += fmt.Sprintf("\n[hooks.state.%q]\ntrusted_hash = %q\n", h.Key, h.CurrentHash)
		}
	}
	c.write(".codex/config.toml", trust)
	if said := finding(); !strings.HasPrefix(said, "ok: hooks and server are in order") {
		t.Errorf("trusted: %s", said)
	}
}
