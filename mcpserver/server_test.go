package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

var update = flag.Bool("update", false, "write the golden files anew")

// listingBudget is what the listing of all tools may take, in bytes: 12 KB.
const listingBudget = 12_000

// connect gives a session with a server for an agent that works in cwd.
func connect(t *testing.T, client API, cwd string, opts *mcp.ClientOptions, session *mcp.ClientSessionOptions) *mcp.ClientSession {
	t.Helper()
	return connectTo(t, Options{Client: client, Cwd: cwd, Version: "1.2.3"}, opts, session)
}

func connectTo(t *testing.T, o Options, opts *mcp.ClientOptions, session *mcp.ClientSessionOptions) *mcp.ClientSession {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	ss, err := New(o).Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, opts).Connect(t.Context(), near, session)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cs.Close(); err != nil {
			t.Error(err)
		}
		_ = ss.Wait() // it ends with the client; how, is the transport's matter
	})
	return cs
}

// answer is any result, structured or an error's text.
type answer struct {
	IsError bool
	Fields  map[string]any
}

func call(t *testing.T, cs *mcp.ClientSession, tool string, args any) answer {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return answerOf(t, res)
}

// answerOf reads the result's text, and checks that the structured content, if
// any, says the same.
func answerOf(t *testing.T, res *mcp.CallToolResult) answer {
	t.Helper()
	a := answer{IsError: res.IsError}
	if len(res.Content) != 1 {
		t.Fatalf("%d pieces of content", len(res.Content))
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if err := json.Unmarshal([]byte(text), &a.Fields); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if !res.IsError || res.StructuredContent != nil {
		structured, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		fromText, err := json.Marshal(a.Fields)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(structured, fromText) {
			t.Errorf("structured %s\nand text %s", structured, fromText)
		}
	}
	return a
}

func (a answer) text(field string) string { s, _ := a.Fields[field].(string); return s }

// names are the answer's fields, in order.
func (a answer) names() string {
	var names []string
	for n := range a.Fields {
		names = append(names, n)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (a answer) errorBody(t *testing.T) ipc.ErrorBody {
	t.Helper()
	b, err := json.Marshal(a.Fields["error"])
	if err != nil {
		t.Fatal(err)
	}
	var body ipc.ErrorBody
	if err := json.Unmarshal(b, &body); err != nil {
		t.Fatal(err)
	}
	return body
}

const checkpointNames = "app_id checkpoint_id conversation_id created_at db_snapshot_id db_snapshots deploy_id expires_at files_hash " +
	"files_snapshot_id healthy message_id next notes pinned quiesced ref rehearsed running session_token size_bytes trigger turn_id vm_snapshot_id"

func TestToolsOneAfterTheOther(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	cs := connect(t, s.start(t), ws, nil, nil)

	a := call(t, cs, "create_checkpoint", map[string]any{"notes": "before risky refactor", "pinned": true})
	const id = "cp-000000000001"
	if a.IsError || a.names() != checkpointNames || a.text("checkpoint_id") != id || a.Fields["pinned"] != true ||
		a.text("trigger") != "manual" || a.text("notes") != "before risky refactor" || a.text("session_token") != "user-alice" ||
		!strings.HasPrefix(a.text("next"), "rollback_app(app_id='app-1', checkpoint_id='"+id+"')") {
		t.Errorf("create: %v", a)
	}

	a = call(t, cs, "list_checkpoints", map[string]any{"app_id": "shop"})
	cps, _ := a.Fields["checkpoints"].([]any)
	if a.names() != "checkpoints next session_token storage_usage" || len(cps) != 1 || !strings.HasPrefix(a.text("next"), "rollback_app(") {
		t.Errorf("list: %v", a)
	}

	a = call(t, cs, "rollback_app", map[string]any{
		"app_id": "app-1", "checkpoint_id": id, "scope": []string{"src", "layer:db"}, "verify_restore": false, "reason": "it broke",
	})
	if a.IsError || a.Fields["rolled_back"] != true || len(a.Fields["stages"].([]any)) != 6 || a.text("session_token") != "user-alice" ||
		a.text("next") != "To roll FORWARD (undo the rollback): rollback_app(app_id='app-1', checkpoint_id='cp-000000000002')" {
		t.Errorf("rollback: %v", a)
	}
	want := "assumptions changes_reverted changes_total confidence evidence_anchors next next_actions recovered restored_to rolled_back " +
		"rolled_back_to safety_checkpoint session_token stages verification warnings"
	if a.names() != want {
		t.Errorf("rollback: fields %s\nwant %s", a.names(), want)
	}
	req := s.requests[0]
	if !slices.Equal(req.Scope, []string{"src", "layer:db"}) || req.VerifyRestore == nil || *req.VerifyRestore || req.Reason != "it broke" || req.DryRun {
		t.Errorf("asked the daemon %+v", req)
	}

	a = call(t, cs, "rollback_app", map[string]any{"checkpoint_id": id, "dry_run": true})
	if a.IsError || a.Fields["dry_run"] != true || a.text("next") != "rollback_app(app_id='app-1', checkpoint_id='"+id+"') does it" {
		t.Errorf("dry run: %v", a)
	}
	if req := s.requests[1]; !req.DryRun || req.VerifyRestore != nil || req.Scope != nil {
		t.Errorf("asked the daemon %+v", req)
	}

	a = call(t, cs, "pin_checkpoint", map[string]any{"checkpoint_id": id, "pinned": false})
	if a.names() != checkpointNames || a.Fields["pinned"] != false || !strings.HasPrefix(a.text("next"), "delete_checkpoint(") {
		t.Errorf("unpin: %v", a)
	}
	if a = call(t, cs, "pin_checkpoint", map[string]any{"checkpoint_id": id}); a.Fields["pinned"] != true {
		t.Errorf("pin: %v", a)
	}
	call(t, cs, "pin_checkpoint", map[string]any{"checkpoint_id": id, "pinned": false})

	a = call(t, cs, "delete_checkpoint", map[string]any{"checkpoint_id": id})
	if a.names() != "checkpoint_id deleted next session_token" || a.Fields["deleted"] != true || a.text("checkpoint_id") != id {
		t.Errorf("delete: %v", a)
	}
}

// The app is found although the server's folder, which was in its workspace, is gone.
func TestFolderIsGone(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	s.add(ipc.CreateRequest{})
	cwd := filepath.Join(ws, "gone", "deep")
	if err := os.MkdirAll(cwd, 0o755); err != nil {
		t.Fatal(err)
	}
	cs := connect(t, s.start(t), cwd, nil, nil)
	if err := os.RemoveAll(filepath.Dir(cwd)); err != nil {
		t.Fatal(err)
	}
	if a := call(t, cs, "list_checkpoints", nil); a.IsError || len(a.Fields["checkpoints"].([]any)) != 1 {
		t.Errorf("%v", a)
	}
}

func TestListIsBounded(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	for range 25 {
		s.add(ipc.CreateRequest{})
	}
	cs := connect(t, s.start(t), ws, nil, nil)
	tests := []struct {
		args  map[string]any
		shown int
		next  string
	}{
		{nil, 20, "list_checkpoints(before='cp-000000000006') lists older ones"},
		{map[string]any{"limit": 500}, 20, "before='cp-000000000006'"},
		{map[string]any{"limit": -1}, 20, "before='cp-000000000006'"},
		{map[string]any{"limit": 3, "app_id": "shop"}, 3, "list_checkpoints(app_id='shop', before='cp-000000000017')"},
		{map[string]any{"before": "cp-000000000006"}, 5, "checkpoint_id='cp-000000000005') goes back"},
		{map[string]any{"before": "20", "details": true}, 5, "checkpoint_id='cp-000000000005') goes back"},
		{map[string]any{"before": "25"}, 0, "there are none before cp-000000000001"},
		{map[string]any{"trigger": "deploy"}, 0, "list_checkpoints() lists those with another trigger"},
		{map[string]any{"trigger": nil, "limit": nil}, 20, "lists older ones"},
	}
	for _, tt := range tests {
		a := call(t, cs, "list_checkpoints", tt.args)
		cps, ok := a.Fields["checkpoints"].([]any)
		if !ok || len(cps) != tt.shown || !strings.Contains(a.text("next"), tt.next) {
			t.Errorf("%v: %d shown, next %q", tt.args, len(cps), a.text("next"))
		}
	}
	empty := connect(t, newScript(ws).start(t), ws, nil, nil)
	if a := call(t, empty, "list_checkpoints", nil); a.text("next") != "create_checkpoint() captures the present state" {
		t.Errorf("nothing there: %v", a)
	}
}

// A list of 20 costs a model at most 150 bytes a checkpoint, with all that is around them, and numbers and words name what it shows.
func TestListIsShort(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	s.app.ID = "app-0123456789ab"
	prompts := []string{
		"Add a page that lists the orders of a customer, newest first", "fix the failing test", "Rename Cart to Basket everywhere & keep <Basket/> working",
		"Why does the checkout take 4 seconds? Make it fast", "Schreib bitte die Fußzeile der Rechnungen auf Französisch um, wie besprochen",
	}
	for i := range 30 {
		cp := ipc.Checkpoint{Trigger: ipc.TriggerAgent, Title: prompts[i%len(prompts)], Agent: "claude-code", Pinned: i%10 == 0}
		switch {
		case i%12 == 5:
			notes := "before the upgrade of the database server"
			cp = ipc.Checkpoint{Trigger: ipc.TriggerManual, Notes: &notes}
		case i%12 == 9:
			notes := "safety checkpoint before rollback to cp-000000000003"
			cp = ipc.Checkpoint{Trigger: ipc.TriggerPreRollback, Notes: &notes, RollbackTo: "cp-000000000003", RollbackTitle: prompts[2]}
		case i == 27:
			cp.Agent = "codex"
		}
		s.put(cp)
	}
	cs := connect(t, s.start(t), ws, nil, nil)
	text := func(args map[string]any) (string, answer) {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_checkpoints", Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return res.Content[0].(*mcp.TextContent).Text, answerOf(t, res)
	}
	whole, a := text(nil)
	cps := a.Fields["checkpoints"].([]any)
	if len(whole) > 20*150 || len(cps) != 20 {
		t.Errorf("%d checkpoints are %d bytes: %s", len(cps), len(whole), whole)
	}
	shortest := 1000
	for _, cp := range cps {
		if title := cp.(map[string]any)["title"].(string); strings.HasSuffix(title, "…") {
			shortest = min(shortest, len(title))
		}
	}
	if shortest < 36 {
		t.Errorf("a title was cut to %d bytes: %s", shortest, whole)
	}
	t.Logf("%d bytes, titles of up to %d", len(whole), shortest)
	line := func(cps []any, i int) map[string]any { return cps[i].(map[string]any) }
	if a.Fields["agent"] != "claude-code" || line(cps, 1)["agent"] != nil || line(cps, 1)["trigger"] != nil || line(cps, 0)["trigger"] != "manual" || line(cps, 2)["agent"] != "codex" || line(cps, 0)["n"] != 1.0 {
		t.Errorf("the agents are told as %s", whole)
	}
	few, a := text(map[string]any{"limit": 10})
	cps = a.Fields["checkpoints"].([]any)
	if line(cps, 4)["title"] != prompts[0] || line(cps, 4)["trigger"] != "agent" || line(cps, 2)["title"] != prompts[2] || !strings.Contains(few, prompts[2]) ||
		line(cps, 8)["title"] != "before going back to “"+prompts[2]+"”" || line(cps, 8)["trigger"] != "pre-rollback" {
		t.Errorf("titles have room and are cut, or escaped: %s", few)
	}
	for name, want := range map[string]string{"1": "cp-00000000001e", "@{now}": "cp-00000000001e", "3": "cp-00000000001c"} {
		if d := call(t, cs, "diff_checkpoint", map[string]any{"checkpoint_id": name, "against": "2"}); d.text("from") != want {
			t.Errorf("%q: %v, and should be %s", name, d, want)
		}
	}
}

// The text of an answer has no escapes that only pages of HTML need.
func TestReadable(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"\u003cb\u003e \u0026"}`: `{"a":"<b> &"}`, `"\\u003c"`: `"\\u003c"`, `"\\\u003c"`: `"\\<"`, `"\n\u00e9"`: `"\n\u00e9"`, `"\`: `"\`,
	} {
		if got := readable(in); got != want {
			t.Errorf("%s is %s, and should be %s", in, got, want)
		}
	}
}

func TestErrorsNameTheNextCall(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	pinned := s.add(ipc.CreateRequest{Pinned: true}).ID
	expired := s.add(ipc.CreateRequest{Notes: "expired"}).ID
	busy := s.add(ipc.CreateRequest{Notes: "busy"}).ID
	others := s.add(ipc.CreateRequest{Notes: "others"}).ID
	client := s.start(t)
	here := connect(t, client, ws, nil, nil)
	elsewhere := connect(t, client, "/", nil, nil)
	dead := connect(t, ipc.NewClient(filepath.Join(ws, "none")), ws, nil, nil)

	type args = map[string]any
	tests := []struct {
		cs   *mcp.ClientSession
		tool string
		args args
		kind errs.Kind
		next string
	}{
		{here, "delete_checkpoint", args{"checkpoint_id": pinned}, errs.Pinned,
			fmt.Sprintf("pin_checkpoint(app_id='app-1', checkpoint_id='%s', pinned=false) first, then delete_checkpoint(app_id='app-1', checkpoint_id='%[1]s')", pinned)},
		{here, "rollback_app", args{"checkpoint_id": "cp-ffffffffffff"}, errs.NotFound, "list_checkpoints(app_id='app-1')"},
		{here, "rollback_app", args{"checkpoint_id": "0"}, errs.Invalid, "list_checkpoints(app_id='app-1')"},
		{here, "rollback_app", args{"checkpoint_id": "@{2 moons ago}"}, errs.Invalid, "list_checkpoints(app_id='app-1')"},
		{here, "rollback_app", args{"checkpoint_id": "cp-"}, errs.Invalid, "list_checkpoints(app_id='app-1')"},
		{here, "pin_checkpoint", args{"checkpoint_id": "../shop", "app_id": "shop"}, errs.NotFound, "list_checkpoints(app_id='app-1')"},
		{here, "rollback_app", args{"checkpoint_id": expired}, errs.Expired, "list_checkpoints(app_id='app-1')"},
		{here, "rollback_app", args{"checkpoint_id": busy}, errs.Busy, fmt.Sprintf("then rollback_app(app_id='app-1', checkpoint_id='%s')", busy)},
		{here, "create_checkpoint", args{"notes": "disk full"}, errs.Failed, "free some space; then create_checkpoint(app_id='app-1')"},
		{here, "create_checkpoint", args{"app_id": "nope"}, errs.NotFound, "(the user's apps are shop): create_checkpoint(app_id='…')"},
		{elsewhere, "create_checkpoint", nil, errs.NotFound, "ask the user to protect this folder with mulligan, or give the app_id of an app (the user's apps are shop)"},
		{dead, "create_checkpoint", nil, errs.Unavailable, "ask the user to start mulligan's daemon, mulligand, then create_checkpoint()"},
		{dead, "list_checkpoints", args{"app_id": "shop"}, errs.Unavailable, "then list_checkpoints(app_id='shop')"},
		{here, "rollback_app", args{"checkpoint_id": others}, errs.Conflict, "revert_conversation_writes(app_id='app-1')"},
		{here, "diff_checkpoint", args{"checkpoint_id": "cp-ffffffffffff"}, errs.NotFound, "list_checkpoints(app_id='app-1')"},
		{here, "revert_conversation_writes", args{"conversation_id": "nobody"}, errs.NotFound, "list_checkpoints(app_id='app-1', trigger='agent', details=true)"},
		{here, "set_conversation_checkpoint", args{"conversation_id": "c"}, errs.Invalid, "set_conversation_checkpoint(app_id?, conversation_id, message_id)"},
		{here, "revert_conversation_writes", nil, errs.Invalid, "revert_conversation_writes(app_id?, conversation_id, from_message_id?, to_message_id?, call_id?, dry_run?)"},
		{elsewhere, "revert_conversation_writes", args{"conversation_id": "it's"}, errs.NotFound, `revert_conversation_writes(app_id='…', conversation_id='it\'s')`},
		{here, "rollback_app", nil, errs.Invalid, "rollback_app(app_id?, checkpoint_id, scope?, without?, verify_restore?, reason?, dry_run?, start?)"},
		{here, "create_checkpoint", args{"note": "x"}, errs.Invalid, "create_checkpoint(app_id?, notes?, pinned?)"},
		{here, "create_checkpoint", args{"pinned": "yes"}, errs.Invalid, "create_checkpoint(app_id?, notes?, pinned?)"},
		{here, "list_checkpoints", args{"trigger": "whim"}, errs.Invalid, "list_checkpoints(app_id?, trigger?, limit?, before?, details?)"},
	}
	for _, tt := range tests {
		a := call(t, tt.cs, tt.tool, tt.args)
		body := a.errorBody(t)
		if !a.IsError || body.Kind != tt.kind || body.Message == "" || !strings.Contains(a.text("next"), tt.next) {
			t.Errorf("%s(%v): %v\nwant %s, next %q", tt.tool, tt.args, a, tt.kind, tt.next)
		}
	}
	if _, err := here.CallTool(t.Context(), &mcp.CallToolParams{Name: "no_such_tool"}); err == nil {
		t.Error("an unknown tool is no protocol error")
	}
}

func TestFailedRollbackKeepsItsReceipt(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	id := s.add(ipc.CreateRequest{Notes: "fails"}).ID
	cs := connect(t, s.start(t), ws, nil, nil)
	for _, token := range []any{nil, "t1"} {
		params := &mcp.CallToolParams{Name: "rollback_app", Arguments: map[string]any{"checkpoint_id": id}}
		if token != nil {
			params.SetProgressToken(token)
		}
		res, err := cs.CallTool(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		a := answerOf(t, res)
		body := a.errorBody(t)
		if !a.IsError || res.StructuredContent == nil || a.Fields["recovered"] != true || a.Fields["rolled_back"] != false ||
			len(a.Fields["stages"].([]any)) != 6 || body.Kind != errs.Failed || body.Message != "no space left" ||
			!strings.Contains(a.text("next"), "list_checkpoints(app_id='app-1')") || a.text("session_token") != "user-alice" {
			t.Errorf("%v", a)
		}
	}
}

func TestProgress(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	id := s.add(ipc.CreateRequest{}).ID
	told := make(chan *mcp.ProgressNotificationParams, 32)
	cs := connect(t, s.start(t), ws, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { told <- r.Params },
	}, nil)
	call(t, cs, "rollback_app", map[string]any{"checkpoint_id": id})
	params := &mcp.CallToolParams{Name: "rollback_app", Arguments: map[string]any{"checkpoint_id": id}}
	params.SetProgressToken("tok")
	if _, err := cs.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	last := 0.0
	for i := range 12 { // each stage as it starts and as it ends; none for the first call
		p := <-told
		status := []ipc.StageStatus{ipc.StageRunning, ipc.StageOK}[i%2]
		if p.ProgressToken != "tok" || p.Total != 6 || p.Progress <= last || p.Message != fmt.Sprintf("%s: %s", ipc.Stages[i/2], status) {
			t.Errorf("%d: %+v", i, p)
		}
		last = p.Progress
	}
	if last != 6 || len(told) != 0 {
		t.Errorf("ended at %v with %d more", last, len(told))
	}
}

func TestEveryProtocolVersion(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	client := s.start(t)
	versions := mcp.SupportedProtocolVersions()
	if !slices.Contains(versions, "2024-11-05") || !slices.Contains(versions, "2026-07-28") {
		t.Fatalf("the SDK speaks %v", versions)
	}
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			cs := connect(t, client, ws, nil, &mcp.ClientSessionOptions{ProtocolVersion: v})
			init := cs.InitializeResult()
			if init.ProtocolVersion != v || init.ServerInfo.Name != "mulligan" || init.ServerInfo.Version != "1.2.3" || init.Instructions != instructions {
				t.Errorf("%+v", init)
			}
			//lint:ignore SA1019 that it is absent is what is tested
			if c := init.Capabilities; c.Tools == nil || c.Tools.ListChanged || c.Logging != nil || c.Resources != nil {
				t.Errorf("capabilities %+v", c)
			}
			l, err := cs.ListTools(t.Context(), nil)
			if err != nil || len(l.Tools) != 13 {
				t.Errorf("%v, %v", l, err)
			}
			if a := call(t, cs, "create_checkpoint", nil); a.IsError {
				t.Errorf("%v", a)
			}
		})
	}
}

// TestListing compares the listing, byte for byte as it crosses the wire, with
// the golden file: every agent pays for it in every prompt.
func TestListing(t *testing.T) {
	w := newWire(t, newScript("/").start(t), "/")
	w.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`)
	w.receive()
	w.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	w.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	var msg struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(w.receive(), &msg); err != nil {
		t.Fatal(err)
	}
	w.close()

	t.Logf("%d bytes", len(msg.Result))
	if len(msg.Result) > listingBudget {
		t.Errorf("the listing takes %d bytes, more than %d", len(msg.Result), listingBudget)
	}
	var got bytes.Buffer
	if err := json.Indent(&got, msg.Result, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	const golden = "testdata/tools.json"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the listing is not %s (go test -update writes it anew):\n%s", golden, got.String())
	}

	var list struct {
		Tools []struct {
			Name        string         `json:"name"`
			Annotations map[string]any `json:"annotations"`
			Output      map[string]any `json:"outputSchema"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(msg.Result, &list); err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		if tool.Output["type"] != "object" {
			t.Errorf("%s: output is %v", tool.Name, tool.Output["type"])
		}
		for _, h := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
			if _, ok := tool.Annotations[h].(bool); !ok {
				t.Errorf("%s: %s is not set", tool.Name, h)
			}
		}
	}
}
