package ipc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mulligan/errs"
)

func TestEveryKindSurvivesTheSocket(t *testing.T) {
	for _, kind := range errs.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			d := newDaemon()
			cause := errs.New(kind, "capture db", "main: no such table").WithHint("look at it")
			d.on("GET /api/status", func(http.ResponseWriter, *http.Request) error {
				return errs.Wrap(errs.Failed, "create", cause)
			})
			_, err := serve(t, d).Status(bg)
			var e *errs.Error
			if !errors.As(err, &e) {
				t.Fatalf("%T %v is no *errs.Error", err, err)
			}
			want := errs.Error{Kind: kind, Op: "create", Message: "capture db: main: no such table", Hint: "look at it"}
			if *e != want {
				t.Errorf("got %+v, want %+v", *e, want)
			}
		})
	}
}

func TestHTTPStatusIsTheContracts(t *testing.T) {
	want := map[errs.Kind]int{
		errs.Invalid: 400, errs.Unauthenticated: 401, errs.Denied: 403, errs.NotFound: 404, errs.Pinned: 409,
		errs.Busy: 409, errs.Conflict: 409, errs.Expired: 410, errs.Corrupt: 422, errs.Unsupported: 501,
		errs.Unavailable: 503, errs.Failed: 500, errs.Internal: 500,
	}
	for _, k := range errs.Kinds {
		if got := HTTPStatus(k); got != want[k] {
			t.Errorf("%s: %d, want %d", k, got, want[k])
		}
	}
}

// TestCalls checks what each call puts on the wire, and that its answer comes back.
func TestCalls(t *testing.T) {
	cp := Checkpoint{ID: "cp-1", AppID: "app-1", DBSnapshots: []DBSnapshot{{Database: "main"}}, Notes: ptr("n")}
	app := App{ID: "app-1", Slug: "shop"}
	tests := []struct {
		name         string
		method, uri  string
		body         string
		status       int
		reply        any
		call         func(*Client) (any, error)
		wantDistinct any // where the call gives a part of the reply
	}{
		{name: "status", method: "GET", uri: "/api/status", reply: Status{PID: 7, Recovered: []string{}, Problems: []string{}},
			call: func(c *Client) (any, error) { return c.Status(bg) }},
		{name: "apps", method: "GET", uri: "/api/apps", reply: AppList{[]App{app}}, wantDistinct: []App{app},
			call: func(c *Client) (any, error) { return c.Apps(bg) }},
		{name: "app", method: "GET", uri: "/api/apps/shop", reply: app,
			call: func(c *Client) (any, error) { return c.App(bg, "shop") }},
		{name: "odd name", method: "GET", uri: "/api/apps/a%2Fb%3F%20c", reply: app,
			call: func(c *Client) (any, error) { return c.App(bg, "a/b? c") }},
		{name: "add", method: "POST", uri: "/api/apps", status: 201, reply: app,
			body: `{"app_id":"","slug":"shop","owner":"","workspace":"","auto":false,"retention":{"keep_last":0,"daily_days":0,"keep_turns":0,"keep_safety":0,"max_bytes":0,"expire_after":""},"created_at":"0001-01-01T00:00:00Z"}`,
			call: func(c *Client) (any, error) { return c.AddApp(bg, App{Slug: "shop"}) }},
		{name: "set", method: "PATCH", uri: "/api/apps/shop", body: `{"auto":true}`, reply: app,
			call: func(c *Client) (any, error) { return c.SetApp(bg, "shop", AppChange{Auto: ptr(true)}) }},
		{name: "remove", method: "DELETE", uri: "/api/apps/shop", status: 204,
			call: func(c *Client) (any, error) { return nil, c.RemoveApp(bg, "shop", false) }},
		{name: "purge", method: "DELETE", uri: "/api/apps/shop?purge=1", status: 204,
			call: func(c *Client) (any, error) { return nil, c.RemoveApp(bg, "shop", true) }},
		{name: "create", method: "POST", uri: "/api/apps/shop/checkpoints", status: 201, reply: cp,
			body: `{"notes":"n","pinned":true,"trigger":"agent"}`,
			call: func(c *Client) (any, error) {
				return c.CreateCheckpoint(bg, "shop", CreateRequest{Notes: "n", Pinned: true, Trigger: TriggerAgent})
			}},
		{name: "list", method: "GET", uri: "/api/apps/shop/checkpoints", reply: CheckpointList{Checkpoints: []Checkpoint{cp}},
			call: func(c *Client) (any, error) { return c.Checkpoints(bg, "shop", CheckpointQuery{}) }},
		{name: "narrow list", method: "GET", uri: "/api/apps/shop/checkpoints?before=cp-9&limit=3&trigger=manual",
			reply: CheckpointList{Checkpoints: []Checkpoint{}},
			call: func(c *Client) (any, error) {
				return c.Checkpoints(bg, "shop", CheckpointQuery{Trigger: TriggerManual, Limit: 3, Before: "cp-9"})
			}},
		{name: "one", method: "GET", uri: "/api/apps/shop/checkpoints/cp-1", reply: cp,
			call: func(c *Client) (any, error) { return c.Checkpoint(bg, "shop", "cp-1") }},
		{name: "delete", method: "DELETE", uri: "/api/apps/shop/checkpoints/cp-1", status: 204,
			call: func(c *Client) (any, error) { return nil, c.DeleteCheckpoint(bg, "shop", "cp-1") }},
		{name: "pin", method: "POST", uri: "/api/apps/shop/checkpoints/cp-1/pin", reply: cp,
			call: func(c *Client) (any, error) { return c.Pin(bg, "shop", "cp-1", true) }},
		{name: "unpin", method: "POST", uri: "/api/apps/shop/checkpoints/cp-1/unpin", reply: cp,
			call: func(c *Client) (any, error) { return c.Pin(bg, "shop", "cp-1", false) }},
		{name: "verify", method: "POST", uri: "/api/apps/shop/checkpoints/cp-1/verify",
			reply: VerifyResult{CheckpointID: "cp-1", Problems: []VerifyProblem{{"files", "torn"}}},
			call:  func(c *Client) (any, error) { return c.Verify(bg, "shop", "cp-1") }},
		{name: "prune", method: "POST", uri: "/api/apps/shop/checkpoints/prune?dry_run=1",
			reply: PruneResult{Deleted: []CheckpointID{"cp-1"}, Kept: 2},
			call:  func(c *Client) (any, error) { return c.Prune(bg, "shop", true) }},
		{name: "audit", method: "GET", uri: "/api/apps/shop/audit?limit=5", reply: AuditList{Entries: []AuditEntry{{Seq: 1}}},
			wantDistinct: []AuditEntry{{Seq: 1}},
			call:         func(c *Client) (any, error) { return c.Audit(bg, "shop", 5) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status := max(tt.status, 200)
			c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if r.Method != tt.method || r.RequestURI != tt.uri || string(body) != tt.body {
					t.Errorf("got %s %s %s\nwant %s %s %s", r.Method, r.RequestURI, body, tt.method, tt.uri, tt.body)
				}
				if status == http.StatusNoContent {
					w.WriteHeader(status)
					return
				}
				WriteJSON(w, status, tt.reply)
			}))
			got, err := tt.call(c)
			if err != nil {
				t.Fatal(err)
			}
			want := tt.reply
			if tt.wantDistinct != nil {
				want = tt.wantDistinct
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestNoDaemon(t *testing.T) {
	dir := shortDir(t)
	dead := filepath.Join(dir, "dead")
	l, err := Listen(dead, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l.(*listener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, sock := range []string{dead, filepath.Join(dir, "never"), HostSocket + ".none"} {
		_, err := NewClient(sock).Status(bg)
		if !errors.Is(err, ErrNoDaemon) || errs.KindOf(err) != errs.Unavailable || !strings.Contains(errs.HintOf(err), "mulligand") {
			t.Errorf("%s: %v (hint %q)", sock, err, errs.HintOf(err))
		}
	}
	if hint := errs.HintOf(noDaemon(HostSocket, syscall.ENOENT)); !strings.Contains(hint, "systemctl start mulligand") {
		t.Errorf("hint for the host's daemon: %q", hint)
	}
	if hint := errs.HintOf(noDaemon(UserSocket(), syscall.ENOENT)); !strings.Contains(hint, "mulligand --user &") {
		t.Errorf("hint for the user's daemon: %q", hint)
	}
	if err := noDaemon(dead, syscall.EACCES); errs.KindOf(err) != errs.Denied || errors.Is(err, ErrNoDaemon) {
		t.Errorf("a socket that is not ours: %v", err)
	}
}

func TestDaemonGoneInTheMiddle(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	_, err := c.Status(bg)
	if errs.KindOf(err) != errs.Unavailable || errors.Is(err, ErrNoDaemon) {
		t.Errorf("got %v", err)
	}
}

func TestAnswersThatAreNotTheAPIs(t *testing.T) {
	d := newDaemon()
	d.HandleFunc("GET /api/apps/html", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<p>hello") })
	d.on("GET /api/apps/later", func(w http.ResponseWriter, _ *http.Request) error {
		WriteJSON(w, 418, errorEnvelope{&ErrorBody{Kind: "teapot", Message: "short and stout"}})
		return nil
	})
	c := serve(t, d)
	for app, want := range map[string]errs.Kind{"unknown": errs.Unsupported, "html": errs.Internal, "later": errs.Internal, "..": errs.Invalid, "": errs.Invalid} {
		if _, err := c.App(bg, app); errs.KindOf(err) != want {
			t.Errorf("%q: %v is %s, want %s", app, err, errs.KindOf(err), want)
		}
	}
	if err := c.DeleteCheckpoint(bg, "shop", ""); errs.KindOf(err) != errs.Invalid {
		t.Errorf("deleting nothing: %v", err)
	}
}

// TestOlderDaemon: what a daemon of an earlier version says of a path or a field that it does not have becomes the advice to compare the versions.
// What it says of an app or of a value stays as it is.
func TestOlderDaemon(t *testing.T) {
	d := newDaemon()
	d.on("/", func(_ http.ResponseWriter, r *http.Request) error { // as every version of daemon/api has it
		return errs.New(errs.NotFound, "serve", "no %s %.128q in the API", r.Method, r.URL.Path).WithHint("GET /openapi.json describes it")
	})
	d.on("POST /api/apps/shop/checkpoints/undo/rollback", func(_ http.ResponseWriter, r *http.Request) error {
		return ReadJSON(r, &struct{}{}, 0)
	})
	d.on("POST /api/apps/shop/checkpoints", func(_ http.ResponseWriter, r *http.Request) error {
		return ReadJSON(r, &struct{ Notes int }{}, 0)
	})
	d.on("GET /api/apps/gone", func(http.ResponseWriter, *http.Request) error {
		return errs.New(errs.NotFound, "find app", "no app %q", "gone")
	})
	c := serve(t, d)
	_, path := c.Forks(bg, "shop")
	_, field := c.Rollback(bg, "shop", Undo, RollbackRequest{Turns: 2}, nil)
	_, staged := c.Rollback(bg, "shop", Undo, RollbackRequest{Turns: 2}, func(Stage) {})
	for want, err := range map[string]error{
		"the daemon does not know GET /api/apps/shop/forks (":                                            path,
		`the daemon does not know POST /api/apps/shop/checkpoints/undo/rollback (unknown field "turns")`: field,
		`rollback (unknown field "turns")`:                                                               staged,
	} {
		if errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), want) {
			t.Errorf("%v is %s; want %q", err, errs.KindOf(err), want)
		}
	}
	for _, err := range []error{path, field, staged} {
		if hint := errs.HintOf(err); !strings.Contains(hint, "`mulligan version`") {
			t.Errorf("%v has the hint %q", err, hint)
		}
	}
	if _, err := c.CreateCheckpoint(bg, "shop", CreateRequest{Notes: "n"}); errs.KindOf(err) != errs.Invalid {
		t.Errorf("a value of another type: %v is %s", err, errs.KindOf(err))
	}
	if _, err := c.App(bg, "gone"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("an app that is not there: %v is %s", err, errs.KindOf(err))
	}
}

func TestCancelledCall(t *testing.T) {
	began, released := make(chan struct{}), make(chan struct{})
	c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done() // the server hears of it
		close(released)
	}))
	ctx, cancel := context.WithCancel(bg)
	go func() { <-began; cancel() }()
	_, err := c.Status(ctx)
	if !errors.Is(err, context.Canceled) || errs.KindOf(err) != errs.Unavailable {
		t.Errorf("got %v", err)
	}
	<-released
}

func TestFindSocket(t *testing.T) {
	run := shortDir(t)
	t.Setenv("XDG_RUNTIME_DIR", run)
	t.Setenv("MULLIGAN_SOCKET", "")
	expect := func(flag, want string) {
		t.Helper()
		if got := FindSocket(flag); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	expect("", HostSocket)
	l, err := Listen(UserSocket(), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	expect("", filepath.Join(run, "mulligan", "mulligan.sock"))
	t.Setenv("MULLIGAN_SOCKET", "/env")
	expect("", "/env")
	expect("/flag", "/flag")

	t.Setenv("MULLIGAN_SOCKET", "")
	if err := os.Chmod(filepath.Dir(UserSocket()), 0o777); err != nil {
		t.Fatal(err)
	}
	expect("", HostSocket) // anyone could have put it there
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got := UserSocket(); !strings.HasPrefix(got, "/tmp/mulligan-") {
		t.Errorf("without XDG_RUNTIME_DIR: %s", got)
	}
	// Without the variable, the user's daemon that was started with it is found.
	defer func(was string) { runUser = was }(runUser)
	runUser = run
	expect("", HostSocket)
	dir := filepath.Join(run, strconv.Itoa(os.Getuid()), "mulligan")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	theirs, err := Listen(filepath.Join(dir, "mulligan.sock"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	expect("", filepath.Join(dir, "mulligan.sock"))
	t.Setenv("XDG_RUNTIME_DIR", "/elsewhere")
	expect("", HostSocket)
}

func TestAppAt(t *testing.T) {
	dir := shortDir(t)
	for _, d := range []string{"shop/web/src", "shopping", "shared", "free"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "shop", "web"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "shop", "nowhere")); err != nil {
		t.Fatal(err)
	}
	at := func(slug, ws string) App { return App{Slug: slug, Workspace: filepath.Join(dir, ws)} }
	d := newDaemon()
	d.on("GET /api/apps", answer(200, AppList{[]App{
		at("shop", "shop"), at("web", "shop/web"), at("one", "shared"), at("two", "shared"),
	}}))
	c := serve(t, d)
	tests := []struct {
		dir, slug string
		kind      errs.Kind
	}{
		{"shop", "shop", ""},
		{"shop/web", "web", ""},
		{"shop/web/src", "web", ""},
		{"link/src", "web", ""},
		{"shopping", "", errs.NotFound},
		{"free", "", errs.NotFound},
		{"shared", "", errs.Conflict},
		{"shop/gone/deep", "shop", ""},
		{"link/gone", "web", ""},
		{"gone", "", errs.NotFound},
		{"shop/nowhere", "", errs.Invalid},
		{"shop/nowhere/deep", "", errs.Invalid},
	}
	for _, tt := range tests {
		got, err := c.AppAt(bg, filepath.Join(dir, tt.dir))
		if got.Slug != tt.slug || errs.KindOf(err) != tt.kind {
			t.Errorf("%s: %q, %v", tt.dir, got.Slug, err)
		}
		if tt.kind == errs.NotFound && !strings.Contains(errs.HintOf(err), "mulligan init") {
			t.Errorf("%s: hint %q", tt.dir, errs.HintOf(err))
		}
		if err != nil && !strings.Contains(errs.HintOf(err), "--app") {
			t.Errorf("%s: hint %q", tt.dir, errs.HintOf(err))
		}
	}
}

func TestRollback(t *testing.T) {
	stage := func(name StageName, status StageStatus) Stage { return Stage{Stage: name, Status: status} }
	good := RollbackResult{RolledBack: true, RolledBackTo: &Checkpoint{ID: "cp-1"}, Confidence: 1}
	failed := RollbackResult{
		Recovered: true, SafetyCheckpoint: &Checkpoint{ID: "cp-2"}, Stages: []Stage{stage(StageVM, StageFailed)},
		Error: &ErrorBody{Kind: errs.Failed, Op: "rollback", Message: "no room", Hint: "free some"},
	}
	d := newDaemon()
	handler := func(res RollbackResult) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			var req RollbackRequest
			if err := ReadJSON(r, &req, 0); err != nil {
				return err
			}
			if req.Reason != "why" {
				return errs.New(errs.Pinned, "rollback", "refused")
			}
			if !WantsSSE(r) {
				status := http.StatusOK
				if res.Error != nil {
					status = HTTPStatus(res.Error.Kind)
				}
				WriteJSON(w, status, res)
				return nil
			}
			s, err := NewSSE(w, r)
			if err != nil {
				return err
			}
			defer s.Close()
			for _, status := range []StageStatus{StageRunning, StageOK} {
				if err := s.Send(EventStage, stage(StageSafety, status)); err != nil {
					t.Error(err)
				}
			}
			if err := s.Send(EventResult, res); err != nil {
				t.Error(err)
			}
			return nil
		}
	}
	d.on("POST /api/apps/shop/checkpoints/cp-1/rollback", handler(good))
	d.on("POST /api/apps/shop/checkpoints/cp-0/rollback", handler(failed))
	c := serve(t, d)

	for _, streamed := range []bool{false, true} {
		var seen []StageStatus
		var onStage func(Stage)
		if streamed {
			onStage = func(s Stage) { seen = append(seen, s.Status) }
		}
		res, err := c.Rollback(bg, "shop", "cp-1", RollbackRequest{Reason: "why"}, onStage)
		if err != nil || !res.RolledBack || res.RolledBackTo.ID != "cp-1" {
			t.Errorf("streamed %v: %+v, %v", streamed, res, err)
		}
		res, err = c.Rollback(bg, "shop", "cp-0", RollbackRequest{Reason: "why"}, onStage)
		var e *errs.Error
		if !errors.As(err, &e) || *e != (errs.Error{Kind: errs.Failed, Op: "rollback", Message: "no room", Hint: "free some"}) {
			t.Errorf("streamed %v: %v", streamed, err)
		}
		if !res.Recovered || res.SafetyCheckpoint == nil || len(res.Stages) != 1 {
			t.Errorf("streamed %v: the receipt was lost: %+v", streamed, res)
		}
		if res, err := c.Rollback(bg, "shop", "cp-1", RollbackRequest{}, onStage); errs.KindOf(err) != errs.Pinned || res.Stages != nil {
			t.Errorf("streamed %v: refused: %+v, %v", streamed, res, err)
		}
		if want := []StageStatus{StageRunning, StageOK, StageRunning, StageOK}; streamed && !slices.Equal(seen, want) {
			t.Errorf("stages %v, want %v", seen, want)
		}
	}
	if _, err := c.Rollback(bg, "shop", "nope/..", RollbackRequest{}, nil); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("no such path: %v", err)
	}
}

func TestRollbackStreamEndings(t *testing.T) {
	d := newDaemon()
	stream := func(f func(*SSE) error) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			s, err := NewSSE(w, r)
			if err != nil {
				return err
			}
			defer s.Close()
			return f(s)
		}
	}
	d.on("POST /api/apps/shop/checkpoints/refused/rollback", stream(func(s *SSE) error {
		return s.Fail(errs.New(errs.Busy, "rollback", "another one runs").WithHint("wait"))
	}))
	d.on("POST /api/apps/shop/checkpoints/cut/rollback", stream(func(s *SSE) error {
		return s.Send(EventStage, Stage{Stage: StageStop})
	}))
	c := serve(t, d)
	none := func(Stage) {}
	if _, err := c.Rollback(bg, "shop", "refused", RollbackRequest{}, none); errs.KindOf(err) != errs.Busy || errs.HintOf(err) != "wait" {
		t.Errorf("refused: %v", err)
	}
	if _, err := c.Rollback(bg, "shop", "cut", RollbackRequest{}, none); errs.KindOf(err) != errs.Unavailable || errors.Is(err, ErrNoDaemon) {
		t.Errorf("cut short: %v", err)
	}
}
