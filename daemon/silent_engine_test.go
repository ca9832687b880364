package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// silencer is a container engine with one container, web, that accepts connections and says nothing while it is silent. It becomes silent when it is
// first asked to start the container. The container uses the volume rows, and cannot be paused.
type silencer struct {
	volume  string // the folder of the volume
	mu      sync.Mutex
	running bool
	again   bool          // it was asked to start the container before
	stops   int           // how often it was asked to stop the container
	speak   chan struct{} // closed while it speaks
	asked   int           // how often it was asked while it was silent
	loses   bool          // it loses the container instead of becoming silent
	lost    bool          // it has no container
}

func (s *silencer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	speak := s.speak
	select {
	case <-speak:
	default:
		s.asked++
	}
	s.mu.Unlock()
	select {
	case <-speak:
	case <-r.Context().Done():
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Api-Version", "1.44")
	w.Header().Set("Content-Type", "application/json")
	status := map[bool]string{true: "running", false: "exited"}[s.running]
	switch {
	case s.loses && strings.HasSuffix(r.URL.Path, "/start"):
		s.lost = true
		fallthrough
	case s.lost:
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"message":"No such container: web"}`)) // the daemon sees what comes of it
	case strings.HasSuffix(r.URL.Path, "/containers/json"):
		_ = json.NewEncoder(w).Encode([]any{map[string]any{"Id": "1", "Names": []string{"/web"}, "State": status}})
	case strings.HasSuffix(r.URL.Path, "/volumes/rows"):
		_ = json.NewEncoder(w).Encode(map[string]any{"Name": "rows", "Driver": "local", "Mountpoint": s.volume})
	case strings.HasSuffix(r.URL.Path, "/pause"):
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"message": "no freezer"}`)
	case strings.HasSuffix(r.URL.Path, "/containers/web/json"):
		_ = json.NewEncoder(w).Encode(map[string]any{ // the daemon sees what comes of it
			"Id": "1", "Name": "/web", "State": map[string]any{"Status": status, "Running": s.running}, "Config": map[string]any{"Image": "x"}, "HostConfig": map[string]any{},
		})
	case strings.HasSuffix(r.URL.Path, "/stop"):
		s.running = false
		s.stops++
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(r.URL.Path, "/start"):
		if s.again {
			s.running = true
		} else {
			s.again, s.speak = true, make(chan struct{})
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// startSilencer starts an engine that speaks, and returns its socket and what ends it.
func startSilencer(t *testing.T) (e *silencer, socket string, end func()) {
	t.Helper()
	speaks := make(chan struct{})
	close(speaks)
	e = &silencer{running: true, speak: speaks}
	socket = filepath.Join(t.TempDir(), "e.sock")
	listener, err := net.Listen("unix", socket)
	check(t, err)
	srv := httptest.NewUnstartedServer(e)
	srv.Listener.Close()
	srv.Listener = listener
	srv.Start()
	t.Cleanup(srv.Close)
	return e, socket, srv.Close
}

// TestUnpausable has an engine that can stop a container, and not pause it: a checkpoint of the app while it runs is refused, and an undo stops the app first.
func TestUnpausable(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	e, socket, _ := startSilencer(t)
	e.again, e.volume = true, filepath.Join(t.TempDir(), "rows", "_data")
	check(t, os.MkdirAll(e.volume, 0o755))
	d := openForks(t, daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), StopTimeout: 2 * time.Second, Steady: steady})
	t.Cleanup(func() { check(t, d.Close(context.Background())) })
	_, err := d.AddApp(ctx, root, ipc.App{Slug: "shop", Workspace: workspace(t), Unit: "container:web", Engine: socket, Volumes: []ipc.Volume{{Name: "rows"}}})
	check(t, err)
	write(t, e.volume, "row", "good")
	cp, err := d.Create(ctx, root, "shop", ipc.CreateRequest{})
	check(t, err)
	write(t, e.volume, "row", "bad")
	_, err = d.Create(ctx, root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
	if errs.KindOf(err) != errs.Conflict || !strings.Contains(fmt.Sprint(err), "no freezer") || !strings.Contains(errs.HintOf(err), "`mulligan create` stops") {
		t.Errorf("while the container runs: %v; %s", err, errs.HintOf(err))
	}
	e.stops = 0
	res, err := d.Rollback(ctx, root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err != nil || e.stops == 0 || !e.running {
		t.Errorf("%v\n%+v\nit was stopped %d times, and runs: %v", err, res, e.stops, e.running)
	}
	if got := read(t, e.volume, "row"); got != "good" {
		t.Errorf("the row is %q", got)
	}
}

// TestSilentEngine has the engine of one app accept connections and say nothing, in the midst of a rollback: the next daemon opens nevertheless, and another
// app works. It ends the rollback when the engine answers again.
func TestSilentEngine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	e, socket, _ := startSilencer(t)
	opt := daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), StopTimeout: 2 * time.Second, Steady: steady, Engines: 3 * time.Second}
	d := openForks(t, opt)
	shop, well := workspace(t), workspace(t)
	for _, spec := range []ipc.App{{Slug: "shop", Workspace: shop, Unit: "container:web", Engine: socket}, {Slug: "well", Workspace: well}} {
		_, err := d.AddApp(ctx, root, spec)
		check(t, err)
	}
	cp, err := d.Create(ctx, root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
	check(t, err)
	write(t, shop, "state", "bad")
	if _, err = d.Rollback(ctx, root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err == nil {
		t.Error("the rollback needs no engine")
	}
	check(t, d.Close(ctx))

	e.mu.Lock()
	e.asked = 0
	e.mu.Unlock()
	d = openForks(t, opt)
	t.Cleanup(func() { check(t, d.Close(context.Background())) })
	e.mu.Lock()
	asked := e.asked
	e.mu.Unlock()
	if asked == 0 {
		t.Error("the daemon did not ask the silent engine")
	}
	if _, err := d.Create(ctx, root, "well", ipc.CreateRequest{}); err != nil {
		t.Errorf("the other app: %v", err)
	}
	if problems := strings.Join(d.Status(root).Problems, "\n"); !strings.Contains(problems, "shop: recover rollback") || !strings.Contains(problems, "does not answer in time") {
		t.Errorf("the problems are %q", problems)
	}
	for _, a := range d.Apps(ctx, root) {
		if want := map[string]string{"shop": "unknown", "well": "none"}[a.Slug]; a.State != want {
			t.Errorf("the list says that %s is %s", a.Slug, a.State)
		}
	}
	e.mu.Lock()
	close(e.speak)
	e.mu.Unlock()
	waitFor(t, "the rollback has ended", func() bool { return len(d.Status(root).Problems) == 0 })
	waitFor(t, "the app runs", func() bool {
		a, err := d.App(ctx, root, "shop")
		return err == nil && a.State == "running"
	})
}

// TestRevertWithoutEngine has the engine of an app go away: a revert stops nothing, so it needs no engine, and says that it does not know whether the
// app runs.
func TestRevertWithoutEngine(t *testing.T) {
	t.Parallel()
	_, socket, end := startSilencer(t)
	w := world{dir: worldDir(t)}
	write(t, w.ws(), "work", "before")
	d := w.openWith(t, time.Hour)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Unit: "container:web", Engine: socket, Auto: true})
	check(t, err)
	awaitFollowing(t, d)
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.say("m")
	c.call("call", "echo after >work")
	c.done()
	end()
	if got := state(t, d); got != "unknown" {
		t.Fatalf("without its engine the app is %s", got)
	}
	res := revert(t, d, ipc.RevertRequest{CallID: "call"})
	if got := w.says(t, "work"); got != "before" {
		t.Errorf("after the revert work says %q", got)
	}
	if words := strings.Join(res.Warnings, "\n"); !strings.Contains(words, "it is not known whether container:web runs: ") || !strings.Contains(words, "no container engine answers") {
		t.Errorf("the revert says %q", words)
	}
	if cp := res.SafetyCheckpoint; cp.Running != nil || cp.Healthy != nil || cp.Quiesced {
		t.Errorf("the safety checkpoint says running %v, healthy %v, quiesced %v", cp.Running, cp.Healthy, cp.Quiesced)
	}
}

// TestLostContainer has somebody remove the container of an app while a rollback has it stopped: the files are put back, and nothing is left to be done. While
// there is no container, a rollback goes where it is told to start nothing.
func TestLostContainer(t *testing.T) {
	t.Parallel()
	e, socket, _ := startSilencer(t)
	e.loses = true
	w := world{dir: worldDir(t)}
	write(t, w.ws(), "work", "good")
	d := w.open(t)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Unit: "container:web", Engine: socket})
	check(t, err)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
	check(t, err)
	write(t, w.ws(), "work", "bad")
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), "put the app back: container:web has lost a container: web") || res.RolledBack {
		t.Errorf("the container is removed during the rollback: %v", err)
	}
	if got := w.says(t, "work"); got != "bad" || len(res.PutBack) != 1 {
		t.Errorf("after the rollback that failed work says %q: %q", got, res.PutBack)
	}
	waitFor(t, "nothing is unfinished", func() bool { return len(d.Status(root).Problems) == 0 })

	for _, dry := range []bool{true, false} {
		_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{DryRun: dry}, nil)
		if want := "`mulligan rollback " + string(cp.ID) + " --no-start` goes there without starting it; then: make it anew"; errs.KindOf(err) != errs.NotFound || !strings.HasPrefix(errs.HintOf(err), want) {
			t.Errorf("without its container: %v; the hint is %q", err, errs.HintOf(err))
		}
	}
	no := false
	for _, dry := range []bool{true, false} {
		res := goBack(t, d, cp.ID, ipc.RollbackRequest{Start: &no, DryRun: dry})
		if words := strings.Join(res.Warnings, "\n"); !strings.Contains(words, "container:web has lost a container: web") {
			t.Errorf("the rollback that starts nothing says %q", words)
		}
	}
	if got := w.says(t, "work"); got != "good" {
		t.Errorf("after the rollback that starts nothing work says %q", got)
	}
}

// TestOwedStart has a checkpoint stop an app that then cannot be started, because the engine is away. The daemon starts it later, unless a rollback decides before that
// whether the app runs.
func TestOwedStart(t *testing.T) {
	t.Parallel()
	e, socket, _ := startSilencer(t)
	e.again = true
	w := world{dir: worldDir(t)}
	write(t, w.ws(), "work", "good")
	var away atomic.Bool
	opt := w.options()
	opt.Failpoint = func(step string) error {
		switch {
		case step == "stage "+string(ipc.StageStart): // a retry cannot be before it
			away.Store(false)
		case step == "start unit" && away.Load():
			return errs.New(errs.Unavailable, "", "the test has the engine away")
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Unit: "container:web", Engine: socket})
	check(t, err)
	owe := func() ipc.CheckpointID {
		t.Helper()
		away.Store(true)
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceStop})
		if errs.KindOf(err) != errs.Unavailable || state(t, d) != "stopped" {
			t.Fatalf("the app is %s after a checkpoint: %v", state(t, d), err)
		}
		return cp.ID
	}
	// reopened returns the app's state once another daemon has started what was owed.
	reopened := func() string {
		t.Helper()
		away.Store(false)
		w.close(t, d)
		d = w.openAs(t, opt)
		waitFor(t, "nothing is unfinished", func() bool { return len(d.Status(root).Problems) == 0 })
		return state(t, d)
	}
	owe()
	if got := reopened(); got != "running" {
		t.Errorf("a start is owed, and the app is %s", got)
	}
	no := false
	goBack(t, d, owe(), ipc.RollbackRequest{Start: &no})
	if got := reopened(); got != "stopped" {
		t.Errorf("a rollback was told to start nothing, and the app is %s", got)
	}
	e.mu.Lock()
	e.running = true
	e.mu.Unlock()
	goBack(t, d, owe(), ipc.RollbackRequest{})
	if got := state(t, d); got != "running" {
		t.Errorf("a start was owed before the rollback, and the app is %s", got)
	}
	e.mu.Lock()
	e.running = false // somebody stops it
	e.mu.Unlock()
	if got := reopened(); got != "stopped" {
		t.Errorf("somebody has stopped the app since, and it is %s", got)
	}
}
