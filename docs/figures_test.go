package docs

import (
	"go/ast"
	"go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// figure is a number in a page, and behind it, in a comment that nobody sees, the constant that it
// comes from: 64 KiB<!-- maxLogin -->, of the package in the page's folder, or of
// another one: 1 MiB<!-- ../pgwire.MaxMessage -->.
var figure = regexp.MustCompile(`(\d+(?:\.\d+)?)(?: (B|KiB|MiB|GiB|TiB|ms|s|min|minutes|seconds|hours))?<!-- ((?:[\w./]*/)?[\w]*\.)?(\w+) -->`)

var units = map[string]int64{
	"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"ms": 1e6, "s": 1e9, "seconds": 1e9, "min": 60e9, "minutes": 60e9, "hours": 3600e9,
}

// The figures that pages state are those that the code has.
func TestFigures(t *testing.T) {
	constants := map[string]map[string]constant.Value{}
	fset := token.NewFileSet()
	// A test that was compiled with -trimpath does not know where Go's own source is.
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	build.Default.GOROOT = strings.TrimSpace(string(root))
	standard := importer.ForCompiler(fset, "source", nil) // one for all: it keeps what it has read
	seen := 0
	err = filepath.WalkDir("..", func(page string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		for _, m := range figure.FindAllStringSubmatch(string(text), -1) {
			seen++
			dir := filepath.Join(filepath.Dir(page), strings.TrimSuffix(m[3], "."))
			if constants[dir] == nil {
				constants[dir] = constantsOf(t, dir, fset, standard)
			}
			value, ok := constants[dir][m[4]]
			if !ok {
				t.Errorf("%s: %s has no constant %s", page, dir, m[4])
				continue
			}
			stated := constant.BinaryOp(constant.MakeFromLiteral(m[1], token.FLOAT, 0), token.MUL, constant.MakeInt64(units[m[2]]))
			if !constant.Compare(stated, token.EQL, constant.ToFloat(value)) {
				t.Errorf("%s says %s %s, and %s is %s", page, m[1], m[2], m[4], value)
			}
		}
		return nil
	})
	if err != nil || seen < 30 {
		t.Errorf("%d figures, %v", seen, err)
	}
}

// constantsOf gives the numbers among the constants of the package in a folder, those within functions too.
func constantsOf(t *testing.T, dir string, fset *token.FileSet, standard types.Importer) map[string]constant.Value {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no package, %v", dir, err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	values := map[string]constant.Value{}
	info := types.Info{Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{
		Error: func(error) {}, // what others declare is not looked at
		Importer: importerFunc(func(path string) (*types.Package, error) {
			if path == "time" || path == "math" {
				return standard.Import(path)
			}
			return types.NewPackage(path, filepath.Base(path)), nil
		}),
	}
	_, _ = conf.Check(dir, fset, files, &info)
	for _, o := range info.Defs {
		if c, ok := o.(*types.Const); ok && (c.Val().Kind() == constant.Int || c.Val().Kind() == constant.Float) {
			values[c.Name()] = c.Val()
		}
	}
	return values
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
