package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit"
)

// guestApp is an app with a page, a SQLite file, a supervised server and a running guest on a libvirtd of its own.
type guestApp struct {
	forkable
	host  *disktest.Host
	guest *disktest.Guest
}

func newGuestApp(t *testing.T) *guestApp {
	t.Helper()
	testkit.Need(t, "root")
	h := disktest.Running(t)
	// The card is connected to nothing here, and would be to a bridge or a network elsewhere.
	g := h.NewGuest(t, "shop", disktest.GuestOptions{Disks: 2, Devices: "<interface type='ethernet'><mac address='52:54:00:aa:bb:cc'/><model type='virtio'/></interface>"})
	output(t, g.XML, "virsh", "-q", "-c", h.URI, "define", "/dev/stdin")
	g.Boot(t)
	t.Cleanup(g.HangUp)
	a := &guestApp{forkable: newForkable(t, startDaemon(t)), host: h, guest: g}
	a.d.must("app", "set", "--app", "shop", "domain="+g.Name, "uri="+h.URI, "shutdown=destroy")
	return a
}

// put gives the page, the database and the guest's disks the state word.
func (a *guestApp) put(t *testing.T, app *testApp, g *disktest.Guest, word string) {
	t.Helper()
	app.set(t, word)
	g.Do(t, "set "+word)
}

// has waits until the page, the database and the guest's disks have the state word.
func (a *guestApp) has(t *testing.T, what string, app *testApp, g *disktest.Guest, word string) {
	t.Helper()
	eventually(t, what+" answers "+word, func() bool { return visit(t.Context(), app.addr) == word+"\n" })
	if got := app.word(t); got != word {
		t.Errorf("%s: the database has %q, and not %q", what, got, word)
	}
	if got := g.Do(t, "get"); got != word+" "+word {
		t.Errorf("%s: the guest has %q, and not %q", what, got, word)
	}
}

// guestOf connects to the guest of a fork.
func (a *guestApp) guestOf(t *testing.T, f ipc.App) *disktest.Guest {
	t.Helper()
	if want := "shop-fork-" + f.Fork.Name; f.Domain != want {
		t.Errorf("the fork's domain is %q, and not %q", f.Domain, want)
	}
	g := a.guest.Fork(f.Domain, a.guest.Socket()+"."+f.Domain)
	g.WaitReady(t)
	t.Cleanup(g.HangUp)
	return g
}

// around lists what is on the host for the app: domains, folders of images, folders of the app.
func (a *guestApp) around(t *testing.T) []string {
	t.Helper()
	list := strings.Fields(output(t, "", "virsh", "-q", "-c", a.host.URI, "list", "--all", "--name"))
	for _, pattern := range []string{
		filepath.Join(filepath.Dir(a.guest.Disks[0]), "mulligan", "*"), filepath.Join(filepath.Dir(a.guest.Socket()), "*"),
		filepath.Join(filepath.Dir(a.ws), "*"), filepath.Join(a.d.dir, "state", "apps", "*"), "/sys/class/net/vnet*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(pattern, "/sys") { // other tests have cards too
			list = append(list, found...)
		}
	}
	slices.Sort(list)
	return list
}

// testForkedGuests forks an app with a running guest twice, with the guest's memory: both forks go on from the same instant, beside the
// parent, and diverge. They survive the daemon's death, go back on their own, and one is kept.
func testForkedGuests(t *testing.T) {
	t.Parallel()
	a := newGuestApp(t)
	a.put(t, a.testApp, a.guest, "first")
	a.guest.Do(t, "sh echo warm >/run/warm")
	a.d.must("create", "--app", "shop")
	if _, said, code := a.d.mulligan("fork", "--app", "shop", "1", "--with-memory"); code == 0 || !strings.Contains(said, "with_memory") {
		t.Errorf("a checkpoint that exists gets memory: %s", said)
	}
	before := a.around(t)
	made := ask[ipc.ForkList](a.d, "fork", "--app", "shop", "--count", "2", "--with-memory").Forks
	if len(made) != 2 {
		t.Fatalf("made are %+v", made)
	}
	a.put(t, a.testApp, a.guest, "onwards")
	var forks []*testApp
	var guests []*disktest.Guest
	for i, f := range made {
		forks, guests = append(forks, a.fork(f)), append(guests, a.guestOf(t, f))
		a.has(t, f.Slug, forks[i], guests[i], "first")
		if got := guests[i].Do(t, "sh cat /run/warm"); got != "warm|" {
			t.Errorf("the guest of %s booted, and did not go on: %q", f.Slug, got)
		}
		if warm := ask[ipc.CheckpointList](a.d, "list", "--app", f.Slug).Checkpoints; len(warm) != 1 {
			t.Errorf("a new fork has the checkpoints %+v", warm)
		}
	}
	a.put(t, forks[0], guests[0], "one")
	a.put(t, forks[1], guests[1], "two")
	a.has(t, "shop", a.testApp, a.guest, "onwards")
	a.has(t, "fork 1", forks[0], guests[0], "one")
	a.has(t, "fork 2", forks[1], guests[1], "two")

	a.d.kill()
	a.d.start()
	a.has(t, "fork 1", forks[0], guests[0], "one")
	a.d.must("create", "--app", made[0].Slug)
	a.put(t, forks[0], guests[0], "astray")
	guests[0].HangUp()
	a.d.must("rollback", "1", "--app", made[0].Slug)
	guests[0].WaitReady(t)
	a.has(t, "fork 1, gone back", forks[0], guests[0], "one")
	a.has(t, "fork 2", forks[1], guests[1], "two")

	inside := a.around(t)
	if out := a.d.must("keep", "2", "--app", "shop", "--dry-run"); !strings.Contains(out, "vda") || !strings.Contains(out, "page.html") {
		t.Errorf("a dry run says %q", out)
	}
	if now := a.around(t); !slices.Equal(now, inside) {
		t.Errorf("a dry run left %q, there was %q", now, inside)
	}
	a.has(t, "shop", a.testApp, a.guest, "onwards")
	a.guest.HangUp()
	a.d.must("keep", "2", "--app", "shop")
	a.guest.WaitReady(t)
	a.has(t, "shop after keep", a.testApp, a.guest, "two")
	a.has(t, "fork 1", forks[0], guests[0], "one")
	a.guest.HangUp()
	a.d.must("redo", "--app", "shop")
	a.guest.WaitReady(t)
	a.has(t, "shop after redo", a.testApp, a.guest, "onwards")
	a.guest.HangUp()
	a.d.must("redo", "--app", "shop")
	a.guest.WaitReady(t)
	a.has(t, "shop after the second redo", a.testApp, a.guest, "two")

	if _, said, code := a.d.mulligan("app", "remove", "--app", "shop", "--purge", "--yes"); code == 0 {
		t.Errorf("an app with forks can be removed: %s", said)
	}
	guests[0].HangUp()
	a.d.must("drop", "--all", "--app", "shop")
	if after := a.around(t); !slices.Equal(after, before) {
		t.Errorf("left are %q, there was %q", after, before)
	}
	for _, cp := range ask[ipc.CheckpointList](a.d, "list", "--app", "shop").Checkpoints {
		a.d.must("verify", string(cp.ID), "--app", "shop")
	}
	a.has(t, "shop at the end", a.testApp, a.guest, "two")
}

// testForkedGuestBoots forks an app whose domain is off, and one whose libvirtd is away: the first boots from the checkpoint's disks,
// the second is refused before anything is made.
func testForkedGuestBoots(t *testing.T) {
	t.Parallel()
	a := newGuestApp(t)
	a.put(t, a.testApp, a.guest, "first")
	a.d.must("create", "--app", "shop")
	a.put(t, a.testApp, a.guest, "second")
	f := ask[ipc.ForkList](a.d, "fork", "--app", "shop", "1").Forks[0]
	g := a.guestOf(t, f)
	a.has(t, "the fork", a.fork(f), g, "first")
	g.HangUp()
	before := a.around(t)
	if err := a.host.Hold(true); err != nil {
		t.Fatal(err)
	}
	if err := a.host.KillLibvirtd(); err != nil {
		t.Fatal(err)
	}
	if _, said, code := a.d.mulligan("fork", "--app", "shop"); code == 0 || !strings.Contains(said, "libvirt") {
		t.Errorf("without libvirtd, fork says %q", said)
	}
	if _, said, code := a.d.mulligan("drop", "1", "--app", "shop"); code == 0 || !strings.Contains(said, "libvirt") {
		t.Errorf("without libvirtd, drop says %q", said)
	}
	if said := a.d.must("app", "show", "--app", f.Slug); !strings.Contains(said, "could not be dropped yet") {
		t.Errorf("of the fork that could not be dropped, it says %q", said)
	}
	if err := a.host.Hold(false); err != nil {
		t.Fatal(err)
	}
	if err := a.host.WaitUp(); err != nil {
		t.Fatal(err)
	}
	if now := a.around(t); len(now) > len(before) {
		t.Errorf("there is %q, and was %q", now, before)
	}
	a.d.must("drop", "1", "--app", "shop")
	if _, err := os.Stat(f.Workspace); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", f.Workspace, err)
	}
	if names := strings.Fields(output(t, "", "virsh", "-q", "-c", a.host.URI, "list", "--all", "--name")); !slices.Equal(names, []string{"shop"}) {
		t.Errorf("there are the domains %q", names)
	}
}
