//go:build cgo && libvirt_dlopen

package disk

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/testkit/sysfault"
)

// write writes to the beginning of the domain's first disk.
func (s *subject) write(t *testing.T, kib int) {
	t.Helper()
	path := s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vda"]
	if out, err := exec.Command("qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -q -P %d 0 %dk", 1+kib%200, kib), path).CombinedOutput(); err != nil {
		t.Fatalf("qemu-io: %v: %s", err, out)
	}
}

// layerOf returns the layer of a snapshot.
func (s *subject) layerOf(id snap.SnapshotID) layertree.ID { return s.d.tree.Snapshots[id].Layer }

// testMergeWithoutRoom deletes the checkpoint of a large layer on a disk that has no room for a copy of what is in it. The copy is not begun, smaller
// layers are merged, and the large one once there is room.
func testMergeWithoutRoom(t *testing.T) {
	theHost(t)
	small := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", small).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", small).Run() })
	s := &subject{vm: newVM(t, disktest.GuestOptions{SizeMiB: 24, KeepBare: true, Dir: filepath.Join(small, "disks")}), state: t.TempDir()}
	s.Reopen(t)
	capture(t, s.d)
	var all []snap.SnapshotID
	for _, kib := range []int{20 << 10, 64, 64, 64} {
		s.write(t, kib)
		all = append(all, capture(t, s.d).ID)
	}
	large, above, little := s.layerOf(all[0]), s.layerOf(all[1]), s.layerOf(all[2])
	for _, id := range []snap.SnapshotID{all[0], all[2]} {
		if err := s.d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	free, err := imagefile.FreeBytes(small)
	if err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(small, "filler")
	if err := exec.Command("fallocate", "-l", fmt.Sprint(free-imagefile.MinFree-10<<20), filler).Run(); err != nil {
		t.Fatal(err)
	}
	copies := 0
	s.d.cfg.Failpoint = func(step string) error {
		if step == "merge: compare" {
			copies++
			if free, err := imagefile.FreeBytes(small); err != nil || free < imagefile.MinFree {
				t.Errorf("a merge leaves %d bytes, %v", free, err)
			}
		}
		return nil
	}
	fails(t, s.d.Maintain(t.Context()), errs.Failed, "no space left")
	if s.d.tree.Layers[large] == nil || s.d.tree.Layers[little] != nil || copies != 1 {
		t.Errorf("%d merges; there are %v", copies, s.d.tree.SortedLayers())
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.d.tree.Layers[large] != nil || s.d.tree.Layers[above] == nil {
		t.Errorf("there are %v", s.d.tree.SortedLayers())
	}
}

// testMergeOfDeletedLayers deletes the layers of a merge after it was proposed. It is not done.
func testMergeOfDeletedLayers(t *testing.T) {
	s, first, second := newOff(t)
	safety := rollback(t, s.d, first)
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.d.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	j, err := s.d.merger.nextJob(t.Context(), "test", nil)
	if err != nil || j == nil {
		t.Fatalf("%+v, %v", j, err)
	}
	if err := s.d.Delete(t.Context(), safety); err != nil {
		t.Fatal(err)
	}
	if s.d.tree.Layers[j.Into] != nil {
		t.Fatalf("layer %s is still there", j.Into)
	}
	if err := s.d.merger.merge(t.Context(), "test", *j); err != nil {
		t.Error(err)
	}
	if err := s.d.Maintain(t.Context()); err != nil {
		t.Error(err)
	}
}

// testDetachedImageOutOfReach has the folder of a detached disk's image go away for a while, as with a filesystem that is not mounted. The image is not
// forgotten, and so not removed, until somebody deletes it.
func testDetachedImageOutOfReach(t *testing.T) {
	dir := inMemory(t)
	s := &subject{vm: newVM(t, disktest.GuestOptions{SizeMiB: 4, KeepBare: true, Disks: 2, Dir: dir}), state: filepath.Join(dir, "state")}
	s.Mutate(t, 1)
	s.Reopen(t)
	capture(t, s.d)
	s.Mutate(t, 3)
	image := s.sources(t, libvirt.DOMAIN_XML_INACTIVE)["vdb"]
	if err := s.lookup(t).DetachDeviceFlags(diskXML(image, "vdb"), libvirt.DOMAIN_DEVICE_MODIFY_CONFIG); err != nil {
		t.Fatal(err)
	}
	capture(t, s.d)
	upkeep := func(want int) {
		t.Helper()
		if err := s.d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out := s.d.tree.Out; len(out) != want || want > 0 && out[0].Path != image {
			t.Fatalf("the images of detached disks are %v", out)
		}
	}
	upkeep(1)
	pool := filepath.Dir(image)
	if err := os.Rename(pool, pool+".away"); err != nil {
		t.Fatal(err)
	}
	upkeep(1)
	if err := os.Rename(pool+".away", pool); err != nil {
		t.Fatal(err)
	}
	if err := s.d.Sweep(t.Context(), snap.Gone{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	upkeep(0)
}

// testUnreadable has the disk refuse to read the newest frozen image. All others are hashed and merged, the image is not read again and again, and the domain
// can be taken to a checkpoint that does not rest on it.
func testUnreadable(t *testing.T) {
	s, first, second := newOff(t)
	third := capture(t, s.d).ID
	s.Mutate(t, 3)
	fourth := capture(t, s.d).ID
	s.Mutate(t, 5)
	last := capture(t, s.d).ID
	bad := s.d.tree.Layers[s.layerOf(last)].Files["vda"].Path
	merged, kept := s.layerOf(second), s.layerOf(fourth)
	for _, id := range []snap.SnapshotID{second, fourth} {
		if err := s.d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	c := &crasher{vm: s.vm, state: s.state, d: s.d}
	c.close(t)
	cmd := c.command(t, order{Do: "unread", Target: first, ID: string(last)})
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := sysfault.Start(cmd, sysfault.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	answers := bufio.NewScanner(out)
	do := func(what string, nth int) (said string, reads int) {
		t.Helper()
		read := "read " + bad
		p.Arm(sysfault.Fault{Call: read, Nth: nth, Errno: unix.EIO})
		if _, err := fmt.Fprintln(in, what); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			if !answers.Scan() {
				t.Fatalf("%s: it has ended: %v", what, answers.Err())
			}
			said, done = strings.CutPrefix(answers.Text(), "done: ")
		}
		for _, call := range p.Disarm().Calls {
			if call == read {
				reads++
			}
		}
		return said, reads
	}
	const eio = ": input/output error"
	for i, want := range []int{1, 0} {
		if said, reads := do("maintain", 0); reads != want || !strings.HasSuffix(said, ": read "+bad+eio) {
			t.Errorf("Maintain %d has read it %d times, and said %q", i, reads, said)
		}
	}
	whole := false // the header was read, and not the contents
	for nth := 1; !whole; nth++ {
		said, reads := do("restore", nth)
		if reads < nth || !strings.HasPrefix(said, "[the disks' former backing image is damaged: ") {
			t.Fatalf("after %d reads it said %q", reads, said)
		}
		whole = strings.Contains(said, "damaged: prepare to restore disks: read "+bad+eio)
	}
	if err := errors.Join(in.Close(), p.Wait()); err != nil {
		t.Fatal(err)
	}
	s.Reopen(t)
	if err := s.d.load("look"); err != nil {
		t.Fatal(err)
	}
	tree := s.d.tree
	if tree.Layers[merged] != nil || tree.Layers[kept] == nil || tree.Layers[s.layerOf(third)].State == "" || tree.Layers[s.layerOf(last)].State != "" {
		t.Errorf("there are %v", tree.SortedLayers())
	}
}
