// Package docs holds mulligan's pages, its demo, and the test that the
// architecture is as the pages say.
package docs

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mulligan/testkit"
)

const module = "mulligan/"

// tags are those that mulligand is built with.
const tags = "libvirt_dlopen"

// rule is a row of the table in architecture.md: what the package in a folder may import
// of mulligan. NAME in a folder stands for any name; a name that ends in /… stands for a
// folder and all below it.
type rule struct {
	pkg string
	may []string
}

// everybodys may be imported by all.
var everybodys = []string{"durable", "errs", "failpoint"}

// readRules reads the table.
func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)/` \\| .* \\| ([^|]+) \\|$")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		r := rule{pkg: m[1]}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[2], -1) {
			r.may = append(r.may, name[1])
		}
		if len(r.may) == 0 && m[2] != "nothing" {
			t.Errorf("the row of %s says that it may import %q", r.pkg, m[2])
		}
		rules = append(rules, r)
	}
	if len(rules) < 30 {
		t.Fatalf("the table has %d rows", len(rules))
	}
	return rules
}

// ruleOf is the row of a package: its own before one with NAME.
func ruleOf(rules []rule, name string) (rule, bool) {
	for _, r := range rules {
		if r.pkg == name {
			return r, true
		}
	}
	for _, r := range rules {
		if parent, ok := strings.CutSuffix(r.pkg, "/NAME"); ok && path.Dir(name) == parent {
			r.may = slices.Clone(r.may)
			for i := range r.may {
				r.may[i] = strings.Replace(r.may[i], "NAME", path.Base(name), 1)
			}
			return r, true
		}
	}
	return rule{}, false
}

// pkg is what `go list -json` says of a package, as far as it matters here.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	CgoFiles   []string
	CFiles     []string
	SysoFiles  []string
	Error      *struct{ Err string }
}

func list(t *testing.T, cgo string, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Standard,Imports,CgoFiles,CFiles,SysoFiles,Error", "-tags", tags}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = "..", append(os.Environ(), "CGO_ENABLED="+cgo), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func fits(pattern, name string) bool {
	if folder, deep := strings.CutSuffix(pattern, "/…"); deep {
		return name == folder || strings.HasPrefix(name, folder+"/")
	}
	return name == pattern
}

// broken says whether the package name must not import the package imported;
// both are named from the module's top.
func broken(rules []rule, name, imported string) bool {
	r, ok := ruleOf(rules, name)
	return !ok || !slices.Contains(everybodys, imported) && !slices.ContainsFunc(r.may, func(pattern string) bool { return fits(pattern, imported) })
}

// Packages import what the table says, each has a row, and nothing in the table is out of date.
func TestImportsRunOneWay(t *testing.T) {
	rules := readRules(t)
	used := map[string]bool{} // rows, and their arrows
	for _, p := range list(t, "1", "./...") {
		if p.Error != nil && len(p.Imports) == 0 {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
			continue
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		if name == "docs" {
			continue // pages and their tests
		}
		r, ok := ruleOf(rules, name)
		if !ok {
			t.Errorf("docs/architecture.md has no row for %s", name)
		}
		used[r.pkg] = true
		for _, i := range p.Imports {
			imported, ours := strings.CutPrefix(i, module)
			if ours && broken(rules, name, imported) {
				t.Errorf("%s must not import %s, says docs/architecture.md", name, imported)
			}
			for i, pattern := range r.may {
				if ours && fits(pattern, imported) {
					used[fmt.Sprint(r.pkg, " ", i)] = true
				}
			}
		}
	}
	for _, r := range rules {
		if !used[r.pkg] {
			t.Errorf("docs/architecture.md has a row for %s, and there is no such package", r.pkg)
		}
		for i, pattern := range r.may {
			if !used[fmt.Sprint(r.pkg, " ", i)] {
				t.Errorf("docs/architecture.md lets %s import %s, which it does not", r.pkg, pattern)
			}
		}
	}
}

// The table itself: what it is for must be refused by it.
func TestRules(t *testing.T) {
	rules := readRules(t)
	for _, tt := range []struct {
		name, imported string
		broken         bool
	}{
		{"cmd/mulligan", "mcpserver", false}, {"cmd/mulligan", "ipc", false}, {"cmd/mulligan", "daemon", true}, {"cmd/mulligan", "snap/files", true},
		{"mcpserver", "ipc", false}, {"mcpserver", "errs", false}, {"mcpserver", "daemon", true}, {"mcpserver", "snap", true},
		{"ipc", "errs", false}, {"ipc", "snap", true}, {"ipc", "daemon/config", true}, {"errs", "ipc", true},
		{"daemon", "snap/files", true}, {"daemon/layer", "snap/files", false}, {"daemon/app", "daemon/rollback", true}, {"daemon/store", "snap", false}, {"daemon/layer", "systemd", false}, {"daemon", "mcpserver", true}, {"daemon", "cmd/mulligan", true},
		{"snap", "snap/files", true}, {"snap", "errs", false}, {"snap/cas", "snap/files", true},
		{"snap/files", "snap/cas", false}, {"snap/files", "snap/files/watch", false}, {"snap/files", "snap/sqlite", true}, {"snap/sqlite", "snap/sqlite/x", false},
		{"snap/sqlite/x", "snap", true}, {"snap/files", "daemon", true}, {"snap/files", "ipc", true}, {"systemd", "daemon", true}, {"new", "errs", true},
	} {
		if got := broken(rules, tt.name, tt.imported); got != tt.broken {
			t.Errorf("%s importing %s: refused %v, want %v", tt.name, tt.imported, got, tt.broken)
		}
	}
}

// changesIDs finds what changes the ids of a thread or a process.
var changesIDs = regexp.MustCompile(`(?i)\bset(res|re|e|fs)?[ug]id\b\(|\bsetgroups\b\(|SYS_SET(RES|RE|FS)?[UG]ID|SYS_SETGROUPS`)

// startsAsUser finds what starts a process that shares the starter's memory for an
// instant with a user's ids.
var startsAsUser = regexp.MustCompile(`\bCredential:`)

// A thread of the daemon with a user's ids could be killed by that user, and the
// daemon with it: so one file changes ids, in a process that does nothing else.
// Tests, and kits for them, play users as they like.
func TestOnePlaceChangesIDs(t *testing.T) {
	found := false
	err := filepath.WalkDir("..", func(path string, e os.DirEntry, err error) error {
		kit := strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/pgtest/") || strings.Contains(path, "/testkit/")
		if err != nil || e.IsDir() || filepath.Ext(path) != ".go" || kit {
			return err
		}
		text, err := os.ReadFile(path)
		name := strings.TrimPrefix(path, "../")
		if name == "privsep/drop.go" {
			found = changesIDs.Match(text)
			return err
		}
		if m := changesIDs.Find(text); m != nil {
			t.Errorf("%s says %s: package privsep is the place for that", name, m)
		}
		if m := startsAsUser.Find(text); m != nil {
			t.Errorf("%s says %s use privsep.User.Start", name, m)
		}
		return err
	})
	if err != nil || !found {
		t.Errorf("privsep/drop.go changes ids: %v; %v", found, err)
	}
}

// The client runs wherever it is copied to: not a line of C, and no dynamic linker.
func TestClientLinksNoC(t *testing.T) {
	for _, p := range list(t, "1", "-deps", "./cmd/mulligan") {
		if !p.Standard && len(p.CgoFiles)+len(p.CFiles)+len(p.SysoFiles) > 0 {
			t.Errorf("%s brings C: %v %v %v", p.ImportPath, p.CgoFiles, p.CFiles, p.SysoFiles)
		}
	}
	for _, p := range list(t, "0", "-deps", "./cmd/mulligan") {
		if p.ImportPath == "runtime/cgo" || len(p.CgoFiles)+len(p.CFiles) > 0 {
			t.Errorf("%s is linked without cgo", p.ImportPath)
		}
	}
}

func TestClientIsStatic(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "mulligan")
	if err := testkit.Build(bin, "mulligan/cmd/mulligan", "0"); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it has a segment %s", p.Type)
		}
	}
}

// TestSizes bounds what a reader must take in at once: the lines of a package without its tests, of a file, and the methods of a type.
func TestSizes(t *testing.T) {
	const maxPackage, maxFile, maxMethods = 4000, 600, 60
	lines, methods := map[string]int{}, map[string]int{}
	receiver := regexp.MustCompile(`(?m)^func \(\w* ?\*?(\w+)`)
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == "bin" || e.Name() == ".git") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := strings.Count(string(text), "\n")
		if n > maxFile {
			t.Errorf("%s has %d lines, more than %d", path, n, maxFile)
		}
		lines[filepath.Dir(path)] += n
		for _, m := range receiver.FindAllStringSubmatch(string(text), -1) {
			methods[filepath.Dir(path)+": "+m[1]]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) < 50 {
		t.Fatalf("only %d packages were found", len(lines))
	}
	for dir, n := range lines {
		if n > maxPackage {
			t.Errorf("package %s has %d lines, more than %d", dir, n, maxPackage)
		}
	}
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("type %s has %d methods, more than %d", name, n, maxMethods)
		}
	}
}
