package api

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mulligan/daemon/accounts"
	"mulligan/errs"
	"mulligan/ipc"
)

// present collects the metrics of the present state.
type present struct{ d *Service }

var (
	infoDesc        = prometheus.NewDesc("mulligan_info", "The daemon's version.", []string{"version"}, nil)
	appsDesc        = prometheus.NewDesc("mulligan_apps", "Registered apps, by what they are at: idle, busy (an operation is under way), broken.", []string{"state"}, nil)
	checkpointsDesc = prometheus.NewDesc("mulligan_checkpoints", "Checkpoints of registered apps.", nil, nil)
	pendingDesc     = prometheus.NewDesc("mulligan_operations_pending", "Operations under way, or cut short and not yet finished or undone.", nil, nil)
	storeDesc       = prometheus.NewDesc("mulligan_store_bytes", "What the content stores occupy on disk.", nil, nil)
	unfinishedDesc  = prometheus.NewDesc("mulligan_apps_unfinished", "Apps of which something is unfinished, and tried again until it is done.", nil, nil)
	remotesDesc     = prometheus.NewDesc("mulligan_remotes", "Remotes of apps.", nil, nil)
	failingDesc     = prometheus.NewDesc("mulligan_remote_failing", "Remotes whose last try failed, or that another host writes to.", nil, nil)
	behindDesc      = prometheus.NewDesc("mulligan_remote_behind_checkpoints", "Checkpoints that are to be sent to remotes and are not there yet.", nil, nil)
	behindForDesc   = prometheus.NewDesc("mulligan_remote_behind_seconds", "How long ago the oldest of these checkpoints was made.", nil, nil)
	problemsDesc    = prometheus.NewDesc("mulligan_problems", "What `mulligan status` says needs attention.", nil, nil)
)

// Describe implements prometheus.Collector.
func (present) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{infoDesc, appsDesc, checkpointsDesc, pendingDesc, storeDesc, unfinishedDesc, problemsDesc, remotesDesc, failingDesc, behindDesc, behindForDesc} {
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
	for _, a := range p.d.apps.All() {
		states[a.Activity()]++
		if len(a.Unfinished()) > 0 {
			unfinished++
		}
	}
	gauge(unfinishedDesc, float64(unfinished))
	for state, n := range states {
		gauge(appsDesc, float64(n), state)
	}
	gauge(infoDesc, 1, p.d.opt.Version)
	gauge(storeDesc, float64(p.d.store.Contents.Visible(accounts.Self())))
	gauge(problemsDesc, float64(len(p.d.Status(accounts.Self()).Problems)))
	lag := p.d.remotes.Lag()
	gauge(remotesDesc, float64(lag.Remotes))
	gauge(failingDesc, float64(lag.Failing))
	gauge(behindDesc, float64(lag.Checkpoints))
	since := 0.0
	if !lag.Since.IsZero() {
		since = p.d.opt.Now().Sub(lag.Since).Seconds()
	}
	gauge(behindForDesc, since)
	// A scrape has a timeout of its own, so Collect does not wait for a store that hangs.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if n, err := p.d.store.CountAll(ctx); err == nil {
		gauge(checkpointsDesc, float64(n))
	}
	if ops, err := p.d.store.Operations(ctx); err == nil {
		gauge(pendingDesc, float64(len(ops)))
	}
}

func (svc *Service) getMetrics(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
	if !svc.owners.Administers(who) {
		return errs.New(errs.Denied, "show metrics", "metrics cover all apps, and only root may see those").
			WithHint("ask an administrator for a token: `mulligan token add --scope metrics`")
	}
	promhttp.HandlerFor(svc.events.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}
