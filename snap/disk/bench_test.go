//go:build cgo && libvirt_dlopen

package disk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit/benchtable"
)

// sizes are how much data a guest's disk holds, in MiB.
var sizes = []int{100, 2048}

// median is what is reported: a machine has bad moments.
func median(list []time.Duration) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func report(b *testing.B, name string, list []time.Duration) {
	b.ReportMetric(float64(median(list).Microseconds())/1000, name+"-ms")
}

// BenchmarkDisks measures guests with 100 MiB and with 2 GiB of data, in one run:
// a checkpoint (beside libvirt's internal snapshots and full copies), how long
// the guest waits for it, and a restore by stage, with memory and without; and how
// a live checkpoint's time grows from the one to the other.
func BenchmarkDisks(b *testing.B) {
	live := map[int]time.Duration{}
	for _, mib := range sizes {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) { live[mib] = newBenchGuest(b, mib).all(b) })
	}
	if small, large := live[sizes[0]], live[sizes[1]]; small > 0 && large > 0 {
		benchtable.Report(b, benchtable.Row{Part: part, What: fmt.Sprintf("checkpoint of a running guest with %d MiB, beside %d MiB", sizes[1], sizes[0]), Unit: "ms", Mulligan: milliseconds(large),
			Others: []benchtable.Other{{Name: "mulligan", Value: milliseconds(small)}}, Times: 0.5})
	}
}

const part = "disks of guests"

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// benchGuest is a guest that is measured.
type benchGuest struct {
	*vm
	d       *Driver
	at      map[string]time.Time // when the driver last came to a step
	written int
	mib     int
	copied  []time.Duration // by cp
	inside  []time.Duration // libvirt's internal snapshots
}

func newBenchGuest(b *testing.B, mib int) *benchGuest {
	return &benchGuest{vm: newVM(b, disktest.GuestOptions{SizeMiB: mib + mib/4 + 64, Blob: mib}), at: map[string]time.Time{}, mib: mib}
}

// all measures everything, and gives how long a live checkpoint takes.
func (g *benchGuest) all(b *testing.B) (live time.Duration) {
	b.Run("copy", g.copy)
	g.boot(b)
	b.Run("internal", g.internal)
	g.d = g.driver(b, b.TempDir(), func(c *Config) { c.Failpoint = g.step })
	b.Run("live", func(b *testing.B) { live = g.live(b) })
	b.Run("live-with-memory", g.memory)
	b.Run("restore", func(b *testing.B) { g.restore(b, false) })
	b.Run("restore-with-memory", func(b *testing.B) { g.restore(b, true) })
	if err := g.d.Unit().Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Run("off", g.off)
	return live
}

func (g *benchGuest) step(name string) error {
	g.at[name] = time.Now()
	return nil
}

// write lets the guest write a little, so that there is something to capture.
func (g *benchGuest) write(b *testing.B) {
	g.written++
	g.Do(b, fmt.Sprintf("set value-%d", g.written))
}

// rounds is how often what is compared is done.
const rounds = 5

func (g *benchGuest) copy(b *testing.B) {
	target := filepath.Join(filepath.Dir(g.Disks[0]), "copy")
	for range rounds {
		began := time.Now()
		if out, err := exec.Command("sh", "-c", `cp --reflink=auto -- "$1" "$2" && sync "$2"`, "sh", g.Disks[0], target).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		g.copied = append(g.copied, time.Since(began))
		if err := os.Remove(target); err != nil {
			b.Fatal(err)
		}
	}
	report(b, "median", g.copied)
}

func (g *benchGuest) internal(b *testing.B) {
	d := g.lookup(b)
	for range rounds {
		began := time.Now()
		s, err := d.CreateSnapshotXML("<domainsnapshot><name>bench</name></domainsnapshot>", 0)
		if err != nil {
			b.Fatal(err)
		}
		g.inside = append(g.inside, time.Since(began))
		if err := s.Delete(0); err != nil {
			b.Fatal(err)
		}
	}
	report(b, "median", g.inside)
}

// live captures a running guest whose agent answers, and gives the median time.
func (g *benchGuest) live(b *testing.B) time.Duration {
	var took, waits []time.Duration
	for range 9 { // however long one takes: the guest's agent may only just have come up
		b.StopTimer()
		g.write(b)
		b.StartTimer()
		began := time.Now()
		s := capture(b, g.d)
		took = append(took, time.Since(began))
		waits = append(waits, g.at["capture: switched"].Sub(g.at["capture: switch"]))
		b.StopTimer()
		if !s.Quiesced {
			b.Fatalf("not quiesced: %v", s.Warnings)
		}
		g.forget(b, s.ID)
		b.StartTimer()
	}
	report(b, "median", took)
	report(b, "guest-waits", waits) // from before the freeze until after the thaw
	with := fmt.Sprintf(" of a running guest with %d MiB", g.mib)
	benchtable.Report(b, benchtable.Row{Part: part, What: "checkpoint" + with, Unit: "ms", Mulligan: milliseconds(median(took)), Below: 70, Times: 1,
		Others: []benchtable.Other{{Name: "virsh snapshot-create", Value: milliseconds(median(g.inside))}, {Name: "cp", Value: milliseconds(median(g.copied))}}})
	benchtable.Report(b, benchtable.Row{Part: part, What: "for how long the guest waits for it", Unit: "ms", Mulligan: milliseconds(median(waits)),
		Others: []benchtable.Other{{Name: "virsh snapshot-create", Value: milliseconds(median(g.inside))}}, Times: 1})
	return median(took)
}

func (g *benchGuest) forget(b *testing.B, id snap.SnapshotID) {
	if err := g.d.Delete(b.Context(), id); err != nil {
		b.Fatal(err)
	}
	if err := g.d.Maintain(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (g *benchGuest) memory(b *testing.B) {
	for b.Loop() {
		s, err := g.d.CaptureMemory(b.Context(), snap.CaptureRequest{ID: snap.SnapshotID(newID())})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		g.WaitReady(b)
		g.forget(b, s.ID)
		b.StartTimer()
	}
}

// restore goes back to one snapshot again and again, as the daemon does: the
// safety snapshot and the preparation while the guest runs, then the switch.
func (g *benchGuest) restore(b *testing.B, memory bool) {
	ctx, u := b.Context(), g.d.Unit()
	take := g.d.Capture
	if memory {
		take = g.d.CaptureMemory
	}
	target, err := take(ctx, snap.CaptureRequest{ID: snap.SnapshotID(newID())})
	if err != nil {
		b.Fatal(err)
	}
	if err := g.d.Maintain(ctx); err != nil { // the daemon does it in the background
		b.Fatal(err)
	}
	names := []string{"safety", "prepare", "stop", "top-up", "switch", "start", "guest-answers"}
	times := map[string][]time.Duration{}
	for range 5 { // and not for a time: each takes seconds
		b.StopTimer()
		g.write(b)
		b.StartTimer()
		i, last := 0, time.Now()
		stage := func(err error) {
			b.Helper()
			if err != nil {
				b.Fatal(err)
			}
			times[names[i]] = append(times[names[i]], time.Since(last))
			i, last = i+1, time.Now()
		}
		id := snap.RestoreID("op-" + newID())
		base, err := g.d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(newID())})
		stage(err)
		_, err = g.d.Prepare(ctx, snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
		stage(err)
		stage(u.Stop(ctx))
		top, err := g.d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(newID()), Quiesced: true})
		if err != nil {
			b.Fatal(err)
		}
		sw, err := g.d.Prepare(ctx, snap.RestoreRequest{ID: id, Target: target.ID, Base: top.ID})
		stage(err)
		stage(sw.Commit(ctx))
		stage(u.Start(ctx))
		g.WaitReady(b)
		stage(nil)
		b.StopTimer()
		if err := sw.Finish(ctx); err != nil {
			b.Fatal(err)
		}
		g.forget(b, base.ID)
		g.forget(b, top.ID)
		b.StartTimer()
	}
	for _, name := range names {
		report(b, name, times[name])
	}
}

func (g *benchGuest) off(b *testing.B) {
	s := &subject{vm: g.vm}
	for b.Loop() {
		b.StopTimer()
		s.scribble(b)
		b.StartTimer()
		c := capture(b, g.d)
		b.StopTimer()
		g.forget(b, c.ID)
		b.StartTimer()
	}
}

// scribble writes to a disk of a domain that is off.
func (s *subject) scribble(b *testing.B) {
	image := s.sources(b, 2)["vda"]
	if out, err := exec.Command("qemu-io", "-f", "qcow2", "-t", "writeback", "-c", "write -q 60M 64k", image).CombinedOutput(); err != nil {
		b.Fatalf("qemu-io: %v: %s", err, out)
	}
}
