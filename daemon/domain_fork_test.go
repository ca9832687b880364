//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// testForkOfDomain forks apps that are no more than a folder, a database and a domain. One is run by a unit that starts the domain: the
// fork has no copy of that, which would start the parent's domain.
func testForkOfDomain(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, func(app *ipc.App) {
		app.Health = &ipc.Health{Command: []string{"sh", "-c", "exit 1"}, Timeout: "1s"}
	})
	w.Do(t, "sh echo warm >/run/warm")
	made, err := w.d.Fork(t.Context(), root, "shop", ipc.ForkRequest{WithMemory: true})
	check(t, err)
	f := made.Forks[0]
	g := w.Fork(f.Domain, w.Socket()+"."+f.Domain)
	g.WaitReady(t)
	defer g.HangUp()
	if f.Health != nil || f.State != "running" || f.Unit != "" {
		t.Errorf("the fork is %+v", f)
	}
	if got := g.Do(t, "get") + g.Do(t, "sh cat /run/warm"); got != "zero zerowarm|" && got != w.Do(t, "get")+"warm|" {
		t.Errorf("the fork's guest has %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(f.Workspace, "shop.db")); err != nil || len(got) == 0 {
		t.Errorf("the fork's database: %d bytes, %v", len(got), err)
	}
	// A fork of a fork.
	g.Do(t, "set deeper")
	made, err = w.d.Fork(t.Context(), root, f.Slug, ipc.ForkRequest{Name: "deep"})
	check(t, err)
	deep := made.Forks[0]
	h := w.Fork(deep.Domain, w.Socket()+"."+f.Domain+"."+deep.Domain)
	h.WaitReady(t)
	defer h.HangUp()
	if got := h.Do(t, "get"); got != "deeper deeper" {
		t.Errorf("the fork's fork has %q", got)
	}
	h.Do(t, "set deepest")
	if err := w.d.DropFork(t.Context(), root, "shop", f.Fork.Name); errs.KindOf(err) != errs.Conflict {
		t.Errorf("a fork with a fork is dropped: %v", err)
	}
	g.HangUp()
	_, err = w.d.KeepFork(t.Context(), root, f.Slug, "deep", ipc.KeepRequest{})
	check(t, err)
	g.WaitReady(t)
	if got := g.Do(t, "get"); got != "deepest deepest" {
		t.Errorf("the fork that kept its fork has %q", got)
	}
	check(t, w.d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	w.Do(t, "get")
}

// testForkOfDomainOfUnit forks an app whose unit starts its domain.
func testForkOfDomainOfUnit(t *testing.T) {
	t.Parallel()
	w := newDomain(t, "shop")
	h := systemdtest.Boot(t)
	w.bus, w.busRoot = h.Address, h.Root()
	h.WriteUnit(t, "shop.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/virsh -c "+w.host.URI+" start shop\n")
	w.set(t, "zero")
	w.d = w.open(t)
	_, err := w.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Domain: w.Name, URI: w.host.URI, Shutdown: "destroy", Unit: "shop.service"})
	check(t, err)
	made, err := w.d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	check(t, err)
	f := made.Forks[0]
	g := w.Fork(f.Domain, w.Socket()+"."+f.Domain)
	g.WaitReady(t)
	defer g.HangUp()
	if f.Unit != "" || f.Fork.ParentUnit != "" || f.State != "running" {
		t.Errorf("the fork is %+v", f)
	}
	check(t, w.d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	w.Do(t, "get")
}

// testForkOfDomainOnHost forks an app whose forks have no namespaces: a domain needs none.
func testForkOfDomainOnHost(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, func(app *ipc.App) {
		app.Forking.Isolation = ipc.IsolationPorts
		app.Health = &ipc.Health{Command: []string{"sh", "-c", "exit 1"}, Timeout: "1s"}
	})
	w.Do(t, "set first")
	made, err := w.d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	check(t, err)
	f := made.Forks[0]
	if f.Domain != "shop-fork-1" || f.Fork.Isolation != ipc.IsolationPorts || f.Health != nil || f.State != "running" {
		t.Fatalf("the fork is %+v", f)
	}
	g := w.Fork(f.Domain, w.Socket()+"."+f.Domain)
	g.WaitReady(t)
	defer g.HangUp()
	g.Do(t, "set second")
	if mine, parents := g.Do(t, "get"), w.Do(t, "get"); mine != "second second" || parents != "first first" {
		t.Errorf("the fork's guest has %q, and the parent's %q", mine, parents)
	}
	check(t, w.d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	w.Do(t, "get")
}

// testForkOfDomainWithoutLibvirtd loses libvirtd while a fork's domain is being made. The fork stays listed, with the reason, until it can be
// removed, and then nothing is left of it.
func testForkOfDomainWithoutLibvirtd(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, nil)
	w.close(t, w.d)
	ended := false
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == "fork domain: define" {
			w.endLibvirtd(t)
			ended = true
		}
		return nil
	}
	w.d = w.openAs(t, opt)
	if _, err := w.d.Fork(t.Context(), root, "shop", ipc.ForkRequest{}); err == nil || !ended {
		t.Fatalf("a fork was made without libvirtd: %v", err)
	}
	list, err := w.d.Forks(t.Context(), root, "shop")
	check(t, err)
	if len(list.Forks) != 1 || !list.Forks[0].Fork.Making || len(list.Forks[0].Problems) == 0 {
		t.Fatalf("the forks are %+v", list.Forks)
	}
	w.beginLibvirtd(t)
	testkit.Eventually(t, "the fork is dropped", func() bool {
		w.d.Expire(t.Context(), time.Now())
		list, err := w.d.Forks(t.Context(), root, "shop")
		check(t, err)
		return len(list.Forks) == 0
	})
	images, err := filepath.Glob(filepath.Join(filepath.Dir(w.Disks[0]), "mulligan", "*"))
	check(t, err)
	apps, err := os.ReadDir(filepath.Join(w.state(), "apps"))
	check(t, err)
	if len(images) > 1 || len(apps) != 1 {
		t.Errorf("left are %q and %v", images, apps)
	}
	w.Do(t, "get")
}
