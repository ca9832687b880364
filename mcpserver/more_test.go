package mcpserver

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

func TestDiff(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	few, many, none := s.add(ipc.CreateRequest{Notes: "30"}).ID, s.add(ipc.CreateRequest{Notes: "70"}).ID, s.add(ipc.CreateRequest{Notes: "0"}).ID
	cs := connect(t, s.start(t), ws, nil, nil)
	a := call(t, cs, "diff_checkpoint", map[string]any{"checkpoint_id": few, "paths": []string{"src"}})
	var patches, without int
	for _, c := range a.Fields["changes"].([]any) {
		if c.(map[string]any)["patch"] != nil {
			patches++
		} else if c.(map[string]any)["no_patch"] != "" {
			without++
		}
	}
	if patches != 16 || without != 14 || !strings.HasPrefix(a.text("next"), "rollback_app(") {
		t.Errorf("%d with a diff, %d without: %s", patches, without, a.text("next"))
	}
	a = call(t, cs, "diff_checkpoint", map[string]any{"checkpoint_id": many})
	if cs := a.Fields["changes"].([]any); len(cs) != 50 || cs[0].(map[string]any)["patch"] != nil || a.Fields["changes_total"] != 70.0 ||
		!strings.HasPrefix(a.text("next"), "20 more changed: diff_checkpoint(app_id='app-1', checkpoint_id='cp-000000000002', paths=['…'])") {
		t.Errorf("%d changes: %s", len(cs), a.text("next"))
	}
	if a = call(t, cs, "diff_checkpoint", map[string]any{"checkpoint_id": none}); len(a.Fields["changes"].([]any)) != 0 {
		t.Errorf("%v", a)
	}
}

func TestConversations(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	cs := connect(t, s.start(t), ws, nil, nil)
	a := call(t, cs, "set_conversation_checkpoint", map[string]any{"conversation_id": "inspector", "message_id": "m1"})
	if a.IsError || a.text("message_id") != "m1" || a.text("next") != "revert_conversation_writes(app_id='app-1', conversation_id='inspector') undoes what is written after it" {
		t.Errorf("%v", a)
	}
	a = call(t, cs, "revert_conversation_writes", map[string]any{
		"conversation_id": "inspector", "from_message_id": "m1", "to_message_id": "m2", "dry_run": true,
	})
	if a.IsError || a.Fields["dry_run"] != true || a.Fields["safety_checkpoint"] != nil ||
		a.text("next") != "revert_conversation_writes(app_id='app-1', conversation_id='inspector', from_message_id='m1', to_message_id='m2') does it" {
		t.Errorf("%v", a)
	}
	a = call(t, cs, "revert_conversation_writes", map[string]any{"conversation_id": "inspector", "call_id": "call-1"})
	if a.IsError || a.Fields["restored_total"] != 1.0 || !strings.HasSuffix(a.text("next"), "rollback_app(app_id='app-1', checkpoint_id='cp-000000000001')") ||
		len(a.Fields["conflicts"].([]any)) != 0 {
		t.Errorf("%v", a)
	}
	a = call(t, cs, "revert_conversation_writes", map[string]any{"conversation_id": "250"})
	if len(a.Fields["restored_paths"].([]any)) != 100 || a.Fields["restored_total"] != 250.0 || len(a.Fields["conflicts"].([]any)) != 100 ||
		a.Fields["conflicts_total"] != 250.0 || !strings.HasPrefix(a.text("next"), "250 left alone: ") {
		t.Errorf("%s", a.text("next"))
	}
	want := []ipc.RevertRequest{
		{ConversationID: "inspector", FromMessageID: "m1", ToMessageID: "m2", DryRun: true},
		{ConversationID: "inspector", CallID: "call-1"}, {ConversationID: "250"},
	}
	if !slices.Equal(s.reverts, want) {
		t.Errorf("asked the daemon %+v", s.reverts)
	}
}

// TestWhoAsks: clients that say which call or thread a request is of spare others.
func TestWhoAsks(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	id := s.add(ipc.CreateRequest{}).ID
	cs := connect(t, s.start(t), ws, nil, nil)
	for _, m := range []mcp.Meta{nil, {"claudecode/toolUseId": "toolu_1"}, {"threadId": "thread-1"}, {"threadId": 7}} {
		if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Meta: m, Name: "rollback_app", Arguments: map[string]any{"checkpoint_id": id}}); err != nil {
			t.Fatal(err)
		}
		if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Meta: m, Name: "keep_fork", Arguments: map[string]any{"name": "tried"}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, got := range s.requests {
		want := []ipc.RollbackRequest{{}, {CallID: "toolu_1"}, {ConversationID: "thread-1"}, {}}[i/2]
		if got.CallID != want.CallID || got.ConversationID != want.ConversationID || got.Force {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if len(s.requests) != 8 {
		t.Errorf("%d requests", len(s.requests))
	}
}

func TestPrompts(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	client := s.start(t)
	cs := connect(t, client, ws, nil, nil)
	get := func(cs *mcp.ClientSession, name string, args map[string]string) string {
		t.Helper()
		p, err := cs.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: name, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Messages) != 1 || p.Messages[0].Role != "user" {
			t.Fatalf("%+v", p)
		}
		return p.Messages[0].Content.(*mcp.TextContent).Text
	}
	l, err := cs.ListPrompts(t.Context(), nil)
	if err != nil || len(l.Prompts) != 2 || l.Prompts[0].Name != "checkpoint" || l.Prompts[1].Name != "rollback" {
		t.Fatalf("%+v, %v", l, err)
	}
	if got := get(cs, "rollback", nil); !strings.Contains(got, "list_checkpoints()") {
		t.Errorf("nothing to choose from: %s", got)
	}
	for i := range 15 {
		s.add(ipc.CreateRequest{Notes: fmt.Sprintf("number %d", i+1)})
	}
	for _, c := range []struct {
		name string
		args map[string]string
		want string
	}{
		{"checkpoint", nil, "Call create_checkpoint() and"},
		{"checkpoint", map[string]string{"notes": "before it's\nlate"}, `Call create_checkpoint(notes='before it\'s\nlate') and`},
		{"rollback", map[string]string{"checkpoint": "cp-1"}, "Call rollback_app(checkpoint_id='cp-1')."},
		{"rollback", map[string]string{"checkpoint": "2", "reason": "red"}, "Call rollback_app(checkpoint_id='cp-00000000000e', reason='red')."},
		{"rollback", nil, `1. cp-00000000000f, 2026-11-21 09:15:00Z, manual: "number 15"`},
		{"rollback", nil, `10. cp-000000000006`},
	} {
		if got := get(cs, c.name, c.args); !strings.Contains(got, c.want) || strings.Contains(got, "cp-000000000005") {
			t.Errorf("%s %v: %s", c.name, c.args, got)
		}
	}
	if got := get(connect(t, client, "/", nil, nil), "rollback", nil); !strings.Contains(got, "list_checkpoints()") {
		t.Errorf("outside of any app: %s", got)
	}
	if len(s.cps) != 15 || len(s.requests) > 0 {
		t.Error("a prompt did something")
	}
}

// TestConfirm has a person asked before a rollback, by clients of every version.
func TestConfirm(t *testing.T) {
	for _, version := range mcp.SupportedProtocolVersions() {
		t.Run(version, func(t *testing.T) {
			ws := shortDir(t)
			s := newScript(ws)
			id := s.add(ipc.CreateRequest{}).ID
			client := s.start(t)
			reply := &mcp.ElicitResult{}
			asked := 0
			can := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked++
				if !strings.Contains(req.Params.Message, string(id)) || len(s.requests) > 0 && reply.Action != "accept" {
					t.Errorf("asked %q, with %d rollbacks done", req.Params.Message, len(s.requests))
				}
				return reply, nil
			}}
			cs := connectTo(t, Options{Client: client, Cwd: ws, Confirm: true}, can, &mcp.ClientSessionOptions{ProtocolVersion: version})
			yes, no := map[string]any{"confirm": true}, map[string]any{"confirm": false}
			for _, r := range []mcp.ElicitResult{{Action: "decline"}, {Action: "cancel"}, {Action: "accept", Content: no}} {
				*reply = r
				a := call(t, cs, "rollback_app", map[string]any{"checkpoint_id": id})
				if !a.IsError || a.errorBody(t).Kind != errs.Denied {
					t.Errorf("%+v: %v", r, a)
				}
			}
			if len(s.requests) > 0 || asked != 3 {
				t.Fatalf("asked %d times, %d rollbacks", asked, len(s.requests))
			}
			*reply = mcp.ElicitResult{Action: "accept", Content: yes}
			if a := call(t, cs, "rollback_app", map[string]any{"checkpoint_id": id}); a.IsError || len(s.requests) != 1 {
				t.Errorf("%v, %d rollbacks", a, len(s.requests))
			}
			if a := call(t, cs, "rollback_app", map[string]any{"checkpoint_id": id, "dry_run": true}); a.IsError || asked != 4 {
				t.Errorf("a dry run: %v, asked %d times", a, asked)
			}
			// A client that cannot ask is not held up, nor is anybody by default.
			cannot := connectTo(t, Options{Client: client, Cwd: ws, Confirm: true}, nil, &mcp.ClientSessionOptions{ProtocolVersion: version})
			off := connect(t, client, ws, can, &mcp.ClientSessionOptions{ProtocolVersion: version})
			for _, cs := range []*mcp.ClientSession{cannot, off} {
				if a := call(t, cs, "rollback_app", map[string]any{"checkpoint_id": id}); a.IsError {
					t.Errorf("%v", a)
				}
			}
			if asked != 4 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// TestConfirmationIsForOneRollback answers a question with the state of another.
func TestConfirmationIsForOneRollback(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	one, two := s.add(ipc.CreateRequest{}).ID, s.add(ipc.CreateRequest{}).ID
	cs := connectTo(t, Options{Client: s.start(t), Cwd: ws, Confirm: true}, &mcp.ClientOptions{
		MultiRoundTrip:     &mcp.MultiRoundTripOptions{Disabled: true},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) { return nil, nil },
	}, &mcp.ClientSessionOptions{ProtocolVersion: "2026-07-28"})
	ask := func(id ipc.CheckpointID, state string, answers mcp.InputResponseMap) *mcp.CallToolResult {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{
			Name: "rollback_app", Arguments: map[string]any{"checkpoint_id": id}, RequestState: state, InputResponses: answers,
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	yes := mcp.InputResponseMap{"confirm": &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirm": true}}}
	first := ask(one, "", nil)
	if len(first.InputRequests) != 1 || first.RequestState == "" {
		t.Fatalf("%+v", first)
	}
	for _, state := range []string{first.RequestState, "", "made up"} {
		if a := answerOf(t, ask(two, state, yes)); !a.IsError || a.errorBody(t).Kind != errs.Invalid || len(s.requests) > 0 {
			t.Errorf("state %q: %v", state, a)
		}
	}
	if a := answerOf(t, ask(one, first.RequestState, yes)); a.IsError || len(s.requests) != 1 {
		t.Errorf("%v", a)
	}
}

// spelled is a call as the next of an answer spells it out.
var spelled = regexp.MustCompile(`\b([a-z]+_[a-z_]+)\(([^()]*)\)`)

// spelledCalls returns the calls in a text, in order.
func spelledCalls(t *testing.T, text string) (tools []string, arguments []map[string]any) {
	t.Helper()
	for _, m := range spelled.FindAllStringSubmatch(text, -1) {
		args := map[string]any{}
		for pair := range strings.SplitSeq(m[2], ", ") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok {
				continue
			}
			if text, quoted := strings.CutPrefix(value, "'"); quoted {
				args[name] = strings.TrimSuffix(text, "'")
			} else {
				args[name] = value == "true"
			}
		}
		tools, arguments = append(tools, m[1]), append(arguments, args)
	}
	return tools, arguments
}

// TestConversation plays a model that knows nothing but the last answer: it makes the calls that answers spell out, and each works.
func TestConversation(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	cs := connect(t, s.start(t), ws, nil, nil)
	last := call(t, cs, "list_checkpoints", nil)
	follow := func(want ...string) {
		t.Helper()
		tools, args := spelledCalls(t, last.text("next"))
		if len(tools) < len(want) || !slices.Equal(tools[:len(want)], want) {
			t.Fatalf("the answer leads to %q, not %q: %s", tools, want, last.text("next"))
		}
		for i, tool := range want {
			if last = call(t, cs, tool, args[i]); last.IsError {
				t.Fatalf("%s(%v): %v", tool, args[i], last)
			}
		}
	}
	follow("create_checkpoint") // nothing is there
	id := last.text("checkpoint_id")
	follow("rollback_app") // it goes back
	follow("rollback_app") // and forward again
	last = call(t, cs, "diff_checkpoint", map[string]any{"checkpoint_id": id})
	follow("rollback_app")
	last = call(t, cs, "pin_checkpoint", map[string]any{"checkpoint_id": id})
	last = call(t, cs, "delete_checkpoint", map[string]any{"checkpoint_id": id})
	follow("pin_checkpoint", "delete_checkpoint")
	follow("list_checkpoints")
	follow("rollback_app")
	last = call(t, cs, "rollback_app", map[string]any{"checkpoint_id": "no such words"})
	follow("list_checkpoints")
}

// TestToolsSayWhen holds each tool's text to saying when to call it.
func TestToolsSayWhen(t *testing.T) {
	ws := shortDir(t)
	cs := connect(t, newScript(ws).start(t), ws, nil, nil)
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		if !strings.Contains(tool.Description, "Call it ") {
			t.Errorf("%s does not say when to call it: %s", tool.Name, tool.Description)
		}
	}
}
