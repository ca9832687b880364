//go:build cgo && libvirt_dlopen

package disk

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"libvirt.org/go/libvirt"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
)

// pull copies into a running domain's image what it rests on, down to base, if any.
func (v *vm) pull(t *testing.T, dev, base string) {
	t.Helper()
	d := v.lookup(t)
	if err := d.BlockRebase(dev, base, 0, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the block job ends", func() bool {
		info, err := d.GetBlockJobInfo(dev, 0)
		return err == nil && info.Type == 0
	})
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for !so() {
		if time.Now().After(end) {
			t.Fatal("it does not come about that " + what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// backAndForward takes the domain, which runs, to each snapshot and looks whether the
// guest reads what it wrote.
func (v *vm) backAndForward(t *testing.T, d *Driver, ids []snap.SnapshotID, wrote map[snap.SnapshotID]string) {
	t.Helper()
	for _, id := range ids {
		rollback(t, d, id)
		v.agrees(t, d)
		v.WaitReady(t)
		if got := v.Do(t, "get"); got != wrote[id] {
			t.Errorf("%s: the guest reads %q, and wrote %q", id, got, wrote[id])
		}
	}
	for _, id := range ids {
		if err := d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// An admin pulls the image of one disk together, all of it, then that of the other down to
// the image that the domain came with. All checkpoints restore, also when those
// that hold what was pulled are gone.
func TestBlockPull(t *testing.T) {
	v := newVM(t, disktest.GuestOptions{Disks: 2})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	wrote := map[snap.SnapshotID]string{}
	var ids []snap.SnapshotID
	take := func(word string) snap.Snapshot {
		t.Helper()
		v.Do(t, "set "+word)
		s := capture(t, d)
		wrote[s.ID], ids = both(word), append(ids, s.ID)
		return s
	}
	take("A")
	take("B")
	v.Do(t, "set C")
	v.pull(t, "vda", "")
	s := take("D")
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "disk vda was pulled together") {
		t.Errorf("the checkpoint says %q", s.Warnings)
	}
	v.pull(t, "vdb", v.Disks[1])
	if s := take("E"); len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "vdb") {
		t.Errorf("the checkpoint says %q", s.Warnings)
	}
	v.backAndForward(t, d, []snap.SnapshotID{ids[1], ids[3], ids[0], ids[2]}[:atLeast(3, 4)], wrote)
	for _, id := range ids[1:3] {
		if err := d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	v.backAndForward(t, d, []snap.SnapshotID{ids[0], ids[3]}, wrote)
}

// With the domain off somebody puts the image on one that nobody knows: that is refused
// until it is put back.
func TestRebasedByOthers(t *testing.T) {
	s, first, _ := newOff(t)
	image := s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"]
	was, err := backingOf(image)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(filepath.Dir(s.Disks[0]), "other.qcow2")
	qemuImg(t, "create", "-q", "-f", "qcow2", other, "4M")
	qemuImg(t, "rebase", "-u", "-F", "qcow2", "-b", other, image)
	_, err = s.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-x"})
	fails(t, err, errs.Conflict, other)
	qemuImg(t, "rebase", "-u", "-F", "qcow2", "-b", was, image)
	before := s.Fingerprint(t)
	last := capture(t, s.d).ID
	qemuImg(t, "rebase", "-b", "", s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"]) // to none, as a pull does
	rollback(t, s.d, first)
	rollback(t, s.d, last)
	if s.Fingerprint(t) != before {
		t.Error("it did not come back")
	}
}

func qemuImg(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("qemu-img %s: %w: %s", strings.Join(args, " "), err, out))
	}
}

// A disk is resized while the guest is off, larger and smaller: that is a state of its
// own. Older checkpoints have the old size, and forward the new one comes again.
func TestResizedWhileOff(t *testing.T) {
	s, first, _ := newOff(t)
	image := func() string { return s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"] }
	size := func() int64 {
		n, err := imageSize(image())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	prints := map[snap.SnapshotID]string{}
	sizes := map[snap.SnapshotID]int64{}
	note := func(id snap.SnapshotID) { prints[id], sizes[id] = s.Fingerprint(t), size() }
	ids := []snap.SnapshotID{first}
	rollback(t, s.d, first)
	note(first)
	for _, to := range []string{"96M", "32M", "80M"} {
		qemuImg(t, "resize", "-q", "--shrink", "-f", "qcow2", image(), to) // and nothing else is written
		id := capture(t, s.d).ID
		note(id)
		ids = append(ids, id)
	}
	for _, id := range []snap.SnapshotID{ids[0], ids[2], ids[1], ids[3], ids[0]} {
		was := size()
		safety := rollback(t, s.d, id)
		if s.Fingerprint(t) != prints[id] || size() != sizes[id] {
			t.Errorf("%s: the disk has %d bytes, and should have %d", id, size(), sizes[id])
		}
		if list, err := s.d.Diff(t.Context(), safety, id, nil); err != nil || was != sizes[id] && (len(list) != 1 || !strings.Contains(list[0].Summary, "size ")) {
			t.Errorf("%s: %v, %v", id, list, err)
		}
	}
	// A resize before the rollback is part of what the rollback keeps.
	qemuImg(t, "resize", "-q", "-f", "qcow2", image(), "112M")
	before := s.Fingerprint(t)
	safety := rollback(t, s.d, ids[1])
	rollback(t, s.d, safety)
	if s.Fingerprint(t) != before || size() != 112<<20 {
		t.Errorf("the disk has %d bytes, and had 112 MiB before the rollback", size())
	}
	for _, id := range ids[1:3] {
		if err := s.d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	rollback(t, s.d, ids[3])
	if s.Fingerprint(t) != prints[ids[3]] || size() != sizes[ids[3]] {
		t.Error("after a merge the disk is another")
	}
}
