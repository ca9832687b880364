package mcpserver

import (
	"slices"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// What can mean one thing alone is accepted.
func TestArgumentsThatFit(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	s.add(ipc.CreateRequest{})
	second := s.add(ipc.CreateRequest{}).ID
	s.add(ipc.CreateRequest{})
	cs := connect(t, s.start(t), ws, nil, nil)
	for _, n := range []any{2, 2.0, "2"} {
		if a := call(t, cs, "diff_checkpoint", map[string]any{"checkpoint_id": n}); a.IsError || a.text("from") != string(second) {
			t.Errorf("%v: %v", n, a)
		}
	}
	for _, scope := range []any{"src", []string{"src"}, `["src"]`} {
		s.requests = nil
		a := call(t, cs, "rollback_app", map[string]any{"checkpoint_id": second, "scope": scope, "dry_run": "true", "reason": nil})
		if a.IsError || !slices.Equal(s.requests[0].Scope, []string{"src"}) || !s.requests[0].DryRun ||
			a.text("next") != "rollback_app(app_id='app-1', checkpoint_id='cp-000000000002', scope=['src']) does it" {
			t.Errorf("%v: %v, %v", scope, a, s.requests)
		}
	}
	if a := call(t, cs, "list_checkpoints", map[string]any{"limit": "2"}); a.IsError || len(a.Fields["checkpoints"].([]any)) != 2 {
		t.Errorf("%v", a)
	}
}

// Wrong arguments are named in a plain sentence, with what is accepted.
func TestWrongArguments(t *testing.T) {
	ws := shortDir(t)
	cs := connect(t, newScript(ws).start(t), ws, nil, nil)
	type args = map[string]any
	for _, tt := range []struct {
		tool string
		args any
		want string
	}{
		{"list_checkpoints", args{"trigger": "xyz"}, `trigger is "xyz": give one of deploy, manual, agent, pre-rollback`},
		{"list_checkpoints", args{"limit": "many"}, `limit is "many": give a whole number`},
		{"list_checkpoints", args{"limit": 2.5}, `limit is 2.5: give a whole number`},
		{"rollback_app", args{"checkpoint_id": 1.5}, `checkpoint_id is 1.5: give a text`},
		{"rollback_app", args{"checkpoint_id": true}, `checkpoint_id is true: give a text`},
		{"rollback_app", nil, `checkpoint_id is missing: give a text`},
		{"rollback_app", args{"checkpoint_id": "1", "scope": []int{1}}, `scope is [1]: give a list of texts, as in ["one", "two"]`},
		{"rollback_app", args{"checkpoint_id": "1", "scope": args{"path": strings.Repeat("x", 100)}}, `scope is an object: give a list of texts, as in ["one", "two"]`},
		{"create_checkpoint", args{"pinned": "yes"}, `pinned is "yes": give true or false`},
		{"create_checkpoint", args{"note": "x"}, `there is no argument "note": create_checkpoint takes app_id, notes, pinned`},
	} {
		a := call(t, cs, tt.tool, tt.args)
		if body := a.errorBody(t); !a.IsError || body.Kind != errs.Invalid || body.Message != tt.want || body.Op != tt.tool || !strings.HasPrefix(a.text("next"), tt.tool+"(") {
			t.Errorf("%s(%v): %v\nwant %s", tt.tool, tt.args, a, tt.want)
		}
	}
}

// After a scope that names nothing, an answer says what fits, and not which checkpoints there are.
func TestWrongScope(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	id := string(s.add(ipc.CreateRequest{}).ID)
	cs := connect(t, s.start(t), ws, nil, nil)
	for name, want := range map[string]string{
		"srcc": `did you mean "src"?; then rollback_app(app_id='app-1', checkpoint_id='` + id + `', scope=['…'])`,
		"../x": "scope takes paths in the workspace, layer:files, layer:disk and layer:db: rollback_app(app_id='app-1', checkpoint_id='" + id + "', scope=['…'])",
	} {
		for _, cp := range []any{1, id} {
			if a := call(t, cs, "rollback_app", map[string]any{"checkpoint_id": cp, "scope": name}); !a.IsError || a.text("next") != want {
				t.Errorf("%s: %v\nwant %s", name, a, want)
			}
		}
	}
}
