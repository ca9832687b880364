package main

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

// The limit follows what is kept, up and down, and always leaves room above it.
func TestMemoryLimit(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	was, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	defer func() {
		debug.SetMemoryLimit(was)
		debug.SetGCPercent(percent)
	}()
	frugal()
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
