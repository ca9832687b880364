package remote

import (
	"fmt"
	"testing"

	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// BenchmarkTurn is what the checkpoint of a turn costs that changed ten files of 2 KiB, beside 2,000 others: requests and bytes. The figures are in
// docs/explanation/scale.md.
func BenchmarkTurn(b *testing.B) {
	h := newHost(b, s3test.Start(b).Endpoint)
	h.write(2000, 2<<10)
	h.push("cp-first")
	before, n := h.bucket.Usage(), 0
	for b.Loop() {
		b.StopTimer()
		h.write(10, 2<<10)
		cp := h.capture(fmt.Sprint("cp-", n))
		cp.App, cp.About = testkit.Bytes(b, 2<<10, n), testkit.Bytes(b, 2<<10, n) // larger than what describes an app, which can be compressed
		n++
		b.StartTimer()
		if _, err := h.place.Push(b.Context(), h.store, cp); err != nil {
			b.Fatal(err)
		}
	}
	after := h.bucket.Usage()
	b.ReportMetric(float64(after.Requests-before.Requests)/float64(n), "requests/op")
	b.ReportMetric(float64(after.Sent-before.Sent)/float64(n), "sent-B/op")
}

// BenchmarkIdle is what a remote costs to which nothing is to be sent.
func BenchmarkIdle(b *testing.B) {
	h := newHost(b, s3test.Start(b).Endpoint)
	h.write(100, 2<<10)
	h.push("cp-first")
	cp := h.recorded("cp-first")
	before := h.bucket.Usage()
	for b.Loop() {
		if res, err := h.place.Push(b.Context(), h.store, cp); err != nil || !res.Already {
			b.Fatal(res, err)
		}
	}
	b.ReportMetric(float64(h.bucket.Usage().Requests-before.Requests)/float64(b.N), "requests/op")
}

// BenchmarkReadLog is the reading of a log of 1,000 entries, with which a clone begins.
func BenchmarkReadLog(b *testing.B) {
	h := newHost(b, s3test.Start(b).Endpoint)
	h.write(20, 2<<10)
	for i := range 1000 {
		h.write(1, 100)
		h.push(fmt.Sprint("cp-", i))
	}
	before := h.bucket.Usage()
	for b.Loop() {
		if hist, err := h.read(); err != nil || len(hist.Checkpoints) != 1000 {
			b.Fatal(err)
		}
	}
	after := h.bucket.Usage()
	b.ReportMetric(float64(after.Requests-before.Requests)/float64(b.N), "requests/op")
	b.ReportMetric(float64(after.Received-before.Received)/float64(b.N), "received-B/op")
}
