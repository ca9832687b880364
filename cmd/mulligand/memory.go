package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// A daemon that watches large trees keeps much and changes little. The collector's
// usual measure would let it take twice what it keeps, and what a first capture took
// would stay with it for minutes. So the limit of its memory follows what it keeps:
// near a limit the runtime collects sooner, and gives back at once what is free.

const (
	collectAt = 50       // percent that the heap may grow before it is collected
	headroom  = 16 << 20 // bytes beside a heap that grows by a quarter: stacks, and what packing takes
)

// frugal sets the limit anew after each collection, unless the environment has it.
func frugal() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(collectAt)
	follow(&metrics.Sample{Name: "/gc/heap/live:bytes"})
}

// follow is called once a collection has found the probe to be unreachable.
func follow(live *metrics.Sample) {
	samples := []metrics.Sample{*live}
	metrics.Read(samples)
	debug.SetMemoryLimit(limit(samples[0].Value.Uint64()))
	type probe struct{ _ *int } // with a pointer, so that it is allocated by itself
	runtime.AddCleanup(&probe{}, follow, live)
}

// limit is how much memory the daemon may take that keeps so many bytes. A limit
// that is too near makes the runtime collect all the time, and holes between objects count
// as well: a large heap has as much room as collectAt gives it.
func limit(live uint64) int64 {
	room := max(live/4+headroom, live*collectAt/100)
	return int64(min(live+room, math.MaxInt64))
}
