package detect

import (
	"bytes"
	"os"
	"path/filepath"
)

// workspaces are the files that mark the root of a project of several parts, and what such a file must hold; "" is anything.
var workspaces = []struct{ name, holds string }{
	{"go.work", ""}, {"pnpm-workspace.yaml", ""}, {"nx.json", ""}, {"turbo.json", ""}, {"lerna.json", ""}, {"rush.json", ""},
	{"package.json", `"workspaces"`}, {"Cargo.toml", "[workspace]"}, {"MODULE.bazel", ""}, {"WORKSPACE", ""},
}

// Root returns the root of the project that the folder dir is in, and what makes it the root: the innermost folder with a git
// repository, else with a file of a workspace. It is dir itself, with "", if there is no such folder below home and the root of the
// filesystem.
func Root(dir, home string) (root, why string) {
	for d := dir; !top(d, home); d = filepath.Dir(d) {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			return d, ".git"
		}
	}
	for d := dir; !top(d, home); d = filepath.Dir(d) {
		for _, w := range workspaces {
			if holds(filepath.Join(d, w.name), w.holds) {
				return d, w.name
			}
		}
	}
	return dir, ""
}

// top reports whether a folder is too far up to be a project.
func top(dir, home string) bool { return dir == filepath.Dir(dir) || dir == home }

// holds reports whether path is a file of moderate size that holds text.
func holds(path, text string) bool {
	fi, err := os.Lstat(path)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxEnvFile {
		return false
	}
	if text == "" {
		return true
	}
	content, err := os.ReadFile(path)
	return err == nil && bytes.Contains(content, []byte(text))
}
