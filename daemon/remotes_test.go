package daemon_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/daemon/offsite"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/remote/identity"
	"mulligan/remote/s3test"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// bucket is a bucket of a real server, and who can read what is sent there.
type bucket struct {
	*s3test.Server
	identity, recipient string
}

func newBucket(t *testing.T) *bucket {
	t.Helper()
	b := newIdentity(t)
	b.Server = s3test.Start(t)
	return b
}

func newIdentity(t *testing.T) *bucket {
	t.Helper()
	b := &bucket{}
	var err error
	if b.identity, b.recipient, err = identity.New(); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bucket) url() string { return "s3://" + s3test.Bucket + "/apps" }

func (b *bucket) keys() ipc.BucketKeys {
	return ipc.BucketKeys{AccessKey: s3test.Key, SecretKey: s3test.Secret}
}

func (b *bucket) request() ipc.RemoteRequest {
	return ipc.RemoteRequest{BucketKeys: b.keys(), RemotePlace: ipc.RemotePlace{
		Name: "backup", URL: b.url(), Endpoint: b.Endpoint, Region: "us-east-1", Recipients: []string{b.recipient},
	}}
}

func (b *bucket) clone(dir string) ipc.CloneRequest {
	return ipc.CloneRequest{URL: b.url(), Endpoint: b.Endpoint, Region: "us-east-1", BucketKeys: b.keys(), Identity: b.identity, Dir: dir}
}

// add adds the bucket as a remote of the app, to which checkpoints go by themselves.
func (b *bucket) add(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &ipc.Remoting{Auto: ipc.RemoteAll}}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddRemote(t.Context(), root, "shop", b.request()); err != nil {
		t.Fatal(err)
	}
}

// caughtUp waits until all checkpoints are on the remote.
func caughtUp(t *testing.T, d *daemon.Daemon) ipc.Remote {
	t.Helper()
	var r ipc.Remote
	waitFor(t, "all checkpoints are on the remote", func() bool {
		var err error
		r, err = d.Remote(t.Context(), root, "shop", "backup")
		if err != nil {
			t.Fatal(err)
		}
		return r.Behind == 0 && r.State == ipc.RemoteIdle && r.Checkpoints > 0
	})
	return r
}

// TestRemote: checkpoints go to a remote by themselves, and another daemon makes the app from what is there, at any of them. Then work
// goes on there, and the first daemon stops writing.
func TestRemote(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	t.Cleanup(func() { w.close(t, d) })
	b.add(t, d)
	var ids []ipc.CheckpointID
	for _, word := range []string{"one", "two", "three"} {
		w.set(t, word)
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, cp.ID)
	}
	r := caughtUp(t, d)
	if r.UpTo != ids[2] || r.Checkpoints != 3 || r.Keys != ipc.KeysOwn || len(r.Left) > 0 || r.Problem != "" || !r.Abilities.Delete {
		t.Errorf("%+v", r)
	}
	for _, path := range b.Files(t) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"file1", "three", "shop", "CREATE TABLE", w.dir} {
			if bytes.Contains(data, []byte(secret)) || strings.Contains(strings.TrimPrefix(path, os.TempDir()), secret+"/") {
				t.Errorf("%s holds %q", path, secret)
			}
		}
	}

	second := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	there := second.open(t)
	t.Cleanup(func() { second.close(t, there) })
	req := b.clone(second.at)
	req.Checkpoint = ids[1]
	req.NoStart = true // its command is of the first world
	req.LogKey = "0123456789abcdef"
	if _, err := there.Clone(t.Context(), root, req); errs.KindOf(err) != errs.Denied {
		t.Errorf("a log with another key: %v", err)
	}
	req.LogKey = r.LogKey
	res, err := there.Clone(t.Context(), root, req)
	if err != nil {
		t.Fatal(err)
	}
	if word, err := second.oneWord(); err != nil || word != "two" || res.Checkpoint != ids[1] || res.App.Slug != "shop" || len(res.Lacks) > 0 || len(res.Rollback.Stages) != 6 || !res.Rollback.Verification.Match {
		t.Fatalf("%q %v %+v", word, err, res)
	}
	if _, err := there.Clone(t.Context(), root, req); errs.KindOf(err) != errs.Conflict {
		t.Errorf("a folder that is not empty: %v", err)
	}
	if _, err := there.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true}); errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.HintOf(err), "--take-over") {
		t.Errorf("a push before the remote is taken over: %v", err)
	}
	list, err := there.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true, TakeOver: true})
	if err != nil || list.Remotes[0].UpTo == "" {
		t.Fatalf("%+v %v", list, err)
	}
	_, err = d.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true, Checkpoints: ids[:1]})
	if err != nil { // it is there already
		t.Error(err)
	}
	w.set(t, "four")
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first daemon says that another one writes", func() bool {
		return slices.ContainsFunc(d.Status(root).Problems, func(p string) bool { return strings.Contains(p, "another host writes to this remote") })
	})
}

// testRemoteAway: while the server is down checkpoints are made as ever, and status says what is not sent. When it is back, or the daemon
// was restarted meanwhile, they are sent; but as long as the app cannot be opened after a restart, they are not sent as if there were nothing in them.
// An app that is purged while the server is down is no longer behind.
func testRemoteAway(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	opt := w.options()
	opt.UpkeepEvery = 20e6
	d := w.openAs(t, opt)
	b.add(t, d)
	b.Kill(t)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "status says that the remote lacks it", func() bool {
		return slices.ContainsFunc(d.Status(root).Problems, func(p string) bool {
			return strings.Contains(p, "The remote backup lacks 1 checkpoints") && strings.Contains(p, "does not answer")
		})
	})
	if lag := d.Lag(); lag.Failing != 1 || lag.Checkpoints != 1 {
		t.Errorf("%+v", lag)
	}
	w.close(t, d)
	b.Up(t)
	files := filepath.Join(w.state(), "apps", string(cp.AppID), "files")
	check(t, os.Rename(files, files+"-away"))
	check(t, os.WriteFile(files, nil, 0o600)) // where the app's files layer needs its folder
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	waitFor(t, "it is not sent as the app cannot be opened", func() bool {
		r, err := d.Remote(t.Context(), root, "shop", "backup")
		check(t, err)
		if r.Checkpoints > 0 {
			t.Fatalf("something was sent of an app that cannot be opened: %+v", r)
		}
		return r.Behind == 1 && strings.Contains(r.Problem, "not a directory")
	})
	if v, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err == nil {
		t.Errorf("a checkpoint of an app that cannot be opened was verified: %+v", v)
	}
	check(t, os.Remove(files))
	check(t, os.Rename(files+"-away", files))
	if r := caughtUp(t, d); r.UpTo != cp.ID || len(r.Left) > 0 {
		t.Errorf("%+v", r)
	}
	w.becomesWhole(t, d)
	if sent, err := b.history(t).Find(string(cp.ID)); err != nil || len(sent.Parts) != 2 {
		t.Errorf("on the remote is %+v; %v", sent, err)
	}
	b.Kill(t)
	create(t, d)
	waitFor(t, "it is not sent", func() bool { lag := d.Lag(); return lag.Failing == 1 && lag.Checkpoints == 1 })
	if err := d.RemoveApp(t.Context(), root, "shop", true); err != nil {
		t.Fatal(err)
	}
	if lag := d.Lag(); lag != (offsite.Lag{}) {
		t.Errorf("after the purge: %+v", lag)
	}
}

// TestRemoteOfDamaged: a checkpoint whose contents are damaged here keeps no other one from the remote, and status goes on to name it. When it
// can be read again, it is sent as well.
func TestRemoteOfDamaged(t *testing.T) {
	for what, kind := range map[string]int{"contents": 1, "tree": 2} { // as in the head of a record, see stretches
		t.Run(what, func(t *testing.T) { remoteOfDamaged(t, kind) })
	}
}

func remoteOfDamaged(t *testing.T, kind int) {
	b, w := newBucket(t), newWorld(t, nil)
	one, _ := w.twoPoints(t)
	path, at := w.onlyIn(t, one, kind)
	var mend func()
	if kind == 2 {
		mend = flip(t, path, at) // found when the daemon starts
	}
	opt := w.options()
	opt.UpkeepEvery = 20e6
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	if kind == 1 {
		mend = flip(t, path, at) // found when it is to be sent
	}
	auto := func(which string) {
		t.Helper()
		if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &ipc.Remoting{Auto: which}}); err != nil {
			t.Fatal(err)
		}
	}
	auto(ipc.RemoteDaily)
	if _, err := d.AddRemote(t.Context(), root, "shop", b.request()); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, d) // another one of the day went instead
	auto(ipc.RemoteAll)
	named := func() bool {
		r, err := d.Remote(t.Context(), root, "shop", "backup")
		if err != nil {
			t.Fatal(err)
		}
		return r.Checkpoints == 1 && r.Behind == 1 && r.State == ipc.RemoteFailing && r.NextTry != nil && strings.Contains(r.Problem, string(one)) &&
			slices.ContainsFunc(d.Status(root).Problems, func(p string) bool {
				return strings.Contains(p, "The remote backup lacks 1 checkpoints") && strings.Contains(p, string(one))
			})
	}
	waitFor(t, "the other checkpoint is on the remote, and status names this one", named)
	w.set(t, "three")
	three, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true, Checkpoints: []ipc.CheckpointID{three.ID}}); err != nil {
		t.Errorf("a push of another checkpoint: %v", err)
	}
	ask := ipc.PushRequest{Wait: true, Checkpoints: []ipc.CheckpointID{one}}
	if _, err := d.Push(t.Context(), root, "shop", ask); errs.KindOf(err) != errs.Corrupt || !strings.Contains(err.Error(), string(one)) {
		t.Errorf("a push of the damaged one: %v", err)
	}
	mend()
	w.close(t, d) // what a daemon read, it does not read again
	d = w.openAs(t, opt)
	if r := caughtUp(t, d); r.Checkpoints != 3 || len(d.Status(root).Problems) > 0 {
		t.Errorf("%+v %v", r, d.Status(root).Problems)
	}
}

// onlyIn returns a byte of an object of a kind that the files of this checkpoint need, and nothing else.
func (w world) onlyIn(t *testing.T, id ipc.CheckpointID, kind int) (path string, at int64) {
	t.Helper()
	d := w.open(t)
	cp, err := d.Checkpoint(t.Context(), root, "shop", id)
	w.close(t, d)
	if err != nil || cp.FilesSnapshot == nil {
		t.Fatalf("%+v %v", cp, err)
	}
	store := filepath.Join(w.state(), "store")
	s, err := cas.Open(store, cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	of, others := map[cas.Hash]string{}, map[cas.Hash]string{}
	for _, r := range s.Roots("") {
		if strings.HasSuffix(r.Name, "/"+*cp.FilesSnapshot) {
			reach(t, s, r.Hash, r.Name, of)
		} else {
			reach(t, s, r.Hash, r.Name, others)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(of, func(h cas.Hash, _ string) bool { return others[h] != "" })
	needed, _ := stretches(t, store)
	for _, p := range needed {
		var h cas.Hash
		f, err := os.Open(p.path)
		if err == nil {
			_, err = f.ReadAt(h[:], p.begin+24)
			_ = f.Close() // it was only read
		}
		if err != nil {
			t.Fatal(err)
		}
		if of[h] != "" && strings.HasPrefix(p.what, fmt.Sprintf("record of kind %d ", kind)) {
			return p.path, p.end - 1
		}
	}
	t.Fatalf("none of %d objects is of kind %d and of %s alone", len(needed), kind, id)
	return "", 0
}

// testRemotePruned: what the app's settings no longer keep on a remote goes, and nothing else, whatever the clock says. A dry run says what would go.
func testRemotePruned(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	opt := w.options()
	now := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour) // all checkpoints are of one day
	began := time.Now()
	var late atomic.Int64
	opt.Now = func() time.Time { return now.Add(time.Since(began) + time.Duration(late.Load())) }
	d := w.openAs(t, opt)
	b.add(t, d)
	kept := ipc.DefaultRetention()
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &kept}); err != nil {
		t.Fatal(err)
	}
	var ids []ipc.CheckpointID
	for i := range 6 {
		w.set(t, fmt.Sprint("word-", i))
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: i == 1})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, cp.ID)
		late.Add(int64(time.Minute))
	}
	caughtUp(t, d)
	prune := func(dry bool, keep ipc.Remoting, deleted ...ipc.CheckpointID) ipc.RemotePrune {
		t.Helper()
		keep.Auto = ipc.RemoteAll
		if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &keep}); err != nil {
			t.Fatal(err)
		}
		res, err := d.PruneRemote(t.Context(), root, "shop", "backup", dry)
		if err != nil {
			t.Fatal(err)
		}
		var got []ipc.CheckpointID
		for _, c := range res.Deleted {
			if got = append(got, c.ID); c.CreatedAt.IsZero() {
				t.Errorf("%+v", c)
			}
		}
		if !slices.Equal(got, deleted) {
			t.Errorf("%+v: %v go, not %v", keep, got, deleted)
		}
		return res
	}
	prune(false, ipc.Remoting{KeepLast: 1}) // all are here
	if _, err := d.Pin(t.Context(), root, "shop", ids[1], false); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[:4] {
		if err := d.Delete(t.Context(), root, "shop", id); err != nil {
			t.Fatal(err)
		}
	}
	late.Store(int64(50 * 365 * 24 * time.Hour)) // a clock that is wrong makes nothing old
	prune(false, ipc.Remoting{})
	prune(false, ipc.Remoting{KeepLast: 6})
	prune(false, ipc.Remoting{KeepLast: 4, DailyDays: 1}) // ids[0] is the first of the day
	files := len(b.Files(t))
	foretold := prune(true, ipc.Remoting{KeepLast: 3}, ids[0], ids[2])
	if n := len(b.Files(t)); n != files || foretold.Packs == 0 || foretold.FreedBytes == 0 || !foretold.DryRun {
		t.Errorf("a dry run leaves %d of %d objects: %+v", n, files, foretold)
	}
	if res := prune(false, ipc.Remoting{KeepLast: 3}, ids[0], ids[2]); res.Packs != foretold.Packs || res.Kept != 4 { // ids[1] was pinned when it was sent
		t.Errorf("done: %+v, foretold: %+v", res, foretold)
	}
	var list ipc.CheckpointList
	if err := d.LocateAll(t.Context(), root, "shop", &list); err != nil || len(list.RemoteOnly) != 2 {
		t.Errorf("%+v %v", list.RemoteOnly, err)
	}
	w.set(t, "later")
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	if r := caughtUp(t, d); r.Checkpoints != 5 {
		t.Errorf("%+v", r)
	}
	for i, want := range map[int]string{1: "word-1", 3: "word-3"} {
		if _, err := d.Fetch(t.Context(), root, "shop", ipc.FetchRequest{Checkpoint: ids[i], Identity: b.identity}); err != nil {
			t.Fatal(err)
		}
		goBack(t, d, ids[i], ipc.RollbackRequest{})
		if word, err := w.oneWord(); err != nil || word != want {
			t.Errorf("%q %v", word, err)
		}
	}
	if _, err := d.Fetch(t.Context(), root, "shop", ipc.FetchRequest{Checkpoint: ids[0], Identity: b.identity}); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a checkpoint that was removed: %v", err)
	}
	w.close(t, d)

	second := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	there := second.open(t)
	defer second.close(t, there)
	req := b.clone(second.at)
	req.NoStart = true
	if _, err := there.Clone(t.Context(), root, req); err != nil {
		t.Fatal(err)
	}
	if _, err := there.PruneRemote(t.Context(), root, "shop", "backup", false); errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.HintOf(err), "--take-over") {
		t.Errorf("a host that only reads prunes: %v", err)
	}
}

// testClonePruned: the remote is pruned while a host clones from it: packs are moved, and the clone is what the checkpoint was; or the checkpoint is no more,
// which is said, and nothing is left of the clone.
func testClonePruned(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	defer func() { w.close(t, d) }()
	b.add(t, d)
	kept := ipc.DefaultRetention()
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &kept}); err != nil {
		t.Fatal(err)
	}
	var ids []ipc.CheckpointID
	for i := range 3 { // little of the first pack stays: one large file of two
		w.set(t, fmt.Sprint("word-", i))
		for name, n := range map[string]int{"stays": 0, "changes": i} {
			if i == 0 || name == "changes" {
				if err := os.WriteFile(filepath.Join(w.ws(), name), testkit.Bytes(t, (1+len(name)/6)<<18, name, n), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, cp.ID)
	}
	caughtUp(t, d)
	if err := d.Delete(t.Context(), root, "shop", ids[0]); err != nil {
		t.Fatal(err)
	}
	second := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	opt := second.options()
	keep := 2
	var pruned ipc.RemotePrune
	opt.Failpoint = func(step string) (err error) {
		if step == "clone: fetch" {
			if _, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &ipc.Remoting{Auto: ipc.RemoteAll, KeepLast: keep}}); err == nil {
				pruned, err = d.PruneRemote(t.Context(), root, "shop", "backup", false)
			}
		}
		return err
	}
	there := second.openAs(t, opt)
	defer func() { second.close(t, there) }()
	req := b.clone(second.at)
	req.NoStart, req.Checkpoint = true, ids[1]
	if _, err := there.Clone(t.Context(), root, req); err != nil {
		t.Fatal(err)
	}
	if word, err := second.oneWord(); err != nil || word != "word-1" || pruned.MovedBytes == 0 {
		t.Errorf("%q %v; pruned meanwhile: %+v", word, err, pruned)
	}
	if err := there.RemoveApp(t.Context(), root, "shop", true); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(second.at); err != nil {
		t.Fatal(err)
	}
	keep = 1
	if err := d.Delete(t.Context(), root, "shop", ids[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Clone(t.Context(), root, req); errs.KindOf(err) != errs.NotFound || !strings.Contains(errs.Words(err), "removed from the remote while it was fetched") {
		t.Errorf("the checkpoint was removed: %v", err)
	}
	if _, err := os.Stat(second.at); err == nil || len(there.Status(root).Problems) > 0 {
		t.Errorf("something is left of the clone: %v", there.Status(root).Problems)
	}
}

// TestReceiptOfClone: whoever asks for a clone gets the receipt of its rollback with the error: of one that fails, after which nothing is left of
// the clone, and of one whose app is made, and is not well.
func TestReceiptOfClone(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	t.Cleanup(func() { w.close(t, d) })
	b.add(t, d)
	_, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	caughtUp(t, d)
	second := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	var fail failpoint
	opt := second.options()
	opt.Failpoint = fail.step
	there := second.openAs(t, opt)
	t.Cleanup(func() { second.close(t, there) })
	l, err := ipc.Listen(filepath.Join(second.dir, "s"), 0o600)
	check(t, err)
	srv := ipc.NewHTTPServer(there.Handler(), nil)
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	req := b.clone(second.at)
	req.NoStart = true // its command is of the first world
	for _, c := range []struct {
		step string
		made bool
	}{{"commit files", false}, {"stage " + string(ipc.StageHealthy), true}} {
		fail.set(c.step)
		res, err := ipc.NewClient(filepath.Join(second.dir, "s")).Clone(ipc.WithProgress(t.Context(), func(ipc.Progress) {}), req)
		if errs.KindOf(err) != errs.Failed || !strings.Contains(err.Error(), "input/output error") {
			t.Fatalf("a clone that fails at %s: %v", c.step, err)
		}
		if r := res.Rollback; r == nil || r.RolledBack != c.made || len(r.Stages) != 6 || res.Error == nil || res.App.Slug != "shop" || res.Checkpoint == "" {
			t.Errorf("the receipt of a clone that fails at %s: %+v", c.step, res)
		}
		if _, err := there.App(t.Context(), root, "shop"); (err == nil) != c.made {
			t.Errorf("the app after a clone that fails at %s: %v", c.step, err)
		}
	}
}

// testRemoteVerified: a pack that was changed is found, and what is here is sent again, once. A checkpoint that is on the remote alone is still listed, and
// says that it may be damaged if it needs what is damaged, until a prune removes it.
func testRemoteVerified(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	b.add(t, d)
	old, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	caughtUp(t, d)
	if _, err = d.Pin(t.Context(), root, "shop", old.ID, true); err != nil { // it stays here, and is not pinned there
		t.Fatal(err)
	}
	packs := func() []string {
		return slices.DeleteFunc(b.Files(t), func(path string) bool { return !strings.Contains(path, "/packs/") })
	}
	first := packs()
	for _, word := range []string{"one", "two"} {
		w.set(t, word)
		if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true}); err != nil {
			t.Fatal(err)
		}
	}
	caughtUp(t, d)
	if _, err = d.Pin(t.Context(), root, "shop", old.ID, false); err == nil {
		err = d.Delete(t.Context(), root, "shop", old.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	only := func(warnings int) {
		t.Helper()
		var list ipc.CheckpointList
		err := d.LocateAll(t.Context(), root, "shop", &list)
		if err != nil || len(list.RemoteOnly) != 1 || list.RemoteOnly[0].ID != old.ID || len(list.RemoteOnly[0].Warnings) != len(old.Warnings)+warnings {
			t.Errorf("on the remote alone: %+v %v", list.RemoteOnly, err)
		}
	}
	only(0)
	check := func(full bool, problems int) {
		t.Helper()
		res, err := d.CheckRemote(t.Context(), root, "shop", "backup", full)
		named := slices.DeleteFunc(slices.Clone(res.Problems), func(p string) bool { return !strings.HasPrefix(p, "Checkpoint cp-") })
		if err != nil || len(res.Problems)-len(named) != problems || res.OK != (len(res.Problems) == 0) || res.Objects < 4 {
			t.Fatalf("%+v %v", res, err)
		}
	}
	check(true, 0)
	damage := func(path string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage(slices.DeleteFunc(packs(), func(path string) bool { return slices.Contains(first, path) })[0])
	check(true, 1)
	only(0) // it needs nothing of that pack
	caughtUp(t, d)
	only(0)
	damage(first[0])
	check(false, 0)
	check(true, 1)
	caughtUp(t, d)
	only(1)
	stored := len(b.Files(t))
	for _, full := range []bool{true, false} {
		res, err := d.CheckRemote(t.Context(), root, "shop", "backup", full)
		if err != nil || res.OK || len(res.Problems) != 1 || !strings.Contains(res.Problems[0], string(old.ID)) {
			t.Errorf("what cannot be sent again is not told: %+v %v", res, err)
		}
	}
	if r := caughtUp(t, d); r.Checkpoints != 2 {
		t.Errorf("%+v", r)
	}
	if n := len(b.Files(t)); n != stored {
		t.Errorf("a check that found nothing new made %d objects of %d", n, stored)
	}
	only(1)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &ipc.Remoting{KeepLast: 1}}); err != nil {
		t.Fatal(err)
	}
	if res, err := d.PruneRemote(t.Context(), root, "shop", "backup", false); err != nil || len(res.Deleted) != 1 || res.Deleted[0].ID != old.ID {
		t.Errorf("what is damaged, and not kept, is pruned: %+v %v", res, err)
	}
	if res, err := d.CheckRemote(t.Context(), root, "shop", "backup", true); err != nil || !res.OK {
		t.Errorf("what was pruned is still told: %+v %v", res, err)
	}
	second := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	there := second.open(t)
	defer second.close(t, there)
	req := b.clone(second.at)
	req.NoStart = true
	if res, err := there.Clone(t.Context(), root, req); err != nil || !res.Rollback.Verification.Match {
		t.Fatalf("%+v %v", res, err)
	}
	if word, err := second.oneWord(); err != nil || word != "two" {
		t.Errorf("%q %v", word, err)
	}
}

// TestRemoteNewRecipient: once a remote has another recipient, what is here is sent again, and can be read by that one alone.
func TestRemoteNewRecipient(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	b.add(t, d)
	var ids []ipc.CheckpointID
	for _, word := range []string{"one", "two", "three"} {
		w.set(t, word)
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, cp.ID)
	}
	caughtUp(t, d)
	_, err := d.Pin(t.Context(), root, "shop", ids[0], false)
	if err == nil {
		err = d.Delete(t.Context(), root, "shop", ids[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	second := newIdentity(t)
	b.identity, b.recipient = second.identity, second.recipient
	if r, err := d.AddRemote(t.Context(), root, "shop", b.request()); err != nil || r.Checkpoints+r.Behind != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	if r := caughtUp(t, d); r.Checkpoints != 2 {
		t.Errorf("%+v", r)
	}
	var list ipc.CheckpointList
	if err := d.LocateAll(t.Context(), root, "shop", &list); err != nil || len(list.RemoteOnly) != 1 || !strings.Contains(fmt.Sprint(list.RemoteOnly[0].Warnings), "all recipients") {
		t.Errorf("what cannot be sent again: %+v %v", list.RemoteOnly, err)
	}
	there := world{dir: worldDir(t), at: filepath.Join(worldDir(t), "clone")}
	other := there.open(t)
	defer there.close(t, other)
	req := b.clone(there.at)
	req.NoStart, req.Checkpoint = true, ids[1]
	if res, err := other.Clone(t.Context(), root, req); err != nil || !res.Rollback.Verification.Match {
		t.Fatalf("%+v %v", res, err)
	}
	if word, err := there.oneWord(); err != nil || word != "two" {
		t.Errorf("%q %v", word, err)
	}
}

// TestRemoteCheckCutShort: a daemon that ended when it had noted damage on a remote, and nothing else, sends again what is damaged there after its next start,
// also where nothing is sent by itself.
func TestRemoteCheckCutShort(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	b.add(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	caughtUp(t, d)
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Remoting: &ipc.Remoting{}}); err != nil {
		t.Fatal(err)
	}
	w.close(t, d)
	for _, path := range b.Files(t) {
		if strings.Contains(path, "/packs/") {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	ledgers, err := filepath.Glob(filepath.Join(w.state(), "apps", string(cp.AppID), "remote-backup.ledger"))
	if err != nil || len(ledgers) != 1 {
		t.Fatalf("%q %v", ledgers, err)
	}
	store, place := b.place(t)
	found, err := remote.NewPlace(remote.Config{Bucket: store, Name: place, Ledger: ledgers[0]}).Check(t.Context(), false)
	if err != nil || len(found.Problems) != 2 { // of the pack, and of the checkpoint
		t.Fatalf("%+v %v", found, err)
	}
	d = w.open(t)
	defer func() { w.close(t, d) }()
	if r, err := d.Remote(t.Context(), root, "shop", "backup"); err != nil || r.Behind+r.Checkpoints != 1 {
		t.Fatalf("the checkpoint is neither to be sent nor sent: %+v %v", r, err)
	}
	if r := caughtUp(t, d); r.UpTo != cp.ID {
		t.Errorf("%+v", r)
	}
	if res, err := d.CheckRemote(t.Context(), root, "shop", "backup", true); err != nil || !res.OK {
		t.Errorf("%+v %v", res, err)
	}
}

// TestRemoteRefused: what cannot be a remote is refused with a sentence, and leaves nothing.
func TestRemoteRefused(t *testing.T) {
	b, w := newBucket(t), newWorld(t, nil)
	d := w.open(t)
	defer w.close(t, d)
	for _, try := range []struct {
		what   string
		change func(*ipc.RemoteRequest)
		kind   errs.Kind
		says   string
	}{
		{"a URL of something else", func(r *ipc.RemoteRequest) { r.URL = "https://example.com" }, errs.Invalid, "not the URL of a remote"},
		{"a prefix that leaves", func(r *ipc.RemoteRequest) { r.URL += "/../other" }, errs.Invalid, "not the URL of a remote"},
		{"an endpoint that is none", func(r *ipc.RemoteRequest) { r.Endpoint = "ftp://x" }, errs.Invalid, "not the URL of an S3 server"},
		{"a name with a slash", func(r *ipc.RemoteRequest) { r.Name = "../x" }, errs.Invalid, "cannot be the name"},
		{"no recipient", func(r *ipc.RemoteRequest) { r.Recipients = nil }, errs.Invalid, "needs a recipient"},
		{"half of the keys", func(r *ipc.RemoteRequest) { r.SecretKey = "" }, errs.Invalid, "go together"},
		{"no keys", func(r *ipc.RemoteRequest) { r.BucketKeys = ipc.BucketKeys{} }, errs.Denied, "no credentials"},
		{"a wrong key", func(r *ipc.RemoteRequest) { r.SecretKey = "wrong" }, errs.Denied, "403"},
		{"no bucket", func(r *ipc.RemoteRequest) { r.URL = "s3://nowhere" }, errs.NotFound, "NoSuchBucket"},
		{"a port where nobody listens", func(r *ipc.RemoteRequest) { r.Endpoint = "http://127.0.0.1:1" }, errs.Unavailable, "does not answer"},
	} {
		req := b.request()
		try.change(&req)
		if _, err := d.AddRemote(t.Context(), root, "shop", req); errs.KindOf(err) != try.kind || !strings.Contains(errs.Words(err), try.says) {
			t.Errorf("%s: %v", try.what, err)
		}
	}
	if list, err := d.Remotes(t.Context(), root, "shop"); err != nil || len(list.Remotes) > 0 {
		t.Errorf("%+v %v", list, err)
	}
}
