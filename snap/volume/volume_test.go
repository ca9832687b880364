package volume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files"
	"mulligan/snap/volume"
)

// keeper is an engine in memory. The package's tests with real engines are in package daemon.
type keeper struct {
	dir            string
	own, strangers []string
	frozen, thawed int
	away           error
	refuses        error    // of each attempt to pause the containers
	stuck          error    // of each attempt to let them go on
	during         func()   // called while the containers are paused
	started        []string // meanwhile
}

func (k *keeper) Place(context.Context, string) (string, error) { return k.dir, k.away }

func (k *keeper) Users(context.Context, string) (own, strangers []string, err error) {
	return k.own, k.strangers, k.away
}

func (k *keeper) Freeze(context.Context, string) (func() ([]string, error), error) {
	if err := errors.Join(k.away, k.refuses); err != nil {
		return nil, err
	}
	k.frozen++
	if k.during != nil {
		k.during()
	}
	return func() ([]string, error) { return k.started, k.thaw() }, nil
}

func (k *keeper) thaw() error {
	if k.stuck == nil {
		k.thawed++
	}
	return k.stuck
}

func (k *keeper) Thaw(context.Context) error { return errors.Join(k.thaw(), k.away) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) (*volume.Driver, *keeper) {
	t.Helper()
	store, err := cas.Open(filepath.Join(t.TempDir(), "store"), cas.Options{})
	must(t, err)
	t.Cleanup(func() { store.Close() })
	return openIn(t, store, "app")
}

// openIn opens a new volume of an app.
func openIn(t *testing.T, store *cas.Store, app string) (*volume.Driver, *keeper) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "_data")
	must(t, os.Mkdir(dir, 0o755))
	k := &keeper{dir: dir}
	d, err := volume.New(volume.Config{Name: app + "_rows", Keeper: k, Files: files.Config{App: app, Dir: dir, StateDir: t.TempDir(), Store: store, Owner: -1}})
	must(t, err)
	return d, k
}

func (k *keeper) write(t *testing.T, text string) {
	t.Helper()
	must(t, os.WriteFile(k.dir+"/file", []byte(text), 0o600))
}

func (k *keeper) holds(t *testing.T, want string) {
	t.Helper()
	if got, err := os.ReadFile(k.dir + "/file"); err != nil || string(got) != want {
		t.Errorf("the file holds %q (%v), want %q", got, err, want)
	}
}

func wantErr(t *testing.T, err error, kind errs.Kind, words string) {
	t.Helper()
	if errs.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), words) {
		t.Errorf("error %v (%s), want %q (%s)", err, errs.KindOf(err), words, kind)
	}
}

// TestPaused captures what the containers wrote until they were paused, and lets them go on whatever happens.
func TestPaused(t *testing.T) {
	ctx := t.Context()
	d, k := open(t)
	k.write(t, "early")
	k.during = func() { k.write(t, "last") }
	_, err := d.Capture(ctx, snap.CaptureRequest{ID: "vol-1"})
	must(t, err)
	if k.frozen != 1 || k.thawed != 1 {
		t.Errorf("paused %d times, and let go on %d times", k.frozen, k.thawed)
	}
	k.during = nil
	_, err = d.Capture(ctx, snap.CaptureRequest{ID: "vol-2", Quiesced: true})
	must(t, err)
	if k.frozen != 1 {
		t.Error("containers that are stopped were paused")
	}
	k.write(t, "later")
	sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "vol-1", Base: base(t, d)})
	must(t, err)
	must(t, sw.Commit(ctx))
	k.holds(t, "last")
	must(t, sw.Finish(ctx))

	if _, err := d.Capture(ctx, snap.CaptureRequest{ID: "../x"}); err == nil {
		t.Error("it was captured under a name that is none")
	}
	if k.frozen != k.thawed {
		t.Errorf("after an error: paused %d times, and let go on %d times", k.frozen, k.thawed)
	}
}

// TestMoving has containers that cannot be paused, or that the engine starts during a capture: the files are not of one moment, and only a stop of the app helps.
func TestMoving(t *testing.T) {
	ctx := t.Context()
	d, k := open(t)
	k.write(t, "good")
	fails := func(words string) {
		t.Helper()
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: "vol-1"})
		wantErr(t, err, errs.Conflict, words)
		if !errors.Is(err, snap.ErrChanged) {
			t.Errorf("%v does not count as a change", err)
		}
	}
	k.started = []string{"shop-db-1", "shop-web-1"}
	fails("containers were started meanwhile: shop-db-1, shop-web-1")
	if k.frozen != 1 || k.thawed != 1 {
		t.Errorf("paused %d times, and let go on %d times", k.frozen, k.thawed)
	}
	k.refuses = errs.New(errs.Conflict, "pause container shop-db-1", "it does not stand still")
	fails("pause container shop-db-1: it does not stand still")
	_, err := d.Capture(ctx, snap.CaptureRequest{ID: "vol-2", Quiesced: true})
	must(t, err)
}

// TestStuck cannot let the containers go on at the end of a capture: the capture says so, also one that failed, and Maintain tries again until it succeeds, also that
// of the driver after a change of the app.
func TestStuck(t *testing.T) {
	ctx := t.Context()
	d, k := open(t)
	k.write(t, "good")
	k.stuck = errors.New("an earlier driver has left them paused")
	wantErr(t, d.Maintain(ctx), errs.Failed, "containers may still be paused: an earlier driver has left them paused")
	for i, id := range []snap.SnapshotID{"vol-1", "../x"} { // the second is no name, so that its capture fails
		k.stuck = errors.New("the engine does not answer")
		s, err := d.Capture(ctx, snap.CaptureRequest{ID: id})
		said := map[bool]string{false: fmt.Sprint(s.Warnings), true: fmt.Sprint(err)}[err != nil]
		if !strings.Contains(said, "containers may still be paused: the engine does not answer") || (err != nil) != (i == 1) {
			t.Errorf("%s: %q, %v", id, s.Warnings, err)
		}
		wantErr(t, d.Maintain(ctx), errs.Failed, "containers may still be paused: the engine does not answer")
		if k.thawed != i {
			t.Errorf("they were let go on %d times", k.thawed)
		}
		k.stuck = nil
		must(t, d.Maintain(ctx))
		must(t, d.Maintain(ctx))
		if k.thawed != i+1 {
			t.Errorf("they were let go on %d times, in the end", k.thawed)
		}
	}
	k.refuses = errors.New("only some of them are paused")
	_, err := d.Capture(ctx, snap.CaptureRequest{ID: "vol-2"})
	wantErr(t, err, errs.Failed, "only some of them are paused")
	must(t, d.Maintain(ctx))
	if k.thawed != 3 {
		t.Error("those that were paused do not go on")
	}
}

func base(t *testing.T, d *volume.Driver) snap.SnapshotID {
	t.Helper()
	s, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "vol-base", Quiesced: true})
	must(t, err)
	return s.ID
}

// TestSeed fills the volume of a fork, unless a container uses it or the engine does not say.
func TestSeed(t *testing.T) {
	ctx := t.Context()
	store, err := cas.Open(filepath.Join(t.TempDir(), "store"), cas.Options{})
	must(t, err)
	t.Cleanup(func() { store.Close() })
	parent, k := openIn(t, store, "shop")
	k.write(t, "good")
	s, err := parent.Capture(ctx, snap.CaptureRequest{ID: "vol-1"})
	must(t, err)
	k.write(t, "bad")
	fork, f := openIn(t, store, "fork")
	_, err = fork.Adopt(ctx, parent, s.ID, s.ID)
	must(t, err)
	for what, k := range map[string]keeper{"its own": {own: []string{"web"}}, "a stranger's": {strangers: []string{"web"}}} {
		f.own, f.strangers = k.own, k.strangers
		wantErr(t, fork.Seed(ctx, parent, s.ID), errs.Conflict, "is used by a container that runs: web")
		if list, err := os.ReadDir(f.dir); err != nil || len(list) > 0 {
			t.Errorf("below %s container there is %v, %v", what, list, err)
		}
	}
	f.own, f.strangers, f.away = nil, nil, errors.New("the engine is away")
	wantErr(t, fork.Seed(ctx, parent, s.ID), errs.Failed, "the engine is away")
	f.away = nil
	must(t, fork.Seed(ctx, parent, s.ID))
	f.holds(t, "good")
}

// TestStrangers says who else uses the volume, and restores nothing below them.
func TestStrangers(t *testing.T) {
	ctx := t.Context()
	d, k := open(t)
	k.write(t, "good")
	k.strangers = []string{"other"}
	s, err := d.Capture(ctx, snap.CaptureRequest{ID: "vol-1"})
	must(t, err)
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "not of the app, and ran on: other") {
		t.Errorf("%q", s.Warnings)
	}
	gaps, err := d.FindGaps(ctx)
	if err != nil || len(gaps) != 1 || !strings.Contains(gaps[0].What, "other") {
		t.Errorf("%v, %v", gaps, err)
	}
	k.write(t, "bad")
	req := snap.RestoreRequest{ID: "op-1", Target: "vol-1", Base: base(t, d)}
	wantErr(t, d.Precheck(ctx, "vol-1", nil), errs.Conflict, "not of the app: other")
	_, err = d.Prepare(ctx, req)
	wantErr(t, err, errs.Conflict, "not of the app: other")
	k.strangers = nil
	must(t, d.Precheck(ctx, "vol-1", nil))
	_, err = d.Prepare(ctx, req)
	must(t, err)
	sw, err := d.Resume(ctx, "op-1")
	must(t, err)
	k.own = []string{"web"} // the engine has started it in between
	wantErr(t, sw.Commit(ctx), errs.Conflict, "used by a container that runs: web")
	k.holds(t, "bad")
	k.own = nil
	must(t, sw.Commit(ctx))
	k.holds(t, "good")
}

// TestElsewhere has a volume that the engine does not know any more, or keeps elsewhere.
func TestElsewhere(t *testing.T) {
	ctx := t.Context()
	d, k := open(t)
	k.write(t, "good")
	_, err := d.Capture(ctx, snap.CaptureRequest{ID: "vol-1"})
	must(t, err)
	was := k.dir
	k.dir = "/elsewhere/shop_rows/_data"
	_, err = d.Capture(ctx, snap.CaptureRequest{ID: "vol-2"})
	wantErr(t, err, errs.Conflict, "is in /elsewhere/shop_rows/_data now, and was in "+was)
	k.dir, k.away = was, errs.New(errs.Unavailable, "", "no engine")
	_, err = d.Capture(ctx, snap.CaptureRequest{ID: "vol-3"})
	wantErr(t, err, errs.Unavailable, "no engine")
	wantErr(t, d.Sweep(ctx, snap.Gone{}), errs.Unavailable, "no engine")
	k.away = nil
	must(t, d.Sweep(ctx, snap.Gone{}))
	if k.thawed == 0 {
		t.Error("what a dead process left paused stays paused")
	}
	if !d.CapturesLive() || errors.Is(err, nil) {
		t.Error(err)
	}
}
