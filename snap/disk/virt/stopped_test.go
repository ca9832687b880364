//go:build cgo && libvirt_dlopen

package virt

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit"
)

// TestStoppedLibvirtd has a libvirtd that answers nothing: each call ends in time, also the end of the connection, and what a late answer needs is not freed
// before it.
func TestStoppedLibvirtd(t *testing.T) {
	disktest.Need(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h, err := disktest.Start(disktest.Options{})
	must(err)
	t.Cleanup(func() { must(h.Close()) })
	must(h.WaitUp())
	var conn Hypervisor
	testkit.Eventually(t, "libvirtd answers", func() bool { conn, err = Dial(h.URI); return err == nil })
	g := h.NewGuest(t, "stopped", disktest.GuestOptions{SizeMiB: 4})
	must(conn.Define(g.XML))
	m, err := conn.Lookup(g.Name, "")
	must(err)

	idle, err := Dial(h.URI)
	must(err)

	was := callLimit
	callLimit = 200 * time.Millisecond
	defer func() { callLimit = was }()
	must(h.Signal(unix.SIGSTOP))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			if _, err := m.Power(); errs.KindOf(err) != errs.Unavailable {
				t.Errorf("a stopped libvirtd says how the domain is: %v", err)
			}
		}
		m.Free()
		if err := conn.Close(); err != nil && errs.KindOf(err) != errs.Unavailable { // the calls still refer to it
			t.Errorf("the end of the connection: %v", err)
		}
		if err := idle.Close(); errs.KindOf(err) != errs.Unavailable {
			t.Errorf("the end of a connection that no call uses: %v", err)
		}
		if _, err := Dial(h.URI); errs.KindOf(err) != errs.Unavailable {
			t.Errorf("a stopped libvirtd is connected to: %v", err)
		}
	}()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Error("a call does not end while libvirtd is stopped")
	}
	must(h.Signal(unix.SIGCONT))
	<-done
	callLimit = was
	testkit.Eventually(t, "libvirtd answers again", func() bool {
		conn, err := Dial(h.URI)
		if err != nil {
			return false
		}
		m, err := conn.Lookup(g.Name, "")
		if err == nil {
			m.Free()
		}
		return err == nil && conn.Close() == nil
	})
}
