package daemon_test

import (
	"fmt"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// TestRollbackDuringDryRun rolls an app back while another client makes dry runs of a rollback, one after the other. No rollback is refused.
func TestRollbackDuringDryRun(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}.register(t, nil)
	d := w.failing(t, nil)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		dry := ipc.RollbackRequest{DryRun: true}
		for n := 0; ; {
			select {
			case <-stop:
				if n == 0 {
					looked <- fmt.Errorf("no dry run succeeded")
				}
				close(looked)
				return
			default:
			}
			_, err := d.Rollback(t.Context(), root, "shop", cp.ID, dry, nil)
			if err == nil {
				n++
			} else if errs.KindOf(err) != errs.Busy { // a rollback has the app
				looked <- err
				return
			}
		}
	}()
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
