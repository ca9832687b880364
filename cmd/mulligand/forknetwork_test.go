package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mulligan/ipc"
	"mulligan/systemd"
	"mulligan/testkit"
	"mulligan/testkit/internet"
)

// The servers that a fork may or may not reach: outside, and on the host at each of its addresses, its bridge and a guest's.
const (
	outsideServer = internet.OutsideServer + ":80"
	loopbackHost  = "127.0.0.1:81"
)

var hostServers = []string{loopbackHost, internet.HostAddress + ":81", internet.BridgeAddress + ":81", internet.GuestAddress + ":81"}

// newInternet makes a host on a small internet, and a resolv.conf for it that names a resolver on its loopback alone.
func newInternet(t *testing.T) (n *internet.Net, conf string) {
	t.Helper()
	testkit.Need(t, "root", "pasta")
	n = internet.New(t)
	n.Serve(internet.Outside, outsideServer, "outside")
	n.Serve(internet.Host, ":81", "the host")
	n.Serve(internet.Guest, ":81", "the guest")
	n.ServeNames(internet.Host, "127.0.0.53:53")
	conf = filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.53\noptions timeout:2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return n, conf
}

// checkReach tells what a fork that is to have a way out, or not, reaches from the inside. visit gives what is at an address, or "".
func checkReach(t *testing.T, fork string, out bool, visit func(address string) string) {
	t.Helper()
	want := ""
	if out {
		want = "outside"
	}
	if got := visit(outsideServer); got != want {
		t.Errorf("fork %s finds %q outside, want %q", fork, got, want)
	}
	// A name of the host's is asked of a resolver that listens on the host's loopback.
	if got := visit("shop.example:80"); got != want {
		t.Errorf("fork %s finds %q by a name, want %q", fork, got, want)
	}
	for _, address := range hostServers {
		if got := visit(address); got != "" {
			t.Errorf("fork %s reaches %q at %s", fork, got, address)
		}
	}
}

// reaches is what a command in a fork finds at an address; "" if nobody answers.
func (a *testApp) reaches(cred *syscall.Credential, fork, address string) string {
	a.d.t.Helper()
	out, _, _ := a.d.inside(cred, "", fork, "--", filepath.Join(a.ws, "app"), "visit", address)
	return out
}

func (a *testApp) checkReach(t *testing.T, cred *syscall.Credential, fork string, out bool) {
	t.Helper()
	checkReach(t, fork, out, func(address string) string { return a.reaches(cred, fork, address) })
}

// networked is an app whose forks have a way out, on a host of a small internet. The app looks outside when it is started.
type networked struct {
	name          string
	daemon, owner int // uids
}

// testForkNetwork lets forks reach the outside from their commands and by exec, whether they run or not, and nothing of the host: for the apps
// of root's daemon, for root and for a user, and for a user's own daemon; the next run takes the next of these. Their way out survives
// the daemon and a crash of the app, and ends with the fork. A fork without a network reaches nothing.
func testForkNetwork(t *testing.T) {
	t.Parallel()
	all := []networked{{"root", 0, 0}, {"user", 0, ordinary}, {"user daemon", ordinary, ordinary}}
	for _, i := range testkit.Sample(t, "owners of forks with a network", len(all), 1) {
		t.Run(all[i].name, all[i].test)
	}
}

func (c networked) test(t *testing.T) {
	n, conf := newInternet(t)
	d := newDaemon(t)
	id := strconv.Itoa(c.daemon)
	d.wrap = []string{"unshare", "--mount", "sh", "-euc", `mount --bind "$0" "$(realpath /etc/resolv.conf)"; exec "$@"`, conf,
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups"}
	if c.daemon == 0 {
		d.args = []string{} // root's
	}
	if err := os.Chown(d.dir, c.daemon, c.daemon); err != nil {
		t.Fatal(err)
	}
	n.At(internet.Host, d.start)
	base, err := os.MkdirTemp("/var/tmp", "forks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	cred := &syscall.Credential{Uid: uint32(c.owner), Gid: uint32(c.owner)}
	d.cred = cred
	a := &testApp{d: d, ws: filepath.Join(base, "ws"), addr: freeAddr(t)}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyApp(filepath.Join(a.ws, "app")); err != nil {
		t.Fatal(err)
	}
	shell(t, a.ws, `chmod 755 .. ; printf '%s' './app visit "$1" >found; exec ./app serve-app "$2" found' >run.sh; chown -R "$1:$1" ..`, fmt.Sprint(c.owner))
	d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--run", "sh run.sh "+outsideServer+" "+a.addr)
	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--name", "runs").Forks
	made = append(made, ask[ipc.ForkList](d, "fork", "--app", "shop", "--name", "stopped", "--no-start").Forks...)
	made = append(made, ask[ipc.ForkList](d, "fork", "--app", "shop", "--name", "alone", "--no-network").Forks...)
	for _, f := range made {
		if len(f.Fork.Notes) > 0 {
			t.Errorf("fork %s has the notes %q", f.Fork.Name, f.Fork.Notes)
		}
		a.checkReach(t, cred, f.Fork.Name, f.Fork.Name != "alone")
	}
	found := func() string { return a.reaches(cred, "runs", a.addr) }
	eventually(t, "the fork's command has found what is outside", func() bool { return found() == "outside" })
	n.At(internet.Outside, func() { // nobody comes in where the fork goes out
		if conn, err := net.Dial("tcp", internet.HostAddress+a.addr[len("127.0.0.1"):]); err == nil {
			conn.Close()
			t.Error("the fork's port is open to the outside")
		}
	})
	d.kill()
	d.cred = nil // it is the client's from now on
	n.At(internet.Host, d.start)
	d.cred = cred
	a.checkReach(t, cred, "runs", true)
	for pid := range d.inForks("mulligand-fork") { // each init, in whose namespaces all is
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the fork's command runs again", func() bool { return found() == "outside" })
	a.checkReach(t, cred, "alone", false)
	d.must("app", "set", "--app", "shop-runs", "fork.network=false")
	d.must("rollback", "1", "--app", "shop-runs", "--start")
	a.checkReach(t, cred, "runs", false)
	d.must("drop", "--all", "--app", "shop")
	eventually(t, "nothing is left", func() bool { return len(n.Processes(internet.Host, "pasta")) == 0 && len(d.inForks("")) == 0 })
}

// testServiceForkNetwork has the installed daemon, with all its restrictions, give a way out to the fork of a command and to that of a unit: to
// those that run, and to commands in one that is stopped. It ends with them.
func testServiceForkNetwork(t *testing.T) {
	t.Parallel()
	n, conf := newInternet(t)
	var h *installed
	n.At(internet.Host, func() { h = install(t) })
	h.do("mount", "--bind", conf, "/etc/resolv.conf")
	h.do("sh", "-euc", "mkdir -p /dev/net; mknod -m 666 /dev/net/tun c 10 200") // the booted host's /dev is its own
	h.status()
	for _, kind := range []string{"run", "unit"} {
		around, err := os.MkdirTemp("/var/tmp", "mulligan-ws")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(around) })
		slug, ws, addr := "shop-"+kind, filepath.Join(around, "shop"), freeAddr(t)
		if err := errors.Join(os.Mkdir(ws, 0o755), copyApp(filepath.Join(ws, "app"))); err != nil {
			t.Fatal(err)
		}
		run := fmt.Sprintf("%s/app serve-app %s %[1]s/found", ws, addr)
		look := fmt.Sprintf("/bin/sh -c '%s/app visit %s >%[1]s/found'", ws, outsideServer)
		if kind == "unit" {
			h.WriteUnit(t, slug+".service", "[Service]\nType=exec\nExecStartPre="+look+"\nExecStart="+run+"\n")
			run = slug + ".service"
		} else {
			run = "sh -c '" + strings.TrimSuffix(strings.TrimPrefix(look, "/bin/sh -c '"), "'") + "; exec " + run + "'"
		}
		h.mulligan("app", "add", "--slug", slug, "--dir", ws, "--"+kind, run, "--health", "http://"+addr+"/")
		visit := func(fork string) func(string) string {
			return func(address string) string {
				out, _ := h.Exec("/run/mulligan-test/mulligan", "exec", "--app", slug, fork, "--", filepath.Join(ws, "app"), "visit", address) // nobody: ""
				return string(out)
			}
		}
		h.mulligan("fork", "--app", slug, "--name", "runs")
		h.mulligan("fork", "--app", slug, "--name", "alone", "--no-network")
		h.mulligan("fork", "--app", slug, "--name", "stopped", "--no-start")
		checkReach(t, kind+" runs", true, visit("runs"))
		checkReach(t, kind+" alone", false, visit("alone"))
		checkReach(t, kind+" stopped", true, visit("stopped"))
		if t.Failed() {
			return // what follows would wait in vain
		}
		h.until("the fork has found what is outside", func() bool { return visit("runs")(addr) == "outside" })
		before := h.status()
		h.do("systemctl", "kill", "-s", "KILL", "--kill-who", "main", "mulligand.service")
		h.again(before)
		checkReach(t, kind+" runs on", true, visit("runs"))
		h.mulligan("drop", "--all", "--app", slug)
		h.until("nothing is left", func() bool { return len(n.Processes(internet.Host, "pasta")) == 0 })
		if out, err := h.Exec("systemctl", "list-units", "--all", "--plain", "--no-legend", systemd.CopyPrefix+"*"); err != nil || strings.TrimSpace(string(out)) != "" {
			t.Errorf("units are left: %s, %v", out, err)
		}
	}
}
