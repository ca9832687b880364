package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testFile is a file of tests.
type testFile struct {
	path string // from the repository's top
	*ast.File
}

func testFiles(t *testing.T) (list []testFile) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		list = append(list, testFile{strings.TrimPrefix(path, "../"), f})
		return err
	})
	if err != nil || len(list) < 100 {
		t.Fatalf("%d files of tests, %v", len(list), err)
	}
	return list
}

// selectors lists what a file uses of its imports and its values: "rand.New", "t.Skip".
func (f testFile) selectors() []string { return selectors(f.File) }

// selectors lists those of a part of a file.
func selectors(part ast.Node) (list []string) {
	ast.Inspect(part, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				list = append(list, x.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	return list
}

// fixedDraws are those files that may draw from a seed of their own: what they draw is a
// known case, the same each time.
var fixedDraws = []string{
	"snap/files/bench_test.go", "snap/files/speed_test.go", // figures that are compared
	"snap/files/day_test.go",                                    // a history whose size in the store is stated
	"snap/files/follow_crash_test.go", "snap/files/git_test.go", // from a seed that the test drew
	"snap/files/random_test.go", // from one that rapid drew
	"snap/cas/crash_test.go",    // of a process that is killed, from its number
}

// All that tests draw comes from the one seed that package testkit prints.
func TestDrawsHaveTheSeed(t *testing.T) {
	for _, f := range testFiles(t) {
		if strings.HasPrefix(f.path, "testkit/") || slices.Contains(fixedDraws, f.path) {
			continue
		}
		for _, i := range f.Imports {
			if i.Path.Value == `"math/rand"` {
				t.Errorf("%s imports math/rand: testkit.Rand gives a source", f.path)
			}
		}
		for _, s := range f.selectors() {
			if name, ok := strings.CutPrefix(s, "rand."); ok && !slices.Contains([]string{"Rand", "Reader"}, name) {
				t.Errorf("%s uses %s: testkit.Rand and testkit.Bytes draw from the seed of the run", f.path, s)
			}
		}
	}
}

// What a test lacks is for package testkit to say, which knows where nothing may be
// missing. A test may skip what has nothing to do with the host.
func TestSkipsAreForTestkit(t *testing.T) {
	theirOwn := map[string]string{
		"daemon/openapi_test.go": "an input of a fuzzer", "snap/cas/fuzz_test.go": "an input of a fuzzer", "cmd/mulligan/values/values_test.go": "an input of a fuzzer",
		"daemon/model_test.go": "a step of a model", "snap/files/rewrite_test.go": "what a file system does",
	}
	for _, f := range testFiles(t) {
		if strings.HasPrefix(f.path, "testkit/") || theirOwn[f.path] != "" {
			continue
		}
		for _, s := range f.selectors() {
			if strings.HasSuffix(s, ".Skip") || strings.HasSuffix(s, ".Skipf") || strings.HasSuffix(s, ".SkipNow") {
				t.Errorf("%s uses %s: testkit.Need, Lack or NeedLong says whether it may", f.path, s)
			}
		}
	}
}

// make test leaves out tests by their names: each of those is a part of the long run or of the soak, and says so.
func TestLeftOutByName(t *testing.T) {
	says := map[string]string{"TestLong": "testkit.NeedLong", "TestSoak": "testkit.NeedSoak"}
	found := map[string]int{}
	for _, f := range testFiles(t) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			for name, call := range says {
				if !strings.HasPrefix(fn.Name.Name, name) {
					continue
				}
				found[name]++
				if !slices.Contains(selectors(fn), call) {
					t.Errorf("%s: %s is left out of make test, and does not call %s", f.path, fn.Name.Name, call)
				}
			}
		}
	}
	if found["TestLong"] < 4 || found["TestSoak"] < 1 {
		t.Errorf("only %v were looked at", found)
	}
}

// Each fuzz test has something to begin with, which go test runs.
func TestFuzzersHaveSeeds(t *testing.T) {
	fuzzers := 0
	for _, f := range testFiles(t) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			fuzzers++
			kept, err := filepath.Glob(filepath.Join("..", filepath.Dir(f.path), "testdata/fuzz", fn.Name.Name, "*"))
			if err != nil {
				t.Fatal(err)
			}
			if len(kept) == 0 && !adds(f, fn, 2) {
				t.Errorf("%s: %s has no seed: f.Add, or a file in testdata/fuzz/%s", f.path, fn.Name.Name, fn.Name.Name)
			}
		}
	}
	if fuzzers < 20 {
		t.Errorf("only %d fuzz tests were looked at", fuzzers)
	}
}

// adds says whether a function, or one of the same file that it calls, adds seeds.
func adds(f testFile, fn *ast.FuncDecl, deep int) (found bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch callee := call.Fun.(type) {
		case *ast.SelectorExpr:
			x, ok := callee.X.(*ast.Ident)
			found = found || ok && x.Name == "f" && callee.Sel.Name == "Add"
		case *ast.Ident:
			for _, d := range f.Decls {
				if other, ok := d.(*ast.FuncDecl); ok && other.Name.Name == callee.Name && deep > 0 {
					found = found || adds(f, other, deep-1)
				}
			}
		}
		return true
	})
	return found
}
