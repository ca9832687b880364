package testkit

import (
	"crypto/sha256"
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
	name := fmt.Sprintf("%s-%.12x", filepath.Base(pinned), sha256.Sum256(lock))
	if _, err := os.Stat(filepath.Join(root, name)); err != nil && !NoSkip() {
		t.Skipf("%s is not installed: set MULLIGAN_TEST_NOSKIP=1 to have %d MB put there from npm", name, mb)
	}
	dir, err := Kept(name, func(dir string) error {
		Need(t, "npm")
		if err := os.CopyFS(dir, os.DirFS(pinned)); err != nil {
			return err
		}
		npm := exec.CommandContext(t.Context(), "npm", append([]string{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, flags...)...)
		npm.Dir = dir
		if out, err := npm.CombinedOutput(); err != nil {
			return fmt.Errorf("npm ci: %w: %s", err, out)
		}
		return nil
	})
	must(t, err)
	return filepath.Join(dir, "node_modules")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
