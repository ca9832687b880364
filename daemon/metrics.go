package daemon

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mulligan/daemon/accounts"
	"mulligan/errs"
	"mulligan/ipc"
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

func newMetrics(d *Daemon) *metrics {
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
	m.registry.MustRegister(m.operations, m.stages, m.captures, m.restores, m.requests, present{d},
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

// present tells how things are at the time of asking.
type present struct{ d *Daemon }

var (
	infoDesc        = prometheus.NewDesc("mulligan_info", "The daemon's version.", []string{"version"}, nil)
	appsDesc        = prometheus.NewDesc("mulligan_apps", "Registered apps, by what they are at: idle, busy (an operation is under way), broken.", []string{"state"}, nil)
	checkpointsDesc = prometheus.NewDesc("mulligan_checkpoints", "Checkpoints of registered apps.", nil, nil)
	pendingDesc     = prometheus.NewDesc("mulligan_operations_pending", "Operations under way, or cut short and not yet finished or undone.", nil, nil)
	storeDesc       = prometheus.NewDesc("mulligan_store_bytes", "What the content stores occupy on disk.", nil, nil)
	unfinishedDesc  = prometheus.NewDesc("mulligan_apps_unfinished", "Apps of which something is unfinished, and tried again until it is done.", nil, nil)
	problemsDesc    = prometheus.NewDesc("mulligan_problems", "What mulligan status says needs attention.", nil, nil)
)

// Describe implements prometheus.Collector.
func (present) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{infoDesc, appsDesc, checkpointsDesc, pendingDesc, storeDesc, unfinishedDesc, problemsDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (p present) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	states := map[string]int{"idle": 0, "busy": 0, "broken": 0}
	unfinished := 0
	for _, a := range p.d.all() {
		states[a.doing()]++
		if len(a.unfinishedBusiness()) > 0 {
			unfinished++
		}
	}
	gauge(unfinishedDesc, float64(unfinished))
	for state, n := range states {
		gauge(appsDesc, float64(n), state)
	}
	gauge(infoDesc, 1, p.d.opt.Version)
	gauge(storeDesc, float64(p.d.store.Contents.visible(accounts.Self())))
	gauge(problemsDesc, float64(len(p.d.Status(accounts.Self()).Problems)))
	// A scrape has a time limit of its own, so a store that hangs is not waited for.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if n, err := p.d.store.CountAll(ctx); err == nil {
		gauge(checkpointsDesc, float64(n))
	}
	if ops, err := p.d.store.Operations(ctx); err == nil {
		gauge(pendingDesc, float64(len(ops)))
	}
}

// doing says what an app is at.
func (a *app) doing() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.broken != nil:
		return "broken"
	case a.holder != "":
		return "busy"
	}
	return "idle"
}

func (d *Daemon) getMetrics(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if !d.Administers(who) {
		return errs.New(errs.Denied, "show metrics", "metrics cover all apps, and only root may see those").
			WithHint("ask an administrator for a token: mulligan token add --scope metrics")
	}
	promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}
