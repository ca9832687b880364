package records

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// TestPurgeFinishedLater: a purge that a process began and did not finish is finished by the next one, also of an owner who has no other app, and
// with the app's volumes. While a store cannot be opened, nothing is forgotten; if it is another owner's, all of the app goes nevertheless.
func TestPurgeFinishedLater(t *testing.T) {
	for _, held := range []string{"store-77", "store-78"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel() // each waits for the one who has the store
			opt := &settings.Options{StateDir: t.TempDir()}
			opt.SetDefaults()
			mine := []string{"files/app-1.volume.data/fs-1", "files/app-1/fs-1", "files/app-1/journal/0", "sqlite/app-1/main/snap/s-1"}
			others := []string{"files/app-10/fs-1", "files/app-2.volume.app-1/fs-1", "files/app-2/app-1"}
			r, app := purged(t, opt, slices.Concat(mine, others)...)
			check(t, r.Close())

			s, err := cas.Open(filepath.Join(opt.StateDir, held), cas.Options{})
			check(t, err)
			r = begin(t, opt)
			clears := 0
			clear := func(ipc.AppID) (bool, error) { clears++; return true, nil }
			if err := r.FinishPurges(t.Context(), clear); errs.KindOf(err) != errs.Busy || len(r.Problems()) != 1 || len(r.disposed) > 0 {
				t.Errorf("finished while %s is another's: %v, %q", held, err, r.Problems())
			}
			left := func() (names []string) {
				s, err := r.Contents.OfApp(app)
				check(t, err)
				for _, root := range s.Roots("") {
					names = append(names, root.Name)
				}
				return names
			}
			if held == "store-78" && (!slices.Equal(left(), others) || clears != 1 || len(r.collect) != 1) {
				t.Errorf("while %s is another's, left are %q; what is elsewhere was removed %d times, and %d collections are requested",
					held, left(), clears, len(r.collect))
			}
			check(t, s.Close())
			check(t, r.FinishPurges(t.Context(), clear))
			if !slices.Equal(left(), others) || len(r.Problems()) > 0 || len(r.disposed) == 0 {
				t.Errorf("left are %q, and the problems %q", left(), r.Problems())
			}
		})
	}
}

// TestPurgeCollectedLater: a process ends while it collects what an owner's only app left. The next one collects it, though it opens no app of that owner.
func TestPurgeCollectedLater(t *testing.T) {
	opt := &settings.Options{StateDir: t.TempDir()}
	opt.SetDefaults()
	run, end := context.WithCancel(t.Context())
	opt.Failpoint = func(step string) error {
		if step == "remove-segment" {
			end()
			return run.Err()
		}
		return nil
	}
	r, app := purged(t, opt, "files/app-1/fs-1")
	check(t, r.PurgeContents(app))
	check(t, r.EndPurge(t.Context(), app.ID, true))
	r.Tend(run)
	check(t, r.Close())

	opt.Failpoint = nil
	r = begin(t, opt)
	check(t, r.FinishPurges(t.Context(), cleared))
	run, end = context.WithCancel(t.Context())
	var tending sync.WaitGroup
	tending.Go(func() { r.Tend(run) })
	defer tending.Wait()
	defer end()
	who := ipc.Caller{UID: app.OwnerUID}
	testkit.Eventually(t, "it is collected", func() bool { n := r.Contents.Visible(who); return 0 < n && n < size })
	testkit.Eventually(t, "nothing is to be removed any more", func() bool {
		list, err := r.Disposals(t.Context())
		return err == nil && len(list) == 0
	})
}

// size is that of the contents in a purged app's store.
const size = 1 << 20

// purged returns records in which an app was purged, but not what these roots in its owner's store name.
func purged(t *testing.T, opt *settings.Options, names ...string) (*Records, store.App) {
	t.Helper()
	r := begin(t, opt)
	app := store.App{App: ipc.App{ID: "app-1", Slug: "shop"}, OwnerUID: 77}
	check(t, r.PutApp(t.Context(), app))
	s, err := r.Contents.OfApp(app)
	check(t, err)
	b := s.Begin()
	defer b.Discard()
	hash, err := b.Series("x").Blob(testkit.Bytes(t, size))
	check(t, err)
	var roots []cas.Root
	for _, name := range names {
		roots = append(roots, cas.Root{Name: name, Hash: hash})
	}
	check(t, b.Commit(roots...))
	check(t, r.PurgeApp(t.Context(), app.ID, nil))
	return r, app
}

func begin(t *testing.T, opt *settings.Options) *Records {
	t.Helper()
	r, err := Open(t.Context(), opt, false)
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r
}

// cleared says that nothing else of a purged app is left.
func cleared(ipc.AppID) (bool, error) { return true, nil }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
