package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// A long operation tells a client that accepts events how far it is, and then the answer; a short one and other clients see the answer alone.
func TestProgressOfLongOperation(t *testing.T) {
	var until chan struct{} // the operation ends when it is closed
	var fail error
	serve := long(func(w http.ResponseWriter, r *http.Request, _ ipc.Caller) error {
		m := snap.NewMeter(r.Context(), "files read", snap.UnitFiles, 10)
		m.Add(4)
		<-until
		if fail != nil {
			return fail
		}
		w.Header().Set("X-Kept", "yes")
		ipc.WriteJSON(w, http.StatusCreated, map[string]string{"id": "cp-1"})
		return nil
	})
	server := httptest.NewServer(ipc.Handle(func(w http.ResponseWriter, r *http.Request) error { return serve(w, r, ipc.Caller{}) }))
	defer server.Close()
	ask := func(accept string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	const events = "application/json, text/event-stream"

	ended := make(chan struct{})
	close(ended)
	for _, accept := range []string{events, "application/json"} {
		until = ended
		if resp := ask(accept); resp.StatusCode != http.StatusCreated || resp.Header.Get("X-Kept") != "yes" || !strings.Contains(resp.Header.Get("Content-Type"), "json") {
			t.Errorf("a short operation, for %s: %v", accept, resp)
		}
	}
	for _, want := range []string{ipc.EventAnswer, ipc.EventError} {
		until = make(chan struct{})
		if want == ipc.EventError {
			fail = errs.New(errs.Conflict, "do it", "it is so")
		}
		r := ipc.NewEventReader(ask(events).Body) // its header came with the first event
		ev, err := r.Next()
		if err != nil || ev.Name != ipc.EventProgress || !strings.Contains(string(ev.Data), `"what":"files read","unit":"files"`) {
			t.Fatalf("a long operation: %+v %v", ev, err)
		}
		close(until)
		if ev, err = r.Next(); err != nil || ev.Name != want || want == ipc.EventAnswer && string(ev.Data) != `{"id":"cp-1"}` {
			t.Errorf("its end: %s %s %v", ev.Name, ev.Data, err)
		}
	}
}

// The receipt of a rollback that failed comes whole after the progress, as its answer does without.
func TestReceiptAfterProgress(t *testing.T) {
	told := make(chan struct{})
	failed := ipc.RollbackResult{Recovered: true, Error: &ipc.ErrorBody{Kind: errs.Conflict, Op: "roll back", Message: "it is so"}}
	serve := long(func(w http.ResponseWriter, r *http.Request, _ ipc.Caller) error {
		if ipc.WantsSSE(r) {
			snap.NewMeter(r.Context(), "files read", snap.UnitFiles, 10).Add(4)
			<-told
		}
		return answerReceipt(w, http.StatusOK, failed, failed.Error, failed.Error.Err())
	})
	socket := filepath.Join(t.TempDir(), "s")
	l, err := ipc.Listen(socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	srv := ipc.NewHTTPServer(ipc.Handle(func(w http.ResponseWriter, r *http.Request) error { return serve(w, r, ipc.Caller{}) }), nil)
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	once := sync.OnceFunc(func() { close(told) })
	for _, ctx := range []context.Context{t.Context(), ipc.WithProgress(t.Context(), func(ipc.Progress) { once() })} {
		res, err := ipc.NewClient(socket).Keep(ctx, "shop", "tried", ipc.KeepRequest{})
		if errs.KindOf(err) != errs.Conflict || !res.Recovered {
			t.Errorf("%v, %+v", err, res)
		}
	}
	select {
	case <-told:
	default:
		t.Error("there was no progress")
	}
}
