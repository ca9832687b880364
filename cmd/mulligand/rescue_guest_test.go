package main

import (
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/snap/disk/disktest"
)

// guestVictim is an app with a SQLite file and a guest, on a libvirtd of its own. quit ends
// libvirtd while the daemon is down, and starts the daemon; begin starts libvirtd.
func guestVictim(t *testing.T) (*victim, *disktest.Guest) {
	h := disktest.Running(t)
	g := h.NewGuest(t, "shop", disktest.GuestOptions{})
	output(t, g.XML, "virsh", "-q", "-c", h.URI, "define", "/dev/stdin")
	g.Boot(t)
	t.Cleanup(g.HangUp)
	g.Do(t, "set zero")

	v := newVictim(t, startDaemon(t))
	v.plantShop("sqlite:shop.db", "")
	v.useSQLite()
	v.add("--db", "sqlite:shop.db", "--run", "./serve.sh", "--domain", g.Name, "--uri", h.URI)
	v.quit = func() {
		v.d.stop()
		if err := h.Hold(true); err != nil {
			t.Fatal(err)
		}
		if err := h.KillLibvirtd(); err != nil {
			t.Fatal(err)
		}
		v.d.start()
	}
	v.begin = func() {
		if err := h.Hold(false); err != nil {
			t.Fatal(err)
		}
		if err := h.WaitUp(); err != nil {
			t.Fatal(err)
		}
	}
	return v, g
}

// testRescueWithoutLibvirtd undoes a turn with a daemon that was started while libvirtd is
// away: the command that the error names takes back all but the guest, and once libvirtd is there
// the guest can be taken back too.
func testRescueWithoutLibvirtd(t *testing.T) {
	t.Parallel()
	v, g := guestVictim(t)
	v.turn("well", func() {
		v.put("one")
		g.Do(t, "set one")
	})
	before := v.note()
	v.turn("badly", func() {
		v.put("two")
		g.Do(t, "set two")
		v.badCode()
		v.killApp()
	})
	v.quit()
	const away = "disk cannot be used yet"
	for _, command := range [][]string{{"status"}, {"doctor"}, {"app", "show", "--app", "shop"}, {"app", "list", "--json"}} {
		if said, _ := v.try(command...); !strings.Contains(said, away) || !strings.Contains(said, "libvirtd is running") {
			t.Errorf("mulligan %s says nothing of the guest: %s", strings.Join(command, " "), said)
		}
	}
	if said, code := v.try("create"); code == 0 || !strings.Contains(said, "disk: ") || !strings.Contains(said, "libvirtd is running") {
		t.Errorf("mulligan create ends with %d: %s", code, said)
	}
	v.rescue("undo")
	v.is("undone", before)
	if got := g.Do(t, "get"); got != "two" {
		t.Errorf("the guest was left alone, and says %q", got)
	}

	v.begin()
	eventually(t, "the guest can be used", func() bool {
		return !slices.ContainsFunc(ask[ipc.Status](v.d, "status").Problems, func(p string) bool { return strings.Contains(p, away) })
	})
	if said, code := v.try("rollback", "2", "--scope", "layer:disk"); code != 0 { // 1 is the undo's safety checkpoint
		t.Fatal(said)
	}
	g.WaitReady(t)
	if got := g.Do(t, "get"); got != "one" {
		t.Errorf("gone back, the guest says %q", got)
	}
	v.is("with the guest", before)
	v.sound()
}
