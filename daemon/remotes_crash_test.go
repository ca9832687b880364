package daemon_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/identity"
	"mulligan/remote/s3store"
	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// history reads what the bucket has of the only app in it.
func (b *bucket) history(t *testing.T) *remote.History {
	t.Helper()
	store, err := s3store.Open(s3store.Config{Bucket: s3test.Bucket, Prefix: "apps", Endpoint: b.Endpoint, Region: "us-east-1", Credentials: credentials.NewStaticV4(s3test.Key, s3test.Secret, "")})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := identity.Parse(b.identity)
	if err != nil {
		t.Fatal(err)
	}
	folders, err := store.Folders(t.Context())
	if places := remote.Places(folders); err != nil || len(places) != 1 {
		t.Fatalf("%v %v", places, err)
	}
	h, err := remote.Reader{Bucket: store, Place: remote.Places(folders)[0], Identities: ids}.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestPushKilled kills daemons at the steps of a push. The next one goes on by itself, and the log has each checkpoint once.
func TestPushKilled(t *testing.T) {
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
		if v := caughtUp(t, d); v.UpTo != ipc.CheckpointID(ids[len(ids)-1]) || len(d.Status(root).Problems) > 0 {
			t.Errorf("after %q: %+v %v", names[steps[i]], v, d.Status(root).Problems)
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

// TestCloneKilled kills daemons at the steps of a clone. Afterwards the app is there and as in the checkpoint, or nothing of it is.
func TestCloneKilled(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	b.add(t, d)
	w.set(t, "cloned")
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, d)
	w.close(t, d)

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
	d = second.open(t)
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
