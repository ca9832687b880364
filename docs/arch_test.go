// Package docs holds mulligan's pages, its demo, and the test that the
// architecture is as the pages say.
package docs

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "mulligan/"

// tags are those that mulligand is built with.
const tags = "libvirt_dlopen"

// rule says what the packages of a folder may import of mulligan. A name that
// ends in /... stands for a folder and all below it. The first rule that fits a
// package holds.
type rule struct {
	pkg string
	may []string
}

var rules = []rule{
	{"ipc/errs", nil},
	{"ipc/...", []string{"ipc/..."}},

	{"mcpserver/...", []string{"ipc/...", "mcpserver/..."}},
	{"cmd/mulligan/agents/...", []string{"ipc/...", "cmd/mulligan/agents/..."}},
	{"cmd/mulligan/doctor/...", []string{"ipc/...", "cmd/mulligan/agents/...", "cmd/mulligan/doctor/..."}},
	{"cmd/mulligan/...", []string{"ipc/...", "mcpserver/...", "cmd/mulligan/agents/...", "cmd/mulligan/doctor/..."}},

	{"testkit", nil},
	{"systemd/systemdtest", []string{"ipc/errs", "testkit"}},
	{"systemd/...", []string{"ipc/errs", "systemd/..."}},
	{"privsep/...", []string{"ipc/errs"}},

	// The contract, and what drivers are made of, know no driver.
	{"snap", []string{"ipc/errs"}},
	{"snap/beneath", []string{"ipc/errs"}},
	{"snap/cas/...", []string{"ipc/errs", "snap", "snap/beneath", "snap/cas/..."}},
	{"snap/extsort", []string{"ipc/errs"}},
	{"snap/records", []string{"ipc/errs", "snap", "snap/cas"}},
	{"snap/snaptest/...", []string{"ipc/errs", "snap", "snap/beneath", "snap/cas/...", "snap/snaptest/...", "testkit"}},
	{"snap/disk/disktest", []string{"testkit"}},
	{"snap/postgres/pgtest", []string{"testkit"}},
	// A driver (snap/NAME) may import itself; see below.
	{"snap/...", []string{"ipc/errs", "snap", "snap/beneath", "snap/cas/...", "snap/extsort", "snap/records", "privsep"}},

	{"daemon/...", []string{"ipc/...", "snap/...", "systemd/...", "daemon/...", "privsep"}},
	{"cmd/mulligand/...", []string{"ipc/...", "snap/...", "systemd/...", "daemon/...", "privsep"}},

	{"docs/demo/vm", []string{"ipc/...", "snap/disk/disktest"}}, // it brings a libvirtd and a guest
	{"docs/...", []string{"ipc/..."}},                           // the demo is a user of mulligan
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
	if folder, deep := strings.CutSuffix(pattern, "/..."); deep {
		return name == folder || strings.HasPrefix(name, folder+"/")
	}
	return name == pattern
}

// broken says whether the package name must not import the package imported;
// both are named from the module's top.
func broken(name, imported string) bool {
	i := slices.IndexFunc(rules, func(r rule) bool { return fits(r.pkg, name) })
	if i < 0 {
		return true // a package that the architecture doesn't know
	}
	may := rules[i].may
	if rules[i].pkg == "snap/..." {
		driver, _, _ := strings.Cut(strings.TrimPrefix(name, "snap/"), "/")
		may = append(slices.Clone(may), "snap/"+driver+"/...")
	}
	return !slices.ContainsFunc(may, func(pattern string) bool { return fits(pattern, imported) })
}

func TestImportsRunOneWay(t *testing.T) {
	seen := 0
	for _, p := range list(t, "1", "./...") {
		if p.Error != nil && len(p.Imports) == 0 {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
			continue
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		if !slices.ContainsFunc(rules, func(r rule) bool { return fits(r.pkg, name) }) {
			t.Errorf("no rule says what %s may import: give it one, and docs/architecture.md a line", name)
		}
		for _, i := range p.Imports {
			if imported, ours := strings.CutPrefix(i, module); ours && broken(name, imported) {
				t.Errorf("%s must not import %s", name, imported)
			}
		}
		seen++
	}
	if seen < len(rules)/2 {
		t.Errorf("only %d packages were looked at", seen)
	}
}

// The rules themselves: what they are for must be refused by them.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		name, imported string
		broken         bool
	}{
		{"cmd/mulligan", "mcpserver", false}, {"cmd/mulligan", "ipc", false}, {"cmd/mulligan", "daemon", true}, {"cmd/mulligan", "snap/files", true},
		{"mcpserver", "ipc", false}, {"mcpserver", "ipc/errs", false}, {"mcpserver", "daemon", true}, {"mcpserver", "snap", true},
		{"ipc", "ipc/errs", false}, {"ipc", "snap", true}, {"ipc", "daemon/config", true}, {"ipc/errs", "ipc", true},
		{"daemon", "snap/files", false}, {"daemon/store", "snap", false}, {"daemon", "systemd", false}, {"daemon", "mcpserver", true}, {"daemon", "cmd/mulligan", true},
		{"snap", "snap/files", true}, {"snap", "ipc/errs", false}, {"snap/cas", "snap/files", true},
		{"snap/files", "snap/cas", false}, {"snap/files", "snap/files/walk", false}, {"snap/files", "snap/sqlite", true}, {"snap/sqlite/x", "snap/files", true},
		{"snap/files", "daemon", true}, {"snap/files", "ipc", true}, {"systemd", "daemon", true}, {"new", "ipc/errs", true},
	} {
		if got := broken(tt.name, tt.imported); got != tt.broken {
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
		kit := strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/pgtest/")
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
	build := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "./cmd/mulligan")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
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
