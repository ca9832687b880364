// Package enginetest runs real container engines for tests: Docker, or Podman with the API of Docker, in pid, mount, network, ipc
// and cgroup namespaces of their own. It needs root, the engine's Debian packages and a cgroup v2 hierarchy; no systemd, and no
// registry of images: containers run the programs of the host that runs the tests, over an image that is empty but for its folders.
//
// Files are the host's, so the engine's socket and the folders of volumes can be reached by their paths. Ports are not: what
// connects to a container's port must run inside, by [Host.Command].
//
// With MULLIGAN_TEST_NETWORK=own, the engine is in the network namespace of the test's process, which must be a new one, as "unshare --net"
// makes it. The test then reaches the containers by their addresses, as a daemon does on the host of root's engine. There is one
// engine in each such namespace.
//
// An instance ends with its test. When the test's process is killed the kernel ends the instance, and the next Boot removes what
// is left of it.
package enginetest

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"mulligan/testkit"
	"mulligan/testkit/box"
)

// Kind is a kind of engine.
type Kind string

// The kinds.
const (
	Docker Kind = "docker"
	Podman Kind = "podman"
)

// Kinds lists all of them.
var Kinds = []Kind{Docker, Podman}

// Image is the name of the one image that an instance has. In a container of it everything is missing but folders; binding the
// host's /usr brings programs.
const Image = "mulligan/host:1"

//go:embed setup.sh
var setup string

// Host is a running instance.
type Host struct {
	Kind   Kind
	Socket string // of the engine's API
	Dir    string // a folder for the test's files, seen inside and outside

	box    *box.Box
	engine *exec.Cmd  // enters the instance and waits there for the engine; nil: the engine does not run
	over   chan error // engine was waited for
}

// bootTimeout bounds the start of an engine, which takes a second on an idle machine.
const bootTimeout = testkit.Patience

// Boot starts an engine of a kind. The instance is removed with the test.
func Boot(t testing.TB, kind Kind) *Host {
	t.Helper()
	h := BootShared(t, kind)
	t.Cleanup(func() {
		if err := h.End(); err != nil {
			t.Errorf("end %s: %v", kind, err)
		}
	})
	return h
}

// BootShared is Boot for an instance that stays after the test, for others, until End.
func BootShared(t testing.TB, kind Kind) *Host {
	t.Helper()
	testkit.Need(t, "root", string(kind))
	if _, reason := box.Hierarchy(); reason != "" {
		testkit.Lack(t, "no container engine for this test: ", reason)
	}
	box.Sweep(prefix)
	h, err := create(kind)
	if err != nil {
		t.Fatalf("boot %s: %v", kind, err)
	}
	if err = h.spawn(); err == nil {
		err = h.startEngine()
	}
	if err == nil {
		err = h.makeImage()
	}
	if err != nil {
		t.Fatalf("boot %s: %v", kind, errors.Join(err, h.logged(), h.End()))
	}
	return h
}

// End ends the instance and removes what it had.
func (h *Host) End() error { return h.box.Down() }

// Clear removes all containers and volumes.
func (h *Host) Clear(t testing.TB) {
	t.Helper()
	h.Run(t, "sh", "-euc", `all=$($1 ps -aq); [ -z "$all" ] || $1 rm -f -v $all; all=$($1 volume ls -q); [ -z "$all" ] || $1 volume rm $all`, "clear", string(h.Kind))
}

// Command is a command to be run inside, with the variables that lead tools to the engine.
func (h *Host) Command(ctx context.Context, cmd ...string) *exec.Cmd {
	c := h.box.Command(ctx, []string{"--pid", "--mount", "--net", "--ipc", "--cgroup"}, cmd...)
	c.Env = append(os.Environ(), "DOCKER_HOST=unix://"+h.Socket, "no_proxy=*")
	for _, v := range podmanFiles {
		c.Env = append(c.Env, v.variable+"="+filepath.Join(h.box.Dir, v.name))
	}
	return c
}

// Exec runs a command inside and returns what it printed on both outputs.
func (h *Host) Exec(cmd ...string) ([]byte, error) {
	return h.Command(context.Background(), cmd...).CombinedOutput()
}

// Run is Exec for a command that must succeed.
func (h *Host) Run(t testing.TB, cmd ...string) string {
	t.Helper()
	out, err := h.Exec(cmd...)
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(cmd, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Inside is a command to be run in a container, in its namespaces, with its variables and in its working folder. Unlike what the engine's exec
// runs, it is not in the container's control group, and a pause does not hold it up: a paused container has no Inside. It takes a few milliseconds, of
// which the engine's exec takes hundreds, and much more of the processor with Podman.
func (h *Host) Inside(ctx context.Context, name string, cmd ...string) (*exec.Cmd, error) {
	api, err := client.New(client.WithHost("unix://" + h.Socket))
	if err != nil {
		return nil, err
	}
	defer api.Close()
	in, err := api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	s, cfg := in.Container.State, in.Container.Config
	if s == nil || cfg == nil || !s.Running || s.Paused {
		return nil, fmt.Errorf("container %s does not run", name)
	}
	if cfg.User != "" {
		return nil, fmt.Errorf("container %s runs as %s, which this does not know how to become", name, cfg.User)
	}
	enter := []string{"nsenter", "-t", fmt.Sprint(s.Pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--", "/bin/sh", "-c", `cd "$0" && exec "$@"`, cmp.Or(cfg.WorkingDir, "/")}
	c := h.Command(ctx, append(enter, cmd...)...)
	c.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, cfg.Env...)
	return c, nil
}

// StartEngine starts the engine and waits until it answers.
func (h *Host) StartEngine(t testing.TB) {
	t.Helper()
	if err := h.startEngine(); err != nil {
		t.Fatalf("start %s: %v", h.Kind, errors.Join(err, h.logged()))
	}
}

// logged returns the end of the instance's log as an error.
func (h *Host) logged() error {
	log, _ := os.ReadFile(h.box.LogFile())
	return fmt.Errorf("its log ends: %s", log[max(0, len(log)-4000):])
}

// KillEngine kills the engine's own process. Its containers go on.
func (h *Host) KillEngine(t testing.TB) {
	t.Helper()
	if h.engine == nil {
		return
	}
	pid := h.engine.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var engine int
	if _, err := fmt.Sscan(string(children), &engine); err != nil {
		t.Fatalf("no process of %s: %v", h.Kind, err)
	}
	if err := unix.Kill(engine, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-h.over
	h.engine = nil
}

func (h *Host) startEngine() error {
	if err := os.Remove(h.Socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	log, err := os.OpenFile(h.box.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"podman", "system", "service", "--time=0", "unix://" + h.Socket}
	if h.Kind == Docker {
		// One that was killed leaves these, and its containerd was killed with it. Docker waits for a containerd in vain if another process has its number now.
		for _, left := range []string{"/pid", "/x/containerd/containerd.pid"} {
			if err := os.Remove(h.box.Dir + left); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		args = []string{"dockerd", "--host", "unix://" + h.Socket, "--data-root", h.box.Dir + "/root", "--exec-root", h.box.Dir + "/x",
			"--pidfile", h.box.Dir + "/pid", "--default-ulimit", "nofile=1000:1000", "--group", "root", "--live-restore"}
	}
	cmd := h.Command(context.Background(), args...)
	cmd.Env = append(cmd.Env, "TMPDIR="+h.box.Dir) // Podman forgets to remove images that it has loaded
	cmd.Stdout, cmd.Stderr = log, log
	if err := testkit.Start(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if exec.CommandContext(ctx, "curl", "-sf", "--unix-socket", h.Socket, "http://x/_ping").Run() == nil {
			h.engine, h.over = cmd, ended
			return nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return fmt.Errorf("it ended: %v", err)
		case <-ctx.Done():
			return fmt.Errorf("no answer after %v", bootTimeout)
		}
	}
}

// podmanFiles are Podman's configuration, whose texts have the instance's folder for %[1]s.
var podmanFiles = []struct{ variable, name, text string }{
	{"CONTAINERS_CONF", "containers.conf", `[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
pids_limit = 0
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "%[1]s/tmp"
static_dir = "%[1]s/libpod"
volume_path = "%[1]s/volumes"
lock_type = "file"
[engine.runtimes]
runc = ["/usr/sbin/runc", "/usr/bin/runc"]
[network]
network_backend = "netavark"
network_config_dir = "%[1]s/networks"
`},
	{"CONTAINERS_STORAGE_CONF", "storage.conf", `[storage]
driver = "overlay"
graphroot = "%[1]s/root"
runroot = "%[1]s/run"
`},
	{"CONTAINERS_REGISTRIES_CONF", "registries.conf", "unqualified-search-registries = []\n"},
}

// prefix begins the names of an instance's folder and control group.
const prefix = "ect-"

func create(kind Kind) (h *Host, err error) {
	b, err := box.New(prefix)
	if err != nil {
		return nil, err
	}
	h = &Host{Kind: kind, Socket: b.Dir + "/e.sock", Dir: b.Dir + "/files", box: b}
	err = os.Mkdir(h.Dir, 0o755)
	for _, f := range podmanFiles {
		if err == nil {
			err = os.WriteFile(filepath.Join(b.Dir, f.name), []byte(strings.ReplaceAll(f.text, "%[1]s", b.Dir)), 0o644)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.Down())
	}
	return h, nil
}

// spawn starts the instance's PID 1.
func (h *Host) spawn() error {
	var flags uintptr = unix.CLONE_NEWNET
	if os.Getenv("MULLIGAN_TEST_NETWORK") == "own" {
		if all, err := net.Interfaces(); err != nil || len(all) != 1 {
			return fmt.Errorf("MULLIGAN_TEST_NETWORK=own is for a new network namespace, which has one interface; this one has %d: %v", len(all), err)
		}
		flags = 0
	}
	if err := h.box.Spawn(setup, flags); err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(h.box.Dir + "/ready"); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-h.box.Ended:
			h.box.Ended <- err
			text, _ := os.ReadFile(h.box.LogFile())
			return fmt.Errorf("its PID 1 ended: %v: %s", err, bytes.TrimSpace(text))
		}
	}
}
