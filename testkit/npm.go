package testkit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// NPM installs the npm packages that the folder pinned names, of about mb megabytes, and returns their node_modules folder. The
// packages are kept below MULLIGAN_TEST_CACHE or the user's cache folder, with a folder for each set of versions. flags are
// npm's.
func NPM(t testing.TB, pinned string, mb int, flags ...string) string {
	t.Helper()
	lock, err := os.ReadFile(filepath.Join(pinned, "package-lock.json"))
	must(t, err)
	root, err := CacheDir()
	must(t, err)
	name := filepath.Base(pinned)
	dir := filepath.Join(root, fmt.Sprintf("%s-%.12x", name, sha256.Sum256(lock)))
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(dir); err == nil {
		return modules
	}
	if !NoSkip() {
		t.Skipf("%s is not installed: set MULLIGAN_TEST_NOSKIP=1 to have %d MB put there from npm", name, mb)
	}
	Need(t, "npm")
	// The folder is made under another name and then renamed, so it is complete or absent.
	must(t, os.MkdirAll(root, 0o755))
	tmp, err := os.MkdirTemp(root, "install-")
	must(t, err)
	defer os.RemoveAll(tmp)
	must(t, os.CopyFS(tmp, os.DirFS(pinned)))
	npm := exec.CommandContext(t.Context(), "npm", append([]string{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, flags...)...)
	npm.Dir = tmp
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return modules
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
