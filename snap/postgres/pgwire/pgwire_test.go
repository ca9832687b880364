package pgwire

import (
	"errors"
	"io"
	"net"
	"sync"
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
