package api

import (
	"bytes"
	"encoding/json"
	"net/http"

	"mulligan/daemon/events"
	"mulligan/ipc"
	"mulligan/snap"
)

type handler = func(http.ResponseWriter, *http.Request, ipc.Caller) error

// long serves an operation that may take long. To a client that accepts events it tells how far the operation is, as soon as it has taken
// longer than a moment; then the answer is the last event. Else, and for other clients, the answer is as ever.
func long(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, who ipc.Caller) error {
		if !ipc.WantsSSE(r) {
			return serve(w, r, who)
		}
		s := &stream{w: w, r: r}
		told := events.NewTeller(s.send)
		kept := &keptAnswer{header: http.Header{}, status: http.StatusOK}
		err := serve(kept, r.WithContext(snap.WithProgress(r.Context(), told.Tell)), who)
		told.End()
		return s.end(kept, err)
	}
}

// stream is the event stream of one operation, which begins with its first event.
type stream struct {
	w    http.ResponseWriter
	r    *http.Request
	sse  *ipc.SSE
	gone bool // the client; the operation goes on
}

func (s *stream) send(p ipc.Progress) {
	if s.sse == nil && !s.gone {
		sse, err := ipc.NewSSE(s.w, s.r)
		s.sse, s.gone = sse, err != nil
	}
	if !s.gone {
		_ = s.sse.Send(ipc.EventProgress, p) // errors are ignored: the client may have disconnected
	}
}

// end sends the answer, or the error, in the way that was begun.
func (s *stream) end(kept *keptAnswer, err error) error {
	if s.sse == nil {
		if err == nil && !s.gone {
			kept.send(s.w)
		}
		return err
	}
	defer s.sse.Close()
	switch {
	case err != nil:
		_ = s.sse.Fail(err)
	case kept.body.Len() == 0:
		_ = s.sse.Send(ipc.EventAnswer, nil)
	default:
		_ = s.sse.Send(ipc.EventAnswer, json.RawMessage(kept.body.Bytes())) // also the receipt of a rollback that failed, which has its error
	}
	return nil
}

// keptAnswer is an answer that is not sent yet.
type keptAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) Header() http.Header         { return k.header }
func (k *keptAnswer) WriteHeader(status int)      { k.status = status }
func (k *keptAnswer) Write(b []byte) (int, error) { return k.body.Write(b) }

func (k *keptAnswer) send(w http.ResponseWriter) {
	for name, values := range k.header {
		w.Header()[name] = values
	}
	w.WriteHeader(k.status)
	_, _ = w.Write(k.body.Bytes()) // the client may have disconnected
}
