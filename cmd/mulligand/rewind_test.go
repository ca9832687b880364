package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

var updateScreens = flag.Bool("update-screens", false, "write testdata/rewind/*.txt anew")

// screen is a terminal of tmux in which a program runs.
type screen struct {
	t    testing.TB
	sock string
}

// newScreen runs a command of the shell in a terminal of this size.
func newScreen(t testing.TB, dir string, width, height int, command string, env ...string) *screen {
	t.Helper()
	testkit.Need(t, "tmux")
	s := &screen{t, filepath.Join(t.TempDir(), "s")}
	cmd := exec.Command("tmux", "-u", "-S", s.sock, "-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "-c", dir,
		command+`; echo "exit $?"; cat`)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the screen is\n%s", s.tmux("capture-pane", "-p"))
		}
		s.tmux("kill-server")
	})
	return s
}

func (s *screen) tmux(args ...string) string {
	s.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", s.sock}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (s *screen) press(keys ...string) { s.tmux(append([]string{"send-keys"}, keys...)...) }

// shows waits until the screen has all words, and returns it.
func (s *screen) shows(words ...string) (text string) {
	s.t.Helper()
	testkit.Eventually(s.t, fmt.Sprintf("the screen shows %q", words), func() bool {
		text = s.tmux("capture-pane", "-p")
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	})
	return text
}

// fleeting is what differs from run to run.
var fleeting = []struct {
	is  *regexp.Regexp
	say string
}{
	{regexp.MustCompile(`cp-[0-9a-f]{12,}`), "cp-ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "DATE"},
	{regexp.MustCompile(`\b(now|\d+ (second|minute)s? ago)\b`), "AGO"},
	{regexp.MustCompile(`\d+(\.\d+)? [KM]?i?B\b`), "SIZE"},
	{regexp.MustCompile(`\b\d+(\.\d+)?m?s\b`), "TIME"},
	{regexp.MustCompile(`snap=fs-[0-9a-f]+`), "snap=fs-ID"},
	{regexp.MustCompile(`[ ]{2,}`), "  "},
	{regexp.MustCompile(`(?m)[ ]+$`), ""},
	{regexp.MustCompile(`\n+$`), "\n"},
}

// recorded compares a screen with its recording, apart from what differs from run to run.
func recorded(t testing.TB, name, text string) {
	t.Helper()
	for _, f := range fleeting {
		text = f.is.ReplaceAllString(text, f.say)
	}
	file := filepath.Join("testdata", "rewind", name+".txt")
	if *updateScreens {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s is\n%s\nand was recorded as\n%s", name, text, want)
	}
}

// TestRewind chooses a state in a real terminal, after turns that an agent's hooks told of.
func TestRewind(t *testing.T) {
	d := startDaemon(t)
	ws := filepath.Join(d.dir, "shop")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(ws, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	write("page", "version 1")
	d.must("app", "add", "--slug", "shop", "--dir", ws)
	d.must("app", "set", "auto=true", "--app", "shop")
	eventually(t, "the files are followed", func() bool {
		a, err := d.client.App(t.Context(), "shop")
		return err == nil && a.Following == "watching"
	})
	d.must("create", "--app", "shop", "--notes", "before the agent came")
	h := hooks{t, d, "claude-code", ws}
	for i, prompt := range []string{"Rename the page\nand keep its links", "Add a cart"} {
		h.run(h.claude("UserPromptSubmit", fmt.Sprintf(`,"prompt_id":"p%d","prompt":%q`, i, prompt)))
		h.run(h.claude("PreToolUse", fmt.Sprintf(`,"prompt_id":"p%d","tool_name":"Edit","tool_use_id":"u%d","tool_input":{}`, i, i)))
		write("page", fmt.Sprintf("version %d", i+2))
		write(fmt.Sprintf("cart%d", i), "new")
		h.run(h.claude("PostToolUse", fmt.Sprintf(`,"prompt_id":"p%d","tool_name":"Edit","tool_use_id":"u%d","tool_input":{}`, i, i)))
		h.run(h.claude("Stop", fmt.Sprintf(`,"prompt_id":"p%d"`, i)))
		h.over()
	}
	env := []string{"MULLIGAN_SOCKET=" + d.socket, "PATH=" + bin + ":" + os.Getenv("PATH")}

	s := newScreen(t, ws, 120, 16, "mulligan rewind", env...)
	recorded(t, "list", s.shows("before “Add a cart”", "1 of 3", "- cart1", "~ page"))
	s.press("Down")
	recorded(t, "second", s.shows("2 of 3", "- cart0", "- cart1"))
	s.press("?")
	recorded(t, "help", s.shows("any key: back to the list"))
	s.press("x", "/", "agent", "Space", "came")
	recorded(t, "search", s.shows("1 of 1", "/agent came", "- cart0", "- cart1"))
	s.press("Enter", "Escape")
	s.shows("of 3", "before “Add a cart”")
	s.press("u")
	recorded(t, "undo", s.shows("Undo the newest turn of an agent?", "- cart1"))
	s.press("n")
	s.shows("nothing was changed")
	s.tmux("resize-window", "-x", "50", "-y", "20")
	recorded(t, "narrow", s.shows("of 3", "────", "more lines"))
	s.tmux("resize-window", "-x", "120", "-y", "16")
	s.press("Home", "Down", "Enter")
	recorded(t, "question", s.shows("Go back to", "Rename the page and keep its links", "[Y/n]"))
	s.press("y")
	recorded(t, "receipt", s.shows("the app is at", "exit 0"))
	if b, err := os.ReadFile(filepath.Join(ws, "page")); err != nil || string(b) != "version 1" {
		t.Errorf("the page is %q, %v", b, err)
	}

	s = newScreen(t, ws, 120, 16, "mulligan", env...) // the same without a command
	s.shows("shop: go back to", "of 4")
	s.press("f")
	s.shows("Make a fork")
	s.press("n", "r")
	s.shows("Take the newest rollback back?", "+ cart0")
	s.press("y")
	s.shows("the app is at", "exit 0")
	if b, err := os.ReadFile(filepath.Join(ws, "page")); err != nil || string(b) != "version 3" {
		t.Errorf("after a redo the page is %q, %v", b, err)
	}
	s = newScreen(t, ws, 120, 16, "mulligan rewind", env...)
	s.shows("of 5")
	s.press("q")
	s.shows("exit 0")
	s = newScreen(t, d.dir, 120, 120, "mulligan", env...) // in no app: the help
	s.shows("Every day:", "exit 0")
	list, err := d.client.Checkpoints(t.Context(), "shop", ipc.CheckpointQuery{})
	if err != nil || len(list.Checkpoints) != 5 {
		t.Errorf("there are %d checkpoints, %v", len(list.Checkpoints), err)
	}
	if _, errOut, code := d.mulligan("rewind", "--app", "shop"); code != 2 || !strings.Contains(errOut, "it needs a terminal") {
		t.Errorf("without a terminal: exit %d: %s", code, errOut)
	}
}
