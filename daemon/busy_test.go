package daemon_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testRollbackDuringDryRun rolls an app back while another client makes dry runs of a rollback, one after the other. No rollback is refused.
func testRollbackDuringDryRun(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}.register(t, nil)
	d := w.failing(t, nil)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	stop, first, looked := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(looked)
		works := sync.OnceFunc(func() { close(first) })
		defer works()
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{DryRun: true}, nil)
			if err == nil {
				works()
			} else if errs.KindOf(err) != errs.Busy { // a rollback has the app
				looked <- err
				return
			}
		}
	}()
	<-first
	for i := range 20 {
		write(t, w.ws(), "file", fmt.Sprint(i))
		res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		if err != nil || !res.RolledBack {
			t.Errorf("rollback %d: %v", i, err)
		}
	}
	close(stop)
	if err := <-looked; err != nil {
		t.Error(err)
	}
}

// TestBusy: while a rollback has the app, whoever else would change it is told so at once, and by whom it is held; looking goes on.
func TestBusy(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}.register(t, nil)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var armed atomic.Bool
	d := w.failing(t, func(string) error {
		if armed.Load() {
			once.Do(func() { close(reached); <-goOn })
		}
		return nil
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	armed.Store(true)
	ended := make(chan error, 1)
	go func() {
		_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		ended <- err
	}()
	<-reached
	deeds := map[string]func() error{
		"rollback": func() error {
			_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
			return err
		},
		"create": func() error {
			_, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
			return err
		},
		"delete": func() error { return d.Delete(t.Context(), root, "shop", cp.ID) },
		"prune": func() error {
			_, err := d.Prune(t.Context(), root, "shop", false)
			return err
		},
	}
	for what, do := range deeds {
		answer := make(chan error, 1)
		go func() { answer <- do() }()
		var err error
		select {
		case err = <-answer:
		case <-time.After(testkit.Patience):
			close(goOn)
			t.Fatalf("%s waits for the rollback", what)
		}
		if errs.KindOf(err) != errs.Busy || !strings.Contains(err.Error(), "shop is busy: roll back by root (pid 1, test) since ") || errs.HintOf(err) == "" {
			t.Errorf("%s during a rollback: %v (%s)", what, err, errs.HintOf(err))
		}
	}
	if _, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{}); err != nil {
		t.Errorf("a list during a rollback: %v", err)
	}
	close(goOn)
	check(t, <-ended)
	check(t, deeds["create"]())
}
