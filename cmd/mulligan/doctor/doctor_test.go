package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// fakeDaemon answers with what a test puts into it.
type fakeDaemon struct {
	status ipc.Status
	apps   []ipc.App
	err    error
}

func (d fakeDaemon) Status(context.Context) (ipc.Status, error) { return d.status, d.err }
func (d fakeDaemon) Apps(context.Context) ([]ipc.App, error)    { return d.apps, d.err }
func (d fakeDaemon) AppWithGaps(_ context.Context, app string) (ipc.App, error) {
	for _, a := range d.apps {
		if string(a.ID) == app {
			return a, d.err
		}
	}
	return ipc.App{}, d.err
}
func (d fakeDaemon) Socket() string { return "/run/s.sock" }

// host is an invented host, whose root is a folder.
type host struct {
	t    *testing.T
	root string
	Options
}

func newHost(t *testing.T, apps ...ipc.App) *host {
	t.Helper()
	root, err := os.MkdirTemp("/var/tmp", "mg") // on a disk, and short, because it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	t.Setenv("PATH", filepath.Join(root, "bin"))
	h := &host{t, root, Options{
		Daemon:  fakeDaemon{status: ipc.Status{Version: "1", Mode: "host", PID: 7, StateDir: root}, apps: apps},
		Version: "1", Root: root, UID: 0,
	}}
	h.file("proc/sys/fs/inotify/max_user_watches", "524288\n", 0o644)
	h.file("proc/sys/fs/inotify/max_user_instances", "128\n", 0o644)
	return h
}

func (h *host) file(path, text string, mode os.FileMode) {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) program(path, says string) {
	h.file(path, "#!/bin/sh\n"+says+"\n", 0o755)
}

func (h *host) listen(path string) string {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { l.Close() })
	return path
}

func (h *host) chmod(path string, mode os.FileMode) {
	h.t.Helper()
	if err := os.Chmod(filepath.Join(h.root, path), mode); err != nil {
		h.t.Fatal(err)
	}
}

// expect examines the host and fails the test unless the check called name has the
// state s, and its finding and remedy contain words.
func (h *host) expect(name string, s State, words ...string) {
	h.t.Helper()
	r := Examine(h.t.Context(), h.Options)
	for _, c := range r.Checks {
		if c.Name != name {
			continue
		}
		for _, w := range words {
			if !strings.Contains(c.Finding+" → "+c.Remedy, w) {
				h.t.Errorf("%s: %q does not say %q", name, c.Finding+" → "+c.Remedy, w)
			}
		}
		if c.State != s {
			h.t.Errorf("%s is %s, not %s: %s", name, c.State, s, c.Finding)
		}
		if c.State != OK && c.Remedy == "" && !strings.Contains(c.Finding, "(yet)") {
			h.t.Errorf("%s: %s without a remedy", name, c.State)
		}
		if r.OK != (r.Problems == 0) || c.State == Problem && r.OK {
			h.t.Errorf("%s is a problem, and the report says %v, %d", name, r.OK, r.Problems)
		}
		return
	}
	h.t.Errorf("nothing is said of %s: %+v", name, r.Checks)
}

func TestDaemon(t *testing.T) {
	h := newHost(t)
	h.expect("reachable", OK, "host daemon, pid 7")
	h.expect("version", OK)
	h.Version = "2"
	h.expect("version", Advice, "it is 1, this program is 2")
	h.Daemon = fakeDaemon{status: ipc.Status{Problems: []string{"the disk is bad", "shop: the unit is gone"}}, apps: []ipc.App{{Slug: "shop", Problems: []string{"the unit is gone"}}}}
	h.expect("complaint", Problem, "the disk is bad")
	h.expect("shop", Problem, "the unit is gone")
	if r := Examine(t.Context(), h.Options); r.Problems != 2 {
		t.Errorf("an app's problem is told twice: %+v", r)
	}
	h.Daemon = fakeDaemon{err: &errs.Error{Kind: errs.Unavailable, Message: "gone", Hint: "start it", Err: ipc.ErrNoDaemon}}
	h.expect("reachable", Problem, "gone", "start it")
	if r := Examine(t.Context(), h.Options); !errors.Is(r.NoDaemon, ipc.ErrNoDaemon) {
		t.Errorf("%+v", r)
	}
}

func TestHost(t *testing.T) {
	unit := ipc.App{Slug: "shop", Unit: "shop.service", Auto: true}
	h := newHost(t)
	h.expect("kernel", OK, "Linux")
	h.expect("systemd", Advice, "not there", "systemd")
	h.expect("inotify max_user_watches", OK, "524288")
	h.expect("pasta", Advice, "forks", "apt-get install passt")
	h.file("usr/bin/pasta", "", 0o755)
	h.expect("pasta", OK)
	h = newHost(t, unit)
	h.expect("systemd", Problem)
	h.listen("run/systemd/private")
	h.expect("systemd", OK, "the system's manager")
	h.file("proc/sys/fs/inotify/max_user_watches", "8192\n", 0o644)
	h.expect("inotify max_user_watches", Advice, "sysctl fs.inotify.max_user_watches=")
	h.file("proc/sys/fs/inotify/max_user_watches", "many\n", 0o644)
	h.expect("inotify max_user_watches", Problem)

	h = newHost(t, ipc.App{Slug: "shop", Unit: "compose:shop", Engine: "/run/docker.sock"})
	h.expect("systemd", Advice)
	h.expect("containers", Problem, "no container engine answers at /run/docker.sock, which runs shop", "systemctl start docker")
	h.listen("run/docker.sock")
	h.expect("containers", OK, "/run/docker.sock")

	h = newHost(t, unit)
	h.UID, h.Daemon = 1000, fakeDaemon{status: ipc.Status{Mode: "user", StateDir: h.root}, apps: []ipc.App{unit}}
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	h.expect("systemd", Problem, "your own", "enable-linger")
	h.listen("run/user/1000/bus")
	h.expect("systemd", OK, "your own")
}

func TestLibvirt(t *testing.T) {
	h := newHost(t)
	h.expect("libvirt library", Advice, "apt-get install libvirt0")
	h.expect("qemu-img", Advice, "qemu-utils")
	h.expect("libvirt qemu:///system", Advice, "libvirt-daemon-system")
	h.file("usr/sbin/libvirtd", "", 0o755)
	h.expect("libvirt qemu:///system", Advice, "systemctl start libvirtd")

	vm := ipc.App{Slug: "shop", Domain: "shop-vm"}
	h = newHost(t, vm)
	h.expect("libvirt library", Problem)
	h.expect("libvirt qemu:///system", Problem)
	h.expect("VM shop-vm", Advice, "libvirt-clients")
	h.file("usr/lib/x86_64-linux-gnu/libvirt.so.0", "", 0o644)
	h.expect("libvirt library", OK)
	h.program("bin/qemu-img", "")
	h.expect("qemu-img", OK)
	h.listen("run/libvirt/libvirt-sock")
	h.expect("libvirt qemu:///system", OK, "libvirt-sock")
	// virsh writes a program that answers as virsh does.
	virsh := func(state, agent, more string) {
		h.program("bin/virsh", `case "$*" in
		*dominfo*) printf 'Name:           shop-vm\nState:          `+state+`\nPersistent:     yes\nManaged save:   no\n';;
		*agent-command*) `+agent+`;;
		*domblklist*) echo ' file   disk    vda   /pool/a disk.qcow2'; echo ' file   cdrom   sda   /home/x.iso';;
		esac
		case "$*" in `+more+` esac`)
	}
	virsh("running", "echo 'error: Guest agent is not responding: QEMU guest agent is not connected' >&2; exit 1", "")
	h.expect("VM shop-vm", Advice, "is not connected", "install qemu-guest-agent")
	virsh("running", "echo 'error: argument unsupported: QEMU guest agent is not configured' >&2; exit 1", "")
	h.expect("VM shop-vm", Advice, "no channel", "virsh -c qemu:///system edit shop-vm", "org.qemu.guest_agent.0")
	virsh("running", "echo '{}'", "")
	h.expect("VM shop-vm", OK, "its guest agent answers")
	h.expect("VM shop-vm definition", OK, "persistent")
	virsh("shut off", "exit 1", "")
	h.expect("VM shop-vm", OK, "shut off")
	virsh("running", "exit 1", "*snapshot-list*) echo before; echo after;;")
	h.expect("VM shop-vm definition", Problem, "before, after", "snapshot-delete shop-vm before")
	virsh("running", "exit 1", "*checkpoint-list*) echo c1;;")
	h.expect("VM shop-vm definition", Problem, "checkpoints of libvirt's own (c1)", "checkpoint-delete")
	h.program("bin/virsh", `case "$*" in *dominfo*) echo 'Persistent:     no';; esac`)
	h.expect("VM shop-vm definition", Problem, "transient", "define vm.xml")
	h.program("bin/virsh", `case "$*" in *dominfo*) echo 'Managed save:   yes';; esac`)
	h.expect("VM shop-vm definition", Problem, "managed save", "start shop-vm, or ")
	if os.Getuid() == 0 {
		h.file("pool/a disk.qcow2", "", 0o644)
		virsh("running", "exit 1", "")
		h.expect("VM shop-vm images", OK)
		h.chmod("pool", 0o777)
		h.expect("VM shop-vm images", Problem, "in /pool", "/var/lib/libvirt/images")
		h.chmod("pool", 0o755)
		if err := os.Chown(filepath.Join(h.root, "pool"), 64055, 64055); err != nil {
			t.Fatal(err)
		}
		h.expect("VM shop-vm images", Problem, "in /pool")
		virsh("running", "exit 1", "*capabilities*) echo \"<baselabel type='qemu'>+64055:64055</baselabel>\";;")
		h.expect("VM shop-vm images", OK)
	}
	h.program("bin/virsh", `case "$*" in
		*dominfo*) printf 'State:          running\nPersistent:     yes\nManaged save:   no\n';;
		*domblklist*) echo ' network   disk    vda   rbd/disk';;
		esac`)
	h.expect("VM shop-vm images", Problem, "disk vda", "ceph-common")
	h.program("bin/rbd", "exit 0")
	h.expect("VM shop-vm images", OK, "bin/rbd")
	h.program("bin/virsh", "echo \"error: failed to get domain 'shop-vm'\" >&2; exit 1")
	h.expect("VM shop-vm", Problem, "failed to get domain")

	vm.URI = "qemu:///system?socket=" + h.root + "/own"
	h.Daemon = fakeDaemon{apps: []ipc.App{vm}}
	h.expect("libvirt "+vm.URI, Problem)
	h.listen("own")
	h.expect("libvirt "+vm.URI, OK)
	vm.URI = "qemu+ssh://elsewhere/system"
	h.Daemon = fakeDaemon{apps: []ipc.App{vm}}
	h.expect("libvirt "+vm.URI, OK, "on another host")
}

func TestDatabases(t *testing.T) {
	h := newHost(t)
	h.expect("pg_dump", Advice, "apt-get install postgresql-client")
	pg := ipc.App{Slug: "shop", Databases: []ipc.Database{{Name: "main", Driver: "postgres", DSN: "postgres:///shop?host=/nowhere&port=5433"}}}
	h = newHost(t, pg)
	h.expect("pg_dump", Problem)
	h.program("usr/lib/postgresql/15/bin/pg_restore", "")
	h.expect("pg_dump", Problem) // pg_dump itself is missing
	h.program("usr/lib/postgresql/15/bin/pg_dump", "echo 'pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)'")
	h.expect("pg_dump", OK, "version 15")
	h.file("etc/postgresql/17/main/postgresql.conf", "#port = 1\nport = 5433 # it is\n", 0o644)
	h.expect("pg_dump", Problem, "the server of shop is 17", "postgresql-client-17")
	h.program("bin/pg_restore", "")
	h.program("bin/pg_dump", "echo 'pg_dump (PostgreSQL) 17beta1'")
	h.expect("pg_dump", OK, "15, 17")
	h.expect("shop's main", Problem, "/nowhere/.s.PGSQL.5433")

	socket := h.listen("my.sock")
	h.Daemon = fakeDaemon{apps: []ipc.App{{Slug: "shop", Workspace: h.root, Databases: []ipc.Database{
		{Name: "my", Driver: "mysql", DSN: "mysql://shop@/shop?socket=" + socket},
		{Name: "cache", Driver: "redis", DSN: "redis:///?socket=" + h.root + "/none"},
		{Name: "lite", Driver: "sqlite", DSN: "proc/sys/fs/inotify/max_user_watches"},
		{Name: "later", Driver: "sqlite", DSN: "data/shop.db"},
	}}}}
	h.expect("shop's my", OK, "my.sock")
	h.expect("shop's cache", Problem, "/none")
	h.expect("shop's lite", OK)
	h.expect("shop's later", Advice)
}

func TestAddress(t *testing.T) {
	for _, tt := range []struct{ driver, dsn, want string }{
		{"postgres", "postgres:///shop", "unix /var/run/postgresql/.s.PGSQL.5432"},
		{"postgres", "postgres://u@db.example:6000/shop", "tcp db.example:6000"},
		{"postgres", "postgresql:///shop?host=/tmp/pg&port=6000", "unix /tmp/pg/.s.PGSQL.6000"},
		{"mysql", "mysql://u@127.0.0.1/shop", "tcp 127.0.0.1:3306"},
		{"mysql", "mysql:///shop", "unix /run/mysqld/mysqld.sock"},
		{"redis", "redis://[::1]:7000/3", "tcp [::1]:7000"},
		{"redis", "redis://", "tcp localhost:6379"},
		{"redis", "://", " "},
	} {
		network, addr := address(ipc.Database{Driver: tt.driver, DSN: tt.dsn})
		if got := network + " " + addr; got != tt.want {
			t.Errorf("%s: %s, not %s", tt.dsn, got, tt.want)
		}
	}
}

func TestState(t *testing.T) {
	h := newHost(t)
	h.expect("folder", OK, h.root+": on ")
	h.expect("free space", OK, " of ")
	h.expect("reflinks", OK)
	h.Daemon = fakeDaemon{err: errors.New("no")}
	h.StateDir = filepath.Join(h.root, "not/yet/there")
	h.expect("folder", OK, "not/yet/there")
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		h.StateDir = "/dev/shm"
		h.expect("folder", Advice, "tmpfs")
	}
	left, err := os.ReadDir(h.root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != "proc" {
			t.Errorf("it left %s", e.Name())
		}
	}
}

func TestApps(t *testing.T) {
	h := newHost(t)
	h.expect("apps", Advice, "mulligan init")
	h = newHost(t, ipc.App{Slug: "shop", Workspace: "/srv/shop", State: "running", Busy: "rollback", Following: "watching", Covers: []string{"files (files)"}})
	h.expect("shop", OK, "/srv/shop; running; busy with rollback; files: watching; covers files (files)")
	h = newHost(t, ipc.App{Slug: "shop", Unit: "shop.service", State: "failed"})
	h.expect("shop", Problem, "systemctl status shop.service")
	h = newHost(t, ipc.App{Slug: "shop", Unit: "compose:shop", Engine: "/run/docker.sock", State: "failed"})
	h.expect("shop", Problem, "docker ps -a")
	h = newHost(t, ipc.App{Slug: "shop", Following: "degraded"})
	h.expect("shop", Problem, "not followed")
}

// A gap that blocks a checkpoint is a problem. A gap that only leaves something behind is an advice.
func TestGaps(t *testing.T) {
	h := newHost(t, ipc.App{ID: "app-1", Slug: "shop", Gaps: []ipc.Gap{{Layer: "files", What: "/ws/f cannot be read.", Remedy: "chmod it", Blocks: true}}})
	h.expect("shop's files", Problem, "/ws/f cannot be read", "chmod it")
	h = newHost(t, ipc.App{ID: "app-1", Slug: "shop", Gaps: []ipc.Gap{{Layer: "files", What: "The repository is elsewhere.", Remedy: "git reflog"}}})
	h.expect("shop's files", Advice, "elsewhere", "git reflog")
	h.expect("shop", OK)
}
