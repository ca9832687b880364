package ipc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
)

const (
	keepAlive   = 15 * time.Second // between comments on a silent stream
	sendTimeout = 10 * time.Second // for a client that does not read
)

// SSE is the answer to a request for server-sent events. A handler closes it
// before it returns. Its methods may be called from several goroutines.
type SSE struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	stop chan struct{}
	done chan struct{}
	once sync.Once

	mu  sync.Mutex
	err error // the first failure; nothing is written after it
}

// WantsSSE tells whether the client asks for events.
func WantsSSE(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// NewSSE begins a stream of events: its headers are sent at once. A comment
// keeps a silent stream alive.
func NewSSE(w http.ResponseWriter, r *http.Request) (*SSE, error) {
	s := &SSE{w: w, rc: http.NewResponseController(w), stop: make(chan struct{}), done: make(chan struct{})}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if err := s.write(""); err != nil {
		return nil, err
	}
	go s.beat(r)
	return s, nil
}

// Send writes the event name with data as JSON. Once it has failed, because the
// client went away or stopped reading, it keeps failing, at once: work that
// tells its progress goes on without an audience.
func (s *SSE) Send(name string, data any) error {
	if strings.ContainsAny(name, "\r\n") {
		return errs.New(errs.Internal, "send an event", "%q is no name for an event", name)
	}
	b, err := json.Marshal(data)
	if err != nil {
		return errs.Wrap(errs.Internal, "send an event", err)
	}
	return s.write(fmt.Sprintf("event: %s\ndata: %s\n\n", name, b)) // JSON here has no newline in it
}

// Fail ends the stream's story with err, as an "error" event.
func (s *SSE) Fail(err error) error { return s.Send(EventError, Body(err)) }

// Close ends the keep-alive comments. After it the handler may return.
func (s *SSE) Close() {
	s.once.Do(func() { close(s.stop) })
	<-s.done
}

func (s *SSE) write(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	// Not every ResponseWriter has deadlines (a recorder has none), and those
	// that don't can't block for ever either.
	_ = s.rc.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := s.w.Write([]byte(text))
	if err == nil {
		err = s.rc.Flush()
	}
	s.err = errs.Wrap(errs.Unavailable, "send an event", err)
	return s.err
}

// beat writes a comment now and then until the stream or its request ends.
func (s *SSE) beat(r *http.Request) {
	defer close(s.done)
	t := time.NewTicker(keepAlive)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-r.Context().Done():
			return
		case <-t.C:
			if s.write(": keep-alive\n\n") != nil {
				return
			}
		}
	}
}
