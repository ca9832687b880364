package main

import (
	"bytes"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

// beFrugal lets the limit follow what is kept until the test ends.
func beFrugal(t *testing.T) {
	t.Helper()
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	was, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	t.Cleanup(func() {
		debug.SetMemoryLimit(was)
		debug.SetGCPercent(percent)
	})
	frugal()
}

// The limit follows what is kept, up and down, and always leaves room above it.
func TestMemoryLimit(t *testing.T) {
	beFrugal(t)
	settle := func(ok func(limit, live int64) bool) {
		t.Helper()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for range 1000 {
			runtime.GC() // cleanups run some time after it
			metrics.Read(live)
			if ok(debug.SetMemoryLimit(-1), int64(live[0].Value.Uint64())) {
				return
			}
		}
		t.Fatalf("the limit is %d, and %d bytes are kept", debug.SetMemoryLimit(-1), live[0].Value.Uint64())
	}
	const much = 200 << 20
	keep := bytes.Repeat([]byte{1}, much)
	settle(func(limit, live int64) bool { return limit > live+live/8 && limit < 2*live-live/4 && live > much })
	runtime.KeepAlive(keep)
	keep = nil
	settle(func(limit, live int64) bool { return limit > live+live/8 && limit < much })
}

// Holes between objects count against the limit, and the runtime cannot give them back. The limit is above what is kept and the holes
// together; below that, the runtime would collect all the time.
func TestMemoryLimitAboveHoles(t *testing.T) {
	beFrugal(t)
	all := make([][]byte, 128<<10)
	for i := range all {
		all[i] = make([]byte, 1024)
	}
	var kept [][]byte
	for i := 0; i < len(all); i += 8 { // a span of such objects has eight
		kept = append(kept, all[i])
	}
	all = nil
	now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	const settled = 50
	for n, i := 0, 0; i < 1000; i++ {
		runtime.GC() // cleanups run some time after it
		metrics.Read(now)
		live, holes := int64(now[0].Value.Uint64()), int64(now[1].Value.Uint64())
		if n++; holes <= 64<<20 || debug.SetMemoryLimit(-1) <= live+holes+live/4 {
			n = 0
		}
		if n == settled { // the limit is no longer that of what was kept before
			runtime.KeepAlive(kept)
			return
		}
	}
	t.Fatalf("the limit is %d, %d bytes are kept and %d are holes", debug.SetMemoryLimit(-1), now[0].Value.Uint64(), now[1].Value.Uint64())
}

// A daemon at rest that has many dead objects collects them, once. One that works leaves that to the runtime.
func TestCollectAtRest(t *testing.T) {
	// Nothing else collects. A collection before the test would have frugal, of another test, set a limit during this one.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	r := newRest()
	var garbage []byte
	for range 3 {
		garbage = make([]byte, 2*restLeft)
		if r.worthCollecting() {
			t.Error("it collects while objects are made")
		}
	}
	runtime.KeepAlive(garbage)
	if !r.worthCollecting() {
		t.Error("it does not collect at rest")
	}
	debug.FreeOSMemory()
	if r.worthCollecting() {
		t.Error("it collects again at rest")
	}
	held := make([]byte, 4*restLeft)
	runtime.GC() // finds it alive, and nobody makes objects afterwards
	runtime.KeepAlive(held)
	if r.worthCollecting() {
		t.Error("it collects while objects are made")
	}
	if !r.worthCollecting() {
		t.Error("it does not collect what was alive at the last collection")
	}
}
