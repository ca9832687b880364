//go:build cgo && libvirt_dlopen

package rbd

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit"
)

// sums returns the hashes of a snapshot's disks.
func (v *vm) sums(t testing.TB, d *Driver, id snap.SnapshotID) map[string]string {
	t.Helper()
	m := map[string]string{}
	for dev, p := range d.rec.Snapshots[id].Disks {
		m[dev] = v.sum(t, p.at())
	}
	return m
}

// read reads a file from each disk of a snapshot.
func (v *vm) read(t testing.TB, d *Driver, id snap.SnapshotID, file string) (values []string) {
	t.Helper()
	disks := d.rec.Snapshots[id].Disks
	for _, dev := range slices.Sorted(maps.Keys(disks)) {
		raw := filepath.Join(t.TempDir(), dev)
		v.ceph.RBD(t, "export", "--no-progress", disks[dev].at(), raw)
		out, err := exec.Command("debugfs", "-R", "cat /"+file, raw).Output()
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, strings.TrimSpace(string(out)))
		if err := os.Remove(raw); err != nil {
			t.Fatal(err)
		}
	}
	return values
}

// writes has the guest count in a file on its first disk, and then in one on its second disk, on and on.
func (v *vm) writes(t testing.TB) {
	t.Helper()
	v.Do(t, "sh (i=0; while :; do i=$((i+1)); for d in a b; do echo $i >/$d/n.new; mv /$d/n.new /$d/n; sync; done; done) >/dev/null 2>&1 &")
	testkit.Eventually(t, "the guest writes", func() bool { return strings.HasPrefix(v.Do(t, "sh cat /b/n"), "1") })
}

func capture(t testing.TB, d *Driver, id string) snap.Snapshot {
	t.Helper()
	s, err := d.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(id)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// whole checks that the disks of a snapshot of a guest that writes are of one instant.
func (v *vm) whole(t testing.TB, d *Driver, id snap.SnapshotID) {
	t.Helper()
	n := v.read(t, d, id, "n")
	a, err := strconv.Atoi(n[0])
	b, err2 := strconv.Atoi(n[1])
	if err != nil || err2 != nil || a != b && a != b+1 {
		t.Errorf("%s is torn: it has %q", id, n)
	}
}

// back takes the running guest to a snapshot, and checks that it has the snapshot's disks, byte for byte, before it boots.
func (v *vm) back(t testing.TB, d *Driver, op string, target snap.SnapshotID, sums map[string]string) snap.SnapshotID {
	t.Helper()
	if err := d.Unit().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	base, err := rollBack(t.Context(), d, snap.RestoreID(op), target)
	if err != nil {
		t.Fatal(err)
	}
	for dev, image := range v.head(t) {
		if now := v.sum(t, image); now != sums[dev] {
			t.Fatalf("disk %s is not that of %s", dev, target)
		}
	}
	sw, err := d.Resume(t.Context(), snap.RestoreID(op))
	if err == nil {
		err = sw.Finish(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// TestGuest: a guest that writes to two disks is captured at one instant, taken back and forward again, and its checkpoints are deleted.
func TestGuest(t *testing.T) {
	v := newVM(t, 2, 64, true, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	v.Do(t, "set A")
	first := capture(t, d, "vm-first")
	if !first.Quiesced || len(first.Warnings) > 0 {
		t.Errorf("the agent answers, but: %+v", first)
	}
	v.writes(t)
	begun := time.Now()
	torn := capture(t, d, "vm-torn")
	t.Logf("a checkpoint takes %s", time.Since(begun))
	v.whole(t, d, torn.ID)
	sums := map[snap.SnapshotID]map[string]string{first.ID: v.sums(t, d, first.ID), torn.ID: v.sums(t, d, torn.ID)}
	safety := v.back(t, d, "op-1", first.ID, sums[first.ID])
	if err := d.Unit().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != "A A" {
		t.Errorf("the guest reads %q", got)
	}
	v.whole(t, d, safety)
	v.back(t, d, "op-2", torn.ID, sums[torn.ID])
	for _, id := range []snap.SnapshotID{torn.ID, first.ID} {
		if err := d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	v.litter(t, d)
	if err := d.Verify(t.Context(), safety, snap.Full); err != nil {
		t.Error(err)
	}
	other := v.driver(t, t.TempDir(), func(c *Config) { c.App = "app-other" })
	if _, err := other.Domain(t.Context()); errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "app-"+v.Name) {
		t.Errorf("another app takes the images: %v", err)
	}
}

// TestLongForty: forty checkpoints of a guest that writes to both disks. It is taken to them in random order, back and forward; each time
// both disks have the hashes that the checkpoint had. Then they are deleted in random order, and those that are left stay whole.
func TestLongForty(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	v := newVM(t, 2, 64, true, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	v.writes(t)
	random := testkit.Rand(t)
	sums := map[snap.SnapshotID]map[string]string{}
	var all []snap.SnapshotID
	var took []time.Duration
	for i := range 40 {
		begun := time.Now()
		s := capture(t, d, fmt.Sprintf("vm-%d", i))
		took = append(took, time.Since(begun))
		v.whole(t, d, s.ID)
		sums[s.ID] = v.sums(t, d, s.ID)
		all = append(all, s.ID)
	}
	slices.Sort(took)
	t.Logf("40 checkpoints: median %s, longest %s", took[20], took[39])
	for i := range 8 {
		target := all[random.IntN(len(all))]
		base := v.back(t, d, fmt.Sprintf("op-%d", i), target, sums[target])
		sums[base] = v.sums(t, d, base)
		all = append(all, base)
		if i%4 == 3 { // it also boots
			if err := d.Unit().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			v.WaitReady(t)
			v.Do(t, fmt.Sprintf("set %d", i))
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for len(all) > 1 {
		gone := all[0]
		all = all[1:]
		if err := d.Delete(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		if random.IntN(3) == 0 {
			v.litter(t, d)
		}
		some := all[random.IntN(len(all))]
		if err := d.Verify(t.Context(), some, snap.Full); err != nil {
			t.Fatal(err)
		}
		if now := v.sums(t, d, some); !maps.Equal(now, sums[some]) {
			t.Fatalf("%s was changed when %s was deleted", some, gone)
		}
	}
	v.litter(t, d)
	v.back(t, d, "op-last", all[0], sums[all[0]])
}

// TestLongParentDeleted: the snapshot that the domain's present disk is a clone of is deleted, and the disk is taken to another one all
// the same, and back.
func TestLongParentDeleted(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	v := newVM(t, 1, 16, true, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), nil)
	sums := map[string]map[string]string{}
	for _, id := range []string{"vm-0", "vm-1"} {
		for _, image := range v.head(t) {
			out, err := exec.Command("qemu-io", "-f", "raw", "-c", "write -q -P "+id[3:]+"1 8M 64k", "rbd:"+image+":id=admin:conf="+v.ceph.Conf).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		sums[id] = v.sums(t, d, capture(t, d, id).ID)
	}
	safety := v.back(t, d, "op-1", "vm-1", sums["vm-1"])
	for _, id := range []snap.SnapshotID{"vm-1", safety} {
		if err := d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	v.litter(t, d)
	safety = v.back(t, d, "op-2", "vm-0", sums["vm-0"])
	v.litter(t, d)
	v.back(t, d, "op-3", safety, sums["vm-1"])
	// A base that was outdated goes when the restore is prepared again with another.
	for _, base := range []string{"vm-outdated", "vm-base"} {
		capture(t, d, base)
		if _, err := d.Prepare(t.Context(), snap.RestoreRequest{ID: "op-4", Target: "vm-0", Base: snap.SnapshotID(base)}); err != nil {
			t.Fatal(err)
		}
		if err := d.Delete(t.Context(), snap.SnapshotID(base)); err != nil {
			t.Fatal(err)
		}
	}
	v.litter(t, d)
	sw, err := d.Resume(t.Context(), "op-4")
	if err == nil {
		err = sw.Finish(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	v.litter(t, d)
}

// TestLongDeadOwner: a QEMU that was killed holds its images for half a minute; then Ceph fences it, and a checkpoint is made. A QEMU that
// hangs is not fenced: the checkpoint fails in time, and the guest goes on and loses nothing.
func TestLongDeadOwner(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	v := newVM(t, 2, 64, true, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), func(c *Config) { c.QuiesceTimeout, c.SnapshotTimeout = 2*time.Second, 8*time.Second })
	v.boot(t)
	v.Do(t, "set A")
	first := capture(t, d, "vm-first")
	sums := v.sums(t, d, first.ID)

	pid, err := v.PID()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resumed := time.AfterFunc(100*time.Second, func() { _ = unix.Kill(pid, unix.SIGCONT) }) // libvirt waits for its monitor
	begun := time.Now()
	_, err = d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-hung"})
	if err == nil {
		t.Error("a QEMU that hangs was captured")
	}
	t.Logf("a checkpoint of a guest whose QEMU hangs fails after %s: %v", time.Since(begun), err)
	resumed.Stop()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the guest goes on", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.rec.Hold == nil
	})
	v.Do(t, "set B")
	if got := v.Do(t, "get"); got != "B B" {
		t.Errorf("the guest reads %q", got)
	}

	if err := v.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the domain is off", func() bool {
		s, err := d.Unit().State(t.Context())
		return err == nil && !s.Running()
	})
	begun = time.Now()
	s := capture(t, d, "vm-killed")
	t.Logf("a checkpoint of a domain whose QEMU was killed takes %s", time.Since(begun))
	if s.Quiesced || len(s.Warnings) == 0 {
		t.Errorf("the guest did not shut down: %+v", s)
	}
	if got := v.read(t, d, s.ID, "value"); got[0] != "B" || got[1] != "B" {
		t.Errorf("the checkpoint has %q", got)
	}
	v.back(t, d, "op-1", first.ID, sums)
	v.litter(t, d)

	// Whoever has an image open after that is not a dead QEMU of this host.
	other := exec.Command("rbd", "watch", v.head(t)["vdb"])
	other.Env = append(os.Environ(), "CEPH_CONF="+v.ceph.Conf)
	if _, err := other.StdinPipe(); err != nil { // it ends with its input
		t.Fatal(err)
	}
	if err := testkit.Start(other); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the image is in use", func() bool {
		list, err := d.cluster.watchers(t.Context(), v.head(t)["vdb"])
		return err == nil && len(list) > 0
	})
	if _, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-used"}); errs.KindOf(err) != errs.Busy || !strings.Contains(err.Error(), "vdb") {
		t.Errorf("a domain that is off, and whose disk is in use: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed: that is no news
	capture(t, d, "vm-unused")
}

// TestLongClusterAway: the cluster stops answering while the guest stands still for a checkpoint. The checkpoint fails in time, the guest
// goes on, and once the cluster is back nothing of the checkpoint is left.
func TestLongClusterAway(t *testing.T) {
	testkit.NeedLong(t)
	v := newVM(t, 2, 64, true, disktest.GuestOptions{})
	const limit = 5 * time.Second
	away := false
	state := t.TempDir()
	d := v.driver(t, state, func(c *Config) {
		c.SnapshotTimeout = limit
		c.Failpoint = func(step string) error {
			if step == "capture: paused" && !away {
				away = true
				return v.ceph.Hang(true)
			}
			return nil
		}
	})
	v.boot(t)
	v.Do(t, "set A")
	first := capture(t, v.driver(t, state, nil), "vm-first") // before, by another driver
	_, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-away"})
	if errs.KindOf(err) != errs.Unavailable || !away {
		t.Errorf("the cluster does not answer: %v", err)
	}
	if s, err := d.Unit().State(t.Context()); err != nil || s.Sub != "running" {
		t.Errorf("the guest is %+v, %v", s, err)
	}
	if err := v.ceph.Hang(false); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the guest's filesystems are thawed: until now they could not be written to", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.rec.Hold == nil
	})
	v.Do(t, "set B")
	if got := v.Do(t, "get"); got != "B B" {
		t.Errorf("the guest reads %q", got)
	}
	testkit.Eventually(t, "what the failed checkpoint has asked for is gone", func() bool {
		if err := d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(d.rec.Doomed) == 0
	})
	v.litter(t, d)
	if err := d.Verify(t.Context(), first.ID, snap.Full); err != nil {
		t.Error(err)
	}
}

// TestLongCost: what a checkpoint and a rollback take does not grow with the disk.
func TestLongCost(t *testing.T) {
	testkit.NeedLong(t)
	sizes := []int{1024, 4096}
	var drivers []*Driver
	for _, mib := range sizes {
		v := newVM(t, 1, mib, false, disktest.GuestOptions{})
		out, err := exec.Command("qemu-io", "-f", "raw", "-c", fmt.Sprintf("write -q -P 7 0 %dM", mib/4), "rbd:"+v.images[0]+":id=admin:conf="+v.ceph.Conf).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		drivers = append(drivers, v.driver(t, t.TempDir(), nil))
	}
	var all [2][2][]time.Duration // by size: of checkpoints and of rollbacks
	for i := range 5 {
		for n, d := range drivers { // one after the other, so that a busy machine delays both
			begun := time.Now()
			s := capture(t, d, fmt.Sprintf("vm-%d", i))
			all[n][0] = append(all[n][0], time.Since(begun))
			begun = time.Now()
			if _, err := rollBack(t.Context(), d, snap.RestoreID(fmt.Sprintf("op-%d", i)), s.ID); err != nil {
				t.Fatal(err)
			}
			all[n][1] = append(all[n][1], time.Since(begun))
		}
	}
	var takes [2][2]time.Duration
	for n, mib := range sizes {
		for i := range all[n] {
			slices.Sort(all[n][i])
			takes[n][i] = all[n][i][2]
		}
		t.Logf("%d MiB: a checkpoint takes %s, a rollback with its safety checkpoint %s", mib, takes[n][0], takes[n][1])
	}
	for i, what := range []string{"checkpoint", "rollback"} {
		if one, four := takes[0][i], takes[1][i]; four > 2*one+2*time.Second {
			t.Errorf("a %s takes %s of 1 GiB, and %s of 4 GiB", what, one, four)
		}
	}
}
