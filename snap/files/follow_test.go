package files

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/walk"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// followed is a site whose journal is being written.
type followed struct {
	*site
	stop   func()
	noting bool // changed paths are only noted

	mu      sync.Mutex
	batches []snap.Batch
}

func newFollowed(t testing.TB, change ...func(*Config)) *followed {
	f := &followed{site: newSite(t, change...)}
	f.follow(t)
	return f
}

// follow begins to follow, and waits for the baseline.
func (f *followed) follow(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	d, told := f.Driver, f.told
	if f.noting {
		told = nil
	}
	go func() {
		defer close(done)
		if err := d.Follow(ctx, told); err != nil && ctx.Err() == nil {
			t.Errorf("Follow: %v", err)
		}
	}()
	f.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(f.stop)
	for d.follower.Session() == nil {
	}
	f.flush(t)
}

func (f *followed) told(b snap.Batch) {
	f.mu.Lock()
	f.batches = append(f.batches, b)
	f.mu.Unlock()
}

// restart is a new process: store and driver are opened anew.
func (f *followed) restart(t testing.TB) {
	f.stop()
	f.open(t)
	f.follow(t)
}

func (f *followed) flush(t testing.TB) snap.Mark {
	t.Helper()
	m, err := f.Flush(t.Context())
	must(t, err)
	return m
}

// at makes a marker of a position.
func (f *followed) at(t testing.TB, m snap.Mark) snap.SnapshotID {
	t.Helper()
	f.n++
	id := snap.SnapshotID(fmt.Sprintf("fs-%d", f.n))
	s, err := f.Capture(t.Context(), snap.CaptureRequest{ID: id, At: m})
	must(t, err)
	if s.Position != string(m) {
		t.Fatalf("a marker of %s says %+v", m, s)
	}
	return id
}

// exact fails if the tree in memory, or what the journal leads to, is not what
// a walk of everything finds.
func (f *followed) exact(t testing.TB) {
	t.Helper()
	f.flush(t)
	b := f.cas.Begin()
	defer b.Discard()
	v, err := f.present(t.Context(), "test", b, nil)
	must(t, err)
	other, err := New(Config{App: "other", Dir: f.dir, StateDir: t.TempDir(), Store: f.cas, Owner: -1, Exclude: f.cfg.Exclude, Skip: f.cfg.Skip})
	must(t, err)
	w, err := other.walk(t.Context(), "test", b, nil, nil, nil, false)
	must(t, err)
	_, at, _, err := f.history.Head()
	must(t, err)
	j, err := journal.Resolve(t.Context(), f.cas, at)
	must(t, err)
	for what, m := range map[string]*manifest.Manifest{"the tree": v.Manifest, "the journal": j} {
		if m.Hash == w.Hash {
			continue
		}
		deltas, err := diff.Compare(t.Context(), rights.Reader{}, m, w.Manifest, nil)
		must(t, err)
		for _, d := range deltas[:min(len(deltas), 20)] {
			t.Errorf("%s: %s: %+v, on disk %+v", what, d.Path, d.Old, d.New)
		}
		t.FailNow()
	}
	session := f.follower.Session()
	must(t, session.Do(t.Context(), func() error {
		session.Each(func(path string, n *manifest.Node) {
			if n.IsFile() && !session.MayHave(n.ID.Ino) {
				t.Errorf("the inode of %s is not known", path)
			}
		})
		return nil
	}))
}

// followedSubject puts the driver through the suite with its journal being written.
type followedSubject struct {
	subject
	f *followed
}

func TestConformanceFollowing(t *testing.T) { conformanceFollowing(t, false) }

func TestConformanceNoting(t *testing.T) { conformanceFollowing(t, true) }

func conformanceFollowing(t *testing.T, noting bool) {
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject {
		f := &followed{site: newSite(t), noting: noting}
		f.follow(t)
		f.casOptions.SegmentBytes = smallSegments
		f.restart(t)
		write(t, f.dir+"/always/here", "from the start")
		return &followedSubject{subject{f.site, t}, f}
	})
}

// Layered: what is live is in the journal too, so that no snapshot of it holds it alone.
func (s *followedSubject) Layered() {}

func (s *followedSubject) Reopen(t *testing.T) { s.f.restart(t) }

// Stored lets the journal forget what no snapshot needs.
func (s *followedSubject) Stored(t *testing.T) int64 {
	s.f.forget(t)
	return s.subject.Stored(t)
}

// newEpoch begins a new epoch of the journal.
func newEpoch(ctx context.Context, j *follow.Session) error {
	return j.Do(ctx, func() error { return j.NewEpoch(ctx) })
}

// TestEpochMendsContents begins an epoch when the store has lost the content of a file that has not changed: it is read again.
func TestEpochMendsContents(t *testing.T) {
	f := &followed{site: newSite(t)}
	content := random(testkit.Rand(t), 5000)
	must(t, os.WriteFile(f.dir+"/old", content, 0o644))
	f.follow(t)
	id := f.at(t, f.flush(t))
	f.overwrite(t, content[:100], 50, []byte{^content[50]})
	if err := f.Verify(t.Context(), id, snap.Full); errs.KindOf(err) != errs.Corrupt {
		t.Fatalf("the damage is not seen: %v", err)
	}
	must(t, newEpoch(t.Context(), f.follower.Session()))
	must(t, f.Verify(t.Context(), id, snap.Full))
}

// TestTidyPassesDamaged replaces markers by snapshots when the first of them has lost a content.
func TestTidyPassesDamaged(t *testing.T) {
	f := newFollowed(t)
	content := random(testkit.Rand(t), 5000)
	must(t, os.WriteFile(f.dir+"/short-lived", content, 0o644))
	first := f.at(t, f.flush(t))
	must(t, os.Remove(f.dir+"/short-lived"))
	f.flush(t)
	must(t, newEpoch(t.Context(), f.follower.Session()))
	write(t, f.dir+"/later", "something")
	second := f.at(t, f.flush(t))
	must(t, newEpoch(t.Context(), f.follower.Session()))
	write(t, f.dir+"/last", "something")
	f.overwrite(t, content[:100], 50, []byte{^content[50]})
	if err := f.Verify(t.Context(), first, snap.Full); errs.KindOf(err) != errs.Corrupt {
		t.Fatalf("the damage is not seen: %v", err)
	}
	f.forget(t)
	if err := f.tidy(t.Context()); err == nil {
		t.Error("the damage is not told")
	}
	for _, id := range []snap.SnapshotID{first, second} {
		_, about, err := f.root("test", id)
		must(t, err)
		if marker := about.Mark != ""; marker != (id == first) {
			t.Errorf("%s is a marker: %t", id, marker)
		}
	}
	must(t, f.Verify(t.Context(), second, snap.Full))
}

// forget trims the journal to its newest position.
func (f *followed) forget(t testing.TB) {
	m := f.flush(t)
	j := f.follower.Session()
	must(t, newEpoch(t.Context(), j))
	must(t, f.Trim(t.Context(), m))
}

// TestMarkers: every marker is the state that an independent look saw at the time.
func TestMarkers(t *testing.T) {
	f := newFollowed(t)
	r := testkit.Rand(t)
	type turn struct {
		id    snap.SnapshotID
		state []string
	}
	var turns []turn
	rounds := 40
	if testing.Short() {
		rounds = 12
	}
	for i := range rounds {
		m := f.flush(t)
		turns = append(turns, turn{f.at(t, m), listing(t, f.dir)})
		scramble(t, r, f.dir, 1+r.IntN(12))
		if i%9 == 8 {
			f.exact(t)
		}
		switch i % 13 {
		case 5:
			f.restart(t)
		case 9:
			f.stop()
			scramble(t, r, f.dir, 5)
			f.open(t)
			f.follow(t)
		case 11:
			j := f.follower.Session()
			must(t, newEpoch(t.Context(), j))
		}
	}
	f.exact(t)
	r.Shuffle(len(turns), func(i, k int) { turns[i], turns[k] = turns[k], turns[i] })
	for i, x := range turns {
		must(t, f.Verify(t.Context(), x.id, snap.Full))
		f.restore(t, x.id)
		same(t, string(x.id), listing(t, f.dir), x.state)
		f.exact(t)
		if i == len(turns)/2 {
			f.forget(t)
			must(t, f.tidy(t.Context()))
			f.restart(t)
		}
	}
}

// TestChangedWhileRead: what changes between the readings of two entries, and what cannot be read at a first attempt, is in the journal after
// the next flush. It makes each such change at the moment before an entry is read, which timing alone rarely meets.
func TestChangedWhileRead(t *testing.T) {
	f := newFollowed(t)
	r := testkit.Rand(t)
	var mu sync.Mutex
	var linked map[name]bool // nil: nothing is done
	change := scrambleOnce
	changes, failures := 0, 0
	f.beforeEach(t, func(string) error {
		mu.Lock()
		defer mu.Unlock()
		switch x := r.IntN(8); {
		case linked == nil:
		case x < 2:
			changes++
			change(t, r, f.dir, linked)
		case x == 2:
			failures++
			return walk.ErrMoved
		}
		return nil
	})
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for i := range rounds {
		mu.Lock()
		linked = map[name]bool{}
		if change = scrambleOnce; i%2 == 0 {
			change = relinkOnce
		}
		mu.Unlock()
		for range 3 {
			mu.Lock()
			for range 1 + r.IntN(6) {
				change(t, r, f.dir, linked)
			}
			mu.Unlock()
			if _, err := f.Flush(t.Context()); err != nil && !walk.Transient(err) {
				t.Fatal(err)
			}
		}
		mu.Lock()
		stir(t, f.dir, linked)
		linked = nil
		mu.Unlock()
		f.exact(t)
	}
	if changes < rounds || failures < rounds {
		t.Errorf("only %d changes and %d failures came while entries were read", changes, failures)
	}
}

// beforeEach has do called before each entry is read. Where the files are followed, it is the follower's goroutine that sets this, as it reads.
func (f *followed) beforeEach(t *testing.T, do func(path string) error) {
	t.Helper()
	set := func() error {
		f.walker.Before = do
		return nil
	}
	if j := f.follower.Session(); j != nil {
		must(t, j.Do(t.Context(), set))
	} else {
		must(t, set())
	}
}

// before calls do once, before the entry at path is read the next time. The result reports whether it was.
func (f *followed) before(t *testing.T, path string, do func() error) *atomic.Bool {
	t.Helper()
	var done atomic.Bool
	f.beforeEach(t, func(p string) error {
		if p == path && done.CompareAndSwap(false, true) {
			return do()
		}
		return nil
	})
	return &done
}

// TestOtherNameWhileRead: a file is written through one of its names after the other was read. The folder of the latter has no event for it.
func TestOtherNameWhileRead(t *testing.T) {
	// reliably writes a file, and waits until nobody need read it twice.
	reliably := func(path string) error {
		err := os.WriteFile(path, []byte("newer"), 0)
		for !reliableNow(t, path) {
		}
		return err
	}
	// comes makes a second name of a file, in the place of another file, after the first was read.
	comes := func(f *followed, first, second string) *atomic.Bool {
		done := f.before(t, second, func() error {
			must(t, os.Remove(f.dir+"/"+second))
			must(t, os.Link(f.dir+"/"+first, f.dir+"/"+second))
			return reliably(f.dir + "/" + second)
		})
		write(t, f.dir+"/"+first, "old")
		write(t, f.dir+"/"+second, "another file")
		return done
	}
	// third puts another file in the place of a just before b, its other name, is read. Readings of a fail then, and at the third of them b gets a further
	// name. With both, b is made when a is read.
	third := func(f *followed, both bool) *atomic.Bool {
		var done atomic.Bool
		gone, failed := false, 0
		f.beforeEach(t, func(path string) error {
			switch {
			case path == "a" && both:
				both = false
				must(t, os.Link(f.dir+"/a", f.dir+"/b"))
			case path == "b" && !gone:
				gone = true
				must(t, os.Remove(f.dir+"/a"))
				write(t, f.dir+"/a", "another file")
				for !reliableNow(t, f.dir+"/b") {
				}
			case path == "a" && gone && failed < 5:
				if failed++; failed == 3 {
					must(t, os.Link(f.dir+"/b", f.dir+"/c"))
					done.Store(true)
				}
				return walk.ErrMoved
			}
			return nil
		})
		return &done
	}
	// thirdLater does that in a tree that was read before, and begins with a change of the file at path.
	thirdLater := func(f *followed, both bool, path string) *atomic.Bool {
		write(t, f.dir+"/a", "old")
		if !both {
			must(t, os.Link(f.dir+"/a", f.dir+"/b"))
		}
		f.flush(t)
		done := third(f, both)
		must(t, os.Chmod(f.dir+"/"+path, 0o640))
		return done
	}
	for name, test := range map[string]func(f *followed) *atomic.Bool{
		"both changed": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/a", "old")
			must(t, os.Link(f.dir+"/a", f.dir+"/b"))
			f.flush(t)
			done := f.before(t, "b", func() error { return reliably(f.dir + "/b") })
			must(t, os.Chmod(f.dir+"/a", 0o600))
			must(t, os.Chmod(f.dir+"/b", 0o640))
			return done
		},
		"written through a name outside": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/a", "old")
			must(t, os.Link(f.dir+"/a", f.dir+"/b"))
			must(t, os.Link(f.dir+"/a", f.dir+"-outside"))
			f.flush(t)
			done := f.before(t, "b", func() error { return reliably(f.dir + "-outside") })
			must(t, os.WriteFile(f.dir+"-outside", []byte("no event"), 0))
			f.capture(t) // it looks at all files
			// No event comes, nobody asks, and the names are read again all the same.
			testkit.Eventually(t, "nothing is left to be read", func() bool { return f.Following().Pending == 0 })
			return done
		},
		"second name comes":             func(f *followed) *atomic.Bool { return comes(f, "a", "b") },
		"second name comes in a folder": func(f *followed) *atomic.Bool { return comes(f, "d/a", "d/b") },
		"moved with its folder": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/d/a", "old")
			must(t, os.Link(f.dir+"/d/a", f.dir+"/x"))
			f.flush(t)
			done := f.before(t, "x", func() error { return reliably(f.dir + "/x") })
			must(t, os.Rename(f.dir+"/d", f.dir+"/e"))
			must(t, os.Chmod(f.dir+"/x", 0o640))
			return done
		},
		"another file's second name comes": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/a", "another file")
			write(t, f.dir+"/b", "old")
			must(t, os.Link(f.dir+"/b", f.dir+"/c"))
			f.flush(t)
			done := f.before(t, "b", func() error { // and c is read because of b
				must(t, os.Remove(f.dir+"/c"))
				return os.Link(f.dir+"/a", f.dir+"/c")
			})
			must(t, os.Chmod(f.dir+"/b", 0o640))
			return done
		},
		"third name comes before it is read that the second is gone": func(f *followed) *atomic.Bool {
			return thirdLater(f, false, "b")
		},
		"third name comes before it is read that the first is gone": func(f *followed) *atomic.Bool {
			return thirdLater(f, true, "a")
		},
		"first reading": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/a", "old")
			must(t, os.Link(f.dir+"/a", f.dir+"/b"))
			f.stop()
			f.open(t)
			done := f.before(t, "b", func() error { return reliably(f.dir + "/b") })
			f.follow(t)
			return done
		},
		"first reading, third name comes before it is read that the second is gone": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/a", "old")
			must(t, os.Link(f.dir+"/a", f.dir+"/b"))
			f.stop()
			f.open(t)
			done := third(f, false)
			f.follow(t)
			return done
		},
		"first reading, second name comes": func(f *followed) *atomic.Bool {
			write(t, f.dir+"/a", "old")
			write(t, f.dir+"/b", "another file")
			f.stop()
			f.open(t)
			done := f.before(t, "b", func() error {
				must(t, os.Remove(f.dir+"/b"))
				must(t, os.Link(f.dir+"/a", f.dir+"/b"))
				return reliably(f.dir + "/b")
			})
			f.follow(t)
			return done
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollowed(t)
			done := test(f)
			f.flush(t)
			testkit.Eventually(t, "something is written while the names are read", done.Load)
			f.exact(t)
		})
	}
}

// TestMissedFolder: a folder that went away and came back is read with everything in it, even if that fails at the first attempt. The
// event of a file in it is lost, because the folder had no watch, or another one, meanwhile.
func TestMissedFolder(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/d/f", "old")
	f.flush(t)
	done := f.before(t, "d", func() error { return walk.ErrMoved })
	must(t, os.Rename(f.dir+"/d", f.dir+"/e"))
	write(t, f.dir+"/e/f", "newer")
	must(t, os.Rename(f.dir+"/e", f.dir+"/d"))
	f.flush(t)
	if !done.Load() {
		t.Fatal("no reading of the folder failed")
	}
	f.exact(t)
}

// TestSecondName: a thing that gets a second name, and loses it, is in the journal with the names
// that it has, whatever it is. The folder of its first name has no event for it.
func TestSecondName(t *testing.T) {
	kinds := map[string]func(path string) error{
		"file":   func(p string) error { return os.WriteFile(p, []byte("x"), 0o644) },
		"link":   func(p string) error { return os.Symlink("target", p) },
		"fifo":   func(p string) error { return unix.Mkfifo(p, 0o644) },
		"socket": func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o644, 0) },
	}
	for kind, create := range kinds {
		t.Run(kind, func(t *testing.T) {
			f := newFollowed(t)
			must(t, os.Mkdir(f.dir+"/d", 0o755))
			must(t, create(f.dir+"/first"))
			alone, state := f.at(t, f.flush(t)), listing(t, f.dir)
			must(t, os.Link(f.dir+"/first", f.dir+"/d/second"))
			f.exact(t)
			both, states := f.at(t, f.flush(t)), listing(t, f.dir)
			must(t, os.Remove(f.dir+"/d/second"))
			f.exact(t)
			f.restore(t, both)
			same(t, "with both names", listing(t, f.dir), states)
			f.exact(t)
			f.restore(t, alone)
			same(t, "with one name", listing(t, f.dir), state)
			f.exact(t)
		})
	}
}

func TestWritesAndBatches(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/a", "one")
	write(t, f.dir+"/d/b", "one")
	start := f.flush(t)
	before := f.at(t, start)
	f.mu.Lock()
	f.batches = nil
	f.mu.Unlock()
	beside := t.TempDir() // a file that is written in the workspace may be seen while it is empty
	write(t, beside+"/a", "two")
	write(t, beside+"/c", "new")
	must(t, os.Rename(beside+"/a", f.dir+"/a"))
	must(t, os.Remove(f.dir+"/d/b"))
	must(t, os.Rename(beside+"/c", f.dir+"/c"))
	end := f.flush(t)
	f.mu.Lock()
	if len(f.batches) == 0 || f.batches[0].Before != start || f.batches[0].First.IsZero() {
		t.Errorf("told of %+v, want a batch before %s", f.batches, start)
	}
	f.mu.Unlock()
	list, err := f.Writes(t.Context(), start, end)
	must(t, err)
	got := map[string]string{}
	for _, w := range list {
		got[w.Path] += fmt.Sprint(!w.Before.IsZero(), !w.After.IsZero(), " ")
	}
	want := map[string]string{"a": "true true ", "d/b": "true false ", "c": "false true "}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("writes %v, want %v", got, want)
	}
	f.restart(t)
	again, err := f.Writes(t.Context(), start, end)
	must(t, err)
	if !slices.EqualFunc(list, again, func(a, b snap.Write) bool {
		return a.Path == b.Path && a.At == b.At && a.After == b.After && a.Seen.Equal(b.Seen)
	}) {
		t.Errorf("after a restart %v, before %v", again, list)
	}
	f.restore(t, before)
	if b, err := os.ReadFile(f.dir + "/d/b"); string(b) != "one" || err != nil {
		t.Error("not restored", err)
	}
	f.exact(t)
}
