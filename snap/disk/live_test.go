//go:build cgo && libvirt_dlopen

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"

	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
	"mulligan/testkit"
)

// long is whether to take the time for everything, and not a sample.
var long = testkit.Long()

// atLeast is n, or all of it where there is time.
func atLeast(sample, all int) int {
	if long {
		return all
	}
	return sample
}

var ids atomic.Int64

func newID() string { return fmt.Sprintf("vm-%06d", ids.Add(1)) }

func capture(t testing.TB, d *Driver) snap.Snapshot {
	t.Helper()
	s, err := d.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(newID())})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rollback takes the domain to a snapshot as the daemon does, and gives the
// safety snapshot.
func rollback(t testing.TB, d *Driver, target snap.SnapshotID) snap.SnapshotID {
	t.Helper()
	id := snap.RestoreID("op-" + newID())
	safety, err := rollBack(t.Context(), d, id, target, newID)
	if err != nil {
		t.Fatal(err)
	}
	return safety
}

func rollBack(ctx context.Context, d *Driver, id snap.RestoreID, target snap.SnapshotID, newID func() string) (snap.SnapshotID, error) {
	u := d.Unit()
	was, err := u.State(ctx)
	if err != nil {
		return "", err
	}
	base, err := d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(newID())})
	if err != nil {
		return "", err
	}
	sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: id, Target: target, Base: base.ID})
	if err != nil {
		return "", err
	}
	if err := u.Stop(ctx); err != nil {
		return "", err
	}
	for {
		stale, err := sw.Stale(ctx)
		if err != nil {
			return "", err
		}
		if !stale {
			break
		}
		old := base.ID
		if base, err = d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(newID()), Quiesced: true}); err != nil {
			return "", err
		}
		if sw, err = d.Prepare(ctx, snap.RestoreRequest{ID: id, Target: target, Base: base.ID}); err != nil {
			return "", err
		}
		if err := d.Delete(ctx, old); err != nil {
			return "", err
		}
	}
	if err := sw.Commit(ctx); err != nil {
		return "", err
	}
	proof, err := sw.Check(ctx)
	if err != nil {
		return "", err
	}
	if !proof.Match {
		return "", fmt.Errorf("it does not match: %+v", proof)
	}
	if was.Running() {
		if err := u.Start(ctx); err != nil {
			return "", err
		}
	}
	return base.ID, sw.Finish(ctx)
}

// read reads the file value from each disk of a snapshot, with no guest.
func (v *vm) read(t testing.TB, d *Driver, id snap.SnapshotID) string {
	t.Helper()
	d.mu.Lock()
	paths := d.tree.Layers[d.tree.Snapshots[id].Layer].Paths()
	disks := d.tree.Disks
	d.mu.Unlock()
	var values []string
	dir := inMemory(t)
	for _, dev := range disks {
		raw := filepath.Join(dir, dev)
		if out, err := exec.Command("qemu-img", "convert", "-U", "-t", "unsafe", "-f", "qcow2", "-O", "raw", paths[dev], raw).CombinedOutput(); err != nil {
			t.Fatalf("qemu-img: %v: %s", err, out)
		}
		out, err := exec.Command("debugfs", "-R", "cat /value", raw).Output()
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, strings.TrimSpace(string(out)))
	}
	return strings.Join(values, " ")
}

// holds reads the file value from each disk of a domain that is off.
func (v *vm) holds(t testing.TB, d *Driver) string {
	t.Helper()
	const present = "vm-present"
	d.tree.Snapshots[present] = &layertree.Snapshot{Layer: d.tree.Head}
	defer delete(d.tree.Snapshots, present)
	return v.read(t, d, present)
}

// both is what two disks hold that were written to together.
func both(value string) string { return value + " " + value }

// agrees checks that all of the domain's definitions are on the head.
func (v *vm) agrees(t testing.TB, d *Driver) {
	t.Helper()
	want := d.tree.Layers[d.tree.Head].Paths()
	if got := v.sources(t, libvirt.DOMAIN_XML_INACTIVE); !layertree.SamePaths(got, want, d.tree.Disks) {
		t.Fatalf("the persistent definition has %v, and should have %v", got, want)
	}
	if got := v.sources(t, 0); !layertree.SamePaths(got, want, d.tree.Disks) {
		t.Fatalf("the live definition has %v, and should have %v", got, want)
	}
}

// testRollbacksOfARunningGuest has a guest write A, B and C with a checkpoint after each, and takes it to them
// in random order; each time both disks have what belongs together.
func testRollbacksOfARunningGuest(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{Disks: 2})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	wrote := map[snap.SnapshotID]string{}
	var all []snap.SnapshotID
	for _, value := range []string{"A", "B", "C"} {
		v.Do(t, "set "+value)
		s := capture(t, d)
		if !s.Quiesced || len(s.Warnings) > 0 {
			t.Errorf("the agent answers, but: %+v", s)
		}
		wrote[s.ID] = value
		all = append(all, s.ID)
	}
	random := testkit.Rand(t)
	for i := range atLeast(2, 30) {
		target := all[random.IntN(len(all))]
		lost := fmt.Sprintf("lost-%d", i)
		v.Do(t, "set "+lost)
		safety := rollback(t, d, target)
		v.agrees(t, d)
		v.WaitReady(t)
		if got := v.Do(t, "get"); got != both(wrote[target]) {
			t.Fatalf("rollback %d: the guest reads %q, and wrote %q", i, got, wrote[target])
		}
		if got := v.read(t, d, safety); got != both(lost) {
			t.Fatalf("rollback %d: the safety snapshot has %q, and not %q", i, got, lost)
		}
		if i%2 == 0 { // the undo can be undone
			wrote[safety], all = lost, append(all, safety)
		} else if err := d.Delete(t.Context(), safety); err != nil {
			t.Fatal(err)
		}
		if err := d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range all {
		if err := d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Error(err)
		}
	}
}

// With memory, a rollback goes on where the guest was.
func testRollbackWithMemory(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{Disks: 2})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	v.Do(t, "set A")
	v.Do(t, "sh echo in memory only >/tmp/note")
	began := time.Now()
	s, err := d.CaptureMemory(t.Context(), snap.CaptureRequest{ID: "vm-memory"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("captured with memory in %s: %+v", time.Since(began), s)
	v.agrees(t, d)
	v.Do(t, "set B")
	v.Do(t, "sh rm /tmp/note")
	for range 2 {
		rollback(t, d, s.ID)
		began = time.Now()
		v.agrees(t, d)
		v.WaitReady(t)
		t.Logf("the guest answered %s after its start", time.Since(began))
		if got := v.Do(t, "get") + " " + v.Do(t, "sh cat /tmp/note"); got != "A A in memory only|" {
			t.Fatalf("the resumed guest has %q", got)
		}
	}
	if err := d.Verify(t.Context(), s.ID, snap.Full); err != nil {
		t.Error(err)
	}
	size, err := d.Size(t.Context(), s.ID)
	if err != nil || size < 10<<20 {
		t.Errorf("a snapshot with memory has size %d, %v", size, err)
	}
	// A plain start after that boots.
	if err := d.Unit().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Unit().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.WaitReady(t)
	if got := v.Do(t, "sh cat /tmp/note 2>/dev/null; echo .") + v.Do(t, "get"); got != ".|A A" {
		t.Errorf("after a boot: %q", got)
	}
}

// stopAgent stops the guest's agent as a hang would; it is woken after seconds, if any.
func (v *vm) stopAgent(t testing.TB, seconds int) {
	t.Helper()
	script := "kill -STOP $(pidof qemu-ga)"
	if seconds > 0 {
		script += fmt.Sprintf("; (sleep %d; kill -CONT $(pidof qemu-ga)) >/dev/null 2>&1 &", seconds)
	}
	v.Do(t, "sh "+script)
}

// again connects again to a guest that was saved and resumed.
func (v *vm) again(t testing.TB) {
	t.Helper()
	_, err := v.Ask("get", testkit.Patience)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		v.WaitReady(t)
	}
}

// thawed checks that the guest can write.
func (v *vm) thawed(t testing.TB) {
	t.Helper()
	v.again(t)
	_, err := v.Ask("sh date >/a/alive; sync", testkit.Patience)
	if err != nil {
		t.Fatalf("the guest cannot write: %v", err)
	}
}

// A hung agent delays a capture by no more than the deadline, the snapshot says
// that it is not quiesced, and the guest does not stay frozen when it wakes.
func testHungAgent(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), func(c *Config) { c.QuiesceTimeout = 2 * time.Second })
	v.boot(t)
	v.Do(t, "set A")
	v.stopAgent(t, 0)
	began := time.Now()
	s := capture(t, d)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the capture took %s", took)
	}
	if s.Quiesced || len(s.Warnings) == 0 {
		t.Errorf("the agent hung, but: %+v", s)
	}
	v.thawed(t)
	if got := v.read(t, d, s.ID); got != "A" {
		t.Errorf("the snapshot has %q", got)
	}
	v.Do(t, "sh kill -CONT $(pidof qemu-ga)")
	// Once it is awake a capture is quiesced again, and the guest goes on.
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for {
		s = capture(t, d)
		if s.Quiesced {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the agent is awake, but: %+v", s)
		case <-time.After(500 * time.Millisecond):
		}
	}
	v.thawed(t)
	if d.tree.Thaw {
		t.Error("the guest is thawed, and the driver does not know it")
	}
}

func testNoAgent(t *testing.T) {
	v := newVM(t, disktest.GuestOptions{NoAgent: true})
	d := v.driver(t, t.TempDir(), nil)
	v.boot(t)
	v.Do(t, "set A")
	if s := capture(t, d); s.Quiesced || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "power cut") {
		t.Errorf("%+v", s)
	}
}

// The guest writes all the time while 64 snapshots come and go; those that stay
// are right, the chains stay short, and the space comes back.
func testDeleteWhileTheGuestWrites(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{Disks: 2})
	state := t.TempDir()
	d := v.driver(t, state, func(c *Config) { c.Depth = 8 })
	d.maxLive = 24
	v.boot(t)
	v.Do(t, "sh touch /tmp/noisy; (until [ -e /tmp/enough ]; do dd if=/dev/urandom of=/a/noise bs=64k count=16 conv=notrunc,fsync; usleep 200000; done; rm /tmp/noisy) >/dev/null 2>&1 &")
	const kept = 4
	n := atLeast(24, 64)
	wrote := map[snap.SnapshotID]string{}
	var all []snap.SnapshotID
	random := testkit.Rand(t)
	remove := func(i int) {
		if err := d.Delete(t.Context(), all[i]); err != nil {
			t.Fatal(err)
		}
		delete(wrote, all[i])
		all = append(all[:i], all[i+1:]...)
	}
	most := int64(0)
	stored := func() int64 {
		info, err := d.Domain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.LiveDepth > d.maxLive+1 {
			t.Errorf("the domain has %d images open", info.LiveDepth)
		}
		return info.Stored
	}
	for i := range n {
		value := fmt.Sprintf("v%d", i)
		v.again(t)
		v.Do(t, "set "+value)
		s := capture(t, d)
		wrote[s.ID], all = value, append(all, s.ID)
		most = max(most, stored())
		if len(all) > 2*kept {
			remove(random.IntN(len(all)))
		}
		if i%4 == 3 {
			if err := d.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if depth := d.tree.Depth(d.tree.Head); depth > d.cfg.Depth+1 {
				t.Errorf("after %d captures %d images lie upon each other", i+1, depth)
			}
		}
	}
	v.again(t)
	v.Do(t, "sh touch /tmp/enough; while [ -e /tmp/noisy ]; do usleep 10000; done; sync") // what is stored grows no more
	before := stored()
	for len(all) > kept {
		remove(random.IntN(len(all)))
	}
	if err := d.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := stored(); after >= before {
		t.Errorf("%d bytes were stored at most, %d before the last deletions and %d after", most, before, after)
	}
	v.agrees(t, d)
	for id, value := range wrote {
		if got := v.read(t, d, id); got != both(value) {
			t.Errorf("%s has %q, and should have %q", id, got, value)
		}
		if err := d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Error(err)
		}
	}
	target := all[random.IntN(len(all))]
	rollback(t, d, target)
	v.WaitReady(t)
	if got := v.Do(t, "get"); got != both(wrote[target]) {
		t.Errorf("the guest reads %q, and wrote %q", got, wrote[target])
	}
}

// testStartedByOthersAfterMerges merges layers away on which a running guest rests. It can be saved with its memory and go on, also when more layers are merged
// while it is off, and it boots.
func testStartedByOthersAfterMerges(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{Disks: 2})
	d := v.driver(t, t.TempDir(), nil)
	var all []snap.SnapshotID
	take := func(value string) {
		v.Do(t, "set "+value)
		all = append(all, capture(t, d).ID)
	}
	v.boot(t)
	take("A")
	take("B")
	if err := v.lookup(t).Destroy(); err != nil {
		t.Fatal(err)
	}
	v.boot(t)
	for _, value := range []string{"C", "D", "E", "F"} {
		take(value)
	}
	merge := func(left int, gone ...int) {
		t.Helper()
		for _, i := range gone {
			if err := d.Delete(t.Context(), all[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(d.tree.Layers); n != left {
			t.Fatalf("%d layers are left", n)
		}
	}
	merge(5, 2, 3)
	v.Do(t, "sh echo up >/tmp/up")
	goesOn := func(how string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		v.again(t)
		v.Do(t, "sh echo 3 >/proc/sys/vm/drop_caches") // it reads its disks
		if got := v.Do(t, "get") + " " + v.Do(t, "sh cat /tmp/up"); got != both("F")+" up|" {
			t.Fatalf("%s: the guest has %q", how, got)
		}
	}
	if err := v.lookup(t).ManagedSave(0); err != nil {
		t.Fatal(err)
	}
	merge(3, 1, 4)
	goesOn("after a managed save", v.lookup(t).Create())
	saved := filepath.Join(t.TempDir(), "saved")
	if err := v.lookup(t).Save(saved); err != nil {
		t.Fatal(err)
	}
	goesOn("after a save", v.conn.DomainRestore(saved))
	if err := v.lookup(t).Destroy(); err != nil {
		t.Fatal(err)
	}
	v.boot(t)
	if got := v.Do(t, "get"); got != both("F") {
		t.Errorf("the guest reads %q", got)
	}
	if err := d.Check(t.Context()); err != nil { // which notices that the domain has the names of merged images no more
		t.Fatal(err)
	}
	pool, err := filepath.Glob(filepath.Join(filepath.Dir(v.Disks[0]), "mulligan", "app-1", "*.qcow2"))
	if err != nil || len(pool) != 4 { // of two layers above the domain's own images
		t.Errorf("the pool has %q, %v", pool, err)
	}
}

// lostAnswer is a machine whose first answer to a request to shut down is lost on its way back.
type lostAnswer struct {
	virt.Machine
	asked int
}

func (l *lostAnswer) Shutdown(limit time.Duration) error {
	l.asked++
	err := l.Machine.Shutdown(limit)
	if l.asked == 1 {
		err = errors.Join(err, errors.New("the guest's agent is gone"))
	}
	return err
}

// testAnswerOfShutdownLost: a guest that shuts down is not switched off in the middle of that because nobody answered the request.
func testAnswerOfShutdownLost(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), func(c *Config) { c.Shutdown, c.ShutdownTimeout = guest.Clean, 2*time.Minute })
	v.boot(t)
	v.Do(t, "sh echo kept >/a/value") // not synced: a clean shutdown does that
	l := &lostAnswer{Machine: mustMachine(t, d)}
	if down := guest.ShutDown(t.Context(), l, 2*time.Minute, d.cfg.Log); !down || l.asked == 0 {
		t.Errorf("the guest is down: %t, after %d requests", down, l.asked)
	}
	s := capture(t, d)
	if got := v.read(t, d, s.ID); got != "kept" || !s.Quiesced {
		t.Errorf("the disk has %q; %+v", got, s)
	}
}

// A clean shutdown has a deadline; whoever ignores it is switched off.
func testUnit(t *testing.T) {
	t.Parallel()
	v := newVM(t, disktest.GuestOptions{})
	d := v.driver(t, t.TempDir(), func(c *Config) { c.Shutdown, c.ShutdownTimeout = guest.Clean, 2*time.Minute })
	u := d.Unit()
	state := func(want bool) {
		t.Helper()
		s, err := u.State(t.Context())
		if err != nil || s.Running() != want {
			t.Fatalf("state is %+v, %v", s, err)
		}
	}
	state(false)
	for range 2 {
		if err := u.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(true)
	}
	v.WaitReady(t)
	v.Do(t, "sh echo kept >/a/value") // not synced: a clean shutdown does that
	v.stopAgent(t, 12)                // it misses the first request: libvirt waits 5 s for it, and this guest has no power button
	for range 2 {
		if err := u.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(false)
	}
	if _, why, err := v.lookup(t).GetState(); err != nil || why != int(libvirt.DOMAIN_SHUTOFF_SHUTDOWN) {
		t.Errorf("the domain is off for reason %d (%v), and not by its own will", why, err)
	}
	s := capture(t, d)
	if got := v.read(t, d, s.ID); got != "kept" {
		t.Errorf("after a clean shutdown the disk has %q", got)
	}
	if err := u.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.WaitReady(t)
	v.stopAgent(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if err := u.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	state(false)
}
