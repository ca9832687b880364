package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "in-use" {
		used, err := InUse(os.Args[2])
		fmt.Print(used, " ", err)
		return
	}
	os.Exit(m.Run())
}

// TestInUse looks for servers of the same user, one of which has another group: the kernel does not show where that one works. Folders
// that were exchanged under it would get its last writes.
func TestInUse(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	const user, group, other = 54321, 54322, 54323
	dir, err := os.MkdirTemp("/var/tmp", "pgserver")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, self := filepath.Join(dir, "postgres"), filepath.Join(dir, "test")
	for from, to := range map[string]string{"/bin/sleep": program, "/proc/self/exe": self} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = testkit.WriteProgram(to, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	look := func(t *testing.T, data string) string {
		cmd := exec.Command(self, "in-use", data)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group}}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, gid := range []uint32{group, other} {
		t.Run(fmt.Sprint(gid), func(t *testing.T) {
			data := filepath.Join(dir, fmt.Sprint("data", gid))
			if err := os.Mkdir(data, 0o755); err != nil {
				t.Fatal(err)
			}
			if got := look(t, data); got != "false <nil>" {
				t.Fatalf("before the server is started: %s", got)
			}
			server := exec.Command(program, "1000")
			server.Dir, server.SysProcAttr = data, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: gid}}
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			end := func() {
				_ = server.Process.Kill()
				_ = server.Wait() // it was killed
			}
			defer end()
			if err := os.WriteFile(filepath.Join(data, "postmaster.pid"), fmt.Appendf(nil, "%d\n%s\n", server.Process.Pid, data), 0o644); err != nil {
				t.Fatal(err)
			}
			if got := look(t, data); got != "true <nil>" {
				t.Errorf("while the server runs: %s", got)
			}
			end()
			if got := look(t, data); got != "false <nil>" {
				t.Errorf("after the server was killed: %s", got)
			}
		})
	}
}
