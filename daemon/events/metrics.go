package events

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"mulligan/errs"
)

// metrics are the counts and durations over all apps that GET /metrics returns for Prometheus. No label names an app, an owner
// or a path, so the number of series is bounded.
type metrics struct {
	Registry   *prometheus.Registry
	Operations *prometheus.CounterVec
	Stages     *prometheus.HistogramVec
	Captures   *prometheus.HistogramVec
	Restores   *prometheus.HistogramVec
	Requests   *prometheus.HistogramVec
}

// seconds are the histogram buckets for durations from a millisecond to many minutes.
var seconds = []float64{.001, .005, .02, .1, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

func newMetrics() *metrics {
	m := &metrics{
		Registry: prometheus.NewRegistry(),
		Operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mulligan_operations_total", Help: "What was done to apps, by action and result (ok, or the kind of the error).",
		}, []string{"action", "result"}),
		Stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_rollback_stage_seconds", Help: "How long the stages of rollbacks took.", Buckets: seconds,
		}, []string{"stage", "status"}),
		Captures: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_capture_seconds", Help: "How long layers took to be captured, by kind of layer.", Buckets: seconds,
		}, []string{"layer", "result"}),
		Restores: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_restore_seconds", Help: "How long layers took to be restored and checked while the app was down, by kind of layer.", Buckets: seconds,
		}, []string{"layer", "result"}),
		Requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mulligan_request_seconds", Help: "How long requests took, by route and result.", Buckets: seconds,
		}, []string{"route", "result"}),
	}
	m.Registry.MustRegister(m.Operations, m.Stages, m.Captures, m.Restores, m.Requests,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// ResultOf returns the value of the label "result" for err.
func ResultOf(err error) string {
	if err == nil {
		return "ok"
	}
	return string(errs.KindOf(err))
}

// Since returns the seconds since a time.
func Since(began time.Time) float64 { return time.Since(began).Seconds() }
