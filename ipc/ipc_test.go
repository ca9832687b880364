package ipc

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// serve runs h on a socket of its own and gives a client of it.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	sock := filepath.Join(shortDir(t), "s")
	l, err := Listen(sock, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	srv := NewHTTPServer(h, nil)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return NewClient(sock)
}

// shortDir is a temporary folder whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ipc")
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

// daemon is a mux whose handlers return errors.
type daemon struct{ *http.ServeMux }

func newDaemon() daemon { return daemon{http.NewServeMux()} }

func (d daemon) on(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	d.Handle(pattern, Handle(f))
}

// answer makes a handler that always answers with v.
func answer(status int, v any) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		WriteJSON(w, status, v)
		return nil
	}
}

var bg = context.Background()

func ptr[T any](v T) *T { return &v }
