package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestScripts runs the client's scripts, which its own tests run against a
// daemon in memory, against the real one.
func TestScripts(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "test", "-count=1", "-vet=off", "-trimpath", "-run", "^TestScripts?$", "mulligan/cmd/mulligan")
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_DAEMON="+filepath.Join(bin, "mulligand"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
