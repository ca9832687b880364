package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wayStep matches a row of a table whose last two cells are a folder and a function in it.
var wayStep = regexp.MustCompile("(?m)^\\|.*\\| `([a-z0-9/]+)` \\| `([A-Za-z.]+)` \\|$")

// stageStep matches a row whose last cell is a function of the rollback.
var stageStep = regexp.MustCompile("(?m)^\\|[^|]*\\|[^|`]*(?:`[a-zA-Z]+`[^|`]*)*\\| `([A-Za-z.]+)` \\|$")

// TestWays: the functions that the ways of a rollback and of a turn's checkpoint name are in the folders that the pages name.
func TestWays(t *testing.T) {
	for page, least := range map[string]int{"rollback": 20, "turns": 15} {
		text, err := os.ReadFile("explanation/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		steps := wayStep.FindAllStringSubmatch(string(text), -1)
		if page == "rollback" {
			for _, m := range stageStep.FindAllStringSubmatch(wayStep.ReplaceAllString(string(text), ""), -1) {
				steps = append(steps, []string{m[0], "daemon/rollback", m[1]})
			}
		}
		if len(steps) < least {
			t.Errorf("%s: %d steps were found, want %d at least", page, len(steps), least)
		}
		for _, s := range steps {
			if !declares(t, s[1], s[2]) {
				t.Errorf("%s: there is no function %s in %s", page, s[2], s[1])
			}
		}
	}
}

// declares reports whether the package in dir has a function or a method of that name. In TYPE.METHOD,
// the method must be of that type.
func declares(t *testing.T, dir, name string) bool {
	files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	receiver, method, ofType := strings.Cut(name, ".")
	if ofType {
		name = method
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name && (!ofType || receiverOf(fn) == receiver) {
				return true
			}
		}
	}
	return false
}

// receiverOf returns the name of the type that a method is of, or "" for a function.
func receiverOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
