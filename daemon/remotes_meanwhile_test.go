package daemon_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// hold returns a failpoint that blocks the first call of a step, a channel that is closed when it does, and a function that lets the step go on.
func hold(t *testing.T, step string) (at func(string) error, held <-chan struct{}, release func()) {
	reached, end := make(chan struct{}), make(chan struct{})
	var first sync.Once
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release) // else the daemon of a test that failed would not end
	return func(s string) error {
		if s == step {
			first.Do(func() {
				close(reached)
				<-end
			})
		}
		return nil
	}, reached, release
}

// TestRemoteRemovedWhileSending: a remote to which something is being sent is removed also if the client leaves before the end of that.
func TestRemoteRemovedWhileSending(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	at, held, release := hold(t, "push: pack")
	opt := w.options()
	opt.Failpoint = at
	d := w.openAs(t, opt)
	defer func() {
		release()
		w.close(t, d)
	}()
	b.add(t, d)
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	<-held
	ctx, leave := context.WithCancel(t.Context())
	removed := make(chan error)
	go func() { removed <- d.RemoveRemote(ctx, root, "shop", "backup") }()
	leave()
	release()
	if err := <-removed; err != nil {
		t.Errorf("the remote was not removed: %v", err)
	}
	for _, when := range []string{"after that", "after a restart"} {
		if list, err := d.Remotes(t.Context(), root, "shop"); err != nil || len(list.Remotes) > 0 {
			t.Errorf("%s: %+v %v", when, list.Remotes, err)
		}
		w.close(t, d)
		d = w.open(t)
	}
}

// TestRemoteThatStays: a remote whose record cannot be deleted is still there, and checkpoints go there as before.
func TestRemoteThatStays(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	b.add(t, d)
	records, err := sql.Open("sqlite", "file:"+filepath.Join(w.state(), "mulligan.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	if _, err := records.Exec(`CREATE TRIGGER kept_by_test BEFORE DELETE ON remotes BEGIN SELECT RAISE(ABORT, 'the test refuses it'); END`); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveRemote(t.Context(), root, "shop", "backup"); err == nil {
		t.Fatal("the remote was removed")
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r := caughtUp(t, d); r.UpTo != cp.ID {
		t.Errorf("%+v", r)
	}
	if _, err := records.Exec(`DROP TRIGGER kept_by_test`); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveRemote(t.Context(), root, "shop", "backup"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Remote(t.Context(), root, "shop", "backup"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("the remote was removed: %v", err)
	}
}
