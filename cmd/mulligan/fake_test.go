package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// fake is a daemon in memory. It speaks the API and checkpoints the regular
// files at the top of a workspace. The scripts run against a fake or a real
// daemon; with the command fake they make a fake fail.
type fake struct {
	mu    sync.Mutex
	apps  []*fakeApp
	count int       // the number of ids and audit entries that were made
	clock time.Time // moves on with each checkpoint

	fault   string        // says how the next requests fail
	rolling chan struct{} // closed when a held rollback has begun
	release chan struct{} // closed when the held rollback may go on
}

type fakeApp struct {
	ipc.App
	points []fakePoint // newest first
	audit  []ipc.AuditEntry
	turns  []ipc.Turn // newest first
}

type fakePoint struct {
	ipc.Checkpoint
	files map[string][]byte
}

func newFake() *fake {
	return &fake{
		clock:   time.Now().Add(-3 * time.Hour).Truncate(time.Second),
		rolling: make(chan struct{}), release: make(chan struct{}),
	}
}

func (f *fake) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /api/status", ipc.Handle(f.status))
	mux.Handle("GET /api/apps", ipc.Handle(f.listApps))
	mux.Handle("POST /api/apps", ipc.Handle(f.addApp))
	for pattern, handle := range map[string]func(*fakeApp, http.ResponseWriter, *http.Request) error{
		"GET /api/apps/{app}":                            f.showApp,
		"PATCH /api/apps/{app}":                          f.setApp,
		"DELETE /api/apps/{app}":                         f.removeApp,
		"GET /api/apps/{app}/audit":                      f.trail,
		"GET /api/apps/{app}/turns":                      f.listTurns,
		"POST /api/apps/{app}/checkpoints":               f.create,
		"GET /api/apps/{app}/checkpoints":                f.list,
		"POST /api/apps/{app}/checkpoints/prune":         f.prune,
		"GET /api/apps/{app}/checkpoints/{cp}":           f.one(f.show),
		"DELETE /api/apps/{app}/checkpoints/{cp}":        f.one(f.remove),
		"POST /api/apps/{app}/checkpoints/{cp}/pin":      f.one(f.pin(true)),
		"POST /api/apps/{app}/checkpoints/{cp}/unpin":    f.one(f.pin(false)),
		"POST /api/apps/{app}/checkpoints/{cp}/verify":   f.one(f.verify),
		"POST /api/apps/{app}/checkpoints/{cp}/rollback": f.one(f.rollback),
		"POST /api/apps/{app}/remotes/{remote}/check":    f.checkRemote,
		"POST /api/apps/{app}/forks/{fork}/keep": func(a *fakeApp, w http.ResponseWriter, r *http.Request) error { // every fork has the first checkpoint's state
			return f.rollback(a, 0, w, r)
		},
	} {
		mux.Handle(pattern, ipc.Handle(func(w http.ResponseWriter, r *http.Request) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			name := r.PathValue("app")
			for _, a := range f.apps {
				if a.Slug == name || string(a.ID) == name {
					return handle(a, w, r)
				}
			}
			return errs.New(errs.NotFound, "app", "there is no app %q", name).WithHint("see `mulligan app list`")
		}))
	}
	return f.refuse(mux)
}

// refuse answers every request with an error whose kind the fault names.
func (f *fake) refuse(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		kind := errs.Kind(f.fault)
		f.mu.Unlock()
		if slices.Contains(errs.Kinds, kind) {
			ipc.WriteError(w, errs.New(kind, "test", "refused\nwith \x1b[31m%s", kind).WithHint("go\ton"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// one returns a handler that calls handle with the index of the checkpoint in the URL.
func (f *fake) one(handle func(*fakeApp, int, http.ResponseWriter, *http.Request) error) func(*fakeApp, http.ResponseWriter, *http.Request) error {
	return func(a *fakeApp, w http.ResponseWriter, r *http.Request) error {
		id := ipc.CheckpointID(r.PathValue("cp"))
		i := slices.IndexFunc(a.points, func(p fakePoint) bool { return p.ID == id })
		if id == ipc.Undo || id == ipc.Redo {
			var err error
			if i, err = f.aim(a, id); err != nil {
				return err
			}
		}
		if i < 0 {
			return errs.New(errs.NotFound, "checkpoint", "there is no checkpoint %s", id).WithHint("see `mulligan list`")
		}
		return handle(a, i, w, r)
	}
}

func (f *fake) status(w http.ResponseWriter, _ *http.Request) error {
	ipc.WriteJSON(w, http.StatusOK, ipc.Status{Version: "fake", PID: os.Getpid(), Mode: "user", StartedAt: f.clock})
	return nil
}

func (f *fake) listApps(w http.ResponseWriter, _ *http.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var l ipc.AppList
	for _, a := range f.apps {
		l.Apps = append(l.Apps, a.App)
	}
	ipc.WriteJSON(w, http.StatusOK, l)
	return nil
}

func (f *fake) addApp(w http.ResponseWriter, r *http.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var a ipc.App
	if err := ipc.ReadJSON(r, &a, 0); err != nil {
		return err
	}
	for _, have := range f.apps {
		if have.Slug == a.Slug {
			return errs.New(errs.Conflict, "add app", "there is an app %s already", a.Slug).WithHint("choose another slug")
		}
	}
	if a.Unit != "" {
		return errs.New(errs.Unavailable, "add app", "unit %s: no container engine answers", a.Unit)
	}
	for _, db := range a.Databases {
		if db.Driver != "sqlite" {
			return errs.New(errs.Unsupported, "add app", "this daemon has no %s driver yet", db.Driver)
		}
	}
	f.count++
	a.ID, a.Owner, a.State = ipc.AppID(fmt.Sprintf("app-%06x", f.count)), "tester", "none"
	f.apps = append(f.apps, &fakeApp{App: a})
	ipc.WriteJSON(w, http.StatusCreated, a)
	return nil
}

func (f *fake) showApp(a *fakeApp, w http.ResponseWriter, _ *http.Request) error {
	shown := a.App
	if f.fault == "ail" {
		shown.Problems = []string{"db:main is held up: its server\nis away"}
	}
	ipc.WriteJSON(w, http.StatusOK, shown)
	return nil
}

func (f *fake) setApp(a *fakeApp, w http.ResponseWriter, r *http.Request) error {
	var ch ipc.AppChange
	if err := ipc.ReadJSON(r, &ch, 0); err != nil {
		return err
	}
	set(&a.Unit, ch.Unit)
	set(&a.Run, ch.Run)
	set(&a.Auto, ch.Auto)
	if ch.Titles != nil {
		a.Titles = ch.Titles
		for i := range a.turns {
			if !*ch.Titles {
				a.turns[i].Title = ""
			}
		}
	}
	set(&a.Exclude, ch.Exclude)
	set(&a.Retention, ch.Retention)
	set(&a.Forking, ch.Forking)
	set(&a.Databases, ch.Databases)
	if ch.Health != nil {
		a.Health = ch.Health
	}
	ipc.WriteJSON(w, http.StatusOK, a.App)
	return nil
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func (f *fake) removeApp(a *fakeApp, w http.ResponseWriter, _ *http.Request) error {
	f.apps = slices.DeleteFunc(f.apps, func(b *fakeApp) bool { return a == b })
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (f *fake) trail(a *fakeApp, w http.ResponseWriter, r *http.Request) error {
	entries := a.audit
	if n, err := strconv.Atoi(r.FormValue("limit")); err == nil {
		entries = entries[:min(n, len(entries))]
	}
	ipc.WriteJSON(w, http.StatusOK, ipc.AuditList{Entries: entries})
	return nil
}

func (f *fake) listTurns(a *fakeApp, w http.ResponseWriter, _ *http.Request) error {
	ipc.WriteJSON(w, http.StatusOK, ipc.TurnList{Turns: a.turns})
	return nil
}

func (f *fake) note(a *fakeApp, action, target, reason, result string, detail any) {
	f.count++
	raw, err := json.Marshal(detail)
	if err != nil {
		panic(err)
	}
	e := ipc.AuditEntry{
		Seq: int64(f.count), At: f.clock, AppID: a.ID, Actor: "tester (pid 1, mulligan)", Action: action,
		Target: target, Reason: reason, Result: result, Detail: raw,
	}
	a.audit = append([]ipc.AuditEntry{e}, a.audit...)
}

func (f *fake) capture(a *fakeApp, req ipc.CreateRequest) (ipc.Checkpoint, error) {
	files, err := readFiles(a.Workspace)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	f.count++
	f.clock = f.clock.Add(time.Minute)
	cp := ipc.Checkpoint{
		ID: ipc.CheckpointID(fmt.Sprintf("cp-%02x0000000000", f.count)), AppID: a.ID, Trigger: req.Trigger,
		Pinned: req.Pinned, SizeBytes: 2048, Quiesced: req.Quiesce != ipc.QuiesceNone, CreatedAt: f.clock,
	}
	if cp.Trigger == "" {
		cp.Trigger = ipc.TriggerManual
	}
	if req.Notes != "" {
		cp.Notes = &req.Notes
	}
	a.points = append([]fakePoint{{cp, files}}, a.points...)
	return cp, nil
}

func (f *fake) create(a *fakeApp, w http.ResponseWriter, r *http.Request) error {
	var req ipc.CreateRequest
	if err := ipc.ReadJSON(r, &req, 0); err != nil {
		return err
	}
	cp, err := f.capture(a, req)
	if err != nil {
		return err
	}
	f.note(a, "create", string(cp.ID), "", "ok", nil)
	ipc.WriteJSON(w, http.StatusCreated, cp)
	return nil
}

func (f *fake) list(a *fakeApp, w http.ResponseWriter, r *http.Request) error {
	l := ipc.CheckpointList{StorageUsage: ipc.StorageUsage{CheckpointCount: len(a.points), KeepLast: 10, DailyDays: 7}}
	for _, p := range a.points {
		l.StorageUsage.TotalBytes += p.SizeBytes
		if t := r.FormValue("trigger"); t == "" || t == string(p.Trigger) {
			l.Checkpoints = append(l.Checkpoints, p.Checkpoint)
		}
	}
	if n, err := strconv.Atoi(r.FormValue("limit")); err == nil {
		l.Checkpoints = l.Checkpoints[:min(n, len(l.Checkpoints))]
	}
	ipc.WriteJSON(w, http.StatusOK, l)
	return nil
}

// prune keeps pinned checkpoints and the newest retention.keep_last others.
func (f *fake) prune(a *fakeApp, w http.ResponseWriter, r *http.Request) error {
	var res ipc.PruneResult
	var kept []fakePoint
	for i, p := range a.points {
		if p.Pinned || i < a.Retention.KeepLast {
			kept = append(kept, p)
		} else {
			res.Deleted = append(res.Deleted, p.ID)
		}
	}
	res.Kept = len(kept)
	if r.FormValue("dry_run") != "1" {
		a.points = kept
	}
	ipc.WriteJSON(w, http.StatusOK, res)
	return nil
}

func (f *fake) show(a *fakeApp, i int, w http.ResponseWriter, _ *http.Request) error {
	ipc.WriteJSON(w, http.StatusOK, a.points[i].Checkpoint)
	return nil
}

func (f *fake) remove(a *fakeApp, i int, w http.ResponseWriter, _ *http.Request) error {
	if id := a.points[i].ID; a.points[i].Pinned {
		return errs.New(errs.Pinned, "delete checkpoint", "%s is pinned", id).WithHint("unpin it first: `mulligan unpin %s`", id)
	}
	a.points = slices.Delete(a.points, i, i+1)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (f *fake) pin(pinned bool) func(*fakeApp, int, http.ResponseWriter, *http.Request) error {
	return func(a *fakeApp, i int, w http.ResponseWriter, _ *http.Request) error {
		a.points[i].Pinned = pinned
		ipc.WriteJSON(w, http.StatusOK, a.points[i].Checkpoint)
		return nil
	}
}

func (f *fake) verify(a *fakeApp, i int, w http.ResponseWriter, _ *http.Request) error {
	res := ipc.VerifyResult{CheckpointID: a.points[i].ID, OK: f.fault != "damage"}
	if !res.OK {
		res.Problems = []ipc.VerifyProblem{{Layer: "files", Message: "a chunk is missing"}}
	}
	ipc.WriteJSON(w, http.StatusOK, res)
	return nil
}

func (f *fake) checkRemote(_ *fakeApp, w http.ResponseWriter, r *http.Request) error {
	res := ipc.RemoteCheck{Remote: r.PathValue("remote"), OK: f.fault != "damage", Problems: []string{}}
	if !res.OK {
		res.Problems = append(res.Problems, "a pack is missing")
	}
	ipc.WriteJSON(w, http.StatusOK, res)
	return nil
}

func readFiles(dir string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if e.Type().IsRegular() {
			if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// differences lists the changes from the files want to the files have.
func differences(want, have map[string][]byte) []ipc.Change {
	var list []ipc.Change
	for name, content := range have {
		if was, ok := want[name]; !ok {
			list = append(list, ipc.Change{Path: name, Operation: "create"})
		} else if !bytes.Equal(was, content) {
			list = append(list, ipc.Change{Path: name, Operation: "modify", Summary: "content"})
		}
	}
	for name := range want {
		if _, ok := have[name]; !ok {
			list = append(list, ipc.Change{Path: name, Operation: "delete"})
		}
	}
	slices.SortFunc(list, func(a, b ipc.Change) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	return list
}
