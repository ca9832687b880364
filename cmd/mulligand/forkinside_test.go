package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/testkit"
)

// inside runs mulligan exec.
func (d *daemonProcess) inside(cred *syscall.Credential, input string, words ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "mulligan"), append([]string{"exec", "--app", "shop"}, words...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(input), &out, &errOut, "/"
	cmd.Env = append(os.Environ(), "MULLIGAN_SOCKET="+d.socket, "MARK=7")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// TestExec runs commands inside of a fork that runs, and inside of one that is stopped: they see the fork's files at the parent's path,
// the fork's port, the caller's input, output and environment, and their exit status is the client's.
func TestExec(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	a.set(t, "broken")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.MkdirAll(filepath.Join(a.ws, "sub/gone"), 0o755), os.Symlink(a.ws, link)); err != nil {
		t.Fatal(err)
	}
	made := append(ask[ipc.ForkList](d, "fork", "--app", "shop", "--set", "MARK=1=a b").Forks,
		ask[ipc.ForkList](d, "fork", "--app", "shop", "--no-start", "--set", "MARK=2=a b", "--set", "EMPTY=").Forks...)
	for _, f := range made {
		fork := &testApp{d: d, ws: f.Workspace}
		fork.set(t, "try "+f.Fork.Name)
		out, errOut, code := d.inside(nil, "typed", f.Fork.Name, "--", "sh", "-c", `pwd; cat page.html; cat; echo " $MARK $1"; echo said >&2; exit 5`, "sh", "--app")
		if want := a.ws + "\ntry " + f.Fork.Name + "\ntyped " + f.Fork.Name + "=a b --app\n"; out != want || errOut != "said\n" || code != 5 {
			t.Errorf("inside of fork %s: %q, %q, %d; want %q", f.Fork.Name, out, errOut, code, want)
		}
	}
	for _, set := range []string{"MARK", "1MARK=x"} {
		if out, errOut, code := d.mulligan("fork", "--app", "shop", "--set", set); code != 2 {
			t.Errorf("fork --set %s: %d, %s%s", set, code, out, errOut)
		}
	}
	for pid := range d.inForks("serve-app") {
		if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || !strings.Contains(string(env), "\x00MARK=1=a b\x00") {
			t.Errorf("the fork's command has the environment %q, %v", env, err)
		}
	}
	inits := d.inForks("mulligand-fork")
	for pid := range inits { // it needs none, and would start three times as slowly
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) { // that of a command in the stopped fork, which has ended
			delete(inits, pid)
		} else if err != nil || strings.Contains(string(maps), "libvirt") {
			t.Errorf("the init %d of a fork has libvirt, %v", pid, err)
		}
	}
	if len(inits) == 0 {
		t.Error("no fork has an init")
	}
	for script, want := range map[string]string{`cd "$1/sub"`: "sub", `cd "$1/sub/gone" && rmdir ../gone`: "sub/gone"} {
		cmd := exec.Command("sh", "-c", script+` && exec "$0" exec --app shop 1 -- pwd`, filepath.Join(bin, "mulligan"), link)
		cmd.Env = append(os.Environ(), "MULLIGAN_SOCKET="+d.socket)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != filepath.Join(a.ws, want)+"\n" {
			t.Errorf("%s: the command is in %s%v", script, out, err)
		}
	}
	if out, _, _ := d.inside(nil, "", "1", "--", filepath.Join(a.ws, "app"), "visit", a.addr); out != "try 1\n" {
		t.Errorf("at the app's port, the fork that runs says %q", out)
	}
	if out, _, _ := d.inside(nil, "", "2", "--", filepath.Join(a.ws, "app"), "visit", a.addr); out != "" {
		t.Errorf("at the app's port, the fork that is stopped says %q", out)
	}
	for _, c := range []struct {
		words []string
		code  int
		says  string
	}{
		{[]string{"1", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		{[]string{"1", "--", "no-such-program"}, 1, "no-such-program"},
		{[]string{"9", "--", "true"}, 3, "no fork"},
		{[]string{"1"}, 2, "name a fork and a command"},
	} {
		if _, errOut, code := d.inside(nil, "", c.words...); code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("exec %q: %d, %q", c.words, code, errOut)
		}
	}
	if _, _, code := d.inside(&syscall.Credential{Uid: stranger, Gid: stranger}, "", "1", "--", "true"); code == 0 {
		t.Error("another user is let in")
	}
	// A signal reaches the command; when the client is killed, the command ends too.
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		mark := filepath.Join(made[1].Workspace, "mark")
		cmd := exec.Command(filepath.Join(bin, "mulligan"), "exec", "--app", "shop", "2", "--", "sh", "-c", "echo $$ > mark; exec sleep 1000")
		cmd.Env = append(os.Environ(), "MULLIGAN_SOCKET="+d.socket)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the command runs", func() bool { text, err := os.ReadFile(mark); return err == nil && len(text) > 1 })
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was ended
		eventually(t, "the command has ended", func() bool { return len(d.inForks("sleep")) == 0 })
		if sig == unix.SIGTERM && cmd.ProcessState.ExitCode() != 143 {
			t.Errorf("after SIGTERM the client ends with %d", cmd.ProcessState.ExitCode())
		}
		if err := os.Remove(mark); err != nil {
			t.Fatal(err)
		}
	}
	d.must("drop", "--all", "--app", "shop")
	if left := d.inForks(""); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// testCompare compares forks: what each changed, whether it is healthy by a command that asks at the app's own port, and how a command
// ends in each. While a command runs, the daemon is killed: nothing of the command is left.
func testCompare(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	a.set(t, "broken")
	d.must("app", "set", "--app", "shop", "health.command="+`["sh", "-c", "test \"$(`+filepath.Join(a.ws, "app")+` visit `+a.addr+`)\" = mended"]`, "health.timeout=1s")
	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "2").Forks
	d.must("fork", "--app", "shop", "--no-start")
	mended := &testApp{d: d, ws: made[1].Workspace}
	mended.set(t, "mended")
	eventually(t, "fork 2 is well", func() bool {
		return strings.HasPrefix(d.must("compare", "2", "--app", "shop"), "2\trunning\tyes\t")
	})
	if err := os.WriteFile(filepath.Join(mended.ws, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	res := ask[ipc.Comparison](d, "compare", "--app", "shop", "--run", "grep -q mended page.html && echo fine").Forks
	if len(res) != 3 {
		t.Fatalf("compared are %+v", res)
	}
	for i, f := range res {
		healthy, code, changed, state := false, 1, false, "running"
		switch i {
		case 1:
			healthy, code, changed = true, 0, true
		case 2:
			state = "stopped"
		}
		if f.State != state || i < 2 && (f.Healthy == nil || *f.Healthy != healthy) || i == 2 && f.Healthy != nil {
			t.Errorf("fork %s is %s, healthy %v", f.Name, f.State, f.Healthy)
		}
		if f.Command == nil || f.Command.ExitCode != code || (f.Command.Output == "fine\n") != (code == 0) || f.Command.Problem != "" {
			t.Errorf("in fork %s the command: %+v", f.Name, f.Command)
		}
		if n := f.Created + f.Modified + f.Deleted; (n > 3) != changed || len(f.Changes) != min(n, 20) || len(f.Unknown)+len(f.Unreadable) > 0 {
			t.Errorf("fork %s changed %+v", f.Name, f)
		}
	}
	if f := ask[ipc.Comparison](d, "compare", "2", "--app", "shop", "--run", "sleep 1000", "--timeout", "100ms").Forks[0]; !f.Command.TimedOut || f.Command.ExitCode != 137 {
		t.Errorf("a command that takes too long: %+v", f.Command)
	}
	for _, refused := range [][]string{{"7"}, {"--run", "true", "--timeout", "never"}} {
		if _, errOut, code := d.mulligan(append([]string{"compare", "--app", "shop"}, refused...)...); code == 0 || errOut == "" {
			t.Errorf("compare %q is not refused: %d, %s", refused, code, errOut)
		}
	}

	// In fork 3, which is stopped, the command has a process of its own as its init, which ends with the daemon.
	cmd := exec.Command(filepath.Join(bin, "mulligan"), "compare", "3", "--app", "shop", "--run", "echo > mark; sleep 1000", "--socket", d.socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command runs", func() bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(made[0].Workspace), "3", "mark"))
		return err == nil
	})
	d.kill()
	_ = cmd.Wait() // it lost its daemon
	eventually(t, "the command has ended", func() bool { return len(d.inForks("sleep")) == 0 })
	d.cmd = nil
	d.start()
	d.must("drop", "--all", "--app", "shop")
}
