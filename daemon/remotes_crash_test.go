package daemon_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/identity"
	"mulligan/remote/s3store"
	"mulligan/remote/s3test"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// history reads what the bucket has of the only app in it.
func (b *bucket) history(t *testing.T) *remote.History {
	t.Helper()
	store, place := b.place(t)
	ids, err := identity.Parse(b.identity)
	if err != nil {
		t.Fatal(err)
	}
	h, err := remote.Reader{Bucket: store, Place: place, Identities: ids}.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// place returns the name of the only place in the bucket.
func (b *bucket) place(t *testing.T) (*s3store.Store, string) {
	t.Helper()
	store, err := s3store.Open(s3store.Config{Bucket: s3test.Bucket, Prefix: "apps", Endpoint: b.Endpoint, Region: "us-east-1", Credentials: credentials.NewStaticV4(s3test.Key, s3test.Secret, "")})
	if err != nil {
		t.Fatal(err)
	}
	folders, err := store.Folders(t.Context())
	places := remote.Places(folders)
	if err != nil || len(places) != 1 {
		t.Fatalf("%v %v", places, err)
	}
	return store, places[0]
}

// testPushKilled kills daemons at the steps of a push. The next one goes on by itself, and the log has each checkpoint once.
func testPushKilled(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	r := &round{world: w, plan: fate{State: w.state(), Do: "push"}}
	d := w.open(t)
	if _, err := d.AddRemote(t.Context(), root, "shop", b.request()); err != nil {
		t.Fatal(err)
	}
	var ids []string
	next := func() {
		r.n++
		w.set(t, fmt.Sprint("word-", r.n))
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, string(cp.ID))
		w.close(t, d)
	}
	next()
	names, _, _ := r.victim(t, 0, 0)
	steps := slices.DeleteFunc(slices.Collect(count(len(names))), func(i int) bool { return kind(names[i])[:4] != "push" })
	if len(steps) < 6 {
		t.Fatalf("a push has the steps %v", names)
	}
	d = w.open(t)
	for _, i := range testkit.Sample(t, "steps of a push", len(steps), 2) {
		next()
		r.plan.Kind = kind(names[steps[i]])
		if _, _, killed := r.victim(t, 1, 0); !killed {
			t.Errorf("a push did not come to %q", names[steps[i]])
		}
		d = w.open(t)
		if v, problems := caughtUp(t, d), d.Status(root).Problems; v.UpTo != ipc.CheckpointID(ids[len(ids)-1]) || len(problems) > 0 {
			t.Errorf("after %q: up to %s, want %s; problems %q", names[steps[i]], v.UpTo, ids[len(ids)-1], problems)
		}
	}
	w.close(t, d)
	hist := b.history(t)
	var there []string
	for _, cp := range hist.Checkpoints {
		there = append(there, cp.ID)
	}
	if !slices.Equal(there, ids) || len(hist.Problems) > 0 {
		t.Errorf("the log has %v, not %v: %v", there, ids, hist.Problems)
	}
}

// testRemotePruneKilled kills daemons at the steps of a prune of a remote. What is to stay is whole at any time, and the next prune leaves nothing else.
func testRemotePruneKilled(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	r := &round{world: w, plan: fate{State: w.state(), Do: "prune-remote"}}
	d := w.open(t)
	b.add(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &ipc.Remoting{Auto: ipc.RemoteAll, KeepLast: 2}}); err != nil {
		t.Fatal(err)
	}
	var ids []ipc.CheckpointID
	more := func() { // checkpoints, of which this host keeps the last
		t.Helper()
		for range 3 {
			w.set(t, fmt.Sprint("word-", len(ids)))
			cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, cp.ID)
		}
		caughtUp(t, d)
		for _, id := range ids[:len(ids)-1] {
			if err := d.Delete(t.Context(), root, "shop", id); err != nil && errs.KindOf(err) != errs.NotFound {
				t.Fatal(err)
			}
		}
	}
	whole := func(after string) {
		t.Helper()
		h := b.history(t)
		for _, id := range ids[len(ids)-2:] {
			cp, err := h.Find(string(id))
			if err != nil {
				t.Fatalf("after %q: %v", after, err)
			}
			store, err := cas.Open(t.TempDir(), cas.Options{})
			if err != nil {
				t.Fatal(err)
			}
			held, err := h.Fetch(t.Context(), &cp.Checkpoint, store, t.TempDir())
			if err != nil {
				t.Fatalf("after %q: %v", after, err)
			}
			held.Discard()
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if len(h.Problems) > 0 {
			t.Errorf("after %q: %v", after, h.Problems)
		}
	}
	more()
	w.close(t, d)
	names, _, _ := r.victim(t, 0, 0)
	steps := slices.DeleteFunc(slices.Collect(count(len(names))), func(i int) bool {
		return !strings.HasPrefix(kind(names[i]), "push") && !strings.HasPrefix(kind(names[i]), "prune")
	})
	if len(steps) < 6 {
		t.Fatalf("a prune has the steps %v", names)
	}
	for _, i := range testkit.Sample(t, "steps of a prune", len(steps), 2) {
		d = w.open(t)
		more()
		w.close(t, d)
		r.plan.Kind = kind(names[steps[i]])
		_, _, killed := r.victim(t, 1, 0)
		if sends := r.plan.Kind == "push: pack" || r.plan.Kind == "push: sent"; !killed && !sends { // not each one sends packs again
			t.Errorf("a prune did not come to %q", names[steps[i]])
		}
		whole(names[steps[i]])
		d = w.open(t)
		if _, err := d.PruneRemote(t.Context(), root, "shop", "backup", false); err != nil {
			t.Fatal(err)
		}
		whole("the next prune")
		if h := b.history(t); len(h.Checkpoints) != 2 || len(h.Warnings) > 0 {
			t.Errorf("after %q, and the next: %d checkpoints; %v", names[steps[i]], len(h.Checkpoints), h.Warnings)
		}
		if v, err := d.CheckRemote(t.Context(), root, "shop", "backup", true); err != nil || !v.OK {
			t.Errorf("after %q: %+v %v", names[steps[i]], v, err)
		}
		w.close(t, d)
	}
}

// count yields the numbers below n.
func count(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// newSent returns a bucket that has one checkpoint of an app, in the state "cloned".
func newSent(t *testing.T) *bucket {
	t.Helper()
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	b.add(t, d)
	w.set(t, "cloned")
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, d)
	w.close(t, d)
	return b
}

// testCloneKilled kills daemons at the steps of a clone. Afterwards the app is there and as in the checkpoint, or nothing of it is.
func testCloneKilled(t *testing.T) {
	b := newSent(t)

	second := world{dir: worldDir(t)}
	second.at = filepath.Join(second.dir, "clone")
	r := &round{world: second, plan: fate{State: second.state(), Do: "clone", Clone: b.clone(second.at)}}
	r.plan.Clone.NoStart = true
	names, _, _ := r.victim(t, 0, 0)
	remove := func(d *daemon.Daemon) {
		if err := d.RemoveApp(t.Context(), root, "shop", true); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(second.at); err != nil {
			t.Fatal(err)
		}
	}
	d := second.open(t)
	remove(d)
	second.close(t, d)
	made, dropped := 0, 0
	for _, i := range testkit.Sample(t, "steps of a clone", len(names), 3) {
		if _, _, killed := r.victim(t, i+1, 0); !killed {
			t.Logf("a clone did not come to step %d", i+1)
		}
		d := second.open(t)
		list, err := d.Remotes(t.Context(), root, "shop")
		_, gone := os.Stat(second.at)
		switch {
		case err == nil:
			made++
			if word, err := second.oneWord(); err != nil || word != "cloned" || len(list.Remotes) != 1 {
				t.Errorf("after %q: the app is in state %q: %v; %+v", names[i], word, err, list)
			}
			remove(d)
		case errors.Is(gone, fs.ErrNotExist):
			dropped++
		default:
			left, _ := os.ReadDir(second.at)
			t.Errorf("after %q: there is no app (%v), and its folder is there: %v", names[i], err, left)
			os.RemoveAll(second.at)
		}
		if s := d.Status(root); len(s.Problems) > 0 {
			t.Errorf("after %q: %v", names[i], s.Problems)
		}
		if apps, err := os.ReadDir(filepath.Join(second.state(), "apps")); err != nil || len(apps) > 0 {
			t.Errorf("after %q: %v is left of apps; %v", names[i], apps, err)
		}
		second.close(t, d)
	}
	t.Logf("%d clones were finished, %d dropped", made, dropped)
}

// cutShort returns a world in which the daemon was killed at a step of a clone from the bucket.
func (b *bucket) cutShort(t *testing.T, step string) world {
	t.Helper()
	w := world{dir: worldDir(t)}
	w.at = filepath.Join(w.dir, "clone")
	r := &round{world: w, plan: fate{State: w.state(), Do: "clone", Clone: b.clone(w.at), Kind: kind(step)}}
	r.plan.Clone.NoStart = true
	if names, _, killed := r.victim(t, 1, 0); !killed {
		t.Fatalf("the daemon was not killed at %q of %q", step, names)
	}
	return w
}

// testCloneSettledLater: a clone that was cut short and cannot be settled when the daemon starts again is settled later, and the app says so until
// then. What somebody made of it meanwhile is kept.
func testCloneSettledLater(t *testing.T) {
	b := newSent(t)
	for _, c := range []struct {
		name, killedAt   string
		meanwhile        func(d *daemon.Daemon) error
		app, checkpoints bool // whether the app is there in the end, and whether it has checkpoints
	}{
		{"nobody touched it", "clone: fetch", nil, false, false},
		{"it was at its checkpoint", "clone: made", nil, true, true},
		{"a checkpoint was made", "clone: fetch", func(d *daemon.Daemon) error {
			_, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
			return err
		}, true, true},
		{"it was removed, and its checkpoints are kept", "clone: fetch", func(d *daemon.Daemon) error {
			_, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
			return errs.Also(err, d.RemoveApp(t.Context(), root, "shop", false))
		}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			second := b.cutShort(t, c.killedAt)
			var tries atomic.Int32
			var pass atomic.Bool
			opt := second.options()
			opt.UpkeepEvery = time.Millisecond
			opt.Failpoint = func(step string) error {
				if step != "clone: settle" || pass.Load() {
					return nil
				}
				tries.Add(1)
				return unix.EIO
			}
			d := second.openAs(t, opt)
			defer func() { second.close(t, d) }()
			waitFor(t, "the clone is tried to be settled", func() bool { return tries.Load() > 2 })
			if a, err := d.App(t.Context(), root, "shop"); err != nil || !strings.Contains(strings.Join(a.Problems, "\n"), "clone") {
				t.Fatalf("the app does not say so: %q, %v", a.Problems, err)
			}
			if c.meanwhile != nil {
				if err := c.meanwhile(d); err != nil {
					t.Fatal(err)
				}
			}
			pass.Store(true)
			waitFor(t, "the clone is settled", func() bool {
				list, err := d.Remotes(t.Context(), root, "shop")
				if errs.KindOf(err) == errs.NotFound {
					return true
				}
				if err != nil {
					t.Fatal(err)
				}
				return list.Remotes[0].State == ipc.RemoteReadOnly && list.Remotes[0].Problem == ""
			})
			second.close(t, d)
			d = second.open(t)
			if _, err := d.App(t.Context(), root, "shop"); (err == nil) != c.app {
				t.Errorf("the app: %v", err)
			}
			left, err := os.ReadDir(filepath.Join(second.state(), "apps"))
			if err != nil || (len(left) > 0) != c.checkpoints {
				t.Errorf("%v is left of apps; %v", left, err)
			}
			if s := d.Status(root); len(s.Problems) > 0 {
				t.Errorf("%q", s.Problems)
			}
		})
	}
}

// TestCloneThatRecoveryFinishes: a clone whose rollback the next daemon finishes, but not before it answers, is not taken for one that was not made.
func TestCloneThatRecoveryFinishes(t *testing.T) {
	w := newSent(t).cutShort(t, "stage start-unit")
	at, held, release := hold(t, "stage start-unit")
	opt := w.options()
	opt.StartWait, opt.Failpoint = time.Millisecond, at
	d := w.openAs(t, opt)
	defer func() { release(); w.close(t, d) }()
	<-held
	waitFor(t, "settling the clone waits for the app", func() bool { return inBoth(t, "offsite.(*Service).settleOnce(", "app.(*App).hold(") })
	release()
	waitFor(t, "the clone is settled", func() bool {
		if _, err := d.App(t.Context(), root, "shop"); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(d.Status(root).Recovered, "\n"), "a clone that was cut short was finished")
	})
	if word, err := w.oneWord(); err != nil || word != "cloned" {
		t.Errorf("the app is in state %q; %v", word, err)
	}
}

// testFetch: checkpoints that this host has no more are told to be on the remote alone, come back with the identity, and can be gone to. Daemons are
// killed at the steps of fetching: afterwards it is here, or can be fetched again.
func testFetch(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	b.add(t, d)
	var ids []ipc.CheckpointID
	made := map[ipc.CheckpointID]ipc.Checkpoint{}
	for _, word := range []string{"one", "two", "three"} {
		w.set(t, word)
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true, Notes: map[string]string{"one": "the first"}[word]})
		if err != nil {
			t.Fatal(err)
		}
		ids, made[cp.ID] = append(ids, cp.ID), cp
	}
	caughtUp(t, d)
	drop := func(id ipc.CheckpointID) {
		t.Helper()
		_, err := d.Pin(t.Context(), root, "shop", id, false)
		if err == nil {
			err = d.Delete(t.Context(), root, "shop", id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	drop(ids[0])
	drop(ids[1])
	only := func(want ...ipc.CheckpointID) {
		t.Helper()
		var list ipc.CheckpointList
		if err := d.LocateAll(t.Context(), root, "shop", &list); err != nil {
			t.Fatal(err)
		}
		var got []ipc.CheckpointID
		for _, cp := range list.RemoteOnly {
			if got = append(got, cp.ID); cp.Location != ipc.LocationRemote {
				t.Errorf("%+v", cp)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("on the remote alone are %v, not %v", got, want)
		}
	}
	only(ids[1], ids[0])
	if _, err := d.Rollback(t.Context(), root, "shop", ids[0], ipc.RollbackRequest{}, nil); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a rollback to what is not here: %v", err)
	}
	other, _, err := identity.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		req  ipc.FetchRequest
		kind errs.Kind
	}{
		{ipc.FetchRequest{Checkpoint: ids[0], Identity: other}, errs.Denied},
		{ipc.FetchRequest{Checkpoint: ids[0]}, errs.Invalid},
		{ipc.FetchRequest{Checkpoint: "cp-ffffffffffff", Identity: b.identity}, errs.NotFound},
		{ipc.FetchRequest{Checkpoint: ids[0], Identity: b.identity, Remote: "other"}, errs.NotFound},
	} {
		if _, err := d.Fetch(t.Context(), root, "shop", try.req); errs.KindOf(err) != try.kind {
			t.Errorf("%+v: %v", try.req, err)
		}
	}
	back := func(id ipc.CheckpointID, want string) {
		t.Helper()
		cp, err := d.Fetch(t.Context(), root, "shop", ipc.FetchRequest{Checkpoint: id[:10], Identity: b.identity})
		if err != nil || cp.ID != id || cp.Location != ipc.LocationBoth || !cp.Pinned {
			t.Fatalf("%+v %v", cp, err)
		}
		was := made[id] // its time is that of the fetch now
		about := ", made " + was.CreatedAt.UTC().Format("2006-01-02 15:04 UTC")
		if notes := *cp.Notes; !strings.Contains(notes, about) || was.Notes != nil && !strings.HasPrefix(notes, *was.Notes+" (of ") {
			t.Errorf("the notes of what was made %s are %q", was.CreatedAt, notes)
		}
		goBack(t, d, id, ipc.RollbackRequest{})
		if word, err := w.oneWord(); err != nil || word != want {
			t.Fatalf("%q %v", word, err)
		}
	}
	back(ids[0], "one")
	only(ids[1])
	w.close(t, d)

	r := &round{world: w, plan: fate{State: w.state(), Do: "fetch", Fetch: ipc.FetchRequest{Checkpoint: ids[1], Identity: b.identity}}}
	names, _, _ := r.victim(t, 0, 0)
	if len(names) < 4 {
		t.Fatalf("fetching has the steps %v", names)
	}
	for _, i := range testkit.Sample(t, "steps of a fetch", len(names), 2) {
		d = w.open(t)
		if _, err := d.Checkpoint(t.Context(), root, "shop", ids[1]); err == nil {
			drop(ids[1])
		}
		w.close(t, d)
		if _, _, killed := r.victim(t, i+1, 0); !killed {
			t.Logf("fetching did not come to step %d", i+1)
		}
		d = w.open(t)
		if problems := d.Status(root).Problems; len(problems) > 0 {
			t.Errorf("after %q: %v", names[i], problems)
		}
		back(ids[1], "two")
		goBack(t, d, ids[2], ipc.RollbackRequest{})
		w.close(t, d)
	}

	d = w.open(t)
	defer func() { w.close(t, d) }()
	drop(ids[1])
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Databases: &[]ipc.Database{}}); err != nil {
		t.Fatal(err)
	}
	part, err := d.Fetch(t.Context(), root, "shop", ipc.FetchRequest{Checkpoint: ids[1], Identity: b.identity})
	if err != nil || part.ID == ids[1] || !strings.Contains(fmt.Sprint(part.Warnings), "not all of "+string(ids[1])) {
		t.Fatalf("fetched without its database: %+v %v", part, err)
	}
	caughtUp(t, d)
	whole, err := b.history(t).Find(string(ids[1]))
	if err != nil || len(whole.Parts) != 2 {
		t.Errorf("on the remote is now: %+v %v", whole, err)
	}
}
