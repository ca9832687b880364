package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/remote/s3store"
	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// fault is what a proxy does to a request: it answers itself, or drops the server's answer.
type fault int

const (
	none     fault = iota
	busy           // 503 instead of asking the server
	cutOff         // the connection ends before the server is asked
	lostDone       // the server is asked, and its answer is lost
	hang           // nothing is answered
	skewed         // the server finds that the client's clock is wrong
	exists         // 412, whatever there is
	refused        // 403
	late           // the server is asked after a while
)

// said are answers of servers that know S3.
var said = map[fault]struct {
	status int
	code   string
}{
	skewed: {http.StatusForbidden, "RequestTimeTooSkewed"}, exists: {http.StatusPreconditionFailed, "PreconditionFailed"}, refused: {http.StatusForbidden, "AccessDenied"},
}

// proxy is a proxy in front of a server, with faults.
type proxy struct {
	*httptest.Server
	fault func(*http.Request) fault
	hung  chan struct{} // receives from each request that hangs
}

func newProxy(t *testing.T, endpoint string) *proxy {
	t.Helper()
	u, err := url.Parse(endpoint)
	must(t, err)
	p := &proxy{hung: make(chan struct{}, 64), fault: func(*http.Request) fault { return none }}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host // it is signed
	}}
	end := make(chan struct{})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := p.fault(r)
		if answer, ok := said[f]; ok {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(answer.status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>said by the test</Message></Error>", answer.code)
			return
		}
		switch f {
		case busy:
			w.WriteHeader(http.StatusServiceUnavailable)
		case cutOff:
			panic(http.ErrAbortHandler)
		case lostDone:
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case hang:
			p.hung <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-r.Context().Done():
			case <-end:
			}
			panic(http.ErrAbortHandler)
		case late:
			began := time.Now()
			testkit.Eventually(t, "a while is over", func() bool { return time.Since(began) > 100*time.Millisecond })
			forward.ServeHTTP(w, r)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		close(end)
		p.Close()
	})
	return p
}

// Each request of a push may be refused, cut off or answered into the void: it is tried again, and nothing is stored twice.
func testFaultsOfTheNetwork(t *testing.T, s servers) {
	server := s.start(t)
	p := newProxy(t, server.Endpoint)
	h := newHost(t, p.URL)
	var ids []string
	for name, f := range map[string]fault{"503": busy, "reset": cutOff, "lost": lostDone} {
		seen := map[string]bool{}
		p.fault = func(r *http.Request) fault {
			if r.Method == http.MethodPut && !seen[r.URL.Path] {
				seen[r.URL.Path] = true
				return f
			}
			return none
		}
		h.write(2, 500)
		h.push("cp-" + name)
		ids = append(ids, "cp-"+name)
		if len(seen) != 2 {
			t.Errorf("%s: %d objects were put", name, len(seen))
		}
	}
	h.whole(ids...)
	if n := len(server.Objects(t)); n != 6 {
		t.Errorf("the bucket has %d objects", n)
	}
}

// A server that hangs costs its deadline, one that is down an error; and a push goes on when the server is back.
func testServerAway(t *testing.T, s servers) {
	server := s.start(t)
	p := newProxy(t, server.Endpoint)
	h := newHost(t, p.URL)
	h.write(2, 500)
	h.push("cp-1")
	h.write(2, 500)
	cp := h.capture("cp-2")

	p.fault = func(*http.Request) fault { return hang }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error)
	go func() {
		_, err := h.place.Push(ctx, h.store, cp)
		failed <- err
	}()
	<-p.hung
	cancel()
	if err := <-failed; errs.KindOf(err) != errs.Unavailable {
		t.Errorf("the push was cancelled: %v", err)
	}
	p.fault = func(*http.Request) fault { return none }
	server.Kill(t)
	if _, err := h.place.Push(t.Context(), h.store, cp); errs.KindOf(err) != errs.Unavailable || errs.HintOf(err) == "" {
		t.Errorf("the server is down: %v", err)
	}
	server.Up(t)
	h.push("cp-2")
	h.whole("cp-1", "cp-2")
}

// Check finds what is damaged, without an identity; and the pushes after it make the place whole again.
func testCheckAndMend(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	random := testkit.Rand(t)
	var ids []string
	for _, id := range []string{"cp-1", "cp-2", "cp-3"} {
		h.write(3, 500)
		h.push(id)
		ids = append(ids, id)
	}
	files := server.Objects(t)
	for round := range 4 {
		res, err := h.place.Check(t.Context(), true)
		must(t, err)
		if len(res.Problems) > 0 || res.Objects < 6 {
			t.Fatalf("round %d: %+v", round, res)
		}
		path := files[random.IntN(len(files))]
		data := server.Read(t, path)
		flipped := round%2 == 0
		if flipped {
			data[random.IntN(len(data))] ^= 1
			server.Write(t, path, data)
			if res, err = h.place.Check(t.Context(), false); err != nil || len(res.Problems) > 0 {
				t.Errorf("sizes alone tell of a flipped bit: %+v, %v", res, err)
			}
		} else {
			server.Remove(t, path)
		}
		doubtful := 0
		for again := range 3 { // what is damaged is told once, and the checkpoints that need it each time
			res, err = h.place.Check(t.Context(), again < 2)
			named := slices.DeleteFunc(slices.Clone(res.Problems), func(p string) bool { return !strings.HasPrefix(p, "Checkpoint cp-") })
			if again == 0 {
				doubtful = len(named)
			}
			if found := len(res.Problems) - len(named); err != nil || len(named) == 0 || len(named) != doubtful || (found == 1) != (again == 0) || found > 1 {
				t.Fatalf("round %d: %s: check %d: %+v, %v", round, path, again, res, err)
			}
		}
		again := 0
		for _, id := range ids {
			res, err := h.place.Push(t.Context(), h.store, h.recorded(id))
			must(t, err)
			if !res.Already {
				again++
			}
		}
		if again == 0 {
			t.Fatalf("round %d: all checkpoints are believed to be whole without %s", round, path)
		}
		hist, err := h.read()
		must(t, err)
		if strings.Contains(path, "/log/") && len(hist.Problems) == 0 {
			t.Errorf("nobody tells of %s", path)
		}
		var listed []string // each once, though it was sent twice, in the order in which they were made
		for _, c := range hist.Checkpoints {
			listed = append(listed, c.ID)
		}
		if !slices.Equal(listed, ids) {
			t.Errorf("the log has the checkpoints %v", listed)
		}
		status, err := h.place.Status()
		must(t, err)
		var sent []string
		for _, c := range status.Sent {
			sent = append(sent, c.ID)
		}
		if !slices.Equal(sent, ids) || len(status.Doubtful) > 0 {
			t.Errorf("the ledger has %v, and %v in doubt", sent, status.Doubtful)
		}
		for _, id := range ids {
			must(t, h.fetch(hist, id))
		}
		stored := len(server.Objects(t))
		if res, err = h.place.Check(t.Context(), true); err != nil || len(res.Problems) > 0 {
			t.Errorf("round %d: %s was sent again, and still is a problem: %+v, %v", round, path, res, err)
		}
		for _, id := range ids {
			if res, err := h.place.Push(t.Context(), h.store, h.recorded(id)); err != nil || !res.Already {
				t.Errorf("round %d: %s is sent again after a check that found nothing new: %v", round, id, err)
			}
		}
		if n := len(server.Objects(t)); n != stored {
			t.Errorf("round %d: the check and the pushes after it left %d objects of %d", round, n, stored)
		}
		h = h.moved(server) // damage stays in a log: go on at another place
		for _, id := range ids {
			_, err := h.place.Push(t.Context(), h.store, h.recorded(id))
			must(t, err)
		}
		files = nil
		for _, f := range server.Objects(t) {
			if strings.Contains(f, h.cfg.Name) {
				files = append(files, f)
			}
		}
	}
}

// testDoubt: after damage those checkpoints are in doubt that cannot be fetched, and no others; also when some of them were sent again.
func testDoubt(t *testing.T, s servers) {
	server := s.start(t)
	random := testkit.Rand(t)
	for _, damage := range []string{"pack", "entry"} {
		h := newHost(t, server.Endpoint)
		h.write(10, 500)
		var ids []string
		push := func() {
			ids = append(ids, fmt.Sprint("cp-", len(ids)+1))
			h.push(ids[len(ids)-1])
		}
		push()
		before := server.Objects(t)
		h.write(3, 500)
		push()
		added := slices.DeleteFunc(server.Objects(t), func(path string) bool { return slices.Contains(before, path) })
		h.write(2, 500)
		push()
		push() // the contents of the one before
		told := func(when string, doubtful ...string) {
			t.Helper()
			h.restart(nil)
			status, err := h.place.Status()
			must(t, err)
			var doubt []string
			for _, c := range status.Doubtful {
				doubt = append(doubt, c.ID)
			}
			if !slices.Equal(doubt, doubtful) {
				t.Errorf("%s, %s: in doubt are %v, not %v", damage, when, doubt, doubtful)
			}
			hist, err := h.read()
			must(t, err)
			for _, id := range ids {
				if err := h.fetch(hist, id); (err != nil) != slices.Contains(doubtful, id) {
					t.Errorf("%s, %s: %s is fetched: %v", damage, when, id, err)
				}
			}
		}
		told("before")
		i := slices.IndexFunc(added, func(path string) bool { return strings.Contains(path, "/log/") == (damage == "entry") })
		data := server.Read(t, added[i])
		data[random.IntN(len(data))] ^= 1
		server.Write(t, added[i], data)
		if res, err := h.place.Check(t.Context(), true); err != nil || len(res.Problems) == 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		told("damaged", "cp-2", "cp-3", "cp-4")
		h.lose("cp-2")
		h.lose("cp-3")
		if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-1")); err != nil || !res.Already {
			t.Errorf("%s: what is whole is sent again: %+v %v", damage, res, err)
		}
		push()
		told("the same contents were sent again", "cp-2")
		if _, err := h.place.Check(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		told("checked again", "cp-2")
	}
}

// testDoubtWhileSent: a checkpoint whose entry was written, which this host does not know yet, is in doubt as well after damage of what it needs. The entry
// may also be written after the damage was found.
func testDoubtWhileSent(t *testing.T, s servers) {
	server := s.start(t)
	for _, late := range []bool{false, true} {
		h := newHost(t, server.Endpoint)
		h.write(3, 500)
		bucket := &lateLog{Bucket: h.bucket, hold: true}
		h.cfg.Bucket = bucket
		h.restart(nil)
		if _, err := h.place.Push(t.Context(), h.store, h.capture("cp-1")); errs.KindOf(err) != errs.Unavailable || bucket.land == nil {
			t.Fatal(err)
		}
		bucket.release(h, late)
		for _, path := range server.Objects(t) {
			if strings.Contains(path, h.cfg.Name+"/packs/") {
				server.Remove(t, path)
			}
		}
		if res, err := h.place.Check(t.Context(), false); err != nil || len(res.Problems) == 0 {
			t.Fatalf("%+v %v", res, err)
		}
		if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-1")); err != nil || res.Already {
			t.Errorf("late %v: it is believed to be whole: %+v %v", late, res, err)
		}
		h.whole("cp-1")
	}
}

// What the server says of a wrong key, bucket or endpoint is told.
func testRefusals(t *testing.T, s servers) {
	server := s.start(t)
	for what, c := range map[string]struct {
		cfg  s3store.Config
		kind errs.Kind
	}{
		"bucket":   {s3store.Config{Bucket: "none", Endpoint: server.Endpoint}, errs.NotFound},
		"key":      {s3store.Config{Bucket: s3test.Bucket, Endpoint: server.Endpoint, Credentials: keys("AKNOBODY", "x")}, errs.Denied},
		"secret":   {s3store.Config{Bucket: s3test.Bucket, Endpoint: server.Endpoint, Credentials: keys(s3test.Key, "x")}, errs.Denied},
		"endpoint": {s3store.Config{Bucket: s3test.Bucket, Endpoint: "http://127.0.0.1:1"}, errs.Unavailable},
	} {
		c.cfg.Region, c.cfg.Tries, c.cfg.Pause = "us-east-1", 2, 1
		if c.cfg.Credentials == nil {
			c.cfg.Credentials = keys(s3test.Key, s3test.Secret)
		}
		s, err := s3store.Open(c.cfg)
		must(t, err)
		_, err = s.List(t.Context(), "", "")
		if errs.KindOf(err) != c.kind || strings.Contains(errs.Words(err), s3test.Secret) {
			t.Errorf("%s: list: %v", what, err)
		}
		if err = s.PutNew(t.Context(), "x", []byte("x")); errs.KindOf(err) != c.kind {
			t.Errorf("%s: put: %v", what, err)
		}
	}
	for _, bad := range []string{"s3.example.com", "ftp://x", "http://", "http://u:p@x", "http://x/path"} {
		if _, err := s3store.Open(s3store.Config{Bucket: "b", Endpoint: bad}); errs.KindOf(err) != errs.Invalid {
			t.Errorf("endpoint %q: %v", bad, err)
		}
	}
}

// With a key that may not delete, and in a bucket that locks what is put there, all works but the removal of what the check of a remote leaves.
func testAppendOnly(t *testing.T, s servers) {
	for what, bucket := range map[string]func(*testing.T) *s3store.Store{
		"a key that cannot delete":  s.appends,
		"a bucket with object lock": func(t *testing.T) *s3store.Store { return connect(t, s.locked(t).Endpoint) },
	} {
		t.Run(what, func(t *testing.T) {
			h := newHostAt(t, bucket(t))
			found, err := Probe(t.Context(), h.bucket, h.cfg.Name)
			if s.overwrites && strings.Contains(what, "lock") {
				if errs.KindOf(err) != errs.Unsupported || errs.HintOf(err) == "" {
					t.Errorf("what the server does is not found: %+v %v", found, err)
				}
				return
			}
			must(t, err)
			if locked := strings.Contains(what, "lock"); found.Lock != locked || found.Delete && !locked {
				t.Errorf("found %+v", found)
			}
			h.write(3, 500)
			h.push("cp-1")
			h.write(1, 500)
			h.push("cp-2")
			if res, err := h.place.Check(t.Context(), true); err != nil || len(res.Problems) > 0 {
				t.Errorf("%+v %v", res, err)
			}
			other := h.other()
			must(t, other.place.TakeOver(t.Context()))
			other.write(1, 500)
			other.push("cp-3")
			h.whole("cp-1", "cp-2", "cp-3")
		})
	}
}

// A server that takes the host's clock for wrong, says 412 for no reason, or refuses the key, costs a push that says why; the next one goes on.
func testServerSaysNo(t *testing.T, s servers) {
	p := newProxy(t, s.start(t).Endpoint)
	h := newHost(t, p.URL)
	h.write(2, 500)
	h.push("cp-0")
	ids := []string{"cp-0"}
	for _, try := range []struct {
		f     fault
		where string
		says  string
	}{
		{skewed, "/packs/", "set this host's clock"}, {skewed, "/log/", "set this host's clock"}, {refused, "/packs/", "AccessDenied"}, {refused, "/log/", "AccessDenied"},
		{exists, "/packs/", "there is no such object"}, {exists, "/log/", "there is no such object"},
	} {
		p.fault = func(r *http.Request) fault {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, try.where) {
				return try.f
			}
			return none
		}
		h.write(1, 500)
		id := fmt.Sprint("cp-", len(ids))
		cp := h.capture(id)
		if _, err := h.place.Push(t.Context(), h.store, cp); err == nil || !strings.Contains(errs.Words(err)+errs.HintOf(err), try.says) {
			t.Errorf("%d at %s: %v; %s", try.f, try.where, err, errs.HintOf(err))
		}
		p.fault = func(*http.Request) fault { return none }
		h.restart(nil)
		_, err := h.place.Push(t.Context(), h.store, cp)
		must(t, err)
		ids = append(ids, id)
		h.whole(ids...)
	}
}

// A server that is full keeps what it has, and the push goes on when there is room.
func testServerFull(t *testing.T, s servers) {
	server, more := s.full(t)
	h := newHost(t, server.Endpoint)
	h.write(3, 500)
	h.push("cp-1")
	h.write(5, 400<<10) // random, so that it takes as much there
	cp := h.capture("cp-2")
	if _, err := h.place.Push(t.Context(), h.store, cp); errs.KindOf(err) != errs.Unavailable || !strings.Contains(errs.Words(err), "the remote's server answered") {
		t.Errorf("the server is full: %v", err)
	}
	h.whole("cp-1")
	more()
	_, err := h.place.Push(t.Context(), h.store, cp)
	must(t, err)
	h.whole("cp-1", "cp-2")
}

// A server that takes its time gets and gives all the same. One that takes longer than a request is waited for costs a push that says so.
func testSlowServer(t *testing.T, s servers) {
	p := newProxy(t, s.start(t).Endpoint)
	p.fault = func(*http.Request) fault { return late }
	h := newHost(t, p.URL)
	h.write(3, 500)
	h.push("cp-1")
	h.whole("cp-1")
	hasty, err := s3store.Open(s3store.Config{Bucket: s3test.Bucket, Prefix: "some/prefix", Endpoint: p.URL, Region: "us-east-1", Tries: 2, Pause: 1, Wait: time.Millisecond, Credentials: keys(s3test.Key, s3test.Secret)})
	must(t, err)
	h.cfg.Bucket = hasty
	h.restart(nil)
	h.write(1, 500)
	cp := h.capture("cp-2")
	if _, err := h.place.Push(t.Context(), h.store, cp); errs.KindOf(err) != errs.Unavailable || !strings.Contains(errs.Words(err), "does not answer") {
		t.Errorf("the server is too slow: %v", err)
	}
	h.cfg.Bucket = h.bucket
	h.restart(nil)
	_, err = h.place.Push(t.Context(), h.store, cp)
	must(t, err)
	h.whole("cp-1", "cp-2")
}

// TestEarlierLog: of a place that an early version began, whose entries have no proof and whose ledger has no refs or roots, a check tells that its checkpoints cannot
// be read, and they are sent again; that the ledger is to be begun anew is told until it is. If it is begun anew before any check, they are sent again, too.
func TestEarlierLog(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	for _, takeOver := range []bool{false, true} {
		h := newHost(t, server.Endpoint)
		check := func(full bool, problems ...string) {
			t.Helper()
			res, err := h.place.Check(t.Context(), full)
			must(t, err)
			if len(res.Problems) != len(problems) {
				t.Fatalf("%q is told, not %q", res.Problems, problems)
			}
			for i, want := range problems {
				if !strings.Contains(res.Problems[i], want) {
					t.Errorf("%q is told, not %q", res.Problems[i], want)
				}
			}
		}
		h.write(5, 500)
		h.push("cp-1")
		h.early(server)
		hist, err := h.read()
		must(t, err)
		if err := h.fetch(hist, "cp-1"); err == nil {
			t.Fatal("an entry without a proof is read")
		}
		if takeOver {
			must(t, h.place.TakeOver(t.Context()))
			check(true, "Checkpoint cp-1 may be damaged or missing there")
		} else {
			check(false, "Entry 1 of the log cannot be read any more", "Checkpoint cp-1 may be damaged or missing there", "--take-over")
		}
		if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-1")); err != nil || res.Already {
			t.Fatalf("it is not sent again: %+v %v", res, err)
		}
		hist, err = h.read()
		must(t, err)
		must(t, h.fetch(hist, "cp-1"))
		if !takeOver {
			check(true, "--take-over")
			must(t, h.place.TakeOver(t.Context()))
		}
		h.restart(nil)
		check(true)
	}
}

// early makes the place and the ledger as an early version would have left them.
func (h *host) early(server *s3test.Server) {
	h.t.Helper()
	l, err := openLedger(h.cfg.Ledger, h.cfg.Name)
	must(h.t, err)
	for i := range l.Packs {
		l.Packs[i].Refs = nil
	}
	for i := range l.Sent {
		l.Sent[i].Roots = nil
	}
	for i := range l.Entries {
		e := &l.Entries[i]
		files := server.Objects(h.t)
		path := files[slices.IndexFunc(files, func(path string) bool { return strings.HasSuffix(path, logName(h.cfg.Name, e.Seq)) })]
		cut, err := cutEntry(server.Read(h.t, path))
		must(h.t, err)
		data := append([]byte(magic+cut.writer+"\n"), cut.sealed...)
		server.Write(h.t, path, data)
		e.Sum, e.Size, l.Prev = sum(data), int64(len(data)), sum(data)
	}
	must(h.t, l.rewrite(h.cfg.Ledger, h.cfg.Name))
	must(h.t, l.close())
}
