package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
	"mulligan/testkit"
)

// testForks makes forks of a running app with files and a database. Each serves its own data at the app's own path and port while the
// parent serves on; one is kept, and undo leads back; the others are dropped, and nothing of them is left.
func testForks(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	a.set(t, "broken")
	d.must("create", "--app", "shop", "--notes", "broken")

	for _, refused := range [][]string{
		{"--name", "Not a Name"}, {"--count", "17"}, {"--count", "2", "--name", "x"},
		{"--dir", filepath.Join(a.ws, "inside")}, {"--dir", filepath.Join(d.dir, "state", "x")}, {"--dir", filepath.Dir(a.ws)},
	} {
		if _, errOut, code := d.mulligan(append([]string{"fork", "--app", "shop"}, refused...)...); code == 0 || errOut == "" {
			t.Errorf("fork %q is not refused: %d, %s", refused, code, errOut)
		}
	}
	if list := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(list) != 0 {
		t.Errorf("refused forks left %+v", list)
	}
	if cps := ask[ipc.CheckpointList](d, "list", "--app", "shop").Checkpoints; len(cps) != 1 {
		t.Errorf("refused forks made checkpoints: %+v", cps)
	}
	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "3").Forks
	if len(made) != 3 {
		t.Fatalf("made are %+v", made)
	}
	ports, low := map[string]bool{}, 0
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if _, e := fmt.Sscan(string(text), &low); errors.Join(err, e) != nil || low <= 20_000 {
		low = 1 << 16 // a host where nearly all ports are for connections
	}
	for i, f := range made {
		fork := a.fork(f)
		// No connection of anybody's may take the port while the fork is stopped.
		_, port, err := net.SplitHostPort(fork.addr)
		if n, e := strconv.Atoi(port); errors.Join(err, e) != nil || ports[port] || n >= low {
			t.Errorf("fork %d has the address %s", i+1, fork.addr)
		}
		ports[port] = true
		eventually(t, "the fork answers", func() bool { return visit(t.Context(), fork.addr) == "broken\n" })
		if cps := ask[ipc.CheckpointList](d, "list", "--app", f.Slug).Checkpoints; len(cps) != 1 {
			t.Errorf("a new fork has the checkpoints %+v", cps)
		}
		fork.set(t, fmt.Sprintf("try %d", i+1))
		eventually(t, "the fork has its own page", func() bool { return visit(t.Context(), fork.addr) == fmt.Sprintf("try %d\n", i+1) })
	}
	if page := visit(t.Context(), a.addr); page != "broken\n" {
		t.Errorf("the parent says %q", page)
	}
	if word := a.word(t); word != "broken" {
		t.Errorf("the parent's database has %q", word)
	}
	a.set(t, "the parent goes on")
	for i, f := range made {
		if page := visit(t.Context(), f.Fork.Ports[0].Address); page != fmt.Sprintf("try %d\n", i+1) {
			t.Errorf("fork %d says %q", i+1, page)
		}
	}

	checkpoints := func(app string) int { return len(ask[ipc.CheckpointList](d, "list", "--app", app).Checkpoints) }
	before := checkpoints("shop") + checkpoints(made[1].Slug)
	if out := d.must("keep", "2", "--app", "shop", "--dry-run"); !strings.Contains(out, "page.html") {
		t.Errorf("a dry run says %q", out)
	}
	if after := checkpoints("shop") + checkpoints(made[1].Slug); after != before {
		t.Errorf("a dry run made %d checkpoints", after-before)
	}
	d.must("keep", "2", "--app", "shop")
	a.up(t)
	if page, word := visit(t.Context(), a.addr), a.word(t); page != "try 2\n" || word != "try 2" {
		t.Errorf("after keep the parent says %q and has %q", page, word)
	}
	d.must("redo", "--app", "shop")
	if page, word := visit(t.Context(), a.addr), a.word(t); page != "the parent goes on\n" || word != "the parent goes on" {
		t.Errorf("after redo the parent says %q and has %q", page, word)
	}
	if left := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(left) != 2 {
		t.Errorf("left are %+v", left)
	}
	d.must("fork", "--app", made[0].Slug, "--no-start")
	if _, said, code := d.mulligan("drop", "--all", "--app", "shop"); code != 4 || !strings.Contains(said, "shop-1 has forks itself") {
		t.Errorf("a drop of all forks, of which one has a fork: %d, %s", code, said)
	}
	if left := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(left) != 1 || left[0].Slug != "shop-1" {
		t.Errorf("of the forks, %d are left", len(left))
	}
	d.must("drop", "--all", "--app", made[0].Slug)
	d.must("drop", "--all", "--app", "shop")
	for _, f := range made {
		if _, err := os.Stat(f.Workspace); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", f.Workspace, err)
		}
		if _, err := os.Stat(filepath.Join(d.dir, "state", "apps", string(f.ID))); !os.IsNotExist(err) {
			t.Errorf("state of %s is left: %v", f.Slug, err)
		}
		if visit(t.Context(), f.Fork.Ports[0].Address) != "" {
			t.Errorf("somebody answers for %s", f.Slug)
		}
	}
	if apps := ask[ipc.AppList](d, "app", "list").Apps; len(apps) != 1 {
		t.Errorf("there are the apps %+v", apps)
	}
}

// testForksByMCP has an MCP client fork a broken app twice, repair one fork, keep it and drop the other.
func testForksByMCP(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	a.set(t, "broken")
	cmd := exec.Command(filepath.Join(bin, "mulligan"), "mcp")
	cmd.Dir, cmd.Env = a.ws, append(os.Environ(), "MULLIGAN_SOCKET="+d.socket)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	call := func(tool string, args map[string]any, fails bool) (out struct {
		Forks []struct {
			Name, Folder string
			Ports        []ipc.ForkPort
		}
		RolledBack bool `json:"rolled_back"`
		Dropped    bool
		Next       string
	}) {
		t.Helper()
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil || res.IsError != fails {
			t.Fatalf("%s: %v, %+v", tool, err, res)
		}
		text := res.Content[0].(*mcp.TextContent).Text
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%s: %v: %s", tool, err, text)
		}
		if out.Next == "" {
			t.Errorf("%s names no next call: %s", tool, text)
		}
		return out
	}
	made := call("fork_app", map[string]any{"count": 2}, false).Forks
	if len(made) != 2 || len(made[0].Ports) != 1 {
		t.Fatalf("made are %+v", made)
	}
	repaired := &testApp{d: d, ws: made[1].Folder, addr: made[1].Ports[0].Address}
	repaired.set(t, "repaired")
	eventually(t, "the fork answers", func() bool { return visit(t.Context(), repaired.addr) == "repaired\n" })
	if page := visit(t.Context(), a.addr); page != "broken\n" {
		t.Errorf("the app says %q", page)
	}
	if list := call("list_forks", nil, false).Forks; len(list) != 2 {
		t.Errorf("listed are %+v", list)
	}
	compared := call("compare_forks", map[string]any{"command": "cat page.html; grep -q repaired page.html"}, false)
	if len(compared.Forks) != 2 || !strings.Contains(compared.Next, `keep_fork(`) || !strings.Contains(compared.Next, "name='"+made[1].Name+"'") {
		t.Errorf("compare_forks answers %+v", compared)
	}
	call("compare_forks", map[string]any{"names": []string{"none"}}, true)
	call("keep_fork", map[string]any{"name": "none"}, true)
	call("fork_app", map[string]any{"checkpoint_id": "cp-000000000000"}, true)
	call("keep_fork", map[string]any{"name": made[1].Name, "dry_run": true}, false)
	if page := visit(t.Context(), a.addr); page != "broken\n" {
		t.Errorf("after a dry run the app says %q", page)
	}
	if out := call("keep_fork", map[string]any{"name": made[1].Name}, false); !out.RolledBack || !strings.Contains(out.Next, "rollback_app(") {
		t.Errorf("keep_fork answers %+v", out)
	}
	a.up(t)
	if page, word := visit(t.Context(), a.addr), a.word(t); page != "repaired\n" || word != "repaired" {
		t.Errorf("the app says %q and has %q", page, word)
	}
	if out := call("drop_fork", map[string]any{"name": made[0].Name}, false); !out.Dropped {
		t.Errorf("drop_fork answers %+v", out)
	}
	if list := call("list_forks", nil, false).Forks; len(list) != 0 {
		t.Errorf("left are %+v", list)
	}
}

// forkable is a testApp whose program is in its workspace, at a place that is no temporary folder.
type forkable struct {
	*testApp
}

func newForkable(t testing.TB, d *daemonProcess) forkable {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := &testApp{d: d, ws: filepath.Join(dir, "ws"), addr: freeAddr(t)}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyApp(filepath.Join(a.ws, "app")); err != nil {
		t.Fatal(err)
	}
	a.set(t, "zero")
	d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--db", "sqlite:"+filepath.Join(a.ws, "shop.db"),
		"--run", "./app serve-app "+a.addr+" "+filepath.Join(a.ws, "page.html"), "--health", "http://"+a.addr+"/")
	a.up(t)
	return forkable{a}
}

// fork is a fork of the app, as a testApp: its folder and address on the host.
func (a forkable) fork(f ipc.App) *testApp {
	return &testApp{d: a.d, ws: f.Workspace, addr: f.Fork.Ports[0].Address}
}
