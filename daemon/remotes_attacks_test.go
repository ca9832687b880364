package daemon_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// TestRemotesOfOwners has users try to see and to use each other's remotes and root's credentials.
func TestRemotesOfOwners(t *testing.T) {
	testkit.Need(t, "root")
	b := newBucket(t)
	tw := newTownWith(t, daemon.Bucket{URL: "s3://" + s3test.Bucket + "/of-root", Endpoint: b.Endpoint, Region: "us-east-1",
		AccessKey: s3test.Key, SecretKey: s3test.Secret, Users: []string{"games"}})
	alice, bob := tw.onSocket("alice", aliceUID), tw.onSocket("bob", bobUID)
	gina := tw.onTCP("gina", "X-Guest-Id", "gina")
	tw.settle(alice, aliceUID, filepath.Join(tw.dir, "alice", "ws"))
	tw.settle(bob, bobUID, filepath.Join(tw.dir, "bob", "ws"))
	tw.settle(gina, 65534, filepath.Join(tw.dir, "guests", "gina", "ws"))
	var tok ipc.NewToken
	bob.must("POST", "/api/tokens", ipc.TokenRequest{Scopes: []ipc.Scope{ipc.ScopeRead, ipc.ScopeWrite, ipc.ScopeManage}}, &tok)
	token := tw.onTCP("bob's token", bearer(tok.Secret)...)
	token.slug = bob.slug

	alice.must("POST", alice.own("/remotes"), b.request(), nil)
	alice.must("POST", alice.own("/push"), ipc.PushRequest{Wait: true}, nil)
	for _, rest := range []string{"/remotes", "/remotes/backup", "/audit", ""} {
		if got := alice.ask("GET", alice.own(rest), nil); got.status != 200 || strings.Contains(got.body, s3test.Secret) || strings.Contains(got.body, s3test.Key) {
			t.Errorf("GET %s: %d %s", rest, got.status, got.body)
		}
	}
	for _, ref := range []string{alice.slug, string(alice.app.ID)} {
		at := "/api/apps/" + ref
		for _, try := range []struct {
			method, path string
			body         any
		}{
			{"GET", "/remotes", nil},
			{"GET", "/remotes/backup", nil},
			{"POST", "/remotes/backup/check?full=1", nil},
			{"POST", "/remotes/backup/prune", nil},
			{"DELETE", "/remotes/backup", nil},
			{"POST", "/remotes", b.request()},
			{"POST", "/push", ipc.PushRequest{TakeOver: true}},
		} {
			tw.refused(bob, try.method+try.path, alice, bob.ask(try.method, at+try.path, try.body), 404)
			tw.refused(token, try.method+try.path, alice, token.ask(try.method, at+try.path, try.body), 404, 403)
			tw.refused(gina, try.method+try.path, alice, gina.ask(try.method, at+try.path, try.body), 404, 403)
		}
	}

	// Root's credentials are for root's bucket, at root's server, and for whom root named.
	spy := newSpy(t)
	rootly := b.request()
	rootly.BucketKeys, rootly.Name, rootly.URL = ipc.BucketKeys{}, "rootly", "s3://"+s3test.Bucket+"/of-root/alice"
	alice.must("POST", alice.own("/remotes"), rootly, nil)
	for what, change := range map[string]func(*ipc.RemoteRequest){
		"beside the prefix":     func(r *ipc.RemoteRequest) { r.URL = "s3://" + s3test.Bucket + "/of-root-2" },
		"above the prefix":      func(r *ipc.RemoteRequest) { r.URL = "s3://" + s3test.Bucket },
		"around the prefix":     func(r *ipc.RemoteRequest) { r.URL = "s3://" + s3test.Bucket + "/of-root/../x" },
		"another bucket":        func(r *ipc.RemoteRequest) { r.URL = "s3://another/of-root" },
		"another server":        func(r *ipc.RemoteRequest) { r.Endpoint = spy.url },
		"the server in another": func(r *ipc.RemoteRequest) { r.Endpoint = spy.url + "/" + b.Endpoint },
	} {
		req := rootly
		req.Name = "more"
		change(&req)
		tw.refused(alice, what, nil, alice.ask("POST", alice.own("/remotes"), req), 403, 400)
	}
	tw.refused(bob, "root's bucket", nil, bob.ask("POST", bob.own("/remotes"), rootly), 403)
	steal := b.clone(filepath.Join(tw.dir, "bob", "stolen"))
	steal.BucketKeys, steal.URL = ipc.BucketKeys{}, rootly.URL
	tw.refused(bob, "to clone with root's credentials", nil, bob.ask("POST", "/api/clone", steal), 403)
	tw.refused(gina, "to clone", nil, gina.ask("POST", "/api/clone", b.clone(filepath.Join(tw.dir, "guests", "gina", "new"))), 403)
	tw.refused(gina, "to add a remote", nil, gina.ask("POST", gina.own("/remotes"), b.request()), 403)
	tw.refused(token, "to clone by TCP", nil, token.ask("POST", "/api/clone", b.clone(filepath.Join(tw.dir, "bob", "new"))), 403)
	if n := spy.asked.Load(); n > 0 {
		t.Errorf("%d requests went to a server that root did not name", n)
	}

	// Where the user names the server, the user connects.
	theirs := b.request()
	theirs.Name, theirs.Endpoint = "spied", spy.url
	tw.refused(bob, "a server of his own", nil, bob.ask("POST", bob.own("/remotes"), theirs), 400, 403, 404, 500, 501, 503)
	if uid := spy.uid.Load(); uid != bobUID {
		t.Errorf("uid %d connected to the server that bob named, not %d", uid, bobUID)
	}

	// A clone into what is another's, and for another.
	for what, change := range map[string]func(*ipc.CloneRequest){
		"into alice's folder":   func(r *ipc.CloneRequest) { r.Dir = filepath.Join(tw.dir, "alice", "new") },
		"as alice":              func(r *ipc.CloneRequest) { r.Owner = "games" },
		"into root's folder":    func(r *ipc.CloneRequest) { r.Dir = "/root/new" },
		"into a folder in use":  func(r *ipc.CloneRequest) { r.Dir = bob.ws },
		"without the identity":  func(r *ipc.CloneRequest) { r.Identity = newBucketIdentity(t) },
		"with no identity":      func(r *ipc.CloneRequest) { r.Identity = "" },
		"with a relative place": func(r *ipc.CloneRequest) { r.Dir = "new" },
	} {
		req := b.clone(filepath.Join(tw.dir, "bob", "cloned"))
		change(&req)
		tw.refused(bob, "to clone "+what, nil, bob.ask("POST", "/api/clone", req), 400, 403, 404, 409, 500)
	}
	if _, err := os.Stat(filepath.Join(tw.dir, "bob", "cloned")); err == nil {
		t.Error("a clone that was refused left its folder")
	}
	for _, p := range []*person{alice, bob, gina} {
		tw.intact(p)
	}
}

// spy is a server that says nothing and notes who connects.
type spy struct {
	url   string
	asked atomic.Int64
	uid   atomic.Int64
}

func newSpy(t *testing.T) *spy {
	t.Helper()
	s := &spy{}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		s.uid.Store(int64(uidOf(r.RemoteAddr)))
		http.Error(w, "no", http.StatusTeapot)
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return s
}

// uidOf returns the user whose socket has the address, as /proc/net/tcp says, or -1.
func uidOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 7 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
			uid, _ := strconv.Atoi(f[7])
			return uid
		}
	}
	return -1
}

func newBucketIdentity(t *testing.T) string { return newIdentity(t).identity }

// TestCloneGivesNoRights: a bucket whose owner wrote what root's daemon would write does not make its user root: what a user clones is the
// user's own.
func TestCloneGivesNoRights(t *testing.T) {
	testkit.Need(t, "root")
	b := newBucket(t)
	w := world{dir: worldDir(t)}
	evil := w.open(t)
	rootFile(t, filepath.Join(w.ws(), "tool"), "#!/bin/sh\nid\n", 0o4755)
	if err := os.MkdirAll(filepath.Join(w.ws(), "sub", "deep"), 0o2775); err != nil {
		t.Fatal(err)
	}
	rootFile(t, filepath.Join(w.ws(), "sub", "deep", "secret"), "text", 0o600)
	makeDB(t, filepath.Join(w.ws(), "sub", "data.db"), "rows")
	if err := os.Chmod(filepath.Join(w.ws(), "sub", "data.db"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if _, err := evil.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Databases: []ipc.Database{{Name: "main", Driver: "sqlite", DSN: "sub/data.db"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := evil.AddRemote(t.Context(), root, "shop", b.request()); err != nil {
		t.Fatal(err)
	}
	if _, err := evil.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := evil.Push(t.Context(), root, "shop", ipc.PushRequest{Wait: true}); err != nil {
		t.Fatal(err)
	}
	w.close(t, evil)

	tw := newTown(t)
	bob := tw.onSocket("bob", bobUID)
	dir := filepath.Join(tw.dir, "bob", "cloned")
	var res ipc.CloneResult
	bob.must("POST", "/api/clone", b.clone(dir), &res)
	if !res.Rollback.Verification.Match {
		t.Errorf("%+v", res.Rollback.Verification)
	}
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		seen++
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != bobUID || int(st.Gid) != bobUID || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 && !info.IsDir() {
			t.Errorf("%s is %v, of %d:%d", path, info.Mode(), st.Uid, st.Gid)
		}
		return nil
	})
	if err != nil || seen < 6 {
		t.Errorf("%d entries, %v", seen, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "tool")); err != nil || string(text) != "#!/bin/sh\nid\n" {
		t.Errorf("%q %v", text, err)
	}
}

// TestLongMuteServer: a server that takes connections and answers nothing is no remote, which is told within a minute.
func TestLongMuteServer(t *testing.T) {
	testkit.NeedLong(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	b, w := newIdentity(t), newWorld(t, nil)
	b.Server = &s3test.Server{Endpoint: "http://" + mute.Addr().String()}
	d := w.open(t)
	defer w.close(t, d)
	began := time.Now()
	if _, err := d.AddRemote(t.Context(), root, "shop", b.request()); errs.KindOf(err) != errs.Unavailable || !strings.Contains(errs.HintOf(err), "--endpoint") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}
