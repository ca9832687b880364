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
	keepAlive   = 15 * time.Second // interval between comments on a silent stream
	sendTimeout = 10 * time.Second // timeout for a client that does not read
)

// SSE is an answer with server-sent events. The handler must close it before it returns. Its methods may be called from several
// goroutines.
type SSE struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	stop chan struct{}
	done chan struct{}
	once sync.Once

	mu  sync.Mutex
	err error // the first failure; nothing is written after it
}

// WantsSSE reports whether the client asks for events.
func WantsSSE(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// NewSSE begins a stream of events and sends its headers at once. Comments keep a silent stream alive.
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

// Send writes the event name with data as JSON. After one failure, because the client has gone or does not read, every later
// call fails at once, so an operation that reports its progress is not delayed.
func (s *SSE) Send(name string, data any) error {
	if strings.ContainsAny(name, "\r\n") {
		return errs.New(errs.Internal, "send an event", "%q is no name for an event", name)
	}
	b, err := json.Marshal(data)
	if err != nil {
		return errs.Wrap(errs.Internal, "send an event", err)
	}
	return s.write(fmt.Sprintf("event: %s\ndata: %s\n\n", name, b)) // this JSON has no newline
}

// Fail sends err as an "error" event, the last one of the stream.
func (s *SSE) Fail(err error) error { return s.Send(EventError, Body(err)) }

// Close ends the comments. The handler may return afterwards.
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
	// Some ResponseWriters have no deadlines, such as a recorder. Those cannot block for ever.
	_ = s.rc.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := s.w.Write([]byte(text))
	if err == nil {
		err = s.rc.Flush()
	}
	s.err = errs.Wrap(errs.Unavailable, "send an event", err)
	return s.err
}

// beat writes comments at intervals until the stream or its request ends.
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
