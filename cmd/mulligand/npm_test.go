package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// fromNPM gives the node_modules of a real client of mulligan's: the packages
// pinned in testdata/NAME, of some size in MB, in MULLIGAN_TEST_CACHE or the
// user's cache folder. A new pin is a new folder.
func fromNPM(t *testing.T, name string, size int) string {
	t.Helper()
	pinned := filepath.Join("testdata", name)
	lock, err := os.ReadFile(filepath.Join(pinned, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	root := os.Getenv("MULLIGAN_TEST_CACHE")
	if root == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		root = filepath.Join(cache, "mulligan-test")
	}
	dir := filepath.Join(root, fmt.Sprintf("%s-%.12x", name, sha256.Sum256(lock)))
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(dir); err == nil {
		return modules
	}
	if os.Getenv("MULLIGAN_TEST_NOSKIP") != "1" {
		t.Skipf("%s is not installed: set MULLIGAN_TEST_NOSKIP=1 to have %d MB put there from npm", name, size)
	}
	// Made beside its place and renamed, it is whole or not there.
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(root, "install-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.CopyFS(tmp, os.DirFS(pinned)); err != nil {
		t.Fatal(err)
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund")
	npm.Dir = tmp
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return modules
}
