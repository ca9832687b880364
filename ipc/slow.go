package ipc

import (
	"io"
	"net/http"
	"time"
)

// Timeouts of a client.
const (
	headerTimeout = 10 * time.Second // to send a request's headers
	bodyTimeout   = 30 * time.Second // to send the body
	answerTimeout = 60 * time.Second // to read an answer, from its first byte; event streams have another timeout
	// A client whose request is refused may still send its body for this time. If the connection were closed at once, the client
	// might not receive the answer.
	refusalLinger = 500 * time.Millisecond
)

// bounded limits the time for a request's body and for the reading of its answer. The timeouts of http.Server would include the
// work in between.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &timedAnswer{ResponseWriter: w, rc: http.NewResponseController(w)}
		if r.Body != nil && r.Body != http.NoBody && a.rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
			a.body = &timedBody{ReadCloser: r.Body, rc: a.rc}
			r = r.WithContext(r.Context()) // the server uses the body of its own request
			r.Body = a.body
		}
		h.ServeHTTP(a, r)
	})
}

// timedBody removes the read deadline at the end of the body. From then on the server reads only to notice that the client has
// left, and a deadline would look like that.
type timedBody struct {
	io.ReadCloser
	rc   *http.ResponseController
	read bool // the body was read to its end
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.read = true
		_ = b.rc.SetReadDeadline(time.Time{}) // it could be set before, so this does not fail
	}
	return n, err
}

// timedAnswer sets the write deadline when the answer begins. After a refusal, it waits at most refusalLinger for the rest of
// the body, and then the connection is closed.
type timedAnswer struct {
	http.ResponseWriter
	rc    *http.ResponseController
	body  *timedBody // nil if there is none
	begun bool
}

// Unwrap implements the interface that http.ResponseController uses.
func (a *timedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *timedAnswer) begin() {
	if !a.begun {
		a.begun = true
		_ = a.rc.SetWriteDeadline(time.Now().Add(answerTimeout)) // not every ResponseWriter has one
	}
}

// WriteHeader implements http.ResponseWriter, and begins the answer.
func (a *timedAnswer) WriteHeader(status int) {
	a.begin()
	if status >= 400 && a.body != nil && !a.body.read {
		a.Header().Set("Connection", "close")
		_ = a.rc.SetReadDeadline(time.Now().Add(refusalLinger)) // it could be set before
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *timedAnswer) Write(p []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(p)
}
