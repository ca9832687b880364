package daemon_test

import (
	"fmt"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// TestRollbackDuringDryRun: whoever looks at what a rollback would do keeps nobody from doing one.
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
		for n := 0; ; n++ {
			select {
			case <-stop:
				if n == 0 {
					looked <- fmt.Errorf("nobody looked")
				}
				close(looked)
				return
			default:
			}
			if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, dry, nil); err != nil && errs.KindOf(err) != errs.Busy {
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
