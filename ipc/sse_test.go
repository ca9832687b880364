package ipc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mulligan/errs"
)

func readAll(t *testing.T, r io.Reader) []Event {
	t.Helper()
	var all []Event
	for er := NewEventReader(r); ; {
		ev, err := er.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ev)
	}
}

func TestEventReader(t *testing.T) {
	tests := []struct {
		name, stream string
		want         []Event
	}{
		{"nothing", "", nil},
		{"one", "event: stage\ndata: {}\n\n", []Event{{"stage", []byte("{}")}}},
		{"no blank after the colon", "event:a\ndata:1\n\n", []Event{{"a", []byte("1")}}},
		{"CRLF", "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", []Event{{"a", []byte("1")}, {"", []byte("2")}}},
		{"CR", "data: 1\r\rdata: 2\r\r", []Event{{"", []byte("1")}, {"", []byte("2")}}},
		{"several lines", "data: a\ndata: b\n\n", []Event{{"", []byte("a\nb")}}},
		{"an empty one", "data\n\n", []Event{{"", nil}}},
		{"comments and unknown fields", ": hi\nid: 3\nretry: 5\nwhat\ndata: 1\n\n", []Event{{"", []byte("1")}}},
		{"a name alone", "event: a\n\ndata: 1\n\n", []Event{{"", []byte("1")}}},
		{"byte order mark", "\xef\xbb\xbfdata: 1\n\n", []Event{{"", []byte("1")}}},
		{"cut", "data: 1\n\ndata: 2\n", []Event{{"", []byte("1")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readAll(t, strings.NewReader(tt.stream))
			if len(got) != len(tt.want) {
				t.Fatalf("got %q", got)
			}
			for i := range got {
				if got[i].Name != tt.want[i].Name || !bytes.Equal(got[i].Data, tt.want[i].Data) {
					t.Errorf("got %q, want %q", got[i], tt.want[i])
				}
			}
		})
	}
}

func TestEventReaderIsBounded(t *testing.T) {
	for name, stream := range map[string]io.Reader{
		"one line":   endless("x"),
		"many lines": io.MultiReader(strings.NewReader("data: "), endless("xxxxxxxxxxxxxxx\ndata: ")),
	} {
		if _, err := NewEventReader(stream).Next(); errs.KindOf(err) != errs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// endless repeats a text for ever.
type endless string

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e) <= len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

// FuzzEventReader: no stream makes the reader panic or hang, and what it gives,
// however the bytes arrive, it gives again when it is written out.
func FuzzEventReader(f *testing.F) {
	for _, s := range []string{"event: a\ndata: 1\n\n", "data: a\rdata: b\r\n\r\n", "\xef\xbb\xbfdata\n\n", ": c\n\n", "event:\ndata:  x\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		events := readAll(t, bytes.NewReader(stream))
		slow := readAll(t, oneByte{bytes.NewReader(stream)})
		var out bytes.Buffer
		for _, ev := range events {
			out.WriteString("event: " + ev.Name + "\n")
			for line := range bytes.SplitSeq(ev.Data, []byte("\n")) {
				out.WriteString("data: " + string(line) + "\n")
			}
			out.WriteString("\n")
		}
		again := readAll(t, &out)
		for _, other := range [][]Event{slow, again} {
			if len(other) != len(events) {
				t.Fatalf("%q and %q", events, other)
			}
			for i := range events {
				if events[i].Name != other[i].Name || !bytes.Equal(events[i].Data, other[i].Data) {
					t.Fatalf("%q and %q", events[i], other[i])
				}
			}
		}
	})
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

func TestSSE(t *testing.T) {
	rec := httptest.NewRecorder()
	s, err := NewSSE(rec, httptest.NewRequest("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	if !rec.Flushed || rec.Header().Get("Content-Type") != "text/event-stream" {
		t.Error("the headers wait for the first event")
	}
	if err := s.Send("odd", json.RawMessage("{\n \"a\": \"x\\ny\"\n}")); err != nil {
		t.Error(err)
	}
	if err := s.Fail(errs.New(errs.Busy, "op", "m").WithHint("h")); err != nil {
		t.Error(err)
	}
	if err := s.Send("two\nlines", 1); errs.KindOf(err) != errs.Internal {
		t.Errorf("a name with a newline: %v", err)
	}
	if err := s.Send("chan", make(chan int)); errs.KindOf(err) != errs.Internal {
		t.Errorf("what JSON can't hold: %v", err)
	}
	s.Close()
	s.Close()
	events := readAll(t, rec.Body)
	if len(events) != 2 || string(events[0].Data) != `{"a":"x\ny"}` || events[1].Name != EventError ||
		string(events[1].Data) != `{"kind":"busy","message":"m","op":"op","hint":"h"}` {
		t.Errorf("%q", events)
	}
}

func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		s, err := NewSSE(rec, httptest.NewRequest("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*keepAlive + time.Second) // of the bubble's clock
		s.Close()
		if n := strings.Count(rec.Body.String(), ": keep-alive\n\n"); n != 3 {
			t.Errorf("%d comments", n)
		}
	})
}

// TestSlowReaderDoesNotHoldUpTheWork has a client that asks and never reads.
func TestSlowReaderDoesNotHoldUpTheWork(t *testing.T) {
	failed := make(chan error, 1)
	synctestServer(t, func(w http.ResponseWriter, r *http.Request) {
		s, err := NewSSE(w, r)
		if err != nil {
			failed <- err
			return
		}
		defer s.Close()
		for err == nil {
			err = s.Send("stage", strings.Repeat("x", 64<<10))
		}
		if again := s.Send("stage", 1); !errors.Is(again, err) {
			t.Errorf("then %v", again)
		}
		failed <- err
	})
	if err := <-failed; errs.KindOf(err) != errs.Unavailable {
		t.Errorf("got %v", err)
	}
}

// synctestServer serves one request over a pipe, whose deadlines run on the
// bubble's clock, to a client that reads nothing.
func synctestServer(t *testing.T, h http.HandlerFunc) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		srv := NewHTTPServer(h, nil)
		l := &oneConn{conn: far, closed: make(chan struct{})}
		go func() { _ = srv.Serve(l) }()
		if _, err := io.WriteString(near, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(near), nil); err != nil {
			t.Fatal(err) // it reads the headers and no more
		}
		time.Sleep(2 * sendTimeout)
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		near.Close()
	})
}

// oneConn is a listener that has one connection to give.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (o *oneConn) Accept() (net.Conn, error) {
	if c := o.conn; c != nil {
		o.conn = nil
		return c, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}

func (o *oneConn) Close() error {
	select {
	case <-o.closed:
	default:
		close(o.closed)
	}
	return nil
}

func (o *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
