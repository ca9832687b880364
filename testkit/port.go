package testkit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The ports for servers of tests: below those that the kernel gives to connections (ip_local_port_range in ip(7)) and those of forks. A
// port that the kernel gives away may be taken while its server is restarted.
const (
	firstPort = 10_000
	lastPort  = 22_000
)

// ports are the marks of the ports that this process took. A listener that nothing refers to would be closed.
var ports struct {
	sync.Mutex
	taken []net.Listener
}

// Port returns a port of the loopback that nothing listens on, and that no other call returned, in this process or in another one that runs.
func Port(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort) // any will do
		if taken, err := takePort(port); err != nil {
			t.Fatal(err)
		} else if taken {
			return port
		}
	}
	t.Fatalf("no port from %d to %d is free", firstPort, lastPort)
	return 0
}

// IPv6 reports whether this host has the address ::1.
func IPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	return err == nil && l.Close() == nil
}

// takePort takes a port for this process, and reports whether nothing listens on the port and no process has taken it. An abstract socket marks
// the port for as long as the process lives.
func takePort(port int) (bool, error) {
	mark, err := net.Listen("unix", fmt.Sprintf("@mulligan-test-port-%d", port))
	if errors.Is(err, unix.EADDRINUSE) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false, mark.Close()
	}
	ports.Lock()
	defer ports.Unlock()
	ports.taken = append(ports.taken, mark)
	return true, l.Close()
}
