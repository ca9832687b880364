package pgwire

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestReadByTwo: the client library may have two goroutines read a connection, as when it closes one
// whose COPY failed. Each byte comes to one of them.
func TestReadByTwo(t *testing.T) {
	client, server := net.Pipe()
	c := newConn(client, &Refusal{})
	const messages = 200
	go func() {
		for range messages {
			_, _ = server.Write([]byte("N\x00\x00\x00\x08abcd")) // a notice
		}
		server.Close()
	}()
	var got [2]int
	var errs [2]error
	var wait sync.WaitGroup
	for i := range got {
		wait.Go(func() {
			buf := make([]byte, 64)
			for errs[i] == nil {
				var n int
				n, errs[i] = c.Read(buf)
				got[i] += n
			}
		})
	}
	wait.Wait()
	for i, err := range errs {
		if !errors.Is(err, io.EOF) {
			t.Errorf("reader %d ends with %v", i, err)
		}
	}
	if sum := got[0] + got[1]; sum != 9*messages {
		t.Errorf("%d bytes were read, want %d", sum, 9*messages)
	}
}

// slow is a connection whose writes end late, as on a host that has other things to do.
type slow struct {
	net.Conn
	end chan struct{}
}

func (s slow) Write(p []byte) (int, error) {
	<-s.end
	return len(p), nil
}

// TestAnswerBeforeTheEndOfAWrite: a server that has read what it was sent may answer before the
// write is over here; one that does not read may not send without end.
func TestAnswerBeforeTheEndOfAWrite(t *testing.T) {
	for _, ends := range []bool{true, false} {
		client, server := net.Pipe()
		end := make(chan struct{})
		c := newConn(slow{client, end}, &Refusal{})
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write([]byte("query"))
			wrote <- err
		}()
		for c.writing.Load() == nil {
			runtime.Gosched()
		}
		const messages, parts = 2 * maxUnread / 4096, 2 // the reader gets each in so many parts
		var sent atomic.Int64
		go func() {
			for sent.Load() < maxUnread/4096/parts { // so many are taken in before the end of the write is waited for
				runtime.Gosched()
			}
			if ends {
				close(end)
			}
		}()
		go func() {
			for range messages {
				sent.Add(1)
				if _, err := server.Write([]byte("N\x00\x00\x00\x08abcd")); err != nil {
					return
				}
			}
			server.Close()
		}()
		buf, n := make([]byte, 4096), 0
		var err error
		for err == nil {
			var m int
			m, err = c.Read(buf)
			n += m
		}
		if ends && (n != 9*messages || !errors.Is(err, io.EOF)) {
			t.Errorf("the write ends: %d bytes of %d, %v", n, 9*messages, err)
		}
		if !ends && (n == 9*messages || errors.Is(err, io.EOF)) {
			t.Errorf("the write does not end: %d bytes of %d, %v", n, 9*messages, err)
		}
		if !ends {
			close(end)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
}
