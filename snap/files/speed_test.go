package files

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"mulligan/snap"
)

func BenchmarkRestoreFollowing(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFollowed(b)
			plant(b, f.dir)
			f.flush(b)
			must(b, newEpoch(b.Context(), f.follower.Session()))
			r := rand.New(rand.NewPCG(1, 2))
			times := map[string]time.Duration{}
			for b.Loop() {
				b.StopTimer()
				target := f.at(b, f.flush(b))
				for i := range n {
					write(b, benchFile(f.dir, (i*1987)%benchFiles), fmt.Sprintf("%x", random(r, 2000)))
				}
				f.flush(b)
				b.StartTimer()
				step := func(name string, do func() error) {
					t := time.Now()
					must(b, do())
					times[name] += time.Since(t)
				}
				var base snap.Snapshot
				var sw snap.Switch
				step("base", func() error { base = f.capture(b); return nil })
				step("prepare", func() (err error) {
					sw, err = f.Prepare(b.Context(), snap.RestoreRequest{ID: "op", Target: target, Base: base.ID})
					return err
				})
				step("stale", func() error { _, err := sw.Stale(b.Context()); return err })
				step("commit", func() error { return sw.Commit(b.Context()) })
				step("check", func() error { _, err := sw.Check(b.Context()); return err })
				step("finish", func() error { return sw.Finish(b.Context()) })
			}
			for k, d := range times {
				b.ReportMetric(float64(d.Microseconds())/float64(b.N)/1000, k+"-ms")
			}
		})
	}
}
