package testkit

import (
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
	program := filepath.Base(pkg)
	name := program + "-" + version
	if _, err := os.Stat(filepath.Join(root, name)); err != nil && !NoSkip() {
		t.Skipf("%s is not built: set MULLIGAN_TEST_NOSKIP=1 to have %d MB downloaded from the Go module proxy for it", name, mb)
	}
	dir, err := Kept(name, func(dir string) error {
		build := exec.CommandContext(t.Context(), "go", "install", "-trimpath", pkg+"@"+version)
		build.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", build, err, out)
		}
		return nil
	})
	must(t, err)
	return filepath.Join(dir, program)
}
