package mcpserver

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// script is a daemon with one app, shop, whose checkpoints are records alone.
// What it does with a rollback is in the checkpoint's notes.
type script struct {
	mu   sync.Mutex
	made int
	cps  []ipc.Checkpoint // newest first

	app      ipc.App
	requests []ipc.RollbackRequest
	reverts  []ipc.RevertRequest
	began    chan struct{} // a rollback to "slow" has begun
	finish   chan struct{} // lets it go on
	finished chan struct{} // it is done
}

var epoch = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// newScript makes a daemon whose app's workspace is dir.
func newScript(dir string) *script {
	return &script{
		app:   ipc.App{ID: "app-1", Slug: "shop", Owner: "alice", Workspace: dir, CreatedAt: epoch},
		began: make(chan struct{}), finish: make(chan struct{}), finished: make(chan struct{}),
	}
}

// listen serves s on a socket in a short folder of its own.
func (s *script) listen(dir string) (socket string, stop func() error, err error) {
	socket = filepath.Join(dir, "s")
	l, err := ipc.Listen(socket, 0o600)
	if err != nil {
		return "", nil, err
	}
	srv := ipc.NewHTTPServer(s.handler(), nil)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	return socket, func() error {
		if err := srv.Close(); err != nil {
			return err
		}
		if err := <-done; err != http.ErrServerClosed {
			return err
		}
		return nil
	}, nil
}

// start serves s for the length of a test and gives its client.
func (s *script) start(t *testing.T) *ipc.Client {
	t.Helper()
	socket, stop, err := s.listen(shortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return ipc.NewClient(socket)
}

func (s *script) handler() http.Handler {
	mux := http.NewServeMux()
	on := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.Handle(pattern, ipc.Handle(func(w http.ResponseWriter, r *http.Request) error {
			if app := r.PathValue("app"); app != "" && app != "shop" && app != string(s.app.ID) {
				return errs.New(errs.NotFound, "find the app", "there is no app %q", app)
			}
			return f(w, r)
		}))
	}
	on("GET /api/apps", func(w http.ResponseWriter, _ *http.Request) error {
		ipc.WriteJSON(w, 200, ipc.AppList{Apps: []ipc.App{s.app}})
		return nil
	})
	on("GET /api/apps/{app}", func(w http.ResponseWriter, _ *http.Request) error {
		ipc.WriteJSON(w, 200, s.app)
		return nil
	})
	on("POST /api/apps/{app}/checkpoints", s.create)
	on("GET /api/apps/{app}/checkpoints", s.list)
	on("DELETE /api/apps/{app}/checkpoints/{cp}", s.delete)
	on("POST /api/apps/{app}/checkpoints/{cp}/pin", s.pin(true))
	on("POST /api/apps/{app}/checkpoints/{cp}/unpin", s.pin(false))
	on("POST /api/apps/{app}/checkpoints/{cp}/rollback", s.rollback)
	on("POST /api/apps/{app}/forks/{fork}/keep", s.keep)
	on("GET /api/apps/{app}/checkpoints/{cp}/diff", s.diff)
	on("PUT /api/apps/{app}/conversations/{conversation}/checkpoint", s.setConversation)
	on("POST /api/apps/{app}/conversations/{conversation}/revert", s.revert)
	return mux
}

func (s *script) add(req ipc.CreateRequest) ipc.Checkpoint {
	cp := ipc.Checkpoint{Trigger: req.Trigger, Pinned: req.Pinned, Quiesced: true, SizeBytes: 4096}
	if cp.Trigger == "" {
		cp.Trigger = ipc.TriggerManual
	}
	if req.Notes != "" {
		cp.Notes = &req.Notes
	}
	return s.put(cp)
}

// put adds a checkpoint with the next id and time.
func (s *script) put(cp ipc.Checkpoint) ipc.Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	cp.ID, cp.AppID, cp.CreatedAt = ipc.CheckpointID(fmt.Sprintf("cp-%012x", s.made)), "app-1", epoch.Add(time.Duration(s.made)*time.Minute)
	s.cps = slices.Insert(s.cps, 0, cp)
	return cp
}

func (s *script) create(w http.ResponseWriter, r *http.Request) error {
	var req ipc.CreateRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	if req.Notes == "disk full" {
		return errs.New(errs.Failed, "capture files", "no space left in /var/lib/mulligan").WithHint("free some space")
	}
	ipc.WriteJSON(w, http.StatusCreated, s.add(req))
	return nil
}

func (s *script) list(w http.ResponseWriter, r *http.Request) error {
	limit := 1 << 30
	if text := r.FormValue("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil {
			return errs.Wrap(errs.Invalid, "list", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var l ipc.CheckpointList
	for _, cp := range s.cps {
		if t := r.FormValue("trigger"); (t == "" || t == string(cp.Trigger)) && len(l.Checkpoints) < limit {
			l.Checkpoints = append(l.Checkpoints, cp)
		}
	}
	l.StorageUsage = ipc.StorageUsage{CheckpointCount: len(s.cps), KeepLast: 10, DailyDays: 7}
	ipc.WriteJSON(w, 200, l)
	return nil
}

// find gives the index of the request's checkpoint. The caller holds mu.
func (s *script) find(r *http.Request) (int, error) {
	id := ipc.CheckpointID(r.PathValue("cp"))
	i := slices.IndexFunc(s.cps, func(cp ipc.Checkpoint) bool { return cp.ID == id })
	if i < 0 {
		return 0, errs.New(errs.NotFound, "find the checkpoint", "shop has no checkpoint %s", id)
	}
	return i, nil
}

func (s *script) delete(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(r)
	if err != nil {
		return err
	}
	if s.cps[i].Pinned {
		return errs.New(errs.Pinned, "delete", "%s is pinned", s.cps[i].ID).WithHint("`mulligan unpin %s`", s.cps[i].ID)
	}
	s.cps = slices.Delete(s.cps, i, i+1)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *script) pin(pinned bool) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		i, err := s.find(r)
		if err != nil {
			return err
		}
		s.cps[i].Pinned = pinned
		ipc.WriteJSON(w, 200, s.cps[i])
		return nil
	}
}

// keep remembers who asks, as of a rollback.
func (s *script) keep(w http.ResponseWriter, r *http.Request) error {
	var req ipc.KeepRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, ipc.RollbackRequest{ConversationID: req.ConversationID, CallID: req.CallID})
	ipc.WriteJSON(w, 200, ipc.RollbackResult{})
	return nil
}

func (s *script) rollback(w http.ResponseWriter, r *http.Request) error {
	var req ipc.RollbackRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	i, err := s.find(r)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	cp := s.cps[i]
	s.mu.Unlock()

	notes := ""
	if cp.Notes != nil {
		notes = *cp.Notes
	}
	switch {
	case slices.Contains(req.Scope, "srcc"):
		return errs.New(errs.NotFound, "rollback", `scope "srcc" is neither in the workspace now nor in %s`, cp.ID).WithHint(`did you mean "src"?`)
	case slices.Contains(req.Scope, "../x"):
		return errs.New(errs.Invalid, "rollback", "scope is not in the workspace")
	}
	switch notes {
	case "expired":
		return errs.New(errs.Expired, "rollback", "%s expired", cp.ID)
	case "others":
		if !req.Force {
			return errs.New(errs.Conflict, "rollback", "it would also undo turn t in session s").WithHint("`mulligan revert --conversation ID` undoes the writes of one session only")
		}
	case "busy":
		return errs.New(errs.Busy, "rollback", "another rollback of shop runs")
	case "slow":
		close(s.began)
		<-s.finish
		defer close(s.finished)
	}
	return s.run(w, r, cp, req, notes == "fails")
}

// run plays the six stages; where it is to fail, the third one does.
func (s *script) run(w http.ResponseWriter, r *http.Request, cp ipc.Checkpoint, req ipc.RollbackRequest, fail bool) error {
	res := ipc.RollbackResult{RolledBackTo: &cp, RestoredTo: &cp, DryRun: req.DryRun, Confidence: 1, Next: "the daemon's next"}
	if !req.DryRun {
		safety := s.add(ipc.CreateRequest{Trigger: ipc.TriggerPreRollback})
		res.SafetyCheckpoint = &safety
		res.RolledBack = !fail
	}
	if fail {
		res.Recovered = true
		res.Error = &ipc.ErrorBody{Kind: errs.Failed, Op: "rollback", Message: "no space left"}
	}
	tell := func(ipc.Stage) error { return nil }
	if ipc.WantsSSE(r) {
		sse, err := ipc.NewSSE(w, r)
		if err != nil {
			return err
		}
		defer sse.Close()
		tell = func(st ipc.Stage) error { return sse.Send(ipc.EventStage, st) }
		defer func() { _ = sse.Send(ipc.EventResult, res) }()
	}
	for i, name := range ipc.Stages {
		st := ipc.Stage{Stage: name, Status: ipc.StageRunning, TS: epoch}
		_ = tell(st) // as the daemon does: nobody listening is no reason to stop
		st.Status = ipc.StageOK
		if fail && i >= 2 {
			st.Status = []ipc.StageStatus{ipc.StageFailed, ipc.StageSkipped}[min(i-2, 1)]
		}
		_ = tell(st)
		res.Stages = append(res.Stages, st)
	}
	if !ipc.WantsSSE(r) {
		status := http.StatusOK
		if fail {
			status = ipc.HTTPStatus(res.Error.Kind)
		}
		ipc.WriteJSON(w, status, res)
	}
	return nil
}

// shortDir is a temporary folder whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// diff tells of as many changes as the checkpoint's notes say, each with a diff of 1,000
// bytes where one is asked for.
func (s *script) diff(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(r)
	if err != nil {
		return err
	}
	n, limit := 1, 1000
	if notes := s.cps[i].Notes; notes != nil {
		if n, err = strconv.Atoi(*notes); err != nil {
			n = 1
		}
	}
	if l := r.FormValue("limit"); l != "" {
		if limit, err = strconv.Atoi(l); err != nil {
			return errs.Wrap(errs.Invalid, "diff", err)
		}
	}
	d := ipc.Diff{From: s.cps[i].ID, To: "now", Total: n}
	for k := range min(n, limit) {
		c := ipc.DiffChange{Layer: "files", Path: fmt.Sprintf("f%d", k), Operation: "modify", Summary: "content"}
		if r.FormValue("patch") == "1" {
			c.Patch = strings.Repeat("x", 1000)
		}
		d.Changes = append(d.Changes, c)
	}
	ipc.WriteJSON(w, 200, d)
	return nil
}

func (s *script) setConversation(w http.ResponseWriter, r *http.Request) error {
	var req ipc.SetCheckpoint
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	ipc.WriteJSON(w, 200, ipc.ConversationCheckpoint{AppID: "app-1", ConversationID: r.PathValue("conversation"), MessageID: req.MessageID})
	return nil
}

// revert plays a revert of the conversation inspector, or of one called after the
// number of paths that it restores.
func (s *script) revert(w http.ResponseWriter, r *http.Request) error {
	var req ipc.RevertRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	req.ConversationID = r.PathValue("conversation")
	s.mu.Lock()
	s.reverts = append(s.reverts, req)
	s.mu.Unlock()
	res := ipc.RevertResult{RestoredPaths: []string{"inspected"}, DryRun: req.DryRun}
	if n, err := strconv.Atoi(req.ConversationID); err == nil {
		res.RestoredPaths = nil
		for i := range n {
			res.RestoredPaths = append(res.RestoredPaths, fmt.Sprintf("p%d", i))
			res.Conflicts = append(res.Conflicts, ipc.RevertConflict{Path: fmt.Sprintf("c%d", i), Reason: "overlaps", Message: "others changed it", Forcible: true})
		}
	} else if req.ConversationID != "inspector" {
		return errs.New(errs.NotFound, "revert", "no turn of conversation %q is known", req.ConversationID)
	}
	if !req.DryRun && len(res.RestoredPaths) > 0 {
		safety := s.add(ipc.CreateRequest{Trigger: ipc.TriggerPreRollback})
		res.SafetyCheckpoint = &safety
	}
	ipc.WriteJSON(w, 200, res)
	return nil
}
