package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"mulligan/errs"
)

// metrics is what GET /metrics tells, for Prometheus: counts and durations
// over all apps. No label names an app, an owner or a path, so their number is bounded.
type metrics struct {
	registry   *prometheus.Registry
	operations *prometheus.CounterVec
	stages     *prometheus.HistogramVec
	captures   *prometheus.HistogramVec
	restores   *prometheus.HistogramVec
	requests   *prometheus.HistogramVec
}

// seconds are the buckets of what may take from a millisecond to many minutes.
var seconds = []float64{.001, .005, .02, .1, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mulligan_operations_total", Help: "What was done to apps, by action and result (ok, or the kind of the error).",
		}, []string{"action", "result"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_rollback_stage_seconds", Help: "How long the stages of rollbacks took.", Buckets: seconds,
		}, []string{"stage", "status"}),
		captures: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_capture_seconds", Help: "How long layers took to be captured, by kind of layer.", Buckets: seconds,
		}, []string{"layer", "result"}),
		restores: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_restore_seconds", Help: "How long layers took to be restored and checked while the app was down, by kind of layer.", Buckets: seconds,
		}, []string{"layer", "result"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_request_seconds", Help: "How long requests took, by route and result.", Buckets: seconds,
		}, []string{"route", "result"}),
	}
	m.registry.MustRegister(m.operations, m.stages, m.captures, m.restores, m.requests,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// resultOf is a label's value for err.
func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	return string(errs.KindOf(err))
}

// since is a time in seconds.
func since(began time.Time) float64 { return time.Since(began).Seconds() }
