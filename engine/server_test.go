package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/engine"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/testkit"
)

// echo is a server that answers with what it hears, and ends a connection that says "end".
const echo = `exec python3 -c '
import socketserver
class H(socketserver.BaseRequestHandler):
	def handle(self):
		while True:
			got = self.request.recv(65536)
			if not got or got == b"end": return
			self.request.sendall(got)
class S(socketserver.ThreadingMixIn, socketserver.TCPServer): pass
S(("127.0.0.1", 7777), H).serve_forever()'`

// TestServer talks to a server in a container that has no port on the host and no network that the host knows, and runs commands beside it.
func TestServer(t *testing.T) {
	testkit.Need(t, "root", "python3")
	onSome(t, func(t *testing.T, s *stage) {
		s.run(spec{name: "echo", command: echo})
		p := s.project("container:echo")
		server := engine.Server{Project: p, Container: "echo", Port: 7777}
		ctx := t.Context()
		testkit.Eventually(t, "the server answers", func() bool {
			c, err := server.Connect(ctx, "", "")
			if err == nil {
				err = c.Close()
			} else if errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), "nothing answers at port 7777 in container echo") {
				t.Fatal(err)
			}
			return err == nil
		})
		if ok, err := server.Reachable(ctx); ok || err != nil {
			t.Errorf("an address of another network namespace is this host's: %v", err)
		}

		c, err := server.Connect(ctx, "", "")
		must(t, err)
		sent := make([]byte, 3<<20)
		draw := testkit.Rand(t)
		for i := range sent {
			sent[i] = byte(draw.IntN(256))
		}
		go func() { _, _ = c.Write(sent) }() // the other side tells
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("what came back differs: %v", err)
		}
		must(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
		if _, err := c.Read(got); err == nil {
			t.Error("a deadline that is over lets a read go on")
		}
		must(t, c.SetReadDeadline(time.Time{}))
		_, err = c.Write([]byte("end"))
		must(t, err)
		if n, err := c.Read(got); n != 0 || err != io.EOF {
			t.Errorf("after the server's end: %d, %v", n, err)
		}
		must(t, c.Close())

		open, err := server.Connect(ctx, "", "")
		must(t, err)
		must(t, open.Close())
		testkit.Eventually(t, "nothing is left of connections", func() bool {
			var out bytes.Buffer
			status, err := server.Run(ctx, []string{"/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; grep -l '^State:.Z' /proc/[0-9]*/status"}, nil, nil, &out, io.Discard)
			must(t, err)
			return status == 1 && !strings.Contains(out.String(), "/dev/tcp") // grep finds none that has ended and that the server does not wait for
		})

		var out, said bytes.Buffer
		status, err := server.Run(ctx, []string{"/bin/sh", "-c", "cat; echo $WORD >&2; exit 3"}, []string{"WORD=heard"}, bytes.NewReader(sent), &out, &said)
		if err != nil || status != 3 || !bytes.Equal(out.Bytes(), sent) || said.String() != "heard\n" {
			t.Errorf("a command: %d, %v, %d bytes, %q", status, err, out.Len(), said.String())
		}
		s.uncovered()
		s.stop("echo")
		if _, err := server.Connect(ctx, "", ""); errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), "container echo does not run") {
			t.Errorf("a stopped container: %v", err)
		}
	})
}

// uncovered checks what is said of a container's parts that are not captured: each by its name, and nothing of what is.
func (s *stage) uncovered() {
	s.t.Helper()
	dir, err := os.MkdirTemp(s.h.Dir, "") // an instance is used by several tests
	must(s.t, err)
	must(s.t, os.Chmod(dir, 0o755))
	ws, outside := filepath.Join(dir, "ws"), filepath.Join(dir, "outside")
	must(s.t, errors.Join(os.Mkdir(ws, 0o755), os.Mkdir(outside, 0o755)))
	s.h.Run(s.t, string(s.h.Kind), "run", "-d", "--name", "odd", "-v", "/usr:/usr:ro", "-v", ws+":/ws", "-v", outside+":/outside", "-v", "kept:/kept", "-v", "other:/other", "-v", "/anonymous",
		"--tmpfs", "/mem", enginetest.Image, "/bin/sh", "-c", "mkdir /root/cache; echo 1 >/root/cache/a; echo 1 >/root/cache/b; echo 1 >/kept/x; "+wait)
	p := s.project("container:odd")
	said := func() string {
		list, err := p.Uncovered(s.t.Context(), []string{"kept"}, ws)
		must(s.t, err)
		return fmt.Sprint(list)
	}
	testkit.Eventually(s.t, "the container has written", func() bool { return strings.Contains(said(), "/root/cache/a, /root/cache/b.") })
	for _, words := range []string{"The volume without a name at /anonymous in container odd", "The volume other, at /other", "The folder " + outside + ", at /outside", "The files at /mem in container odd are in memory",
		"What container odd wrote into its own file system is not captured: /root/cache/a"} {
		if !strings.Contains(said(), words) {
			s.t.Errorf("nothing is said of %q: %s", words, said())
		}
	}
	for _, words := range []string{"/usr", "/kept", ws + ",", "/etc/"} {
		if strings.Contains(said(), words) {
			s.t.Errorf("%q is said to be left out: %s", words, said())
		}
	}
}

// onSome is onEach with one kind of engine, another one each time.
func onSome(t *testing.T, test func(t *testing.T, s *stage)) {
	kinds := enginetest.Kinds
	for _, i := range testkit.Sample(t, "kinds of engines", len(kinds), 1) {
		onKind(t, kinds[i], test)
	}
}
