package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mulligan/testkit"
)

// Settings that can't be written, in a folder that is read-only, stay as they
// are, all of them; a file that is read-only itself is replaced and stays so.
func TestInstallReadOnly(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	const nobody = 65534
	d := newDaemon(t) // for its folder only
	home := filepath.Join(d.dir, "home")
	mulligan := func(code int, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "mulligan"), args...)
		cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
			t.Fatalf("mulligan %s: %v, not exit code %d\n%s", strings.Join(args, " "), err, code, out)
		}
		return string(out)
	}
	for _, dir := range []string{home, filepath.Join(home, ".claude")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	settings := filepath.Join(home, ".claude", "settings.json")
	for path, mode := range map[string]os.FileMode{settings: 0o444, filepath.Join(home, ".claude.json"): 0o600} {
		if err := os.WriteFile(path, []byte("{\"theme\": \"dark\"}\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	// But for times: a file that was replaced has new ones, and so has its folder.
	state := func() string {
		return shell(t, home, `find . -path ./.local -prune -o -printf '%p %m %U\n' -type f -exec sha256sum {} \; | sort`)
	}
	before := state()

	for _, dir := range []string{filepath.Join(home, ".claude"), home} { // of the first file, of the second
		if err := os.MkdirAll(filepath.Join(home, ".local", "state"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(home, ".local", "state"), nobody, nobody); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		mulligan(0, "install", "claude-code", "--dry-run")
		if out := mulligan(5, "install", "claude-code"); strings.Count(out, "\n") != 1 || !strings.Contains(out, "the folder of the file is not writable") {
			t.Errorf("it said %q", out)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if now := state(); now != before {
			t.Errorf("with %s read-only:\n%s\nit was\n%s", dir, now, before)
		}
	}

	mulligan(0, "install", "claude-code")
	if fi, err := os.Stat(settings); err != nil || fi.Mode().Perm() != 0o444 {
		t.Errorf("%v, %v", fi, err)
	}
	mulligan(0, "uninstall", "claude-code")
	if now := state(); now != before {
		t.Errorf("there and back:\n%s\nit was\n%s", now, before)
	}
}
