//go:build cgo && libvirt_dlopen

package disk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/testkit"
)

// childEnv makes the test binary a daemon that dies at a step.
const childEnv = "MULLIGAN_DISK_CHILD"

// order is what a child is to do.
type order struct {
	Config struct{ App, Domain, URI, StateDir string }
	Do     string // capture, memory, rollback, undo, merge, unread
	Target snap.SnapshotID
	ID     string // of what it makes
	Die    int    // at the n-th step; 0: never, and the steps are printed
	Slow   bool   // the agent gets no time
}

// child does what it is told and exits, or is killed.
func child() {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &o); err != nil {
		panic(err)
	}
	steps := 0
	d, err := New(Config{
		App: o.Config.App, Domain: o.Config.Domain, URI: o.Config.URI, StateDir: o.Config.StateDir, Shutdown: guest.Destroy, Depth: 3,
		Failpoint: func(step string) error {
			if steps++; steps == o.Die {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
			if o.Die == 0 {
				fmt.Println("step", step)
			}
			return nil
		},
	})
	if err == nil {
		err = o.run(context.Background(), d)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (o order) run(ctx context.Context, d *Driver) error {
	n := 0
	next := func() string { n++; return fmt.Sprintf("%s-%d", o.ID, n) }
	switch o.Do {
	case "capture":
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(o.ID)})
		return err
	case "memory":
		_, err := d.CaptureMemory(ctx, snap.CaptureRequest{ID: snap.SnapshotID(o.ID)})
		return err
	case "rollback":
		_, err := rollBack(ctx, d, snap.RestoreID(o.ID), o.Target, next)
		return err
	case "undo":
		sw, err := d.Resume(ctx, snap.RestoreID(o.ID))
		if err == nil {
			err = errors.Join(d.Unit().Stop(ctx), sw.Undo(ctx), sw.Finish(ctx))
		}
		return err
	case "unread": // does a line of its input at a time
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if lines.Text() == "maintain" {
				fmt.Println("done:", d.Maintain(ctx))
				continue
			}
			sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: snap.RestoreID(next()), Target: o.Target, Base: snap.SnapshotID(o.ID)})
			if err != nil {
				fmt.Println("done: prepare:", err)
				continue
			}
			proof, err := sw.Check(ctx)
			fmt.Println("done:", proof.Notes, errors.Join(err, sw.Finish(ctx)))
		}
		return nil
	case "merge":
		return errors.Join(d.Delete(ctx, o.Target), d.Maintain(ctx))
	}
	return errors.New("unknown order")
}

// crasher is a domain whose daemons are killed.
type crasher struct {
	*vm
	state string
	known map[snap.SnapshotID]string // what the store has, and what is in it
	d     *Driver                    // the daemon that comes after
	kills int
}

func newCrasher(t *testing.T, opt disktest.GuestOptions) *crasher {
	opt.Disks = 2
	return &crasher{vm: newVM(t, opt), state: t.TempDir(), known: map[snap.SnapshotID]string{}}
}

// open starts the daemon that finds what a dead one left.
func (c *crasher) open(t *testing.T) {
	t.Helper()
	c.close(t)
	c.d = c.driver(t, c.state, func(cfg *Config) { cfg.Depth = 3 })
}

func (c *crasher) close(t *testing.T) {
	t.Helper()
	if c.d != nil {
		if err := c.d.Close(); err != nil {
			t.Logf("close: %v", err) // libvirtd may have been killed
		}
		c.d = nil
	}
}

// command is a child that does o.
func (c *crasher) command(t *testing.T, o order) *exec.Cmd {
	t.Helper()
	o.Config.App, o.Config.Domain, o.Config.URI, o.Config.StateDir = "app-1", c.Name, c.host.URI, c.state
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	return cmd
}

// spawn runs a child and gives the steps that it printed.
func (c *crasher) spawn(t *testing.T, o order) (steps []string, killed bool) {
	t.Helper()
	c.close(t)
	out, err := c.command(t, o).Output()
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for lines.Scan() {
		if step, ok := strings.CutPrefix(lines.Text(), "step "); ok {
			steps = append(steps, step)
		}
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return steps, false
	case errors.As(err, &exit) && exit.Sys().(interface{ Signaled() bool }).Signaled():
		c.kills++
		return steps, true
	}
	t.Fatalf("%+v: %v", o, err)
	return nil, false
}

// gone is what the driver has and nobody wants: all but the known snapshots and these restores.
func (c *crasher) gone(t *testing.T, restores ...snap.RestoreID) (g snap.Gone) {
	t.Helper()
	if err := c.d.load("look"); err != nil {
		t.Fatal(err)
	}
	if c.d.tree == nil {
		return g
	}
	for id := range c.d.tree.Snapshots {
		if _, ok := c.known[id]; !ok {
			g.Snapshots = append(g.Snapshots, id)
		}
	}
	for id := range c.d.tree.Switches {
		if !slices.Contains(restores, id) {
			g.Restores = append(g.Restores, id)
		}
	}
	return g
}

// whole checks everything that must hold once recovery is through.
func (c *crasher) whole(t *testing.T, at string) {
	t.Helper()
	c.awaitThawed(t, at)
	c.agrees(t, c.d)
	if c.up(t) {
		c.thawed(t)
	}
	for id, value := range c.known {
		if err := c.d.Verify(t.Context(), id, snap.Full); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		if got := c.read(t, c.d, id); got != both(value) {
			t.Fatalf("%s: %s has %q, and should have %q", at, id, got, value)
		}
	}
	c.noLitter(t, at)
}

// awaitThawed waits until a guest that could not be thawed at once (libvirtd has
// just come up, and has not met the agent yet) is so.
func (c *crasher) awaitThawed(t *testing.T, at string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c.d.mu.Lock()
		intent, thaw := c.d.tree.Intent, c.d.tree.Thaw
		c.d.mu.Unlock()
		if intent == nil && !thaw {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: recovery left something to do: %+v, thaw: %t", at, intent, thaw)
		case <-tick.C:
		}
	}
}

// noLitter checks that every file in the pool belongs to a layer.
func (c *crasher) noLitter(t *testing.T, at string) {
	t.Helper()
	known := map[string]bool{}
	for _, path := range c.d.tree.Open { // below the running domain's disks, also if they were merged away
		known[path] = true
	}
	for _, path := range c.d.tree.Files() {
		known[path] = true
		if !imagefile.Exists(path) {
			t.Fatalf("%s: %s is gone", at, path)
		}
	}
	found, err := filepath.Glob(filepath.Join(filepath.Dir(c.Disks[0]), "mulligan", "app-1", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if !known[path] {
			t.Fatalf("%s: %s belongs to nothing", at, path)
		}
	}
}

// take captures through a daemon that lives.
func (c *crasher) take(t *testing.T, value string) snap.SnapshotID {
	t.Helper()
	s := capture(t, c.d)
	c.known[s.ID] = value
	return s.ID
}

// setup gives a domain that has snapshots A and B, and the present C.
func (c *crasher) setup(t *testing.T, run bool) {
	c.boot(t)
	c.open(t)
	for _, value := range []string{"A", "B"} {
		c.Do(t, "set "+value)
		c.take(t, value)
	}
	c.Do(t, "set C")
	if !run {
		c.turnOff(t)
	}
}

func (c *crasher) turnOff(t *testing.T) {
	t.Helper()
	if err := c.lookup(t).Destroy(); err != nil {
		t.Fatal(err)
	}
}

// The daemon is killed at each step of a capture, with the domain running and off. A short run
// takes some of the steps, and the next one the next.
func testKilledInCapture(t *testing.T) {
	t.Parallel()
	type row struct {
		name, do string
		up       bool
		of       int // a short run takes one step of so many
	}
	kill := func(t *testing.T, c *crasher, r row) {
		t.Run(r.name, func(t *testing.T) {
			if !r.up {
				c.turnOff(t)
				(&subject{vm: c.vm}).touch(t) // else there may be nothing to freeze, and one step only
			}
			c.everyStep(t, order{Do: r.do}, r.of, func(at string) {
				c.open(t)
				if err := c.d.Sweep(t.Context(), c.gone(t)); err != nil {
					t.Fatalf("%s: %v", at, err)
				}
				c.whole(t, at)
				if !r.up { // what is written decides whether there is anything to freeze
					(&subject{vm: c.vm}).touch(t)
				}
			})
			if r.up {
				c.again(t)
				if got := c.Do(t, "get"); got != "C C" {
					t.Errorf("the guest reads %q", got)
				}
			}
		})
	}
	hard := testkit.Sample(t, "guests that are hard to hold still", 2, 1)
	c := newCrasher(t, disktest.GuestOptions{})
	c.setup(t, true)
	kill(t, c, row{"quiesced", "capture", true, 4})
	if slices.Contains(hard, 0) {
		kill(t, c, row{"memory", "memory", true, 4})
	}
	kill(t, c, row{"off", "capture", false, 2})
	if slices.Contains(hard, 1) {
		c := newCrasher(t, disktest.GuestOptions{NoAgent: true})
		c.setup(t, true)
		kill(t, c, row{"unquiesced", "capture", true, 4})
	}
}

// The daemon is killed while libvirt writes a guest's memory for it: libvirt goes
// on, and switches the disks at the end.
func TestLongKilledInMemory(t *testing.T) {
	testkit.NeedLong(t)
	c := newCrasher(t, disktest.GuestOptions{RAM: 512})
	c.setup(t, true)
	c.Do(t, "sh yes | head -c 20000000 >/tmp/much")
	cmd := c.command(t, order{Do: "memory", ID: "vm-memory"})
	c.close(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begun := false; !begun; <-tick.C {
		images, err := filepath.Glob(filepath.Join(filepath.Dir(c.Disks[0]), "mulligan", "app-1", "*.memory"))
		if err != nil {
			t.Fatal(err)
		}
		begun = len(images) > 0
	}
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); err == nil {
		t.Fatal("it was through before it was killed")
	}
	c.open(t)
	if err := c.d.Sweep(t.Context(), c.gone(t)); err != nil {
		t.Fatal(err)
	}
	c.whole(t, "killed while memory is written")
	c.Do(t, "set D")
	c.take(t, "D")
	c.whole(t, "and captured")
	if err := errors.Join(c.d.Unit().Stop(t.Context()), c.d.Unit().Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	c.WaitReady(t)
	if got := c.Do(t, "get"); got != "D D" {
		t.Errorf("the guest reads %q", got)
	}
}

// everyStep has a child killed at each step that it would go through, or, in a short run, at one
// of so many, and calls after each time. One run at least must be cut short.
func (c *crasher) everyStep(t *testing.T, o order, of int, after func(at string)) {
	t.Helper()
	part, parts := testkit.Part(t, of)
	o.ID, c.kills = newID(), 0
	for n := 1 + part; ; n += parts {
		o.Die = n
		_, killed := c.spawn(t, o)
		if !killed {
			break
		}
		after(fmt.Sprintf("%s, killed at step %d", o.Do, n))
	}
	if c.kills == 0 {
		t.Errorf("nothing was killed")
	}
	testkit.Tally(t, "kills", c.kills)
}

// touch writes to the last cluster of a domain's first disk, where its filesystem has nothing.
func (s *subject) touch(t *testing.T) {
	t.Helper()
	image := s.sources(t, 2)["vda"]
	if out, err := exec.Command("qemu-io", "-f", "qcow2", "-c", "write -q 60M 64k", image).CombinedOutput(); err != nil {
		t.Fatalf("qemu-io: %v: %s", err, out)
	}
}

// The daemon is killed at each step of a rollback and of its undo; the next one
// finishes it or takes it back, as the daemon's store would have it.
func testKilledInRollback(t *testing.T) {
	t.Parallel()
	c := newCrasher(t, disktest.GuestOptions{})
	c.setup(t, true)
	present := "C"
	for _, i := range testkit.Sample(t, "domains, running and off", 2, 1) {
		up := i == 0
		t.Run(fmt.Sprintf("up=%t", up), func(t *testing.T) {
			of := 20 // a boot each
			if !up {
				c.turnOff(t)
				of = 5
			}
			present = c.killInRollback(t, up, of, present)
		})
	}
}

// killInRollback has the daemon killed at steps of rollbacks of a domain that has present, and
// says what it has at the end.
func (c *crasher) killInRollback(t *testing.T, up bool, of int, present string) string {
	t.Helper()
	var target snap.SnapshotID
	for id, value := range c.known {
		if value == "A" {
			target = id
		}
	}
	part, parts := testkit.Part(t, of)
	c.kills = 0
	for n := 1 + part; ; n += parts {
		op := newID()
		if up {
			c.Do(t, "sh touch /tmp/ran")
		}
		_, killed := c.spawn(t, order{Do: "rollback", ID: op, Target: target, Die: n})
		if !killed {
			break
		}
		at := fmt.Sprintf("rollback, killed at step %d", n)
		present = c.afterRollback(t, at, snap.RestoreID(op), c.kills%2 == 0, present)
		if up {
			if err := c.d.Unit().Start(t.Context()); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			c.WaitReady(t)
			if got := c.Do(t, "get"); got != both(present) {
				t.Fatalf("%s: the guest reads %q, and should %q", at, got, present)
			}
			present = fmt.Sprintf("D%d", n)
			c.Do(t, "set "+present)
		}
		c.whole(t, at)
	}
	if c.kills < 2 {
		t.Errorf("only %d kills", c.kills)
	}
	testkit.Tally(t, "kills", c.kills)
	c.open(t)
	return "A" // the last one was not cut short
}

// afterRollback does as the daemon does after a crash: a switch that has begun
// goes forward or back, one that has not is dropped. It gives what the domain
// then has.
func (c *crasher) afterRollback(t *testing.T, at string, op snap.RestoreID, forward bool, present string) string {
	t.Helper()
	c.open(t)
	ctx := t.Context()
	if err := c.d.load(at); err != nil {
		t.Fatal(err)
	}
	if p := c.d.tree.Switches[op]; p != nil {
		c.known[p.Base] = present // the safety checkpoint
		defer delete(c.known, p.Base)
	}
	if err := c.d.Sweep(ctx, c.gone(t, op)); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	sw, err := c.d.Resume(ctx, op)
	if errs.KindOf(err) == errs.NotFound {
		return c.present(t, present)
	}
	p := *c.d.tree.Switches[op]
	if p.Phase == layertree.Prepared {
		forward = false
	} else if err := c.d.Unit().Stop(ctx); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	if forward {
		err = sw.Commit(ctx)
		present = "A"
	} else {
		err = sw.Undo(ctx)
	}
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	if !c.up(t) {
		proof, err := sw.Check(ctx)
		if err != nil || !proof.Match && p.Phase != layertree.Prepared {
			t.Fatalf("%s: %+v, %v", at, proof, err)
		}
	}
	c.whole(t, at)
	if err := sw.Finish(ctx); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return c.present(t, present)
}

// present checks what a domain without a switch has, and says so.
func (c *crasher) present(t *testing.T, want string) string {
	t.Helper()
	if c.up(t) {
		c.WaitReady(t)
		if c.Do(t, "sh ls /tmp/ran 2>/dev/null") != "" { // it was never stopped
			return want
		}
		if got := c.Do(t, "get"); got != "A A" {
			t.Fatalf("the domain was started again and has %q", got)
		}
		return "A"
	}
	got := c.holds(t, c.d)
	if got != both(want) {
		if got == "A A" { // the child was through with everything that counts
			return "A"
		}
		t.Fatalf("the domain has %q, and should have %q", got, want)
	}
	return want
}

// The daemon is killed at each step of a deletion and the merges after it.
func testKilledInMerge(t *testing.T) {
	t.Parallel()
	c := newCrasher(t, disktest.GuestOptions{})
	c.setup(t, true)
	part, every := testkit.Part(t, 8)
	n := 1 + part - every
	for range 100 {
		n += every
		value := fmt.Sprintf("M%d", n)
		c.open(t)
		c.Do(t, "set "+value)
		c.take(t, value)
		c.Do(t, "set next")
		c.take(t, "next")
		var gone snap.SnapshotID
		for id, v := range c.known {
			if v == value {
				gone = id
			}
		}
		delete(c.known, gone)
		_, killed := c.spawn(t, order{Do: "merge", Target: gone, Die: n})
		at := fmt.Sprintf("merge, killed at step %d", n)
		c.open(t)
		if err := c.d.Sweep(t.Context(), c.gone(t)); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		c.whole(t, at)
		if err := c.d.Maintain(t.Context()); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		c.whole(t, at+", and maintained")
		if !killed {
			break
		}
		if !long { // the oldest goes, so that there is less to check
			c.forget(t, 4)
		}
	}
	if c.kills < 10/every {
		t.Errorf("only %d kills", c.kills)
	}
	testkit.Tally(t, "kills", c.kills)
}

// forget deletes all but n snapshots.
func (c *crasher) forget(t *testing.T, n int) {
	t.Helper()
	for id := range c.known {
		if len(c.known) <= n {
			return
		}
		if err := c.d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		delete(c.known, id)
	}
}

// libvirtd is killed while it makes a live snapshot, quiesced and not.
func testKilledLibvirtd(t *testing.T) {
	for _, i := range testkit.Sample(t, "guests, with and without an agent", 2, 1) {
		agent := i == 0
		t.Run(fmt.Sprintf("agent=%t", agent), func(t *testing.T) {
			c := newCrasher(t, disktest.GuestOptions{NoAgent: !agent})
			c.setup(t, true)
			defer func() {
				if t.Failed() {
					log, _ := os.ReadFile(filepath.Join(c.host.Dir, "log", "qemu", c.Name+".log"))
					t.Logf("QEMU says: %s", log[max(0, len(log)-300):])
				}
			}()
			for _, i := range testkit.Sample(t, "moments", 15, 3) {
				c.open(t)
				c.killLibvirtdIn(t, i)
				at := fmt.Sprintf("libvirtd killed, %d", i)
				c.open(t)
				if err := c.d.Sweep(t.Context(), c.gone(t)); err != nil {
					t.Fatalf("%s: %v", at, err)
				}
				c.whole(t, at)
				// And it can go on: the next checkpoint is no trouble.
				value := fmt.Sprintf("K%d", i)
				c.thawed(t)
				c.Do(t, "set "+value)
				c.takeEvenIfLost(t, value)
				c.whole(t, at+", and captured")
				c.forget(t, 3)
			}
			testkit.Tally(t, "kills", c.kills)
		})
	}
}

// takeEvenIfLost is take, of a domain whose libvirt may have lost track of it
// for good: then the error says to start it anew, and that helps.
func (c *crasher) takeEvenIfLost(t *testing.T, value string) {
	t.Helper()
	_, err := c.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-" + snap.SnapshotID(value)})
	if errs.KindOf(err) == errs.Conflict {
		t.Logf("as it says: %v (%s)", err, errs.HintOf(err))
		if err := errors.Join(c.d.Unit().Stop(t.Context()), c.d.Unit().Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		c.WaitReady(t)
		_, err = c.d.Capture(t.Context(), snap.CaptureRequest{ID: "vm-" + snap.SnapshotID(value)})
	}
	if err != nil {
		t.Fatal(err)
	}
	c.known["vm-"+snap.SnapshotID(value)] = value
}

// killLibvirtdIn captures, and kills libvirtd i times 6 ms after the freeze.
func (c *crasher) killLibvirtdIn(t *testing.T, i int) {
	t.Helper()
	killed := make(chan error, 1)
	c.d.cfg.Failpoint = func(step string) error {
		if step == "capture: frozen" {
			time.AfterFunc(time.Duration(i)*6*time.Millisecond, func() { killed <- c.host.KillLibvirtd() })
		}
		return nil
	}
	id := snap.SnapshotID(newID())
	_, err := c.d.Capture(t.Context(), snap.CaptureRequest{ID: id})
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	c.kills++
	t.Logf("%d ms after the freeze: %v", i*6, err)
	if err == nil {
		c.known[id] = c.Do(t, "get")[:len(c.Do(t, "get"))/2]
	}
	c.connect(t)
}

// A program that a killed daemon started goes on. A copy that comes late must
// not get between the next daemon's own merge of the same layers: it would put
// the image back on the one that is then unlinked.
func TestKilledDaemonsCopyGoesOn(t *testing.T) {
	s, first, second := newOff(t)
	third := capture(t, s.d).ID
	before := s.Fingerprint(t)
	c := &crasher{vm: s.vm, state: s.state, d: s.d}
	c.close(t)

	dir := t.TempDir()
	const late = `#!/bin/sh
d=${0%/*}; echo >"$d/began"; read -r _ <"$d/go"; /bin/cp "$@"; echo >"$d/done"
`
	if err := testkit.WriteProgram(filepath.Join(dir, "cp"), []byte(late)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"began", "go", "done"} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	await := func(name string) {
		t.Helper()
		if _, err := os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := c.command(t, order{Do: "merge", Target: second})
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await("began")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()

	came := false
	s.d = s.driver(t, s.state, func(cfg *Config) {
		cfg.Failpoint = func(step string) error {
			if step == "merge: compare" && !came {
				came = true
				if err := os.WriteFile(filepath.Join(dir, "go"), []byte("\n"), 0); err != nil {
					return err
				}
				await("done")
			}
			return nil
		}
	})
	c.d, c.known = s.d, map[snap.SnapshotID]string{first: "", third: ""}
	ctx := t.Context()
	if err := errors.Join(s.d.Sweep(ctx, c.gone(t)), s.d.Maintain(ctx)); err != nil {
		t.Fatal(err)
	}
	if !came {
		t.Error("nothing was merged")
	}
	for id := range c.known {
		if err := s.d.Verify(ctx, id, snap.Full); err != nil {
			t.Error(err)
		}
	}
	if s.Fingerprint(t) != before {
		t.Error("the domain was touched")
	}
	if err := s.d.Sweep(ctx, c.gone(t)); err != nil { // the copy is litter
		t.Fatal(err)
	}
	c.noLitter(t, "at the end")
}
