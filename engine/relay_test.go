package engine_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"mulligan/engine"
	"mulligan/testkit"
)

// TestRelayEnds ends connections at either side as early as can be: a process that has ended before it is waited for must not be missed.
func TestRelayEnds(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	conns := make(chan net.Conn, 1)
	go func() {
		defer close(conns)
		for {
			c, err := listener.Accept()
			if err != nil {
				return // the test has closed it
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		must(t, listener.Close())
		for range conns {
		}
	})
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range 300 {
		hold, end, err := os.Pipe()
		must(t, err)
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", engine.RelayScript, "relay", port)
		var out bytes.Buffer
		cmd.Stdout = &out
		if i%2 == 0 {
			cmd.Stdin = hold
		}
		must(t, testkit.Start(cmd))
		c := <-conns
		if i%2 == 0 {
			must(t, c.Close())
		}
		if err := cmd.Wait(); ctx.Err() != nil || out.String() != "." {
			t.Fatalf("connection %d: its command ends with %v, and said %q", i, err, out.String())
		}
		if i%2 != 0 {
			must(t, c.Close())
		}
		must(t, hold.Close())
		must(t, end.Close())
	}
}
