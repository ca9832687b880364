package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/engine"
	"mulligan/errs"
	"mulligan/testkit"
)

// impostor starts a server in the place of an engine, which tells a client its version and answers the rest by the function.
func impostor(t *testing.T, cfg engine.Config, answer http.HandlerFunc) *engine.Engine {
	t.Helper()
	cfg.Socket = filepath.Join(t.TempDir(), "e.sock")
	listener, err := net.Listen("unix", cfg.Socket)
	must(t, err)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.44")
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/_ping") {
			answer(w, r)
		}
	}))
	srv.Listener.Close()
	srv.Listener = listener
	srv.Start()
	t.Cleanup(srv.Close)
	e, err := engine.New(cfg)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// testEngineWithoutEnd asks an engine whose answer has no end: the client reads only so much of it.
func testEngineWithoutEnd(t *testing.T) {
	t.Parallel()
	const most = 512 << 20 // then the test ends, whatever the client does
	var sent atomic.Int64
	e := impostor(t, engine.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"Id":"`)
		for chunk := bytes.Repeat([]byte("a"), 1<<20); err == nil && sent.Load() < most; {
			_, err = w.Write(chunk)
			sent.Add(int64(len(chunk)))
		}
	})
	_, err := e.Members(t.Context(), "container:web")
	if err == nil || !strings.Contains(err.Error(), "e.sock answers with more than 32 MiB") {
		t.Errorf("the error is %v", err)
	}
	if n := sent.Load() >> 20; n < 31 || n > 64 {
		t.Errorf("the engine could send %d MiB", n)
	}
}

// TestSilentEngine asks an engine that does not answer, or does not end its answer.
func TestSilentEngine(t *testing.T) {
	t.Parallel()
	begin := func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"Id":`) // the client sees what comes of it
		w.(http.Flusher).Flush()
	}
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request) (silent bool)
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) bool { return true }},
		{"no end", func(w http.ResponseWriter, _ *http.Request) bool { begin(w); return true }},
		{"a command starts", func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/containers/web/exec") {
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, `{"Id":"1"}`)
				return false
			}
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			end := make(chan struct{})
			e := impostor(t, engine.Config{Patience: 100 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
				if c.answer(w, r) {
					<-end
				}
			})
			t.Cleanup(func() { close(end) }) // before the server's end
			_, err := e.Project(engine.ProjectConfig{}).Run(ctx, "web", engine.Command{Args: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
			if errs.KindOf(err) != errs.Unavailable || !strings.Contains(fmt.Sprint(err), "it accepts connections, and does not answer in time") || ctx.Err() != nil {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
