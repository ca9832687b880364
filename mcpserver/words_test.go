package mcpserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"`mulligan list` shows the checkpoints":                                                    "list_checkpoints(app_id='app-1') shows the checkpoints",
		"`mulligan app list` shows the apps":                                                       "the list of apps that the user has shows the apps",
		"`mulligan turns --ids` shows the messages":                                                "list_checkpoints(app_id='app-1', trigger='agent', details=true) shows the messages",
		"`mulligan forks` lists them":                                                              "list_forks(app_id='app-1') lists them",
		"drop them first: `mulligan drop --all --app shop`":                                        "drop them first: drop_fork(app_id='app-1')",
		"`mulligan drop shop-1` removes it":                                                        "drop_fork(app_id='app-1', name='shop-1') removes it",
		"unpin it first: `mulligan unpin cp-1`":                                                    "unpin it first: pin_checkpoint(app_id='app-1', checkpoint_id='cp-1', pinned=false)",
		"`mulligan app set auto=true --app shop` records it":                                       "the app's setting auto=true (the user can make it) records it",
		"`mulligan rollback cp-1 --scope src --scope 'a b' --without db:main` takes the rest back": "rollback_app(app_id='app-1', checkpoint_id='cp-1', scope=['src', 'a b'], without=['db:main']) takes the rest back",
		"`mulligan rollback cp-1 --without db:main --no-start` goes there":                         "rollback_app(app_id='app-1', checkpoint_id='cp-1', without=['db:main'], start=false) goes there",
		"`mulligan rollback cp-1 --force` undoes the others' too":                                  "the user's rollback with the option force undoes the others' too",
		"did you mean --without db:main?":                                                          "did you mean without db:main?",
		"name one with --app":                                                                      "name one with app_id",
		"docker compose -p x up -d --no-start makes it anew":                                       "docker compose -p x up -d --no-start makes it anew",
		"nothing to say": "nothing to say",
		"a ` alone":      "a ` alone",
	} {
		if got := wording("app-1").text(text); got != want {
			t.Errorf("%q is %q, and should be %q", text, got, want)
		}
	}
}

// commandLine matches what only a person with a shell can do something with.
func commandLine(t *testing.T) *regexp.Regexp {
	t.Helper()
	page, err := os.ReadFile("../docs/reference/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^#+ `?mulligan ([a-z]+)").FindAllStringSubmatch(string(page), -1) {
		names[m[1]] = true
	}
	if len(names) < 30 {
		t.Fatalf("only %d commands were found", len(names))
	}
	var all []string
	for name := range names {
		all = append(all, name)
	}
	return regexp.MustCompile(`\bmulligan (` + strings.Join(all, "|") + `)\b|\bmulligand (--user|rebuild)`)
}

// TestNoCommands walks all messages that mulligan reports: in a model's words, none of them has a command or a flag of the client.
func TestNoCommands(t *testing.T) {
	cli := commandLine(t)
	page, err := os.ReadFile("../docs/reference/messages.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		line = strings.ReplaceAll(line, `\`, "")
		seen++
		said := wording("app-1").text(line)
		if m := cli.FindString(said); m != "" {
			t.Errorf("%q is said to a model as %s", m, said)
		}
		for f := range argumentOf {
			if f != "--no-start" && regexp.MustCompile(`(^|[ (])`+f+`\b`).MatchString(said) {
				t.Errorf("%s is said to a model: %s", f, said)
			}
		}
		if strings.Contains(said, "what the user can do with mulligan") {
			t.Errorf("there are no words for a command in %s", line)
		}
	}
	if seen < 400 {
		t.Errorf("only %d messages were seen", seen)
	}
}

// TestCommandsStandInBackquotes looks at all texts of the packages whose errors and warnings a model may be told.
func TestCommandsStandInBackquotes(t *testing.T) {
	cli := commandLine(t)
	for _, top := range []string{"daemon", "ipc", "appfile", "naming", "privsep", "snap", "systemd", "engine", "remote", "errs"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "/gate/session.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					return true
				}
				for _, at := range cli.FindAllStringIndex(text, -1) {
					if strings.Count(text[:at[0]], "`")%2 == 0 {
						t.Errorf("%s: %q has a command without backquotes", path, text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
