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

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
	"mulligan/testkit"
)

// pull copies into a running domain's image what it rests on, down to base, if any.
func (v *vm) pull(t *testing.T, dev, base string) {
	t.Helper()
	d := v.lookup(t)
	if err := d.BlockRebase(dev, base, 0, 0); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the block job ends", func() bool {
		info, err := d.GetBlockJobInfo(dev, 0)
		return err == nil && info.Type == 0
	})
}

// backAndForward takes the domain to each snapshot and looks whether its disks hold what the
// guest wrote, the last time by the guest itself.
func (v *vm) backAndForward(t *testing.T, d *Driver, ids []snap.SnapshotID, wrote map[snap.SnapshotID]string) {
	t.Helper()
	if err := d.Unit().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		rollback(t, d, id)
		v.agrees(t, d)
		if got := v.holds(t, d); got != wrote[id] {
			t.Errorf("%s: the disks hold %q, and the guest wrote %q", id, got, wrote[id])
		}
	}
	if err := d.Unit().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != wrote[ids[len(ids)-1]] {
		t.Errorf("the guest reads %q, and wrote %q", got, wrote[ids[len(ids)-1]])
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
func testBlockPull(t *testing.T) {
	t.Parallel()
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
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "disk vda was merged") {
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
func testRebasedByOthers(t *testing.T) {
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
func testResizedWhileOff(t *testing.T) {
	s, first, _ := newOff(t)
	image := func() string { return s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"] }
	size := func() int64 {
		n, err := imagefile.ImageSize(image())
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

// newDisk makes an image with a file system, and gives the XML that attaches it.
func (v *vm) newDisk(t *testing.T, name, dev string) (path, xml string) {
	t.Helper()
	path = filepath.Join(filepath.Dir(v.Disks[0]), name+".qcow2")
	script := `truncate -s 16M "$1.raw" && mke2fs -q -F -t ext4 -O ^has_journal "$1.raw" && qemu-img convert -O qcow2 "$1.raw" "$1" && rm "$1.raw"`
	if out, err := exec.Command("sh", "-c", script, "sh", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path, diskXML(path, dev)
}

func diskXML(path, dev string) string {
	return fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source file='%s'/><target dev='%s' bus='virtio'/></disk>", path, dev)
}

const ports = "<controller type='pci' model='pcie-root'/>" + "<controller type='pci' model='pcie-root-port'/>" + "<controller type='pci' model='pcie-root-port'/>" +
	"<controller type='pci' model='pcie-root-port'/>" + "<controller type='pci' model='pcie-root-port'/>" + "<controller type='pci' model='pcie-root-port'/>"

// Disks are attached to a running domain, and detached from it: from then on they are
// captured, or are not. Rollbacks to checkpoints of other disks leave alone what those do not
// have, and say so.
func testDisksComeAndGo(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{Devices: ports})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	const both = libvirt.DOMAIN_DEVICE_MODIFY_LIVE | libvirt.DOMAIN_DEVICE_MODIFY_CONFIG
	v.Do(t, "set A")
	one := capture(t, d)
	other, xml := v.newDisk(t, "other", "vdb")
	if err := v.lookup(t).AttachDeviceFlags(xml, both); err != nil {
		t.Fatal(err)
	}
	v.Do(t, "sh while [ ! -e /dev/vdb ]; do usleep 50000; done; mount -t ext4 /dev/vdb /b")
	v.Do(t, "set B")
	two := capture(t, d)
	if len(two.Warnings) != 1 || !strings.Contains(two.Warnings[0], "disk vdb was attached") {
		t.Errorf("%q", two.Warnings)
	}
	v.Do(t, "set C")

	// To before it was there: vda goes back, vdb stays.
	safety := rollback(t, d, one.ID)
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "A C" {
		t.Errorf("at the first checkpoint the guest reads %q", got)
	}
	for _, to := range []struct {
		id   snap.SnapshotID
		want string
	}{{two.ID, "B B"}, {safety, "C C"}} {
		if err := d.Unit().Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		rollback(t, d, to.id)
		if got := v.holds(t, d); got != to.want {
			t.Errorf("%s: the disks hold %q, and not %q", to.id, got, to.want)
		}
	}
	v.boot(t)
	if got := v.Do(t, "get"); got != "C C" {
		t.Errorf("the guest reads %q", got)
	}

	// Only half detached.
	v.Do(t, "set D")
	head := v.sources(t, 0)["vdb"]
	if err := v.lookup(t).DetachDeviceFlags(diskXML(head, "vdb"), libvirt.DOMAIN_DEVICE_MODIFY_CONFIG); err != nil {
		t.Fatal(err)
	}
	half := capture(t, d)
	if len(half.Warnings) != 2 || !strings.Contains(strings.Join(half.Warnings, " "), "in the running domain and not in its persistent") {
		t.Errorf("%q", half.Warnings)
	}
	v.Do(t, "sh umount /b")
	if err := v.lookup(t).DetachDeviceFlags(diskXML(head, "vdb"), libvirt.DOMAIN_DEVICE_MODIFY_LIVE); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the guest lets go of the disk", func() bool { return v.sources(t, 0)["vdb"] == "" })
	v.Do(t, "set E")
	three := capture(t, d)
	if len(three.Warnings) != 0 {
		t.Errorf("%q", three.Warnings)
	}
	id := snap.RestoreID("op-notes")
	base := capture(t, d)
	sw, err := d.Prepare(t.Context(), snap.RestoreRequest{ID: id, Target: two.ID, Base: base.ID})
	if err != nil {
		t.Fatal(err)
	}
	proof, err := sw.Check(t.Context())
	if err != nil || len(proof.Notes) != 1 || !strings.Contains(proof.Notes[0], "holds disk vdb") {
		t.Errorf("%+v, %v", proof, err)
	}
	if err := sw.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	rollback(t, d, two.ID)
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "B" {
		t.Errorf("the guest reads %q", got)
	}

	// Its image may be used elsewhere, also when checkpoints go; and it may come back.
	for _, id := range []snap.SnapshotID{half.ID, three.ID, base.ID, safety} {
		if err := d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Sweep(t.Context(), snap.Gone{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Unit().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.lookup(t).AttachDeviceFlags(diskXML(head, "vdb"), libvirt.DOMAIN_DEVICE_MODIFY_CONFIG); err != nil {
		t.Fatal(err)
	}
	back := capture(t, d)
	if got := v.read(t, d, back.ID); got != "B D" {
		t.Errorf("with its disk again the domain has %q", got)
	}
	rollback(t, d, two.ID)
	if got := v.holds(t, d); got != "B B" {
		t.Errorf("the disks hold %q", got)
	}
	for _, id := range []snap.SnapshotID{one.ID, two.ID, back.ID} {
		if err := d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Error(err)
		}
	}
	if !imagefile.Exists(other) {
		t.Error("the image that was attached is gone")
	}
}

// The disks of a guest whose QEMU was killed are not quiesced, whatever they are restored to
// or captured again as; those of a guest that shut down are. It is still known when libvirtd
// was restarted in between.
func testQuiescedWhenOff(t *testing.T) {
	v := newVM(t, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), func(c *Config) { c.Shutdown, c.ShutdownTimeout = guest.Clean, 2*time.Minute })
	expect := func(quiesced bool, warning string) snap.SnapshotID {
		t.Helper()
		s := capture(t, d)
		if s.Quiesced != quiesced || !strings.Contains(strings.Join(s.Warnings, " "), warning) {
			t.Errorf("%+v; expected quiesced %t, and to be told: %s", s, quiesced, warning)
		}
		return s.ID
	}
	off := func() {
		t.Helper()
		testkit.Eventually(t, "the domain is off", func() bool { return !v.up(t) })
	}
	expect(true, "")
	if err := d.Unit().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.WaitReady(t)
	v.Do(t, "set A")
	whole := expect(true, "")
	v.Do(t, "set B")
	if err := v.Kill(); err != nil {
		t.Fatal(err)
	}
	off()
	torn := expect(false, "its QEMU died")
	expect(false, "earlier checkpoint")
	rollback(t, d, whole)
	expect(true, "")
	rollback(t, d, torn)
	expect(false, "earlier checkpoint")
	v.boot(t)
	expect(true, "")
	v.Do(t, "set C")
	if err := v.Kill(); err != nil {
		t.Fatal(err)
	}
	off()
	if err := v.host.KillLibvirtd(); err != nil {
		t.Fatal(err)
	}
	v.connect(t)
	expect(false, "the cause is unknown")
	v.boot(t)
	v.Do(t, "set D")
	if err := d.Unit().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(true, "")
}

// A guest that is paused is captured without its agent's help, and is paused again after
// a rollback, whether it boots or goes on from its memory.
func testPaused(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), func(c *Config) { c.QuiesceTimeout = time.Minute })
	v.boot(t)
	v.Do(t, "set A")
	booted := capture(t, d).ID
	resumed, err := d.CaptureMemory(t.Context(), snap.CaptureRequest{ID: "vm-memory"})
	if err != nil {
		t.Fatal(err)
	}
	v.Do(t, "set B")
	for _, id := range []snap.SnapshotID{booted, resumed.ID} {
		if err := v.lookup(t).Suspend(); err != nil {
			t.Fatal(err)
		}
		if s := capture(t, d); s.Quiesced || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "paused") {
			t.Errorf("%+v", s)
		}
		rollback(t, d, id)
		for range 2 { // it may be asked to start again
			if s, err := d.Unit().State(t.Context()); err != nil || s.Sub != "paused" {
				t.Errorf("%s: %+v, %v", id, s, err)
			}
			if err := d.Unit().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.lookup(t).Resume(); err != nil {
			t.Fatal(err)
		}
		v.WaitReady(t)
		if got := v.Do(t, "get"); got != "A" {
			t.Errorf("%s: the guest reads %q", id, got)
		}
	}
	rollback(t, d, booted) // from a guest that runs
	if s, err := d.Unit().State(t.Context()); err != nil || s.Sub != "running" {
		t.Errorf("%+v, %v", s, err)
	}
}

// Flatten leaves the domain with the disks that it came with, and nothing else, also where
// a disk was resized, or pulled together; a crash at any step leaves what the domain reads as it was.
func testFlatten(t *testing.T) {
	for _, how := range []string{"plain", "larger", "smaller", "pulled"} {
		t.Run(how, func(t *testing.T) {
			s, first, _ := newOff(t)
			image := func() string { return s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"] }
			switch how {
			case "larger":
				qemuImg(t, "resize", "-q", "-f", "qcow2", image(), "96M")
			case "smaller":
				qemuImg(t, "resize", "-q", "--shrink", "-f", "qcow2", image(), "32M")
			case "pulled":
				qemuImg(t, "rebase", "-b", "", image())
			}
			before := s.Fingerprint(t)
			for step := 1; ; step++ {
				steps := 0
				s.d.cfg.Failpoint = func(string) error {
					if steps++; steps == step {
						return errs.New(errs.Failed, "", "a fault at step %d", step)
					}
					return nil
				}
				err := s.d.Flatten(t.Context())
				if s.Fingerprint(t) != before {
					t.Fatalf("after %d steps (%v) the domain reads something else", step, err)
				}
				if err != nil && steps < step {
					t.Fatal(err)
				}
				s.Reopen(t) // as after a crash
				if err == nil {
					break
				}
			}
			if image() != s.Disks[0] {
				t.Errorf("its disk is %s", image())
			}
			if imagefile.Exists(filepath.Join(filepath.Dir(s.Disks[0]), "mulligan")) {
				t.Error("layers are left")
			}
			if err := s.d.Verify(t.Context(), first, snap.Quick); errs.KindOf(err) != errs.NotFound {
				t.Errorf("a snapshot is left: %v", err)
			}
			s.Mutate(t, 9) // its images can be written to
			before = s.Fingerprint(t)
			again := capture(t, s.d).ID
			s.Mutate(t, 10)
			rollback(t, s.d, again)
			if s.Fingerprint(t) != before {
				t.Error("a checkpoint of a new history does not restore")
			}
		})
	}
}
