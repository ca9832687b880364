package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testContainersOfUsers names containers as a user: who may not use the engine gets nothing through the daemon, also when the right is
// lost later.
func testContainersOfUsers(t *testing.T) {
	t.Parallel()
	h := enginetest.Boot(t, enginetest.Docker)
	h.Run(t, "docker", "run", "-d", "--name", "web", "-v", "/usr:/usr:ro", "-v", "rows:/data", enginetest.Image,
		"/bin/sh", "-c", "trap 'exit 0' TERM; echo 1 >/data/one; sleep 1000000 & wait")
	around := workspace(t)
	must(os.Chmod(around, 0o755))
	ws := filepath.Join(around, "shop")
	must(os.Mkdir(ws, 0o755))
	const uid = 65534
	must(os.Chown(ws, uid, uid))
	d := openForks(t, daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), StopTimeout: 10 * time.Second, Steady: steady})
	who := ipc.Caller{UID: uid, GID: uid, PID: 2}
	spec := ipc.App{Slug: "shop", Workspace: ws, Unit: "container:web", Engine: h.Socket, Volumes: []ipc.Volume{{Name: "rows"}}}
	_, err := d.AddApp(t.Context(), who, spec)
	if errs.KindOf(err) != errs.Denied {
		t.Fatalf("without the right to connect: %v", err)
	}

	// Root may name containers for a user. What the user's compose file says is then nobody's to do.
	h.Run(t, "docker", "run", "-d", "--name", "shared_web_1", "--label", "com.docker.compose.project=shared", "--label", "com.docker.compose.service=web",
		"--label", "com.docker.compose.project.config_files="+ws+"/compose.yml", "-v", "/usr:/usr:ro", enginetest.Image, "/bin/sh", "-c", "sleep 1000000")
	named := ipc.App{Slug: "named", Owner: "nobody", Workspace: ws, Unit: "compose:shared", Engine: h.Socket}
	if _, err = d.AddApp(t.Context(), root, named); err != nil {
		t.Fatal(err)
	}
	for _, who := range []ipc.Caller{root, who} {
		_, err = d.Fork(t.Context(), who, "named", ipc.ForkRequest{})
		if errs.KindOf(err) != errs.Denied || !strings.Contains(fmt.Sprint(err), "root has named the containers of named, and its owner may not use "+h.Socket) {
			t.Errorf("a fork of what root has named, by %d: %v", who.UID, err)
		}
	}
	must(d.RemoveApp(t.Context(), root, "named", true))

	must(os.Chmod(h.Socket, 0o666))
	if _, err = d.AddApp(t.Context(), who, spec); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), who, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceStop})
	must(err)
	if _, err := d.Rollback(t.Context(), who, "shop", cp.ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	other := spec
	other.Slug, other.Workspace = "other", filepath.Join(around, "other")
	must(os.Mkdir(other.Workspace, 0o755))
	if _, err = d.AddApp(t.Context(), root, other); errs.KindOf(err) != errs.Conflict || !strings.Contains(fmt.Sprint(err), "volume rows belongs to another app, shop") {
		t.Errorf("a volume of two apps: %v", err)
	}

	must(os.Chmod(h.Socket, 0o660))
	h.KillEngine(t) // ends the connections that are open
	h.StartEngine(t)
	_, err = d.Rollback(t.Context(), who, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if errs.KindOf(err) != errs.Denied {
		t.Errorf("after the right was lost: %v", err)
	}
}

// liar is an engine that says that its volume is a folder of root's.
const liar = `
import json, os, socketserver, sys
from http.server import BaseHTTPRequestHandler
one = {"Id": "1", "Name": "/web", "Names": ["/web"], "State": {"Status": "running", "Running": True}, "Config": {"Labels": {}, "Image": "x"}, "HostConfig": {}}
answers = {"/_ping": {}, "/version": {"Version": "1", "ApiVersion": "1.41", "Components": []}, "/containers/web/json": one,
	"/volumes/rows": {"Name": "rows", "Driver": "local", "Options": {}, "Mountpoint": sys.argv[2]}}
class H(BaseHTTPRequestHandler):
	def do_GET(self):
		path = self.path.split("?")[0]
		if path.startswith("/v1."): path = "/" + path.split("/", 2)[2]
		text = json.dumps(answers.get(path, [])).encode()
		self.send_response(200)
		self.send_header("Api-Version", "1.41")
		self.send_header("Content-Type", "application/json")
		self.send_header("Content-Length", str(len(text)))
		self.end_headers()
		self.wfile.write(text)
	do_HEAD = do_GET
	def log_message(self, *args): pass
	def address_string(self): return "x"
class S(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): pass
os.umask(0o111)
S(sys.argv[1], H).serve_forever()
`

// TestEngineThatLies has a user's own engine that says that a folder of root's is its volume.
func TestEngineThatLies(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root", "python3")
	around := workspace(t)
	must(os.Chmod(around, 0o755))
	ws, victim := filepath.Join(around, "shop"), filepath.Join(t.TempDir(), "rows", "_data")
	must(os.MkdirAll(victim, 0o700))
	must(os.Mkdir(ws, 0o755))
	const uid = 65534
	must(os.Chown(ws, uid, uid))
	socket := filepath.Join(ws, "e.sock")
	cmd := exec.Command("/usr/bin/python3", "-c", liar, socket, victim)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = os.Stderr
	must(testkit.Start(cmd))
	t.Cleanup(func() {
		_ = unix.Kill(cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait() // it was killed
	})
	waitFor(t, "the engine listens", func() bool { _, err := os.Lstat(socket); return err == nil })
	d := openForks(t, daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), StopTimeout: 10 * time.Second, Steady: steady})
	who := ipc.Caller{UID: uid, GID: uid, PID: 2}
	spec := ipc.App{Slug: "shop", Workspace: ws, Unit: "container:web", Engine: socket, Volumes: []ipc.Volume{{Name: "rows"}}, Exclude: []string{"e.sock"}}
	_, err := d.AddApp(t.Context(), who, spec)
	if errs.KindOf(err) != errs.Unsupported || !strings.Contains(fmt.Sprint(err), "does not run as root") {
		t.Errorf("with a volume of a user's own engine: %v", err)
	}
	spec.Volumes = nil
	if _, err := d.AddApp(t.Context(), who, spec); err != nil {
		t.Errorf("without volumes: %v", err)
	}
	yes := []ipc.Volume{{Name: "rows", FullName: "rows", Dir: victim}}
	if _, err := d.SetApp(t.Context(), who, "shop", ipc.AppChange{Volumes: &yes}); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("with a folder that the request names: %v", err)
	}
}
