package engine

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// maxAnswer bounds, in bytes, what an engine may answer to a request.
const maxAnswer = 32 << 20

// patience is how long an engine may take to say something, where the configuration does not say; working is how many times longer it may take for what is
// work for it, such as to remove a volume.
const (
	patience = 30 * time.Second
	working  = 10
)

// errSilent is the cause of the error if an engine takes too long.
var errSilent = errors.New("it accepts connections, and does not answer in time")

// bounded sends requests to an engine, which may be a user's own program, and bounds the size of each answer and the time until its end. A connection that the
// engine hands over, for the inputs and outputs of a command, has no bounds.
type bounded struct {
	*http.Transport
	patience time.Duration
	// silent is set when the engine did not answer in time. Until then it is not asked again: for one answer, the client of the API asks up to three
	// times, and would wait as often.
	silent atomic.Pointer[time.Time]
}

var _ http.RoundTripper = (*bounded)(nil)

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if until := b.silent.Load(); until != nil && time.Now().Before(*until) {
		return nil, errSilent
	}
	ctx, cancel := context.WithTimeoutCause(req.Context(), b.limit(req), errSilent)
	resp, err := b.Transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			until := time.Now().Add(b.patience / 10)
			b.silent.Store(&until)
		}
		cancel()
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		cancel()
		return resp, nil
	}
	resp.Body = &answer{http.MaxBytesReader(nil, resp.Body, maxAnswer), cancel}
	return resp, nil
}

// limit returns how long the engine may take for a request.
func (b *bounded) limit(req *http.Request) time.Duration {
	_, do, _ := strings.Cut(req.URL.Path, "/containers/")
	switch {
	case strings.HasSuffix(do, "/stop"): // it waits for the container, for so many seconds
		seconds, err := strconv.Atoi(req.URL.Query().Get("t"))
		if err != nil {
			seconds = 0
		}
		return working*b.patience + time.Duration(seconds)*time.Second
	case req.Method == http.MethodDelete, do == "create", strings.HasSuffix(do, "/start"), strings.HasSuffix(do, "/changes"):
		return working * b.patience
	}
	return b.patience
}

// answer is the body of an answer, at whose end the limit of time ends as well.
type answer struct {
	io.ReadCloser
	end func()
}

func (a *answer) Close() error {
	defer a.end()
	return a.ReadCloser.Close()
}
