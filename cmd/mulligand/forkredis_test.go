package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/testkit"
)

// serveRedis is an app that has the address of its Redis server in its code: it sends the commands of each request there, and answers
// with what the server says.
func serveRedis(addr, network, server string) {
	password, _ := os.ReadFile("password") // without it, the server says so
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c, err := net.Dial(network, server)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer c.Close()
		commands, _ := io.ReadAll(r.Body)
		fmt.Fprintf(c, "AUTH %s\r\n%s\r\nQUIT\r\n", password, commands)
		_, _ = io.Copy(w, c)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, nil))
	os.Exit(1)
}

// redisApp is such an app, or a fork of it.
type redisApp struct{ addr string }

// do has the app send commands to its server.
func (a redisApp) do(t testing.TB, commands string) string {
	t.Helper()
	said := ""
	eventually(t, "the app answers", func() bool {
		c := http.Client{Timeout: 30 * time.Second}
		res, err := c.Post("http://"+a.addr, "text/plain", strings.NewReader(commands))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		said = string(b)
		return err == nil && res.StatusCode == http.StatusOK && strings.HasPrefix(said, "+OK") && strings.HasSuffix(said, "+OK\r\n") &&
			!strings.Contains(said, "LOADING")
	})
	return said
}

// all lists the keys of the app's server, with their values' checksums.
func (a redisApp) all(t testing.TB) string {
	t.Helper()
	return a.do(t, `EVAL "local out = {} local keys = redis.call('KEYS', '*') table.sort(keys) for _, k in ipairs(keys) do out[#out+1] = k .. redis.sha1hex(redis.call('DUMP', k)) end return table.concat(out, ' ')" 0`)
}

// TestForkedRedis makes forks of an app with a Redis server: each has a server of its own at the address of the parent's, which runs
// with the owner's rights. One is kept, and redo leads back; the daemon is killed under them; in the end nothing of them is left.
func TestForkedRedis(t *testing.T) {
	testkit.Need(t, "root")
	testkit.Need(t, "redis")
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { forkRedis(t, network) })
	}
}

func forkRedis(t *testing.T, network string) {
	d := newDaemon(t)
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	if network == "tcp" { // a daemon of root's and an app of a user's; else both are root's
		d.args = []string{}
	}
	d.start()
	ws, sockets := filepath.Join(dir, "ws"), filepath.Join(dir, "sockets")
	for _, made := range []string{ws, sockets, filepath.Join(dir, "data")} {
		check(os.Mkdir(made, 0o755))
	}
	check(copySelf(filepath.Join(ws, "app")))
	if network == "tcp" {
		d.cred = &syscall.Credential{Uid: stranger, Gid: stranger}
		for _, path := range []string{dir, ws, filepath.Join(ws, "app")} {
			check(os.Chown(path, stranger, stranger))
		}
	}
	check(os.WriteFile(filepath.Join(ws, "password"), []byte("hunter2"), 0o644))
	server := freeAddr(t)
	_, port, err := net.SplitHostPort(server)
	check(err)
	dsn := "redis://:hunter2@" + server
	socket := filepath.Join(sockets, "redis.sock")
	if network == "unix" {
		server, dsn = socket, "redis://:hunter2@/?socket="+socket
	}
	engine(t, func() bool {
		out, err := exec.Command("redis-cli", "-p", port, "--no-auth-warning", "-a", "hunter2", "PING").Output()
		return err == nil && strings.TrimSpace(string(out)) == "PONG"
	}, "redis-server", "--bind", "127.0.0.1", "--port", port, "--unixsocket", socket, "--dir", filepath.Join(dir, "data"), "--requirepass", "hunter2", "--logfile", filepath.Join(dir, "data", "log"))
	parent := redisApp{freeAddr(t)}
	d.must("app", "add", "--slug", "shop", "--dir", ws, "--db", "cache="+dsn,
		"--run", strings.Join([]string{"./app", "serve-redis", parent.addr, network, server}, " "), "--health", "http://"+parent.addr+"/")
	r := testkit.Rand(t)
	write := func(a redisApp, word string) {
		t.Helper()
		var list []string
		for range 50 {
			list = append(list, fmt.Sprintf("SET k%d %s-%d", r.IntN(200), word, r.Int()), fmt.Sprintf("RPUSH l%d %s", r.IntN(20), word))
		}
		a.do(t, strings.Join(append(list, "SET word "+word), "\r\n"))
	}
	write(parent, "broken")
	broken := parent.all(t)

	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "3").Forks
	if len(made) != 3 {
		t.Fatalf("made are %+v", made)
	}
	var forks []redisApp
	var tried []string
	for i, f := range made {
		fork := redisApp{f.Fork.Ports[0].Address}
		if got := fork.all(t); got != broken {
			t.Errorf("fork %d begins with %q, want %q", i+1, got, broken)
		}
		write(fork, fmt.Sprintf("try%d", i+1))
		forks, tried = append(forks, fork), append(tried, fork.all(t))
	}
	if got := parent.all(t); got != broken {
		t.Errorf("the parent has %q, want %q", got, broken)
	}
	servers := d.inForks("redis-server")
	if len(servers) != 3 {
		t.Errorf("the forks have the servers %v", servers)
	}
	for _, uid := range servers {
		if network == "tcp" && uid != stranger {
			t.Errorf("a fork's server runs as %d", uid)
		}
	}
	write(parent, "onwards")
	onwards := parent.all(t)

	d.kill()
	d.cred, d.cmd = nil, nil
	d.start()
	if network == "tcp" {
		d.cred = &syscall.Credential{Uid: stranger, Gid: stranger}
	}
	// A server that is killed is started again, with its data.
	for pid := range servers {
		check(unix.Kill(pid, unix.SIGKILL))
		break
	}
	for i, f := range forks {
		if got := f.all(t); got != tried[i] {
			t.Errorf("fork %d has %q, want %q", i+1, got, tried[i])
		}
	}
	d.must("keep", "2", "--app", "shop")
	if got := parent.all(t); got != tried[1] {
		t.Errorf("after keep the parent has %q, want %q", got, tried[1])
	}
	d.must("redo", "--app", "shop")
	if got := parent.all(t); got != onwards {
		t.Errorf("after redo the parent has %q, want %q", got, onwards)
	}
	d.must("drop", "--all", "--app", "shop")
	if left := d.inForks(""); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
	if apps, err := os.ReadDir(filepath.Join(d.dir, "state", "apps")); err != nil || len(apps) != 1 {
		t.Errorf("there is state of %v, %v", apps, err)
	}
	d.keepsSecret(t, "hunter2")
}

// inForks returns the processes in namespaces of forks whose command contains name, with their users.
func (d *daemonProcess) inForks(name string) map[int]int {
	d.t.Helper()
	found := map[int]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, dir := range dirs {
		mounts, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
		command, err2 := os.ReadFile(filepath.Join(dir, "cmdline"))
		var st unix.Stat_t
		if err := errors.Join(err, err2, unix.Stat(dir, &st)); err != nil { // it has ended
			continue
		}
		if strings.Contains(string(mounts), filepath.Base(d.dir)+"/state/apps") && strings.Contains(string(command), name) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				d.t.Fatal(err)
			}
			found[pid] = int(st.Uid)
		}
	}
	return found
}
