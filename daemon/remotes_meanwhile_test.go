package daemon_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/daemon/offsite"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// hold returns a failpoint that blocks the first call of a step, a channel that is closed when it does, and a function that lets the step go on.
func hold(t *testing.T, step string) (at func(string) error, held <-chan struct{}, release func()) {
	reached, end := make(chan struct{}), make(chan struct{})
	var called atomic.Bool
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release) // else the daemon of a test that failed would not end
	return func(s string) error {
		if s == step && called.CompareAndSwap(false, true) {
			close(reached)
			<-end
		}
		return nil
	}, reached, release
}

// sending returns a daemon, to be closed, that is in the middle of sending a checkpoint to a bucket, and goes on when release is called.
func sending(t *testing.T) (b *bucket, w world, d *daemon.Daemon, cp ipc.Checkpoint, release func()) {
	t.Helper()
	b, w = newBucket(t), newWorld(t, nil)
	at, held, release := hold(t, "push: pack")
	d = w.failing(t, at)
	b.add(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	<-held
	return b, w, d, cp, release
}

// TestRemoteRemovedWhileSending: a remote to which something is being sent is removed also if the client leaves before the end of that.
func TestRemoteRemovedWhileSending(t *testing.T) {
	_, w, d, _, release := sending(t)
	defer func() {
		release()
		w.close(t, d)
	}()
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

// TestRemoteOfPurged: the record of a remote, which has the keys of the bucket, is gone with its app, also if something is being sent meanwhile, or the
// remote is being added.
func TestRemoteOfPurged(t *testing.T) {
	records := func(t *testing.T, w world) (n int) {
		t.Helper()
		db, err := sql.Open("sqlite", "file:"+filepath.Join(w.state(), "mulligan.db")+"?_pragma=busy_timeout(10000)")
		check(t, err)
		defer db.Close()
		check(t, db.QueryRow(`SELECT count(*) FROM remotes`).Scan(&n))
		return n
	}
	t.Run("sending", func(t *testing.T) {
		b, w := newBucket(t), newWorld(t, nil)
		at, held, release := hold(t, "push: entry")
		d := w.failing(t, func(step string) error {
			if step == "clear purged app" {
				return unix.EIO // the ledger stays
			}
			return at(step)
		})
		defer func() {
			release()
			w.close(t, d)
		}()
		b.add(t, d)
		create(t, d)
		<-held
		_, err := d.Push(t.Context(), root, "shop", ipc.PushRequest{}) // whose end is noted in the record
		check(t, err)
		_, checked := startsWaiting(t, func(ctx context.Context) error {
			_, err := d.CheckRemote(ctx, root, "shop", "backup", false)
			return err
		})
		if err := d.RemoveApp(t.Context(), root, "shop", true); !errors.Is(err, unix.EIO) {
			t.Fatal(err)
		}
		release()
		if err := <-checked; errs.KindOf(err) != errs.Busy {
			t.Errorf("what waited until it was sent: %v", err)
		}
		if n, lag := records(t, w), d.Lag(); n > 0 || lag != (offsite.Lag{}) {
			t.Errorf("after the purge there are %d records, %+v", n, lag)
		}
	})
	t.Run("added", func(t *testing.T) {
		b, w := newBucket(t), newWorld(t, nil)
		armed, held, release := b.holdCheck(t)
		d := w.open(t)
		defer w.close(t, d)
		armed.Store(true)
		added := make(chan error, 1)
		go func() {
			_, err := d.AddRemote(t.Context(), root, "shop", b.request())
			added <- err
		}()
		<-held
		check(t, d.RemoveApp(t.Context(), root, "shop", true))
		release()
		if err := <-added; errs.KindOf(err) != errs.NotFound {
			t.Errorf("a remote of an app that is gone: %v", err)
		}
		if n := records(t, w); n > 0 {
			t.Errorf("after the purge there are %d records", n)
		}
	})
}

// startsWaiting calls f in the background, with a context that leave ends, and returns when f tells that it waits until nothing else is done with the
// remote.
func startsWaiting(t *testing.T, f func(context.Context) error) (leave func(), ended <-chan error) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	waits, end := make(chan struct{}), make(chan error, 1)
	told := sync.OnceFunc(func() { close(waits) })
	go func() {
		end <- f(snap.WithProgress(ctx, func(w snap.Work) {
			if w.What == "waiting until nothing else is done with the remote backup" {
				told()
			}
		}))
	}()
	select {
	case <-waits:
	case err := <-end:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(testkit.Patience):
		t.Fatal("it does not tell that it waits")
	}
	return leave, end
}

// TestRemoteInUse: a check and a prune of a remote to which something is being sent, and a push that takes it over, wait no longer than their client does.
func TestRemoteInUse(t *testing.T) {
	_, w, d, cp, release := sending(t)
	defer func() {
		release()
		w.close(t, d)
	}()
	for what, f := range map[string]func(context.Context) error{
		"check": func(ctx context.Context) error {
			_, err := d.CheckRemote(ctx, root, "shop", "backup", false)
			return err
		},
		"prune": func(ctx context.Context) error {
			_, err := d.PruneRemote(ctx, root, "shop", "backup", false)
			return err
		},
		"take over": func(ctx context.Context) error {
			_, err := d.Push(ctx, root, "shop", ipc.PushRequest{TakeOver: true})
			return err
		},
	} {
		leave, ended := startsWaiting(t, f)
		leave()
		if err := <-ended; errs.KindOf(err) != errs.Unavailable {
			t.Errorf("%s: the client left: %v", what, err)
		}
	}
	_, checked := startsWaiting(t, func(ctx context.Context) error {
		_, err := d.CheckRemote(ctx, root, "shop", "backup", false)
		return err
	})
	release()
	if err := <-checked; err != nil {
		t.Error(err)
	}
	if r := caughtUp(t, d); r.UpTo != cp.ID {
		t.Errorf("%+v", r)
	}
}

// TestRemoteAddedWhileRemoved: a remote that is being removed is neither added again nor removed again nor changed, nobody waits for it in vain, and
// what waited for it leaves alone what is added after it.
func TestRemoteAddedWhileRemoved(t *testing.T) {
	b, w, d, cp, release := sending(t)
	defer func() {
		release()
		w.close(t, d)
	}()
	_, checked := startsWaiting(t, func(ctx context.Context) error {
		_, err := d.CheckRemote(ctx, root, "shop", "backup", false)
		return err
	})
	removed, pushed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := d.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true})
		pushed <- err
	}()
	go func() { removed <- d.RemoveRemote(t.Context(), root, "shop", "backup") }()
	being := func(err error) bool {
		return errs.KindOf(err) == errs.Busy && strings.Contains(errs.Words(err), "is being removed")
	}
	waitFor(t, "the remote is not added again while it is removed", func() bool {
		_, err := d.AddRemote(t.Context(), root, "shop", b.request())
		return being(err)
	})
	if err := d.RemoveRemote(t.Context(), root, "shop", "backup"); !being(err) {
		t.Errorf("it is removed twice: %v", err)
	}
	if _, err := d.Push(t.Context(), root, "shop", ipc.PushRequest{}); !being(err) {
		t.Errorf("something is asked for: %v", err)
	}
	if err := <-pushed; !being(err) {
		t.Errorf("the push that waits: %v", err)
	}
	release()
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	if err := <-checked; !being(err) {
		t.Errorf("the check: %v", err)
	}
	ledger := filepath.Join(w.state(), "apps", string(cp.AppID), "remote-backup.ledger")
	if _, err := os.Stat(ledger); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the ledger of the remote that was removed: %v", err)
	}
	if _, err := d.AddRemote(t.Context(), root, "shop", b.request()); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, d)
	w.close(t, d)
	d = w.open(t)
	if r := caughtUp(t, d); r.UpTo != cp.ID || r.Checkpoints != 1 {
		t.Errorf("after a restart: %+v", r)
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

// holdCheck puts a proxy before the bucket's server. Once it is armed, it holds the first request that reads what the check of a key wrote.
func (b *bucket) holdCheck(t *testing.T) (armed *atomic.Bool, held <-chan struct{}, release func()) {
	t.Helper()
	u, err := url.Parse(b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	armed = &atomic.Bool{}
	at, held, release := hold(t, "read")
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host // it is signed
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if armed.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/check/") {
			_ = at("read") // it fails nothing
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		release()
		proxy.Close()
	})
	b.Endpoint = proxy.URL
	return armed, held, release
}

// TestRemoteAddedAgain: what becomes of a remote while new keys of it are checked stays so when these are recorded.
func TestRemoteAddedAgain(t *testing.T) {
	addAgain := func(t *testing.T, d *daemon.Daemon, b *bucket, armed *atomic.Bool, held <-chan struct{}, release, meanwhile func()) ipc.Remote {
		t.Helper()
		armed.Store(true)
		added := make(chan error, 1)
		go func() {
			_, err := d.AddRemote(t.Context(), root, "shop", b.request())
			added <- err
		}()
		<-held
		meanwhile()
		release()
		if err := <-added; err != nil {
			t.Fatal(err)
		}
		r, err := d.Remote(t.Context(), root, "shop", "backup")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	t.Run("a checkpoint is asked for", func(t *testing.T) {
		b, w := newBucket(t), newWorld(t, nil)
		armed, held, release := b.holdCheck(t)
		var fails atomic.Bool
		fails.Store(true)
		d := w.failing(t, func(step string) error {
			if step == "push: pack" && fails.Load() {
				return unix.EIO
			}
			return nil
		})
		defer w.close(t, d)
		if _, err := d.AddRemote(t.Context(), root, "shop", b.request()); err != nil {
			t.Fatal(err)
		}
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		r := addAgain(t, d, b, armed, held, release, func() {
			if _, err := d.Push(t.Context(), root, "shop", ipc.PushRequest{Checkpoints: []ipc.CheckpointID{cp.ID}}); err != nil {
				t.Fatal(err)
			}
		})
		if r.Behind != 1 {
			t.Fatalf("what was asked for is forgotten: %+v", r)
		}
		fails.Store(false)
		if r := caughtUp(t, d); r.UpTo != cp.ID {
			t.Errorf("%+v", r)
		}
	})
	t.Run("it is taken over", func(t *testing.T) {
		b := newSent(t)
		armed, held, release := b.holdCheck(t)
		second := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
		d := second.open(t)
		defer second.close(t, d)
		req := b.clone(second.at)
		req.NoStart = true
		if _, err := d.Clone(t.Context(), root, req); err != nil {
			t.Fatal(err)
		}
		r := addAgain(t, d, b, armed, held, release, func() {
			if _, err := d.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true, TakeOver: true}); err != nil {
				t.Fatal(err)
			}
		})
		if r.State == ipc.RemoteReadOnly {
			t.Errorf("the host does not write there any more: %+v", r)
		}
	})
}

// TestFetchWhileFetching: a fetch of one app waits for none of another app's. One of the same app waits, no longer than its client does, and
// takes what was fetched meanwhile.
func TestFetchWhileFetching(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	at, held, release := hold(t, "fetch: contents")
	d := w.failing(t, at)
	defer func() {
		release()
		w.close(t, d)
	}()
	other := worldDir(t)
	if err := os.WriteFile(filepath.Join(other, "file"), []byte("of the other app"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other}); err != nil {
		t.Fatal(err)
	}
	gone := map[string]ipc.CheckpointID{}
	for _, app := range []string{"shop", "other"} {
		if _, err := d.AddRemote(t.Context(), root, app, b.request()); err != nil {
			t.Fatal(err)
		}
		cp, err := d.Create(t.Context(), root, app, ipc.CreateRequest{})
		if err == nil {
			_, err = d.Push(t.Context(), root, app, ipc.PushRequest{Wait: true})
		}
		if err == nil {
			err = d.Delete(t.Context(), root, app, cp.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		gone[app] = cp.ID
	}
	type outcome struct {
		cp  ipc.Checkpoint
		err error
	}
	fetch := func(ctx context.Context, app string) <-chan outcome {
		end := make(chan outcome, 1)
		go func() {
			cp, err := d.Fetch(ctx, root, app, ipc.FetchRequest{Checkpoint: gone[app], Identity: b.identity})
			end <- outcome{cp, err}
		}()
		return end
	}
	ended := func(what string, c <-chan outcome) (o outcome) {
		t.Helper()
		waitFor(t, what, func() bool {
			select {
			case o = <-c:
				return true
			default:
				return false
			}
		})
		return o
	}
	first := fetch(t.Context(), "shop")
	<-held
	if o := ended("the other app's fetch ends", fetch(t.Context(), "other")); o.err != nil || o.cp.ID != gone["other"] {
		t.Errorf("the other app's fetch: %+v %v", o.cp, o.err)
	}
	waiting := func(ctx context.Context) <-chan outcome {
		waits := make(chan struct{})
		told := sync.OnceFunc(func() { close(waits) })
		c := fetch(snap.WithProgress(ctx, func(w snap.Work) {
			if w.What == "waiting until another fetch for shop ends" {
				told()
			}
		}), "shop")
		<-waits
		return c
	}
	ctx, leave := context.WithCancel(t.Context())
	left := waiting(ctx)
	leave()
	if o := ended("the fetch whose client left ends", left); errs.KindOf(o.err) != errs.Unavailable {
		t.Errorf("the client left: %+v %v", o.cp, o.err)
	}
	second := waiting(t.Context())
	release()
	for what, c := range map[string]<-chan outcome{"the first fetch": first, "the second fetch": second} {
		if o := ended(what+" ends", c); o.err != nil || o.cp.ID != gone["shop"] {
			t.Errorf("%s: %+v %v", what, o.cp, o.err)
		}
	}
	if n := len(listed(t, d)); n != 1 {
		t.Errorf("the app has %d checkpoints after two fetches of one", n)
	}
}

// testFetchWhileCloning: a fetch for an app that is being cloned waits until the clone has what it fetches, and takes that.
func testFetchWhileCloning(t *testing.T) {
	b := newSent(t)
	at, held, release := hold(t, "clone: fetch")
	w := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	d := w.failing(t, at)
	defer func() {
		release()
		w.close(t, d)
	}()
	req := b.clone(w.at)
	req.NoStart = true
	cloned := make(chan error, 1)
	go func() {
		res, err := d.Clone(t.Context(), root, req)
		if err == nil && !res.Rollback.Verification.Match {
			err = errors.New("the clone is another state")
		}
		cloned <- err
	}()
	<-held
	id := ipc.CheckpointID(b.history(t).Checkpoints[0].ID)
	waits := make(chan struct{})
	told := sync.OnceFunc(func() { close(waits) })
	fetched := make(chan error, 1)
	go func() {
		cp, err := d.Fetch(snap.WithProgress(t.Context(), func(w snap.Work) {
			if w.What == "waiting until another fetch for shop ends" {
				told()
			}
		}), root, "shop", ipc.FetchRequest{Checkpoint: id, Identity: b.identity})
		if err == nil && cp.ID != id {
			err = errors.New("it was fetched twice")
		}
		fetched <- err
	}()
	select {
	case <-waits:
	case err := <-fetched:
		t.Fatalf("the fetch did not wait: %v", err)
	case <-time.After(testkit.Patience):
		t.Fatal("the fetch neither waits nor ends")
	}
	release()
	if err := <-cloned; err != nil {
		t.Errorf("the clone: %v", err)
	}
	if err := <-fetched; err != nil {
		t.Errorf("the fetch: %v", err)
	}
}
