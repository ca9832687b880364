package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A daemon that watches large trees keeps much and changes little. The collector's
// usual measure would let it take twice what it keeps, and what a first capture took
// would stay with it for minutes. So the limit of its memory follows what it keeps:
// near a limit the runtime collects sooner, and gives back at once what is free.

const (
	collectAt = 50       // percent that the heap may grow before it is collected
	headroom  = 16 << 20 // bytes beside a heap that grows by a quarter, for example for packing

	restEvery = 10 * time.Second // how often frugal looks whether the daemon rests
	restMost  = 1 << 20          // bytes of objects that a daemon at rest makes in that time, at most
	restLeft  = 8 << 20          // bytes of objects that were made after which a collection is worth while, at least
)

// frugal sets the limit anew after each collection, and has the runtime collect once the daemon is at rest: what a capture left would stay for two minutes,
// after which the runtime collects by itself. Nothing is done if the environment has settings for the collector.
func frugal() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(collectAt)
	follow([]metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
	})
	go func() {
		r := newRest()
		for range time.Tick(restEvery) {
			if r.worthCollecting() {
				debug.FreeOSMemory()
			}
		}
	}()
}

// rest tells whether the daemon is at rest.
type rest struct {
	samples   []metrics.Sample
	made      uint64 // bytes of all objects that were ever made, at the last look
	collected uint64 // the same, when it was last worth collecting
}

func newRest() *rest {
	r := &rest{samples: []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}}
	r.worthCollecting()
	return r
}

// worthCollecting reports whether hardly an object was made since the call before, but many were since it last reported that. How many of them are dead
// is not known: what the runtime found alive when it last collected may have been in use for a moment only, for example for packing.
func (r *rest) worthCollecting() bool {
	metrics.Read(r.samples)
	made, live := r.samples[0].Value.Uint64(), r.samples[1].Value.Uint64()
	resting := made-r.made <= restMost
	r.made = made
	if !resting || made-r.collected <= max(restLeft, live/8) {
		return false
	}
	r.collected = made
	return true
}

// follow is called once a collection has found the probe to be unreachable.
func follow(samples []metrics.Sample) {
	metrics.Read(samples)
	n := func(i int) uint64 { return samples[i].Value.Uint64() }
	live, total, released, free, objects := n(0), n(1), n(2), n(3), n(4)
	debug.SetMemoryLimit(limit(live, total-released-free-objects))
	type probe struct{ _ *int } // with a pointer, so that it is allocated by itself
	runtime.AddCleanup(&probe{}, follow, samples)
}

// limit is how much memory the daemon may take that keeps live bytes in objects. The runtime counts against it what it has beside
// objects as well, and cannot give that back: holes between objects, stacks and its own records. A limit that is too near makes it collect all the
// time, even in a daemon at rest. A large heap has as much room as collectAt gives it.
func limit(live, beside uint64) int64 {
	room := max(live/4+headroom, live*collectAt/100)
	return int64(min(live+beside+room, math.MaxInt64))
}
