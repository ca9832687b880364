package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// GoTool builds a program of a Go module at a pinned version, once, and returns its path. dir is the program's folder in the module, "." for the module's
// own. The program is kept in the folder of [CacheDir]. mb is what the build downloads, in megabytes.
func GoTool(t testing.TB, module, dir, version string, mb int) string {
	t.Helper()
	root, err := CacheDir()
	must(t, err)
	name := goTool(module, dir) + "-" + version
	if _, err := os.Stat(filepath.Join(root, name)); err != nil && !NoSkip() {
		t.Skipf("%s is not built: set MULLIGAN_TEST_NOSKIP=1 to have %d MB downloaded from the Go module proxy for it", name, mb)
	}
	path, err := BuildGoTool(t.Context(), module, dir, version)
	must(t, err)
	return path
}

// goTool returns the name of a program.
func goTool(module, dir string) string { return filepath.Base(filepath.Join(module, dir)) }

// BuildGoTool is GoTool for programs that are no tests. It builds in the module's own folder: `go install` refuses modules that replace others.
func BuildGoTool(ctx context.Context, module, dir, version string) (path string, err error) {
	program := goTool(module, dir)
	kept, err := Kept(program+"-"+version, func(to string) error {
		var at struct{ Dir, Error string }
		out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+version).Output()
		if unreadable := json.Unmarshal(out, &at); err != nil || unreadable != nil || at.Dir == "" {
			return fmt.Errorf("download %s@%s: %v: %s", module, version, err, at.Error)
		}
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(to, program), "./"+dir)
		build.Dir = at.Dir
		build.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s@%s: %w\n%s", module, version, err, out)
		}
		return nil
	})
	return filepath.Join(kept, program), err
}
