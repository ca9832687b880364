package mcpserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// wire is a client that writes lines and reads lines, as over standard input
// and output.
type wire struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error // what the server ended with
}

func newWire(t *testing.T, client API, cwd string) *wire {
	t.Helper()
	return wireOf(t, t.Context(), client, cwd)
}

func wireOf(t *testing.T, ctx context.Context, client API, cwd string) *wire {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	w := &wire{t: t, in: inW, out: bufio.NewReader(outR), done: make(chan error, 1)}
	go func() {
		w.done <- serve(ctx, Options{Client: client, Cwd: cwd, Version: "1.2.3"}, &mcp.IOTransport{Reader: inR, Writer: outW})
	}()
	t.Cleanup(func() { outR.Close() })
	return w
}

func (w *wire) send(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.in, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) receive() []byte {
	w.t.Helper()
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	return line
}

func (w *wire) initialize() {
	w.t.Helper()
	w.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`)
	w.receive()
	w.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// close ends the input and waits for the server to end well.
func (w *wire) close() {
	w.t.Helper()
	if err := w.in.Close(); err != nil {
		w.t.Fatal(err)
	}
	if err := <-w.done; err != nil {
		w.t.Errorf("the server ended with %v", err)
	}
}

// TestInputClosedDuringARollback has a client go away while its rollback runs:
// the daemon ends it all the same.
func TestInputClosedDuringARollback(t *testing.T) {
	for _, token := range []string{"", `,"_meta":{"progressToken":"p"}`} {
		ws := shortDir(t)
		s := newScript(ws)
		id := s.add(ipc.CreateRequest{Notes: "slow"}).ID
		ctx, cancel := context.WithCancel(t.Context())
		w := wireOf(t, ctx, s.start(t), ws)
		w.initialize()
		w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"rollback_app","arguments":{"checkpoint_id":"%s"}%s}}`, id, token))
		go io.Copy(io.Discard, w.out) // a pipe of the system takes that much unread
		<-s.began
		if err := w.in.Close(); err != nil {
			t.Fatal(err)
		}
		cancel() // as the process's end would
		close(s.finish)
		<-s.finished
		if err := <-w.done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		s.mu.Lock()
		if len(s.cps) != 2 {
			t.Errorf("%d checkpoints: the rollback made no safety checkpoint", len(s.cps))
		}
		s.mu.Unlock()
	}
}

// TestCancelledRollback: a client that takes its call back stops waiting only.
func TestCancelledRollback(t *testing.T) {
	ws := shortDir(t)
	s := newScript(ws)
	id := s.add(ipc.CreateRequest{Notes: "slow"}).ID
	cs := connect(t, s.start(t), ws, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-s.began; cancel() }()
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "rollback_app", Arguments: map[string]any{"checkpoint_id": id}}); err == nil {
		t.Error("the call went on")
	}
	close(s.finish)
	<-s.finished
	if a := call(t, cs, "list_checkpoints", nil); a.IsError || len(a.Fields["checkpoints"].([]any)) != 2 {
		t.Errorf("afterwards: %v", a)
	}
}

func TestStopping(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := wireOf(t, ctx, newScript("/").start(t), "/")
	w.initialize()
	cancel()
	if err := <-w.done; err != nil {
		t.Errorf("told to stop: %v", err)
	}

	w = newWire(t, newScript("/").start(t), "/")
	w.initialize()
	w.send("this is no JSON")
	if err := <-w.done; err == nil || !strings.Contains(err.Error(), "invalid") {
		t.Errorf("after a bad line: %v", err)
	}
}
