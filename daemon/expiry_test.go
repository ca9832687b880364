package daemon_test

import (
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// testExpiry: a checkpoint whose time is over is no longer gone back to, unless it
// is pinned: whoever pins it wants to keep it.
func testExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	opt := w.options()
	var skew atomic.Int64 // the daemon asks for the time in the background too
	opt.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	d, err := daemon.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close(t, d)
	keep := ipc.DefaultRetention()
	keep.ExpireAfter = "1h"
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &[]string{}, Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	skew.Add(int64(2 * time.Hour))
	back := func() error {
		_, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		return err
	}
	if err := back(); errs.KindOf(err) != errs.Expired || w.word(t) != "one" {
		t.Errorf("expired: %v, %s", err, w.word(t))
	}
	pin := func(pinned bool) {
		if _, err := d.Pin(t.Context(), root, "shop", cp.ID, pinned); err != nil {
			t.Fatal(err)
		}
	}
	pin(true)
	if err := back(); err != nil || w.word(t) != "zero" {
		t.Errorf("expired and pinned: %v, %s", err, w.word(t))
	}
	pin(false)
	if err := back(); errs.KindOf(err) != errs.Expired {
		t.Errorf("no longer pinned: %v", err)
	}
}

// TestVerifyOfALostLayer: what the app no longer has cannot be checked, and verify says so.
func TestVerifyOfALostLayer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || !res.OK || len(res.Warnings) > 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Databases: &[]ipc.Database{}}); err != nil {
		t.Fatal(err)
	}
	res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full)
	if err != nil || !res.OK || len(res.Warnings) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}
