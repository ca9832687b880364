package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// The ports for servers of tests: below those that the kernel gives to connections (ip_local_port_range in ip(7)) and those of forks. A
// port that the kernel gives away may be taken while its server is restarted.
const (
	firstPort = 10_000
	lastPort  = 22_000
)

var ports struct {
	sync.Mutex
	given map[int]bool
}

// Port returns a port of the loopback that nothing listens on, and that no other call of this process returned.
func Port(t testing.TB) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort) // any will do
		if ports.given[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		ports.given[port] = true
		return port
	}
	t.Fatalf("no port from %d to %d is free", firstPort, lastPort)
	return 0
}
