//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"os"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/disk/cephtest"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit"
)

// TestLongDomainOnCeph: an app with files, a database and a guest whose disks are RBD images goes back and forward as one, and its purge
// leaves the guest with its disks and nothing of mulligan's.
func TestLongDomainOnCeph(t *testing.T) {
	testkit.NeedLong(t)
	h := disktest.Running(t)
	ceph := cephtest.Running(t)
	t.Cleanup(func() {
		if err := cephtest.Close(); err != nil {
			t.Error(err)
		}
	})
	secret := ceph.Secret(t, h.URI)
	images := []string{ceph.Image(t, 64, true), ceph.Image(t, 64, true)}
	w := &vmWorld{world: world{dir: t.TempDir()}, host: h}
	if err := os.Mkdir(w.ws(), 0o755); err != nil {
		t.Fatal(err)
	}
	w.Guest = h.NewGuest(t, "ceph", disktest.GuestOptions{Given: ceph.Disk(images[0], "vda", secret) + ceph.Disk(images[1], "vdb", secret)})
	var err error
	if w.conn, err = libvirt.NewConnect(h.URI); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conn.DomainDefineXML(w.XML); err != nil {
		t.Fatal(err)
	}
	if err := w.domain(t).Create(); err != nil {
		t.Fatal(err)
	}
	w.WaitReady(t)
	w.set(t, "zero")
	opt := w.options()
	opt.Ceph = daemon.Ceph{Conf: ceph.Conf}
	open := func() {
		t.Helper()
		if w.d, err = daemon.Open(t.Context(), opt); err != nil {
			t.Fatal(err)
		}
	}
	open()
	t.Cleanup(func() {
		w.HangUp()
		w.close(t, w.d)
		_, _ = w.conn.Close()
	})
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Domain: w.Name, URI: h.URI, Shutdown: "destroy",
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	}); err != nil {
		t.Fatal(err)
	}
	w.put(t, "one")
	one := createQuiesced(t, w.d)
	if one.VMSnapshotID == nil || len(one.Warnings) > 0 {
		t.Fatalf("%+v", one)
	}
	w.put(t, "two")
	back := w.rollback(t, one.ID)
	w.WaitReady(t)
	if got := w.all(t); got != "one" || !back.Verification.Match {
		t.Fatalf("the app is in state %q; %+v", got, back)
	}
	w.close(t, w.d)
	open() // and finds the driver by its records
	w.rollback(t, back.SafetyCheckpoint.ID)
	w.WaitReady(t)
	if got := w.all(t); got != "two" {
		t.Fatalf("the app is in state %q", got)
	}
	if res, err := w.d.Verify(t.Context(), root, "shop", one.ID, snap.Full); err != nil || !res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := w.d.Fork(t.Context(), root, "shop", ipc.ForkRequest{}); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("a fork of a guest with disks on Ceph: %v", err)
	}
	if _, err := w.d.Create(t.Context(), root, "shop", ipc.CreateRequest{WithMemory: true}); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("a checkpoint with the guest's memory: %v", err)
	}
	if err := w.d.RemoveApp(t.Context(), root, "shop", true); err != nil {
		t.Fatal(err)
	}
	if got := w.Do(t, "get"); got != "two two" {
		t.Errorf("after the purge the guest reads %q", got)
	}
	for _, image := range images {
		if left := ceph.RBD(t, "snap", "ls", image); left != "" {
			t.Errorf("snapshots of %s are left: %s", image, left)
		}
		if left := ceph.RBD(t, "image-meta", "ls", image); left != "There are 0 metadata on this image." && left != "" {
			t.Errorf("%s is still marked: %s", image, left)
		}
	}
}
