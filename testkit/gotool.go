package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// GoTool builds the program pkg of a Go module at a pinned version, once, and returns its path. The program is kept in the folder of
// [CacheDir]. mb is what the build downloads, in megabytes.
func GoTool(t testing.TB, pkg, version string, mb int) string {
	t.Helper()
	root, err := CacheDir()
	must(t, err)
	name := filepath.Base(pkg) + "-" + version
	if _, err := os.Stat(filepath.Join(root, name)); err != nil && !NoSkip() {
		t.Skipf("%s is not built: set MULLIGAN_TEST_NOSKIP=1 to have %d MB downloaded from the Go module proxy for it", name, mb)
	}
	path, err := BuildGoTool(t.Context(), pkg, version)
	must(t, err)
	return path
}

// BuildGoTool is GoTool for programs that are no tests.
func BuildGoTool(ctx context.Context, pkg, version string) (path string, err error) {
	program := filepath.Base(pkg)
	dir, err := Kept(program+"-"+version, func(dir string) error {
		build := exec.CommandContext(ctx, "go", "install", "-trimpath", pkg+"@"+version)
		build.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", build, err, out)
		}
		return nil
	})
	return filepath.Join(dir, program), err
}
