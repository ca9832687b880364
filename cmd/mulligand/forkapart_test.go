package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// testForksApart tries from the inside of three forks to reach what is their parent's: its port, another port of the host, a Unix socket
// in /tmp, and its files. The app has its path and its port in its code, in a program of a virtual environment and in node_modules/.bin:
// these work in each fork, for an app of root's and of a user's. Another user can neither see the forks, nor do anything with them.
func testForksApart(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	for _, uid := range []int{0, ordinary} {
		t.Run(fmt.Sprint("uid ", uid), func(t *testing.T) { forksApart(t, uid) })
	}
}

func forksApart(t *testing.T, uid int) {
	d := newDaemon(t)
	d.args = []string{} // root's
	d.start()
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(os.Chmod(dir, 0o755))
	ws, addr := filepath.Join(dir, "ws"), freeAddr(t)
	program := filepath.Join(ws, "app")
	check(os.MkdirAll(filepath.Join(ws, "venv", "bin"), 0o755))
	check(os.MkdirAll(filepath.Join(ws, "node_modules", ".bin"), 0o755))
	check(os.MkdirAll(filepath.Join(ws, "node_modules", "tool"), 0o755))
	check(copyApp(program))
	shell(t, ws, `
		cp /bin/sh venv/bin/python
		printf '#!%s/venv/bin/python\necho venv of; cat %s/page.html\n' "$PWD" "$PWD" >venv/bin/tool
		printf '#!/bin/sh\necho module of; cat "$(dirname "$0")/../../page.html"\n' >node_modules/tool/cli
		ln -s ../tool/cli node_modules/.bin/tool
		chmod +x venv/bin/tool node_modules/tool/cli
		echo parent >page.html
		chown -R "$1:$1" "$(dirname "$PWD")"`, fmt.Sprint(uid))
	d.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	d.must("app", "add", "--slug", "shop", "--dir", ws, "--run", "./app serve-app "+addr+" "+filepath.Join(ws, "page.html"), "--health", "http://"+addr+"/")
	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "3").Forks

	host, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer host.Close()
	private := filepath.Join("/tmp", filepath.Base(dir)+".sock")
	socket, err := net.Listen("unix", private)
	check(err)
	defer socket.Close()
	check(os.Chmod(private, 0o777))
	check(os.WriteFile(filepath.Join(ws, "secret"), []byte("the parent's"), 0o644))

	for _, f := range made {
		name := f.Fork.Name
		check(os.WriteFile(filepath.Join(f.Workspace, "page.html"), []byte(name+"\n"), 0o644))
		for _, c := range []struct{ command, want string }{
			{program + " visit " + addr, name + "\n"},                                          // its own server, at the parent's port
			{ws + "/venv/bin/tool", "venv of\n" + name + "\n"},                                 // the parent's path is in it
			{ws + "/node_modules/.bin/tool", "module of\n" + name + "\n"},                      // a link
			{program + " visit " + host.Addr().String(), ""},                                   // a server of the host
			{"ls " + private + " 2>/dev/null", ""},                                             // in the host's /tmp
			{"ls " + ws + "/secret 2>/dev/null", ""},                                           // the parent wrote it
			{"echo " + name + " >/tmp/mine; cat /tmp/*", name + "\n"},                          // a /tmp of its own
			{"cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '", "1\n"},                       // one listens: its own server
			{"grep -l '[s]erve-app' /proc/[0-9]*/cmdline | wc -l", "1\n"},                      // and runs
			{"touch /dev/shm/mine && ls -A /dev/shm && id -u", fmt.Sprintf("mine\n%d\n", uid)}, // with its owner's rights
		} {
			if out, errOut, _ := d.inside(d.cred, "", name, "--", "sh", "-c", c.command); out != c.want {
				t.Errorf("inside of fork %s, %s says %q%s, want %q", name, c.command, out, errOut, c.want)
			}
		}
	}
	if page := visit(t.Context(), addr); page != "parent\n" {
		t.Errorf("the parent says %q", page)
	}
	if _, err := os.Stat("/dev/shm/mine"); err == nil {
		t.Error("a fork wrote to the host's /dev/shm")
	}

	for _, words := range [][]string{
		{"forks"}, {"compare"}, {"keep", "1"}, {"keep", "1", "--dry-run"}, {"drop", "1"}, {"exec", "1", "true"}, {"bisect", "true"}, {"fork"},
	} {
		for _, app := range []string{"shop", "shop-1", string(made[0].Fork.Parent), string(made[0].ID)} {
			cmd := exec.Command(filepath.Join(bin, "mulligan"), append([]string{words[0], "--socket", d.socket, "--app", app}, words[1:]...)...)
			cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
			out, _ := cmd.CombinedOutput() // the exit code says it
			if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(string(out), "no app") {
				t.Errorf("a stranger's %q with %s: %d, %s", words, app, cmd.ProcessState.ExitCode(), out)
			}
		}
	}
	if list := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(list) != 3 {
		t.Errorf("there are the forks %+v", list)
	}
	d.must("drop", "--all", "--app", "shop")
	if left := d.inForks(""); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
}
