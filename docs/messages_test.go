package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mulligan/docs/refdoc"
	"mulligan/errs"
)

// verbs matches what package fmt replaces by a value.
var verbs = regexp.MustCompile(`%[+.0-9]*[a-z]`)

// asShown returns a format as a page quotes it.
func asShown(format string) string { return verbs.ReplaceAllString(format, "…") }

// productFiles parses all Go files of the product: no tests, no kits of tests, no demo.
func productFiles(t *testing.T) (list []*ast.File) {
	t.Helper()
	for _, top := range []string{"agents", "appfile", "cmd", "daemon", "ipc", "mcpserver", "naming", "privsep", "remote", "snap", "systemd", "tomlfile"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if e.IsDir() && (strings.HasSuffix(e.Name(), "test") || e.Name() == "testdata" || strings.HasSuffix(e.Name(), "bench")) {
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			list = append(list, f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// text returns the value of a string constant; parts that are known only when the program runs are "…".
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	case *ast.ParenExpr:
		return text(e.X)
	}
	return "…"
}

// literals returns all strings in the code, one per line.
func literals(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, f := range productFiles(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if s := asShown(text(n)); strings.Trim(s, "…") != "" {
					b.WriteString(s + "\n")
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					b.WriteString(asShown(text(n)) + "\n")
				}
			}
			return true
		})
	}
	return b.String()
}

// message is an error that mulligan reports.
type message struct{ kind, text, hint string }

// messages lists the calls of errs.New with the hints that are added at once.
func messages(t *testing.T) (list []message) {
	t.Helper()
	kinds := map[string]string{}
	for _, k := range errs.Kinds {
		kinds[strings.ReplaceAll(string(k), "_", "")] = string(k)
	}
	for _, f := range productFiles(t) {
		hints := map[*ast.CallExpr]string{}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if inner, ok := fun.X.(*ast.CallExpr); ok && fun.Sel.Name == "WithHint" && len(call.Args) > 0 {
				hints[inner] = asShown(text(call.Args[0])) // the outer call is seen first
			}
			if from, ok := fun.X.(*ast.Ident); ok && from.Name == "errs" && fun.Sel.Name == "New" && len(call.Args) > 2 {
				kind := ""
				if k, ok := call.Args[0].(*ast.SelectorExpr); ok {
					kind = kinds[strings.ToLower(k.Sel.Name)]
				}
				list = append(list, message{kind, asShown(text(call.Args[2])), hints[call]})
			}
			return true
		})
	}
	return list
}

// TestReference lists every message that names its cause, for a reader who looks for one.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Messages\n\nThe errors that mulligan reports, by their kind, with the hint that follows each. \"…\" is a name or a number. " +
		"[Troubleshooting](../troubleshooting.md) says more about the frequent ones. A command prints `mulligan: what it did: message; hint`.\n")
	all := messages(t)
	all = slices.DeleteFunc(all, func(m message) bool { return len(strings.ReplaceAll(m.text, "…", "")) < 10 })
	if len(all) < 400 {
		t.Fatalf("only %d messages were found", len(all))
	}
	slices.SortFunc(all, func(a, b message) int { return strings.Compare(a.text+"\x00"+a.hint, b.text+"\x00"+b.hint) })
	for _, k := range append(slices.Clone(errs.Kinds), "") {
		if k == errs.Internal {
			continue // a fault of mulligan: nobody can act on its text
		}
		head := string(k)
		if head == "" {
			head = "of several kinds"
		}
		var last message
		rows := 0
		for _, m := range all {
			if m.kind != string(k) || m == last {
				continue
			}
			if rows == 0 {
				fmt.Fprintf(&b, "\n## %s\n\n| message | hint |\n| --- | --- |\n", head)
			}
			fmt.Fprintf(&b, "| %s | %s |\n", cell(m.text), cell(m.hint))
			last = m
			rows++
		}
	}
	refdoc.Check(t, "messages.md", b.String())
}

// cell returns a text for a cell of a table in Markdown.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`, "\n", " ").Replace(s)
}

var quoted = regexp.MustCompile("`([^`]+)`")

// TestMessages finds every message that the page of troubles quotes among the strings of the code.
func TestMessages(t *testing.T) {
	code := literals(t)
	seen := 0
	for _, line := range prose(t, "docs/troubleshooting.md") {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[0], -1) {
			seen++
			for part := range strings.SplitSeq(m[1], "…") {
				if !strings.Contains(code, strings.Trim(part, " :")) {
					t.Errorf("no error of mulligan says %q", m[1])
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d messages were looked for", seen)
	}
}
