package gitref

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/snap/beneath"
	"mulligan/testkit"
)

func outside(t *testing.T, dir string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	text := ""
	for _, g := range Outside(root) {
		text += g.What + " " + g.Remedy
	}
	return text
}

func TestOutside(t *testing.T) {
	testkit.Need(t, "git")
	top := t.TempDir()
	dir, tree := filepath.Join(top, "repo"), filepath.Join(top, "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	expect := func(dir string, words ...string) {
		t.Helper()
		got := outside(t, dir)
		if (got == "") != (len(words) == 0) {
			t.Errorf("%s: %q", dir, got)
		}
		for _, w := range words {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", dir, got, w)
			}
		}
	}
	expect(dir)
	git(t, dir, "init", "-q", "-b", "main")
	commit(t, dir)
	expect(dir)
	git(t, dir, "worktree", "add", "-q", "-b", "inside", "sub")
	expect(dir)
	git(t, dir, "worktree", "add", "-q", "-b", "other", tree)
	expect(dir, "serves worktrees outside", tree)
	expect(tree, "is not captured", filepath.Join(dir, ".git/worktrees/tree"), "git reflog")
	expect(filepath.Join(dir, "sub"), "is not captured")
	git(t, dir, "worktree", "remove", tree)
	expect(dir)

	// A submodule's repository is in that of the workspace.
	lib := filepath.Join(top, "lib")
	git(t, top, "init", "-q", lib)
	commit(t, lib)
	git(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", lib, "lib")
	expect(dir)

	link(t, filepath.Join(dir, ".git"), filepath.Join(lib, "x"))
	if err := os.RemoveAll(filepath.Join(lib, ".git")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(lib, "x"), filepath.Join(lib, ".git")); err != nil {
		t.Fatal(err)
	}
	expect(lib, "is not captured", "symbolic link")

	// What is hostile is text on one line.
	hostile := t.TempDir()
	put(t, hostile, ".git", "gitdir: /x\n\x1b[31m"+strings.Repeat("y", 1000))
	if got := outside(t, hostile); strings.ContainsAny(got, "\n\x1b") || len(got) > 1000 {
		t.Errorf("%q", got)
	}
	for _, junk := range []string{"", "gitdir:", "nonsense"} {
		put(t, hostile, ".git", junk)
		expect(hostile)
	}
}
