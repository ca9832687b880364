package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"mulligan/snap"
)

// BenchmarkFolders sets the watches of 100,000 folders, and then measures a
// Barrier and an event among them.
func BenchmarkFolders(b *testing.B) {
	const n = 100_000
	dir := b.TempDir()
	for i := range n {
		if err := os.MkdirAll(filepath.Join(dir, fmt.Sprint(i/1000), fmt.Sprint(i/10), fmt.Sprint(i)), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	start := func() (w *Watcher, stop func()) {
		w, err := New(Options{Dir: dir, CookieDir: filepath.Join(b.TempDir(), "watch")})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		for w.State().State != snap.Watching {
			<-w.Dirty()
		}
		w.Take()
		return w, func() {
			cancel()
			<-done
		}
	}
	b.Run("SetUp", func(b *testing.B) {
		var closing time.Duration
		for b.Loop() {
			_, stop := start()
			b.StopTimer()
			began := time.Now()
			stop()
			closing = time.Since(began)
			b.StartTimer()
		}
		b.ReportMetric(float64(closing.Milliseconds()), "close-ms")
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w, stop := start()
	defer stop()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.Run("Barrier", func(b *testing.B) {
		for b.Loop() {
			if err := w.Barrier(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "heapB/folder")
	})
	b.Run("Write", func(b *testing.B) {
		path := filepath.Join(dir, "7/777/7777/f")
		for b.Loop() {
			if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
				b.Fatal(err)
			}
			if err := w.Barrier(context.Background()); err != nil {
				b.Fatal(err)
			}
			if w.Take().Empty() {
				b.Fatal("nothing was seen")
			}
		}
	})
}
