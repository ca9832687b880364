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
	"strings"
	"sync"
	"testing"
	"time"

	"mulligan/ipc"
)

// forkingClient is an agent's host with an app that can be forked: its program lies in the workspace.
func forkingClient(t *testing.T) *client {
	t.Helper()
	c := newClient(t, 20)
	c.offline = false // the stand-in for the model is on the host's loopback
	if err := copyApp(filepath.Join(c.app.ws, "app")); err != nil {
		t.Fatal(err)
	}
	c.app.write(t, "page.html", "broken\n")
	c.mulligan("app", "set", "--app", "shop", "run=./app serve-app "+c.app.addr+" page.html")
	c.app.up(t)
	return c
}

// keptOne checks that the agent made two forks, wrote "wrong" into one and "right" into the other, and kept the second: by the files and
// by what the app says, whatever the tools said.
func keptOne(t *testing.T, c *client, folders []string) {
	t.Helper()
	page := func(dir string) string {
		b, err := os.ReadFile(filepath.Join(dir, "page.html"))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(b))
	}
	if len(folders) != 2 || folders[0] == folders[1] || filepath.Dir(folders[0]) == c.app.ws {
		t.Fatalf("the forks are in %q", folders)
	}
	if got := page(c.app.ws); got != "right" {
		t.Errorf("the app's page says %q", got)
	}
	eventually(t, "the app serves what was kept", func() bool { return strings.TrimSpace(visit(t.Context(), c.app.addr)) == "right" })
	if got := page(folders[0]); got != "wrong" {
		t.Errorf("the other fork's page says %q", got)
	}
	if _, err := os.Lstat(folders[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kept fork's folder is left: %v", err)
	}
	left := ask[ipc.ForkList](c.d, "forks", "--app", "shop").Forks
	if len(left) != 1 || left[0].Workspace != folders[0] {
		t.Fatalf("the forks that are left: %+v", left)
	}
	eventually(t, "the other fork serves its own page", func() bool {
		return strings.TrimSpace(visit(t.Context(), left[0].Fork.Ports[0].Address)) == "wrong"
	})
	c.mulligan("redo", "--app", "shop")
	if got := page(c.app.ws); got != "broken" {
		t.Errorf("after redo the app's page says %q", got)
	}
	c.mulligan("drop", "--all", "--app", "shop")
	if _, err := os.Lstat(filepath.Dir(folders[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of forks is left: %v", err)
	}
	if processes := c.d.inForks(""); len(processes) != 0 {
		t.Errorf("processes are left: %v", processes)
	}
}

// madeForks reads the folders and the names of the forks from the answer of fork_app.
func madeForks(answer string) (folders, names []string) {
	var out struct {
		Forks []struct{ Name, Folder string }
	}
	if at := strings.Index(answer, "{"); at < 0 || json.NewDecoder(strings.NewReader(answer[at:])).Decode(&out) != nil {
		return nil, nil
	}
	for _, f := range out.Forks {
		folders, names = append(folders, f.Folder), append(names, f.Name)
	}
	return folders, names
}

// rightCheck is a command that succeeds where the page was repaired.
const rightCheck = "grep -q right page.html"

// testClaudeCodeForks has the real Claude Code make two forks, write into both in one step, compare them and keep one. The stand-in for its
// model decides by the answers of the tools.
func testClaudeCodeForks(t *testing.T) {
	claude := filepath.Join(fromNPM(t, "claude", 240), "@anthropic-ai", "claude-code-linux-x64", "claude")
	c := forkingClient(t)
	c.mulligan("install", "claude-code")
	m := newScript(t, tryTwo(
		func(name string) string { return "mcp__mulligan__" + name },
		func(id, command string) toolUse {
			return toolUse{id, "Bash", map[string]any{"command": command, "description": "Try a repair"}}
		}))
	c.env = append(c.env, "ANTHROPIC_BASE_URL="+m.URL, "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_SANDBOX=1")
	out := c.run(claude, "-p", "try two repairs and keep the better one", "--dangerously-skip-permissions", "--output-format", "text")
	answers := m.heard()
	if !strings.Contains(out, "all done") || answers["toolu_keep"] == "" {
		t.Fatalf("Claude Code said %q; its tools said %q", out, answers)
	}
	folders, _ := madeForks(answers["toolu_fork"])
	keptOne(t, c, folders)
}

// tryTwo is what a model asks for that tries two repairs, given the names of mulligan's tools and the agent's own tool for commands.
func tryTwo(tool func(name string) string, command func(id, command string) toolUse) func(answers map[string]string) []toolUse {
	return func(answers map[string]string) []toolUse {
		folders, names := madeForks(answers["toolu_fork"])
		switch {
		case answers["toolu_fork"] == "":
			return []toolUse{{"toolu_fork", tool("fork_app"), map[string]any{"count": 2}}}
		case len(folders) != 2:
			return nil
		case answers["toolu_one"] == "":
			return []toolUse{
				command("toolu_one", "echo wrong >"+folders[0]+"/page.html"),
				command("toolu_two", "echo right >"+folders[1]+"/page.html"),
			}
		case answers["toolu_compare"] == "":
			return []toolUse{{"toolu_compare", tool("compare_forks"), map[string]any{"command": rightCheck}}}
		case answers["toolu_keep"] == "":
			if best := succeeded(answers["toolu_compare"]); best == names[1] {
				return []toolUse{{"toolu_keep", tool("keep_fork"), map[string]any{"name": best}}}
			}
		}
		return nil
	}
}

// succeeded is the last fork, by the answer of compare_forks, in which the command succeeded.
func succeeded(answer string) (name string) {
	var compared struct {
		Forks []struct {
			Name    string
			Command struct {
				ExitCode *int `json:"exit_code"`
			}
		}
	}
	if at := strings.Index(answer, "{"); at < 0 || json.NewDecoder(strings.NewReader(answer[at:])).Decode(&compared) != nil {
		return ""
	}
	for _, f := range compared.Forks {
		if f.Command.ExitCode != nil && *f.Command.ExitCode == 0 {
			name = f.Name
		}
	}
	return name
}

// testCodexForks has the real Codex do the same.
func testCodexForks(t *testing.T) {
	codex := filepath.Join(fromNPM(t, "codex", 400), "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
	c := forkingClient(t)
	c.mulligan("install", "codex")
	m := newScript(t, tryTwo(
		func(name string) string { return name },
		func(id, command string) toolUse { return toolUse{id, "exec_command", map[string]any{"cmd": command}} }))
	config := filepath.Join(c.home, ".codex", "config.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	c.write(".codex/config.toml", "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n"+string(text)+
		"\n[model_providers.stand-in]\nname = \"stand-in\"\nbase_url = \""+m.URL+"/v1\"\nwire_api = \"responses\"\n")
	out := c.run(codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "try two repairs and keep the better one")
	answers := m.heard()
	if !strings.Contains(out, "all done") || answers["toolu_keep"] == "" {
		t.Fatalf("Codex said %q; its tools said %q", out, answers)
	}
	folders, _ := madeForks(answers["toolu_fork"])
	keptOne(t, c, folders)
}

// toolUse is a call of a tool that a model asks for.
type toolUse struct {
	ID, Name string
	Input    any
}

// script stands in for the model of Claude Code or Codex. It knows the answers of the tools that it asked for, by the calls' ids.
type script struct {
	*httptest.Server
	next func(answers map[string]string) []toolUse

	mu      sync.Mutex
	answers map[string]string
}

func newScript(t *testing.T, next func(answers map[string]string) []toolUse) *script {
	s := &script{next: next, answers: map[string]string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *script) heard() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Stream   bool
		Tools    []struct{ Name string }
		Messages []struct{ Content json.RawMessage }
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	if r.URL.Path == "/v1/responses" && err == nil {
		s.respond(w, body)
		return
	}
	if r.URL.Path != "/v1/messages" || err != nil || json.Unmarshal(body, &req) != nil {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"type":"error","error":{"type":"not_found_error","message":"not here"}}`)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range req.Messages {
		var blocks []struct {
			ID      string `json:"tool_use_id"`
			Content json.RawMessage
		}
		if json.Unmarshal(m.Content, &blocks) != nil {
			continue // a text
		}
		for _, b := range blocks {
			if b.ID != "" {
				s.answers[b.ID] = blockText(b.Content)
			}
		}
	}
	var uses []toolUse
	if len(req.Tools) > 0 { // else it is one of Claude Code's own small questions, as for a title
		uses = s.next(s.answers)
	}
	replyWith(w, req.Stream, uses)
}

// respond answers Codex, whose model is asked by the Responses API.
func (s *script) respond(w http.ResponseWriter, body []byte) {
	var req struct {
		Input []struct {
			Type   string
			CallID string `json:"call_id"`
			Output json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range req.Input {
		if item.Type == "function_call_output" {
			s.answers[item.CallID] = blockText(item.Output)
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event string, fields map[string]any) {
		fields["type"] = event
		b, _ := json.Marshal(fields)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, b)
	}
	id := fmt.Sprintf("resp_%d", time.Now().UnixNano())
	send("response.created", map[string]any{"response": map[string]any{"id": id}})
	uses := s.next(s.answers)
	for i, u := range uses {
		input, _ := json.Marshal(u.Input)
		item := map[string]any{"type": "function_call", "id": "fc_" + u.ID, "call_id": u.ID, "name": u.Name, "arguments": string(input)}
		if u.Name != "exec_command" {
			item["namespace"] = "mcp__mulligan"
		}
		send("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	if len(uses) == 0 {
		send("response.output_item.done", map[string]any{"output_index": 0, "item": map[string]any{
			"type": "message", "role": "assistant", "id": "msg_" + id, "content": []any{map[string]any{"type": "output_text", "text": "all done"}}}})
	}
	usage := map[string]any{"input_tokens": 1, "input_tokens_details": nil, "output_tokens": 1, "output_tokens_details": nil, "total_tokens": 2}
	send("response.completed", map[string]any{"response": map[string]any{"id": id, "usage": usage}})
}

// blockText is the text of a tool's answer, which is a string or a list of blocks; "-" if there is none.
func blockText(content json.RawMessage) string {
	var text string
	var blocks []struct{ Text string }
	if json.Unmarshal(content, &text) != nil && json.Unmarshal(content, &blocks) == nil {
		for _, b := range blocks {
			text += b.Text
		}
	}
	if text == "" {
		return "-"
	}
	return text
}

// replyWith writes a message that asks for tools, or that says that all is done.
func replyWith(w http.ResponseWriter, stream bool, uses []toolUse) {
	blocks, stop := []map[string]any{{"type": "text", "text": "all done"}}, "end_turn"
	if len(uses) > 0 {
		blocks, stop = nil, "tool_use"
	}
	for _, u := range uses {
		blocks = append(blocks, map[string]any{"type": "tool_use", "id": u.ID, "name": u.Name, "input": u.Input})
	}
	usage := map[string]any{"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	message := map[string]any{
		"id": fmt.Sprintf("msg_%d", time.Now().UnixNano()), "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
		"content": blocks, "stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(message) // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event string, fields map[string]any) {
		fields["type"] = event
		b, _ := json.Marshal(fields)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, b)
	}
	message["content"], message["stop_reason"] = []any{}, nil
	send("message_start", map[string]any{"message": message})
	for i, b := range blocks {
		delta := map[string]any{"type": "text_delta", "text": b["text"]}
		begin := map[string]any{"type": "text", "text": ""}
		if stop == "tool_use" {
			input, _ := json.Marshal(b["input"])
			begin = map[string]any{"type": "tool_use", "id": b["id"], "name": b["name"], "input": map[string]any{}}
			delta = map[string]any{"type": "input_json_delta", "partial_json": string(input)}
		}
		send("content_block_start", map[string]any{"index": i, "content_block": begin})
		send("content_block_delta", map[string]any{"index": i, "delta": delta})
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 5}})
	send("message_stop", map[string]any{})
}
