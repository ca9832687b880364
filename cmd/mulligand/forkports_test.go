package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// withoutNamespaces starts a user's daemon where the kernel refuses it namespaces: in a user namespace that may have no others.
var withoutNamespaces = []string{
	"unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-euc",
	`echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --inh-caps=-all --ambient-caps=-all "$@"`, "sh",
}

// withoutAdmin starts a daemon of root's that lacks a capability, as in a container: so it may make no namespaces.
var withoutAdmin = []string{"setpriv", "--bounding-set=-sys_admin"}

// testForksOnHost forks an app that reads its port from a variable and the place of its database from .env, on hosts with and without namespaces:
// two forks run beside the app on their own ports with their own data. The daemon is killed and comes back under them. One is kept, and its
// .env has the app's lines again; one is kept and stays, with its own. Dropped, nothing of them is left.
func testForksOnHost(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	for _, c := range []struct {
		name string
		uid  int
		user bool // the daemon is the user's
		wrap []string
	}{
		{"root", 0, false, nil}, {"an app of a user", ordinary, false, nil}, {"a user's daemon without namespaces", stranger, true, withoutNamespaces},
		{"root without namespaces", stranger, false, withoutAdmin},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t)
			as := &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.uid)}
			if d.wrap = c.wrap; !c.user {
				d.args = []string{}
			} else if d.cred = as; os.Chown(d.dir, c.uid, c.uid) != nil {
				t.Fatal("the daemon's folder cannot be its own")
			}
			d.start()
			d.cred = as
			forksOnHost(t, newHostApp(t, d, c.uid), c.wrap == nil)
		})
	}
}

// hostApp is an app whose forks can run on the host.
type hostApp struct {
	*testApp
	uid int
	env string // the content of its .env
}

const dotenvSecret = "hunter2-of-nobody"

func newHostApp(t *testing.T, d *daemonProcess, uid int) hostApp {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := hostApp{&testApp{d: d, ws: filepath.Join(dir, "ws"), addr: freeAddr(t)}, uid, ""}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(a.ws, 0o755), copyApp(filepath.Join(a.ws, "app"))); err != nil {
		t.Fatal(err)
	}
	a.env = a.lines(a.addr, a.ws, "# the app's")
	a.write(t, ".env", a.env)
	a.put(t, a.testApp, "zero")
	shell(t, dir, `chown "$1:$1" .`, fmt.Sprint(uid))
	d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--db", "sqlite:shop.db", "--run", `sh -c '. ./.env; exec ./app serve-app 127.0.0.1:$PORT page.html'`,
		"--health", "http://"+a.addr+"/")
	a.up(t)
	return a
}

// lines is a .env with the port of an address and a folder. The comment is behind the port.
func (a hostApp) lines(addr, ws, comment string) string {
	_, port, _ := net.SplitHostPort(addr)
	return strings.TrimSpace("SECRET="+dotenvSecret+"\nexport PORT="+port+" "+comment) + "\nTEXT='\nPORT=1\n'\nDATABASE_URL=\"sqlite:///" + ws + "/shop.db\"\nBASE=http://" + a.addr + "/\n"
}

// put brings an app or a fork into a state, with files of the owner's.
func (a hostApp) put(t *testing.T, of *testApp, word string) {
	t.Helper()
	of.set(t, word)
	shell(t, of.ws, `chown -R "$1:$1" .`, fmt.Sprint(a.uid))
}

// silent fails the test if what is said to users has a secret of a dotenv file.
func (a hostApp) silent(t *testing.T, words ...string) {
	t.Helper()
	if out, errOut, _ := a.d.mulligan(words...); strings.Contains(out+errOut, "hunter2") || strings.Contains(out+errOut, "sqlite:///") {
		t.Errorf("mulligan %q says a value of .env: %s%s", words, out, errOut)
	}
}

func forksOnHost(t *testing.T, a hostApp, asked bool) {
	d := a.d
	settings := []string{"app", "set", "--app", "shop", "fork.ports=PORT,API_PORT", "fork.dotenv=.env,config/none.env", "database.env=shop:DATABASE_URL"}
	if asked {
		settings = append(settings, "fork.isolation=ports")
	}
	d.must(settings...)
	a.put(t, a.testApp, "broken")
	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "2").Forks
	ports := map[string]bool{a.addr: true}
	var forks []*testApp
	for i, f := range made {
		if f.Fork.Isolation != ipc.IsolationPorts || slices.ContainsFunc(f.Fork.Notes, func(n string) bool { return strings.Contains(n, "no namespaces") }) == asked {
			t.Errorf("the fork's isolation is %s, %q", f.Fork.Isolation, f.Fork.Notes)
		}
		if !slices.ContainsFunc(f.Fork.Notes, func(n string) bool { return strings.HasPrefix(n, ".env: port ") }) {
			t.Errorf("nobody is told of BASE in .env: %q", f.Fork.Notes)
		}
		if len(f.Fork.Ports) != 2 || f.Fork.Ports[0].Variable != "PORT" || "127.0.0.1:"+fmt.Sprint(f.Fork.Ports[0].Port) != a.addr {
			t.Fatalf("the fork's ports are %+v", f.Fork.Ports)
		}
		for _, p := range f.Fork.Ports {
			if ports[p.Address] {
				t.Errorf("%s is given twice", p.Address)
			}
			ports[p.Address] = true
		}
		fork := &testApp{d: d, ws: f.Workspace, addr: f.Fork.Ports[0].Address}
		forks = append(forks, fork)
		eventually(t, "the fork answers", func() bool { return visit(t.Context(), fork.addr) == "broken\n" })
		a.put(t, fork, fmt.Sprintf("try %d", i+1))
	}
	envs := func(of *testApp, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(of.ws, ".env")); err != nil || string(got) != want {
			t.Errorf("in %s, .env is %q, %v, want %q", of.ws, got, err, want)
		}
	}
	own := func(fork *testApp) string { return a.lines(fork.addr, fork.ws, "") }
	alive := func() {
		t.Helper()
		for i, fork := range forks {
			want := fmt.Sprintf("try %d", i+1)
			eventually(t, "the fork has its own page", func() bool { return visit(t.Context(), fork.addr) == want+"\n" })
			if got := fork.word(t); got != want {
				t.Errorf("the fork has %q, want %q", got, want)
			}
			envs(fork, own(fork))
		}
		if page, word := visit(t.Context(), a.addr), a.word(t); page != "broken\n" || word != "broken" {
			t.Errorf("the app says %q and has %q", page, word)
		}
		envs(a.testApp, a.env)
	}
	alive()

	d.must("fork", "--app", "shop", "--name", "still", "--no-start")
	if c := ask[ipc.Comparison](d, "compare", "still", "--app", "shop", "--run", "true").Forks[0]; c.Created+c.Modified+c.Deleted > 0 || c.State != "stopped" {
		t.Errorf("a new fork is changed: %+v", c)
	}
	const left = "cp /bin/sleep sleep-on; echo $PORT $DATABASE_URL; pwd; id -u; setsid ./sleep-on 1000 >/dev/null 2>&1 & sleep 0.1; exit 7"
	still := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks[2]
	if len(still.Fork.Ports) != 2 {
		t.Errorf("after a command, the fork has the ports %+v", still.Fork.Ports)
	}
	for _, f := range append(made, still) {
		_, port, _ := net.SplitHostPort(f.Fork.Ports[0].Address)
		want := fmt.Sprintf("%s sqlite:///%s/shop.db\n%[2]s\n%d\n", port, f.Workspace, a.uid)
		if out, errOut, code := d.inside(d.cred, "", f.Fork.Name, "--", "sh", "-c", left); out != want || code != 7 {
			t.Errorf("inside of fork %s a command says %q%s and ends with %d, want %q", f.Fork.Name, out, errOut, code, want)
		}
		eventually(t, "what the command left behind has ended", func() bool { return len(running(t, "sleep-on")) == 0 })
		if err := os.Remove(filepath.Join(f.Workspace, "sleep-on")); err != nil {
			t.Fatal(err)
		}
	}
	d.must("drop", "still", "--app", "shop")

	d.kill()
	cred := d.cred
	if !slices.Equal(d.args, []string{"--user"}) && d.args != nil {
		d.cred = nil
	}
	d.start()
	d.cred = cred
	alive()
	for _, words := range [][]string{
		{"forks", "--app", "shop", "--json"}, {"app", "show", "--app", "shop-1", "--json"}, {"audit", "--app", "shop", "--json"}, {"compare", "--app", "shop"},
		{"keep", "2", "--app", "shop", "--dry-run"},
	} {
		a.silent(t, words...)
	}
	if out := d.must("keep", "2", "--app", "shop", "--dry-run", "--json"); !strings.Contains(out, "the line of PORT becomes the app's own again") {
		t.Errorf("a dry run says %s", out)
	}
	alive()

	more := "NEW=1\n"
	forks[1].write(t, ".env", own(forks[1])+more)
	d.must("keep", "2", "--app", "shop")
	a.up(t)
	if page, word := visit(t.Context(), a.addr), a.word(t); page != "try 2\n" || word != "try 2" {
		t.Errorf("after keep the app says %q and has %q", page, word)
	}
	envs(a.testApp, a.env+more)
	d.must("redo", "--app", "shop")
	a.up(t)
	forks = forks[:1]
	alive()
	d.must("keep", "1", "--app", "shop", "--and-stay")
	a.up(t)
	envs(a.testApp, a.env)
	envs(forks[0], own(forks[0]))
	if word := a.word(t); word != "try 1" {
		t.Errorf("after keep the app has %q", word)
	}
	eventually(t, "the fork goes on", func() bool { return visit(t.Context(), forks[0].addr) == "try 1\n" })
	d.must("drop", "--all", "--app", "shop")
	for _, f := range made {
		for _, path := range []string{f.Workspace, filepath.Dir(f.Workspace), filepath.Join(d.dir, "state", "apps", string(f.ID))} {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
		if visit(t.Context(), f.Fork.Ports[0].Address) != "" {
			t.Errorf("somebody answers for %s", f.Slug)
		}
		if left := running(t, f.Workspace); len(left) > 0 {
			t.Errorf("processes are left: %q", left)
		}
	}
}

// running lists the processes with a text in their command or the path of their folder.
func running(t *testing.T, text string) (list []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		at, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if all := string(command) + " in " + at; dir != fmt.Sprintf("/proc/%d", os.Getpid()) && strings.Contains(all, text) {
			list = append(list, all)
		}
	}
	return list
}

// testForksOnHostCollide has apps that a fork without namespaces would collide with: it is refused before anything is made where that is
// certain, and told otherwise.
func testForksOnHostCollide(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := newDaemon(t)
	d.args = []string{}
	d.start()
	a := newHostApp(t, d, 0)
	_, port, _ := net.SplitHostPort(a.addr)
	friendly := []string{"fork.isolation=ports", "fork.ports=PORT", "fork.dotenv=.env", `run=["sh","-c","exec ./app serve-app 127.0.0.1:${PORT:-` + port + `} page.html"]`,
		"health.url=http://" + a.addr + "/", "fork.expose="}
	for _, c := range []struct {
		set  []string
		says string
	}{
		{[]string{`run=["./app","serve-app","` + a.addr + `","page.html"]`}, "run names port " + port},
		{[]string{`run=["` + a.ws + `/app","serve-app","127.0.0.1:1","page.html"]`}, "run names the app's folder"},
		{[]string{"fork.ports="}, "the app listens at port " + port},
		{[]string{"fork.expose=4711"}, "the app listens at port 4711"},
		{[]string{`health.command=["sh","-c","nc -z 127.0.0.1 ` + port + `"]`}, "the health check names port " + port},
		{[]string{"fork.dotenv=link.env"}, "link.env cannot be used"},
	} {
		shell(t, a.ws, "ln -sf .env link.env")
		d.must(append(append([]string{"app", "set", "--app", "shop"}, friendly...), c.set...)...)
		_, errOut, code := d.mulligan("fork", "--app", "shop")
		if code == 0 || !strings.Contains(errOut, c.says) || strings.Contains(errOut, "hunter2") {
			t.Errorf("with %q a fork: %d, %s; want %q", c.set, code, errOut, c.says)
		}
	}
	if list := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(list) != 0 {
		t.Errorf("refused forks left %+v", list)
	}
	if cps := ask[ipc.CheckpointList](d, "list", "--app", "shop").Checkpoints; len(cps) != 0 {
		t.Errorf("refused forks made checkpoints: %+v", cps)
	}

	shell(t, a.ws, `
		mkdir -p venv/bin src/node_modules
		printf '#!%s/venv/bin/python\n' "$PWD" >venv/bin/pip
		ln -s "$PWD/data" linked
		echo "listen /tmp/shop.sock" >src/server.conf
		echo "app.listen($1)" >src/server.js
		echo "app.listen($1)" >src/node_modules/skipped.js
		echo "$PWD-old ${1}1" >src/other
		echo "gitdir: /elsewhere/.git/worktrees/ws" >.git`, port)
	d.must(append([]string{"app", "set", "--app", "shop"}, friendly...)...)
	out := d.must("fork", "--app", "shop", "--json")
	var list ipc.ForkList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	told := strings.Join(list.Forks[0].Fork.Notes, "\n")
	for _, want := range []string{
		"git worktree", ".env, linked, venv/bin/pip: the app's folder " + a.ws, "src/other, src/server.conf: a path in a folder for temporary files", ".env, src/server.js: port " + port,
	} {
		if !strings.Contains(told, want) {
			t.Errorf("it is not told that %s: %s", want, told)
		}
	}
	if strings.Contains(told, "skipped") || strings.Contains(out, "hunter2") {
		t.Errorf("it is told that %s", told)
	}
	d.must("drop", "--all", "--app", "shop")

	testkit.Need(t, "redis")
	dsn, _ := startRedis(t, filepath.Dir(a.ws), false)
	d.must("app", "set", "--app", "shop", "database=cache="+dsn)
	if _, errOut, code := d.mulligan("fork", "--app", "shop"); code == 0 || !strings.Contains(errOut, "the database cache is on a server") {
		t.Errorf("a fork of an app with a server: %d, %s", code, errOut)
	}

	blind := newDaemon(t)
	blind.args, blind.wrap = []string{}, withoutAdmin
	blind.start()
	b := newHostApp(t, blind, 0)
	blind.must("app", "set", "--app", "shop", "fork.isolation=namespace", "fork.ports=PORT", "fork.dotenv=.env")
	if _, errOut, code := b.d.mulligan("fork", "--app", "shop"); code == 0 || !strings.Contains(errOut, "no namespaces") {
		t.Errorf("a fork that needs namespaces where there are none: %d, %s", code, errOut)
	}
}
