package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// forkTools are the tools that Claude Code may call in TestClaudeCodeMayWrite without asking. None of them writes a file of a fork.
const forkTools = "mcp__mulligan__fork_app,mcp__mulligan__compare_forks,mcp__mulligan__keep_fork"

// testClaudeCodeMayWrite has the real Claude Code, with its checks of permissions on, write into two forks in one step by its own tools for
// files. It may by the rule that docs/how-to/forks.md names, for a folder that is not there when the agent starts; without the rule, it may not.
func testClaudeCodeMayWrite(t *testing.T) {
	claude := filepath.Join(fromNPM(t, "claude", 240), "@anthropic-ai", "claude-code-linux-x64", "claude")
	c := forkingClient(t)
	c.mulligan("install", "claude-code")
	try := func() map[string]string {
		t.Helper()
		m := newScript(t, readAndWriteTwo)
		env := c.env
		c.env = append(env[:len(env):len(env)], "ANTHROPIC_BASE_URL="+m.URL, "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1",
			"DISABLE_TELEMETRY=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
		defer func() { c.env = env }()
		out := c.run(claude, "-p", "try two repairs and keep the better one", "--permission-mode", "acceptEdits", "--allowedTools", forkTools,
			"--output-format", "text")
		if !strings.Contains(out, "all done") {
			t.Fatalf("Claude Code said %q; its tools said %q", out, m.heard())
		}
		return m.heard()
	}

	mayWrite(t, c, try, func(forks string) map[string]string {
		c.allow(t, "Edit(/"+forks+"/**)")
		return try()
	})
}

// allow adds a rule to Claude Code's settings of the user, beside what `mulligan install` wrote there.
func (c *client) allow(t *testing.T, rule string) {
	t.Helper()
	file := ".claude/settings.json"
	text, err := os.ReadFile(filepath.Join(c.home, file))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]any{}
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	settings["permissions"] = map[string]any{"allow": []string{rule}}
	if text, err = json.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	c.write(file, string(text))
}

// testCodexMayWrite has the real Codex, with its sandbox on, write into two forks in one step. It may as docs/how-to/forks.md says, by
// writable_roots with a folder that is not there when the agent starts; without it, it may not.
func testCodexMayWrite(t *testing.T) {
	codex := filepath.Join(fromNPM(t, "codex", 400), "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
	c := forkingClient(t)
	c.mulligan("install", "codex")
	text, err := os.ReadFile(filepath.Join(c.home, ".codex", "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	try := func(sandbox string) map[string]string {
		t.Helper()
		m := newScript(t, tryTwo(
			func(name string) string { return name },
			func(id, command string) toolUse { return toolUse{id, "exec_command", map[string]any{"cmd": command}} }))
		// The test's folders are in /tmp, where Codex may write by itself unless told otherwise. `codex exec` asks nobody, so keep_fork is approved.
		c.write(".codex/config.toml", "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n"+string(text)+
			"\n[model_providers.stand-in]\nname = \"stand-in\"\nbase_url = \""+m.URL+"/v1\"\nwire_api = \"responses\"\n"+
			"\n[sandbox_workspace_write]\nexclude_slash_tmp = true\nexclude_tmpdir_env_var = true\n"+sandbox+
			"\n[mcp_servers.mulligan.tools.keep_fork]\napproval_mode = \"approve\"\n")
		out := c.run(codex, "exec", "--skip-git-repo-check", "--sandbox", "workspace-write", "try two repairs and keep the better one")
		if !strings.Contains(out, "all done") {
			t.Fatalf("Codex said %q; its tools said %q", out, m.heard())
		}
		return m.heard()
	}
	mayWrite(t, c, func() map[string]string { return try("") },
		func(forks string) map[string]string { return try("writable_roots = [\"" + forks + "\"]\n") })
}

// mayWrite checks an agent that may write in the forks' folder, and before that the same one that may not.
func mayWrite(t *testing.T, c *client, not func() map[string]string, may func(forks string) map[string]string) {
	t.Helper()
	forks := filepath.Join(filepath.Dir(c.app.ws), "shop-forks")
	answers := not()
	folders, _ := madeForks(answers["toolu_fork"])
	if len(folders) != 2 {
		t.Fatalf("fork_app said %q", answers["toolu_fork"])
	}
	for _, dir := range folders {
		if filepath.Dir(dir) != forks {
			t.Errorf("the fork is in %s, not in %s", dir, forks)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "page.html")); err != nil || strings.TrimSpace(string(b)) != "broken" {
			t.Errorf("not allowed, and the page in %s says %q, %v", dir, b, err)
		}
	}
	c.mulligan("drop", "--all", "--app", "shop")
	if _, err := os.Lstat(forks); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the folder of forks is there before the agent starts: %v", err)
	}

	answers = may(forks)
	if !strings.Contains(answers["toolu_keep"], "session_token") {
		t.Fatalf("the agent kept no fork; its tools said %q", answers)
	}
	folders, _ = madeForks(answers["toolu_fork"])
	keptOne(t, c, folders)
}

// readAndWriteTwo is what a model asks for that tries two repairs by Claude Code's own tools for files, which have it read a file before it
// writes it.
func readAndWriteTwo(answers map[string]string) []toolUse {
	folders, names := madeForks(answers["toolu_fork"])
	page := func(i int) string { return filepath.Join(folders[i], "page.html") }
	switch {
	case answers["toolu_fork"] == "":
		return []toolUse{{"toolu_fork", "mcp__mulligan__fork_app", map[string]any{"count": 2}}}
	case len(folders) != 2:
		return nil
	case answers["toolu_read1"] == "":
		return []toolUse{
			{"toolu_read1", "Read", map[string]any{"file_path": page(0)}},
			{"toolu_read2", "Read", map[string]any{"file_path": page(1)}},
		}
	case answers["toolu_write1"] == "":
		return []toolUse{
			{"toolu_write1", "Write", map[string]any{"file_path": page(0), "content": "wrong\n"}},
			{"toolu_write2", "Write", map[string]any{"file_path": page(1), "content": "right\n"}},
		}
	case answers["toolu_compare"] == "":
		return []toolUse{{"toolu_compare", "mcp__mulligan__compare_forks", map[string]any{"command": rightCheck}}}
	case answers["toolu_keep"] == "":
		if best := succeeded(answers["toolu_compare"]); best == names[1] {
			return []toolUse{{"toolu_keep", "mcp__mulligan__keep_fork", map[string]any{"name": best}}}
		}
	}
	return nil
}
