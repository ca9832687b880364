package detect

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRoot(t *testing.T) {
	home := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(".git/HEAD", "the home folder's own repository is no project")
	write("shop/.git/HEAD", "")
	write("shop/web/src/page.js", "")
	write("shop/web/package.json", `{"workspaces": []}`)
	write("tree/.git", "gitdir: ../elsewhere")
	write("tree/src/x", "")
	write("mono/package.json", `{"workspaces": ["packages/*"]}`)
	write("mono/packages/one/package.json", `{"name": "one"}`)
	write("rust/Cargo.toml", "[package]\n")
	write("rust/src/main.rs", "")
	for dir, want := range map[string][2]string{
		"shop": {"shop", ".git"}, "shop/web/src": {"shop", ".git"}, "tree/src": {"tree", ".git"},
		"mono/packages/one": {"mono", "package.json"}, "mono": {"mono", "package.json"}, "rust/src": {"rust/src", ""}, ".": {".", ""},
	} {
		root, why := Root(filepath.Join(home, dir), home)
		if root != filepath.Join(home, want[0]) || why != want[1] {
			t.Errorf("the root of %s is %s, for %q", dir, root, why)
		}
	}
	if root, why := Root("/", home); root != "/" || why != "" {
		t.Errorf("the root of / is %s, for %q", root, why)
	}
}
