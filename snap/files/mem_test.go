package files

import (
	"runtime"
	"testing"
)

// BenchmarkMemory is what following keeps in memory for each file, the store's index and the watches included.
func BenchmarkMemory(b *testing.B) {
	f := newSite(b)
	plant(b, f.dir)
	var m0, m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	x := &followed{site: f}
	x.follow(b)
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapSys-m0.HeapSys)/benchFiles, "peak-sys-B/file")
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc-m0.HeapAlloc)/benchFiles, "B/file")
}
