package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit"
)

// The plugin, in a JavaScript engine, calls the hook with what the parser reads,
// in order, and survives a program that is not there.
func TestOpenCodePlugin(t *testing.T) {
	testkit.Need(t, "node")
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	said := filepath.Join(dir, "said")
	program := write("mulligan", "#!/bin/sh\necho \"$*\" >>"+said+"\ncat >>"+said+"\necho >>"+said+"\n", 0o755)
	write("mulligan.mjs", strings.ReplaceAll(opencodePlugin, "@PROGRAM@", literal(program)), 0o600)
	write("gone.mjs", strings.ReplaceAll(opencodePlugin, "@PROGRAM@", literal(program+"-gone")), 0o600)
	script := write("drive.mjs", `
for (const plugin of ["./mulligan.mjs", "./gone.mjs"]) {
  const { Mulligan } = await import(plugin)
  const hooks = await Mulligan({ directory: process.cwd() })
  await hooks["chat.message"]({ sessionID: "ses_1" }, { message: { id: "msg_1" }, parts: [] })
  await Promise.all(["a", "b"].map((callID) =>
    hooks["tool.execute.before"]({ tool: "edit", sessionID: "ses_1", callID }, { args: { filePath: callID } })))
  await hooks["tool.execute.after"]({ tool: "edit", sessionID: "ses_1", callID: "a" }, { title: "", output: "", metadata: {} })
  await hooks.event({ event: { type: "message.updated", properties: {} } })
  await hooks.event({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } })
}
`, 0o600)
	cmd := exec.CommandContext(t.Context(), "node", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	want := []struct {
		kind Kind
		call string
	}{{TurnBegins, ""}, {CallBegins, "a"}, {CallBegins, "b"}, {CallEnds, "a"}, {TurnEnds, ""}}
	if len(lines) != 2*len(want) {
		t.Fatalf("it said\n%s", text)
	}
	for i, w := range want {
		ev, err := opencode.Read("", []byte(lines[2*i+1]))
		if err != nil || lines[2*i] != "hook opencode" || ev.Kind != w.kind || ev.Session != "ses_1" || ev.Call != w.call || len(ev.Dirs) != 1 {
			t.Errorf("%d: %s: %+v, %v", i, lines[2*i+1], ev, err)
		}
	}
}
