package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit"
)

// testInspector has mcpserver's Inspector test talk to the real programs:
// mulligan mcp over a real daemon and a real app.
func testInspector(t *testing.T) {
	t.Parallel()
	testkit.NPM(t, "../../mcpserver/testdata/inspector", 300)
	a, h := newHooked(t, "claude-code")
	d := a.d
	// The conversation that it reverts a call of.
	session := func(event, more string) {
		h.run(strings.Replace(h.claude(event, more), `"session_id":"s1"`, `"session_id":"inspector"`, 1))
	}
	session("UserPromptSubmit", `,"prompt":"go"`)
	session("PreToolUse", `,"tool_name":"Bash","tool_use_id":"call-1","tool_input":{}`)
	a.write(t, "inspected", "by the Inspector\n")
	session("PostToolUse", `,"tool_name":"Bash","tool_use_id":"call-1","tool_input":{},"tool_response":{}`)
	session("Stop", "")
	cmd := exec.Command("go", "test", "-count=1", "-vet=off", "-trimpath", "-run", "^TestInspector$", "mulligan/mcpserver")
	cmd.Env = append(os.Environ(), "MULLIGAN_MCP="+filepath.Join(bin, "mulligan")+" mcp",
		"MULLIGAN_MCP_DIR="+a.ws, "MULLIGAN_SOCKET="+d.socket)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a.sound(t)
}
