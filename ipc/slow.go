package ipc

import (
	"io"
	"net/http"
	"time"
)

// What a client may take its time for.
const (
	headerTimeout = 10 * time.Second // to send a request's headers
	bodyTimeout   = 30 * time.Second // to send its body
	answerTimeout = 60 * time.Second // to read an answer, from its first byte; a stream of events has its own
	// A client that is refused before its body came may still send that long: who
	// is cut off while sending may miss the answer.
	refusalLinger = 500 * time.Millisecond
)

// bounded bounds the time in which a request's body comes and its answer is
// read. http.Server's own timeouts would count the work in between, too.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &timedAnswer{ResponseWriter: w, rc: http.NewResponseController(w)}
		if r.Body != nil && r.Body != http.NoBody && a.rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
			a.body = &timedBody{ReadCloser: r.Body, rc: a.rc}
			r = r.WithContext(r.Context()) // the server looks at its own request's body
			r.Body = a.body
		}
		h.ServeHTTP(a, r)
	})
}

// timedBody lifts the read deadline at the body's end: from then on the server
// reads to learn whether the client left, and must not take time for leaving.
type timedBody struct {
	io.ReadCloser
	rc   *http.ResponseController
	read bool // to its end
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.read = true
		_ = b.rc.SetReadDeadline(time.Time{}) // it could be set before
	}
	return n, err
}

// timedAnswer sets the write deadline when the answer begins. A refusal does not
// wait longer than refusalLinger for the rest of a body that nobody wants: the
// connection ends with it.
type timedAnswer struct {
	http.ResponseWriter
	rc    *http.ResponseController
	body  *timedBody // nil: there is none
	begun bool
}

// Unwrap is for http.ResponseController.
func (a *timedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *timedAnswer) begin() {
	if !a.begun {
		a.begun = true
		_ = a.rc.SetWriteDeadline(time.Now().Add(answerTimeout)) // not every ResponseWriter has one
	}
}

// WriteHeader begins the answer.
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
