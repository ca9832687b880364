package agents

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tailscale/hujson"

	"mulligan/errs"
)

// bench is a home and a project of the test's own.
type bench struct {
	t       *testing.T
	place   Place
	backups Backups
}

func newBench(t *testing.T, scope Scope) bench {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mulligan") // where a sync takes no time
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := bench{t, Place{
		Scope: scope, Home: filepath.Join(dir, "home"), Project: filepath.Join(dir, "shop"),
		Program: "/opt/my tools/mulligan", getenv: func(string) string { return "" },
	}, Backups{filepath.Join(dir, "state")}}
	for _, d := range []string{b.place.Home, b.place.Project} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b bench) install(a *Agent) []Edited {
	b.t.Helper()
	list, err := a.Install(b.place, b.backups)
	if err == nil {
		err = b.backups.Apply(list)
	}
	if err != nil {
		b.t.Fatalf("install %s: %v", a.Name, err)
	}
	return list
}

func (b bench) uninstall(a *Agent) []Edited {
	b.t.Helper()
	list, err := a.Uninstall(b.place, b.backups)
	if err == nil {
		err = b.backups.Undo(list)
	}
	if err != nil {
		b.t.Fatalf("uninstall %s: %v", a.Name, err)
	}
	return list
}

// tree is all there is in home and project, by path: mode and bytes.
func (b bench) tree() map[string]string {
	b.t.Helper()
	files := map[string]string{}
	for _, root := range []string{b.place.Home, b.place.Project} {
		err := filepath.Walk(root, func(path string, fi os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			files[path] = fi.Mode().String()
			if fi.Mode().IsRegular() {
				text, err := os.ReadFile(path)
				files[path] += " " + string(text)
				return err
			}
			return nil
		})
		if err != nil {
			b.t.Fatal(err)
		}
	}
	return files
}

func (b bench) same(what string, got, want map[string]string) {
	b.t.Helper()
	for path, is := range got {
		if want[path] != is {
			b.t.Errorf("%s: %s is\n%s\nnot\n%s", what, path, is, want[path])
		}
	}
	for path := range want {
		if _, there := got[path]; !there {
			b.t.Errorf("%s: %s is gone", what, path)
		}
	}
}

// fixtures are the texts to try for a file: those of its kind.
func fixtures(t *testing.T, path string) map[string]string {
	t.Helper()
	kind := filepath.Ext(path)
	found, err := filepath.Glob("testdata/settings/*" + kind)
	if kind == ".json" { // OpenCode's may have the other name
		more, failed := filepath.Glob("testdata/settings/*.jsonc")
		found, err = append(found, more...), errs.Also(err, failed)
	}
	if err != nil || len(found) == 0 && kind != "" && kind != ".js" {
		t.Fatalf("no fixtures for %s: %v", path, err)
	}
	texts := map[string]string{}
	for _, file := range found {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(b)
	}
	return texts
}

// Installing into real settings keeps all that is there, does nothing the
// second time, and is undone to the byte; where the file was changed since,
// only mulligan's part goes.
func TestInstallUninstall(t *testing.T) {
	for _, a := range all {
		for _, scope := range []Scope{User, Project} {
			t.Run(a.Name+"/"+string(scope)+"/nothing", func(t *testing.T) { thereAndBack(t, a, scope, "", "") })
			for _, c := range a.settings(newBench(t, scope).place) {
				if _, ok := c.Edit.(whole); ok {
					continue
				}
				for name, text := range fixtures(t, c.Path) {
					t.Run(a.Name+"/"+string(scope)+"/"+filepath.Base(c.Path)+"/"+name, func(t *testing.T) {
						thereAndBack(t, a, scope, c.Path, text)
					})
				}
			}
		}
	}
}

func thereAndBack(t *testing.T, a *Agent, scope Scope, file, text string) {
	t.Parallel() // it waits for the disk mostly
	b := newBench(t, scope)
	var path string
	for _, c := range a.settings(b.place) {
		if c.Path == file {
			path = filepath.Join(c.Root, c.Path)
		}
	}
	if path != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	before := b.tree()
	if list, err := a.Install(b.place, b.backups); err != nil {
		t.Fatal(err)
	} else {
		for _, e := range list {
			if e.Action != "unchanged" && e.Diff == "" {
				t.Errorf("%s is %s, without a diff", e.Path, e.Action)
			}
		}
	}
	b.same("a plan", b.tree(), before)

	b.install(a)
	after := b.tree()
	if path != "" {
		b.check(path, text)
	}
	for _, e := range b.install(a) {
		if e.Action != "unchanged" {
			t.Errorf("again: %s is %s: %s", e.Path, e.Action, e.Diff)
		}
	}
	b.same("installed twice", b.tree(), after)
	b.uninstall(a)
	b.same("uninstalled", b.tree(), before)
	for _, e := range b.uninstall(a) {
		if e.Action != "unchanged" {
			t.Errorf("uninstalled twice: %s is %s", e.Path, e.Action)
		}
	}
	b.same("uninstalled twice", b.tree(), before)

	// Without its backups it still knows what is mulligan's.
	b.install(a)
	if err := os.RemoveAll(b.backups.Dir); err != nil {
		t.Fatal(err)
	}
	b.uninstall(a)
	for p, is := range b.tree() {
		if strings.Contains(is, "mulligan") {
			t.Errorf("%s still is\n%s", p, is)
		}
	}
	if path != "" {
		got, err := os.ReadFile(path)
		if err != nil && strings.TrimSpace(text) != "" {
			t.Fatal(err)
		}
		if filepath.Ext(path) != ".json" {
			if strings.TrimSuffix(string(got), "\n") != strings.TrimSuffix(text, "\n") {
				t.Errorf("taken out of a file without a backup:\n%s\nnot\n%s", got, text)
			}
		} else if squeezed(t, string(got)) != squeezed(t, text) {
			t.Errorf("taken out of a file without a backup:\n%s\nnot\n%s", got, text)
		}
	}
}

// check looks at an installed file: what was in it is in it.
func (b bench) check(path, was string) {
	b.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	if !strings.Contains(string(text), "/opt/my tools/mulligan") && b.place.Scope == User {
		b.t.Errorf("mulligan is not in it:\n%s", text)
	}
	for line := range strings.Lines(was) {
		// A comma may come to a line's end, and a bracket go to a line of its own.
		for word := range strings.SplitSeq(line, ",") {
			if word = strings.Trim(word, " \t\r\n,[]{}"); !strings.Contains(string(text), word) {
				b.t.Errorf("it lost %q:\n%s", word, text)
			}
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o640 {
		b.t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if filepath.Ext(path) == ".json" {
		if strings.HasPrefix(was, mark) != bytes.HasPrefix(text, []byte(mark)) {
			b.t.Errorf("its mark is gone, or new:\n%s", text)
		}
		text = bytes.TrimPrefix(text, []byte(mark))
		if _, err := hujson.Parse(text); err != nil {
			b.t.Errorf("%v in\n%s", err, text)
		}
		std, err := hujson.Standardize(bytes.Clone(text))
		if err != nil || !json.Valid(std) {
			b.t.Errorf("%v in\n%s", err, text)
		}
		if strings.TrimSpace(was) != "" && json.Valid([]byte(strings.TrimPrefix(was, mark))) && !json.Valid(text) {
			b.t.Errorf("it was plain JSON:\n%s", text)
		}
	}
}

// squeezed is what JSON says, less what is empty: taking the last entry out of a
// list takes the list with it.
func squeezed(t *testing.T, text string) string {
	t.Helper()
	text = strings.TrimPrefix(text, mark)
	std, err := hujson.Standardize([]byte(text))
	if strings.TrimSpace(text) == "" {
		return "{}"
	}
	if err != nil {
		t.Fatal(err)
	}
	s := compact(string(std))
	for range 4 {
		for _, empty := range []string{`"Stop":[]`, `"mcpServers":{}`, `"hooks":{}`, `"version":1`} {
			s = strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(s, ","+empty, ""), empty+",", ""), empty, "")
		}
	}
	return s
}

// What others wrote into a file after the installation stays.
func TestUninstallFromAChangedFile(t *testing.T) {
	b := newBench(t, User)
	b.install(claude)
	path := filepath.Join(b.place.Home, ".claude/settings.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody's hook joins mulligan's in its group, and a comment comes.
	changed := strings.Replace(string(text), `"timeout": 10
          }
        ]`, `"timeout": 10
          },
          { "type": "command", "command": "their hook" } // mine
        ]`, 1)
	if changed == string(text) {
		t.Fatalf("the file is not as expected:\n%s", text)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	b.uninstall(claude)
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "hooks": {
    "SessionStart": [
      {
        "hooks": [
          { "type": "command", "command": "their hook" } // mine
        ]
      }
    ]
  }
}
`
	if string(got) != want {
		t.Errorf("%s", got)
	}
}

// A newer mulligan's settings take the place of an older one's.
func TestInstallAgainWithAnotherProgram(t *testing.T) {
	for _, a := range all {
		b := newBench(t, User)
		before := b.tree()
		b.install(a)
		b.place.Program = "/usr/bin/mulligan"
		b.install(a)
		for path, is := range b.tree() {
			if strings.Contains(is, "my tools") {
				t.Errorf("%s: %s still is\n%s", a.Name, path, is)
			}
		}
		b.uninstall(a)
		b.same(a.Name, b.tree(), before)
	}
}

func TestInstallRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		agent *Agent
		path  string
		text  string
		kind  errs.Kind
	}{
		"another server of that name":  {claude, ".claude.json", `{"mcpServers":{"mulligan":{"command":"golf"}}}`, errs.Conflict},
		"hooks that are no object":     {claude, ".claude/settings.json", `{"hooks":[]}`, errs.Invalid},
		"an event that is no list":     {gemini, ".gemini/settings.json", `{"hooks":{"BeforeTool":{}}}`, errs.Invalid},
		"another table of that name":   {codex, ".codex/config.toml", "[mcp_servers.mulligan]\ncommand = \"golf\"\n", errs.Conflict},
		"another mapping of that name": {goose, ".config/goose/config.yaml", "extensions:\n  mulligan:\n    cmd: golf\n", errs.Conflict},
		"damaged JSON":                 {claude, ".claude/settings.json", `{"hooks":`, errs.Invalid},
		"JSON that is no object":       {cursor, ".cursor/mcp.json", `[]`, errs.Invalid},
		"damaged TOML":                 {codex, ".codex/config.toml", "a = [", errs.Invalid},
		"damaged YAML":                 {goose, ".config/goose/config.yaml", "extensions:\n  a: [\n", errs.Invalid},
		"inline servers in TOML":       {codex, ".codex/config.toml", "mcp_servers = {}\n", errs.Conflict},
		"YAML in one line":             {goose, ".config/goose/config.yaml", "extensions: {}\n", errs.Conflict},
		"a hook of that name":          {cline, "Documents/Cline/Hooks/PreToolUse", "#!/bin/sh\n", errs.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, User)
			path := filepath.Join(b.place.Home, tt.path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := tt.agent.Install(b.place, b.backups)
			if errs.KindOf(err) != tt.kind || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
			list, err := tt.agent.Uninstall(b.place, b.backups)
			for _, e := range list {
				if e.Action != "unchanged" {
					t.Errorf("uninstalled: %s is %s", e.Path, e.Action)
				}
			}
			if err != nil && tt.kind != errs.Invalid && tt.text != "extensions: {}\n" {
				t.Errorf("uninstalled: %v", err)
			}
		})
	}
}

// What a user set in the MCP entry stays, who ever wrote the entry, also when mulligan is somewhere else now; and an entry of the user's own is given
// back to the byte.
func TestInstallKeepsTheUsersEntry(t *testing.T) {
	for a, tt := range map[*Agent]struct{ path, own, from, to string }{
		claude: {".claude.json", `{
  "numStartups": 3,
  "mcpServers": {"mulligan": {"type": "stdio", "command": "mulligan", "args": ["mcp", "--confirm"], "env": {"A": "b"}}}
}
`, "\"mcp\"\n", "\"mcp\", \"--confirm\"\n"},
		gemini: {".gemini/settings.json", `{"mcpServers": {"mulligan": {"command": "mulligan", "args": ["mcp", "--confirm"], "trust": true}}}`,
			"\"mcp\"\n", "\"mcp\", \"--confirm\"\n"},
		opencode: {".config/opencode/opencode.json", `{"mcp": {"mulligan": {"type": "local", "command": ["mulligan", "mcp", "--confirm"] /* mine */}}}`,
			"\"mcp\"\n", "\"mcp\", \"--confirm\"\n"},
		codex: {".codex/config.toml", `model = "x"

[mcp_servers.mulligan]
command = "mulligan"
args = ["mcp", "--confirm"] # mine

[mcp_servers.mulligan.env]
A = "b"
`, `["mcp"]`, `["mcp", "--confirm"]`},
		goose: {".config/goose/config.yaml", `extensions:
  mulligan:
    args:
    - mcp
    - --confirm
    cmd: mulligan
    name: mulligan # mine
`, "- mcp\n", "- mcp\n      - --confirm\n"},
	} {
		t.Run(a.Name, func(t *testing.T) {
			b := newBench(t, User)
			path := filepath.Join(b.place.Home, tt.path)
			is := func(what string, want ...string) {
				t.Helper()
				text, err := os.ReadFile(path)
				for _, word := range append(want, b.place.Program, "--confirm") {
					if err != nil || strings.Count(string(text), word) < 1 {
						t.Errorf("%s: %v: %s is not in\n%s", what, err, word, text)
					}
				}
				if got, _, err := a.Condition(b.place, b.backups); err != nil || got != Complete {
					t.Errorf("%s: %v, %v:\n%s", what, got, err, text)
				}
			}
			// The user's own entry, which already names the program of the installation, or not.
			for _, program := range []string{"mulligan", b.place.Program} {
				b.place.Program = program
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(tt.own), 0o600)); err != nil {
					t.Fatal(err)
				}
				before := b.tree()
				b.install(a)
				is("the user's own")
				after := b.tree()
				b.install(a)
				b.same("installed twice", b.tree(), after)
				b.uninstall(a)
				b.same("uninstalled", b.tree(), before)
				// Of a file that was changed since, it stays.
				b.install(a)
				text, err := os.ReadFile(path)
				if err := errors.Join(err, os.WriteFile(path, append(text, '\n'), 0o600)); err != nil {
					t.Fatal(err)
				}
				b.uninstall(a)
				if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "--confirm") || strings.Contains(string(text), " hook ") {
					t.Errorf("uninstalled, it is\n%s", text)
				}
			}
			// One of mulligan's, to which the user adds something.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			b.install(a)
			text, err := os.ReadFile(path)
			if err != nil || strings.Count(string(text), tt.from) != 1 {
				t.Fatalf("%v: %q is not once in\n%s", err, tt.from, text)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(string(text), tt.from, tt.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			is("added to")
			b.place.Program = "/usr/bin/mulligan"
			b.install(a)
			is("of another program")
			b.uninstall(a)
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "mulligan") {
				t.Errorf("uninstalled, it is\n%s", text)
			}
		})
	}
}

// Links that lead to somewhere else in the home folder, as people have who keep
// their settings in a folder of their own, stay links, and what they lead to gets
// its bytes back.
func TestLinkedHome(t *testing.T) {
	for name, link := range map[string]func(home string) error{
		"file":          func(home string) error { return os.Symlink("../dot/settings.json", home+"/.claude/settings.json") },
		"absolute file": func(home string) error { return os.Symlink(home+"/dot/settings.json", home+"/.claude/settings.json") },
		"folder": func(home string) error {
			return errors.Join(os.Remove(home+"/.claude"), os.Symlink("dot", home+"/.claude"))
		},
		"absolute folder": func(home string) error {
			return errors.Join(os.Remove(home+"/.claude"), os.Symlink(home+"/dot", home+"/.claude"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, User)
			home := b.place.Home
			for _, dir := range []string{"/.claude", "/dot"} {
				if err := os.Mkdir(home+dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			text := "{\r\n  \"theme\": \"dark\", // mine\r\n}\r\n"
			if err := errors.Join(os.WriteFile(home+"/dot/settings.json", []byte(text), 0o640), link(home)); err != nil {
				t.Fatal(err)
			}
			before := b.tree()
			b.install(claude)
			if got, err := os.ReadFile(home + "/dot/settings.json"); err != nil || !bytes.Contains(got, []byte("mulligan")) {
				t.Errorf("%s, %v", got, err)
			}
			b.uninstall(claude)
			b.same("uninstalled", b.tree(), before)
		})
	}
}

// Names that are like mulligan's are other people's: to the byte, backup or not.
func TestNeighbours(t *testing.T) {
	for a, text := range map[*Agent]string{
		gemini: `{
  "mcpServers": {"mulligan-dev": {"command": "mulligan-dev", "args": ["mcp"]}, "golf": {"command": "mulligan", "args": ["mcp"]}},
  "hooks": {"BeforeTool": [{"hooks": [{"type": "command", "command": "echo mulligan hook"}, {"type": "command", "command": "mulligan hook geminis"}]}]},
  "mulligan": {"mcp": true}
}
`,
		codex: "[mcp_servers.mulligan-dev]\ncommand = \"mulligan\"\n\n[mulligan]\nx = 1\n",
		goose: "mulligan: 1\nextensions:\n  mulligan-dev:\n    enabled: true\n",
	} {
		for _, backup := range []bool{true, false} {
			b := newBench(t, User)
			list, err := a.Install(b.place, b.backups)
			if err != nil {
				t.Fatal(err)
			}
			path := list[len(list)-1].Path
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			b.install(a)
			if !backup {
				if err := os.RemoveAll(b.backups.Dir); err != nil {
					t.Fatal(err)
				}
			}
			b.uninstall(a)
			if got, err := os.ReadFile(path); err != nil || string(got) != text {
				t.Errorf("%s, backup %v: %v: it became\n%s", a.Name, backup, err, got)
			}
		}
	}
}

// An installation that fails halfway leaves nothing behind.
func TestInstallFailsHalfway(t *testing.T) {
	b := newBench(t, User)
	home := b.place.Home
	if err := errors.Join(os.Mkdir(home+"/.claude", 0o700), os.WriteFile(home+"/.claude/settings.json", []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	before := b.tree()
	list, err := claude.Install(b.place, b.backups)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	list[1].file.name = "no\x00name" // so that it can't be written
	if err := b.backups.Apply(list); err == nil || !strings.Contains(err.Error(), list[1].Path) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	b.same("failed", b.tree(), before)
	if left, err := os.ReadDir(b.backups.Dir); err != nil || len(left) > 0 {
		t.Errorf("backups: %v, %v", left, err)
	}
	b.install(claude)
	b.uninstall(claude)
	b.same("uninstalled", b.tree(), before)
}

// What another program writes into a file between the plan and its execution stays: Claude Code writes its settings all the time.
func TestChangedSincePlanned(t *testing.T) {
	b := newBench(t, User)
	path := filepath.Join(b.place.Home, ".claude.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	has := func(what string, mulligan bool, starts string) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "mulligan") != mulligan || !strings.Contains(string(text), starts) {
			t.Errorf("%s: %v:\n%s", what, err, text)
		}
	}
	for _, was := range []string{"", `{"numStartups": 1}`} { // the file is missing at first, or there
		if was != "" {
			write(was)
		}
		list, err := claude.Install(b.place, b.backups)
		if err != nil {
			t.Fatal(err)
		}
		write(`{"numStartups": 2}`)
		if err := b.backups.Apply(list); err != nil {
			t.Fatal(err)
		}
		has("installed", true, `"numStartups": 2`)

		if list, err = claude.Uninstall(b.place, b.backups); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(strings.Replace(string(text), `"numStartups": 2`, `"numStartups": 3`, 1))
		if err := b.backups.Undo(list); err != nil {
			t.Fatal(err)
		}
		has("uninstalled", false, `"numStartups": 3`)

		b.install(claude)
		b.uninstall(claude)
		has("once more", false, `"numStartups": 3`)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}

	// It ends also where the file is never left alone.
	write("0")
	before := b.tree()
	a := &Agent{Name: "restless", settings: func(p Place) []Change { return []Change{{p.Home, ".claude.json", 0o600, restless{path}}} }}
	list, err := a.Install(b.place, b.backups)
	if err == nil {
		err = b.backups.Apply(list)
	}
	if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), path) || errs.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	text, err := os.ReadFile(path)
	if err != nil || len(text) < 3 || strings.Trim(string(text), "0") != "" {
		t.Errorf("%v: %q", err, text)
	}
	write("0")
	b.same("given up", b.tree(), before)
	if left, err := os.ReadDir(b.backups.Dir); err != nil || len(left) > 0 {
		t.Errorf("backups: %v, %v", left, err)
	}
}

// restless is an edit of a file to which another program writes at each look.
type restless struct{ path string }

func (r restless) Insert(text string) (string, error) {
	return text + "1", os.WriteFile(r.path, []byte(text+"0"), 0o600)
}
func (r restless) Remove(text string) (string, error) { return text, nil }
func (r restless) Before(text string) (string, error) { return text, nil }

// A link is followed within the root and never out of it, and stays a link.
func TestLinks(t *testing.T) {
	b := newBench(t, Project)
	outside := filepath.Join(b.place.Home, "theirs.json")
	if err := os.WriteFile(outside, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	mcp := filepath.Join(b.place.Project, ".mcp.json")
	for _, to := range []string{outside, "../home/theirs.json"} {
		if err := os.Symlink(to, mcp); err != nil {
			t.Fatal(err)
		}
		if _, err := claude.Install(b.place, b.backups); errs.KindOf(err) != errs.Denied {
			t.Errorf("a link to %s: %v", to, err)
		}
		if err := os.Remove(mcp); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(b.place.Home, filepath.Join(b.place.Project, ".claude")); err != nil {
		t.Fatal(err)
	}
	if _, err := claude.Install(b.place, b.backups); err == nil {
		t.Error("a folder that is a link out of the project was written to")
	}
	if err := os.Remove(filepath.Join(b.place.Project, ".claude")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dot/mcp.json", mcp); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.place.Project, "dot"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.install(claude)
	if fi, err := os.Lstat(mcp); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", fi, err)
	}
	if text, err := os.ReadFile(filepath.Join(b.place.Project, "dot/mcp.json")); err != nil || !bytes.Contains(text, []byte("mulligan")) {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "{}" {
		t.Errorf("%s, %v", text, err)
	}
}

// Whatever JSON people write, putting a part in and taking it out again keeps
// what it says, and both can be done twice.
func FuzzJSON(f *testing.F) {
	files, err := filepath.Glob("testdata/settings/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add(`{"mcpServers":{"mulligan":{"command":"mulligan","args":["mcp","--confirm"]}}}`)
	p := Place{Scope: User, Home: "/home/ada", Program: "/usr/bin/mulligan", getenv: func(string) string { return "" }}
	edit := append(grouped("gemini", p, "10", "Stop", "PreToolUse"), server("mcpServers", p, ""))
	f.Fuzz(func(t *testing.T, text string) {
		in, err := edit.Insert(text)
		if err != nil {
			return
		}
		if again, err := edit.Insert(in); err != nil || again != in {
			t.Fatalf("%v: %q became %q and then %q", err, text, in, again)
		}
		if done, err := edit.complete(in); err != nil || !done {
			t.Fatalf("%v: %q became %q", err, text, in)
		}
		out, err := edit.Remove(in)
		if err != nil {
			t.Fatalf("%v: %q became %q", err, text, in)
		}
		if _, found := find(mustParse(t, out), func(names []string, v *hujson.Value) bool {
			return slices.ContainsFunc(edit, func(p jsonPart) bool { return p.ours(names, v) })
		}); found {
			t.Fatalf("%q became %q and then %q", text, in, out)
		}
		sameWords(t, text, in, out)
	})
}

// sameWords checks that text came back from an edit and its undoing, comments
// and all, but for spaces and commas. Text with empty lists is let off: taking
// the last entry out of a list takes the list with it; so is text that speaks
// of mulligan already.
func sameWords(t *testing.T, text, in, out string) {
	t.Helper()
	words := func(s string) string {
		return strings.NewReplacer(" ", "", "\t", "", "\r", "", "\n", "", ",", "").Replace(s)
	}
	was, is := words(text), words(out)
	if strings.Contains(was, "{}") || strings.Contains(was, "[]") || strings.Contains(text, "mulligan") || was == "" || is == was ||
		is == strings.Replace(was, "extensions:", "", 1) {
		return
	}
	t.Fatalf("%q became %q and then %q", text, in, out)
}

func FuzzTOML(f *testing.F) {
	f.Add("[mcp_servers.mulligan]\ncommand = \"/opt/mulligan\"\nargs = [\"mcp\", \"--confirm\"]\n")
	fuzzText(f, "*.toml", plain{tomlEdit{table: []string{"mcp_servers", "mulligan"}, lines: []string{`command = "mulligan"`}}})
}

func FuzzYAML(f *testing.F) {
	f.Add("extensions:\n  mulligan:\n    cmd: /opt/mulligan\n    args:\n    - mcp\n    - --confirm\n")
	fuzzText(f, "*.yaml", plain{yamlEdit{mapping: "extensions", name: "mulligan", lines: []string{"enabled: true", "cmd: mulligan", "args:", "  - mcp"}}})
}

func fuzzText(f *testing.F, pattern string, edit Edit) {
	files, err := filepath.Glob("testdata/settings/" + pattern)
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		in, err := edit.Insert(text)
		if err != nil {
			return
		}
		if again, err := edit.Insert(in); err != nil || again != in {
			t.Fatalf("%v: %q became %q and then %q", err, text, in, again)
		}
		out, err := edit.Remove(in)
		if err != nil {
			t.Fatalf("%v: %q became %q", err, text, in)
		}
		sameWords(t, text, in, out)
	})
}

func mustParse(t *testing.T, text string) *hujson.Value {
	t.Helper()
	v, err := parseJSON(text)
	if err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return &v
}
