// Command mutants puts deliberate faults into the product, one at a time, and has the
// tests look for them: make mutants. A fault that no test finds is a test that is missing.
//
// Each fault is in a copy of the sources, which go test sees in the place of the file (-overlay):
// the work tree stays as it is.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// fault is one deliberate fault.
type fault struct {
	what     string // in words
	file     string // from the repository's top
	old, new string // old stands in file once
	run, pkg string // the tests that should find it: what -run takes, and the package
}

func main() {
	only := flag.String("only", "", "only faults whose words have this in them")
	flag.Parse()
	tried, missed := 0, 0
	for _, f := range faults {
		if !strings.Contains(f.what, *only) {
			continue
		}
		found, out, err := f.try()
		tried++
		switch {
		case err != nil:
			fmt.Fprintf(os.Stderr, "%s: %v\n", f.what, err)
			os.Exit(2)
		case found:
			fmt.Printf("found   %s: %s\n", f.what, f.pkg)
		default:
			missed++
			fmt.Printf("MISSED  %s: %s -run '%s'\n%s\n", f.what, f.pkg, f.run, out)
		}
	}
	fmt.Printf("%d faults, %d of them missed\n", tried, missed)
	if missed > 0 {
		os.Exit(1)
	}
}

// apply returns the text of the file with the fault in it.
func (f fault) apply(top string) (string, error) {
	text, err := os.ReadFile(filepath.Join(top, f.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), f.old); n != 1 {
		return "", fmt.Errorf("%s has %q %d times, want once", f.file, f.old, n)
	}
	return strings.Replace(string(text), f.old, f.new, 1), nil
}

// try runs the tests with the fault, and reports whether they found it.
func (f fault) try() (found bool, out string, err error) {
	text, err := f.apply(".")
	if err != nil {
		return false, "", err
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(dir)
	path, err := filepath.Abs(f.file)
	if err != nil {
		return false, "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: dir + "/faulty.go"}})
	if err != nil {
		return false, "", err
	}
	if err := os.WriteFile(dir+"/faulty.go", []byte(text), 0o600); err != nil {
		return false, "", err
	}
	if err := os.WriteFile(dir+"/overlay", overlay, 0o600); err != nil {
		return false, "", err
	}
	args := []string{"-tags", "libvirt_dlopen", "-overlay", dir + "/overlay", f.pkg}
	if out, err := exec.Command("go", append([]string{"vet"}, args...)...).CombinedOutput(); err != nil {
		return false, "", fmt.Errorf("it does not compile: %s", out)
	}
	said, err := exec.Command("go", append([]string{"test", "-count=1", "-run", f.run}, args...)...).CombinedOutput()
	return err != nil, string(said), nil
}
