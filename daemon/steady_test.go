package daemon_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/ipc"
	"mulligan/testkit"
)

// TestDiesSoonAfterItsStart goes back to a program that starts, and ends a moment later.
func TestDiesSoonAfterItsStart(t *testing.T) {
	t.Parallel()
	w := world{dir: t.TempDir()}
	sh(t, `mkdir "$1" && echo 'sleep 0.3; exit 3' >"$1/start"`, w.ws())
	opt := w.options()
	opt.Steady = testkit.Patience // the program ends earlier
	d := w.openAs(t, opt)
	defer w.close(t, d)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Retention: ipc.DefaultRetention()}); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, w.ws(), "start", "exec sleep 1000000")
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{"sh", "start"}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the app runs", func() bool { return state(t, d) == "running" })
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err == nil || !res.Recovered || res.RolledBack || res.Stages[4].Status != ipc.StageFailed {
		t.Errorf("%+v, %v", res, err)
	}
	if got := read(t, w.ws(), "start"); got != "exec sleep 1000000" || state(t, d) != "running" {
		t.Errorf("the app is %s with %q", state(t, d), got)
	}
}

// testDowntime goes back while the app runs. That the unit is watched after its start is not downtime. The next dry run tells as much as was
// measured.
func testDowntime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	opt := w.options()
	opt.Steady = time.Second
	d := w.openAs(t, opt)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	waitFor(t, "the app runs", func() bool { return state(t, d) == "running" })
	began := time.Now()
	res := goBack(t, d, cp.ID, ipc.RollbackRequest{})
	if took := time.Since(began); res.DowntimeMS == nil || *res.DowntimeMS <= 0 || time.Duration(*res.DowntimeMS)*time.Millisecond > took-opt.Steady {
		t.Fatalf("in %v the app was down for %v ms", took, res.DowntimeMS)
	}
	dry := goBack(t, d, cp.ID, ipc.RollbackRequest{DryRun: true})
	if p := dry.Preview; dry.DowntimeMS != nil || p.DowntimeMS == nil || *p.DowntimeMS != *res.DowntimeMS {
		t.Errorf("the dry run says %+v, where %d ms were measured", dry.Preview, *res.DowntimeMS)
	}
	off := goBack(t, d, ipc.Redo, ipc.RollbackRequest{Start: new(bool)})
	if off.DowntimeMS != nil {
		t.Errorf("an app that stays down was down for %d ms", *off.DowntimeMS)
	}
}

// TestHangingHealthCheck goes back while the app answers no health check: it is asked beside the capture, which does not wait for it. The
// capture waits here until the app was asked, and the app answers only after that.
func TestHangingHealthCheck(t *testing.T) {
	t.Parallel()
	asked, captured := make(chan struct{}), make(chan struct{})
	var once sync.Once
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(asked) })
		select {
		case <-captured:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	w := newWorld(t, nil)
	var armed atomic.Bool
	d := w.failing(t, func(step string) error {
		if step == "capture files" && armed.CompareAndSwap(true, false) {
			select {
			case <-asked:
			case <-time.After(testkit.Patience):
				return errors.New("the app was not asked")
			}
			close(captured)
		}
		return nil
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Health: &ipc.Health{URL: srv.URL, Timeout: "5s"}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the app runs", func() bool { return state(t, d) == "running" })
	armed.Store(true)
	res := goBack(t, d, cp.ID, ipc.RollbackRequest{})
	if armed.Load() || res.SafetyCheckpoint.Healthy == nil {
		t.Errorf("the capture was reached: %v; the safety checkpoint's health is %v", !armed.Load(), res.SafetyCheckpoint.Healthy)
	}
	w.runs(t, d, "zero")
}
