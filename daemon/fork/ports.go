package fork

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"

	"mulligan/daemon/store"
	"mulligan/ipc"
)

// ports chooses addresses of the host for the fork's ports: that of its health check. The health check asks there.
func (s *Service) ports(was *ipc.Fork, rec *store.App) error {
	if rec.Health == nil || rec.Health.URL == "" || len(rec.Run) == 0 && rec.Unit == "" {
		return nil
	}
	u, err := url.Parse(rec.Health.URL)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return nil // a default port: the front's server is another
	}
	if was != nil { // of a fork, the health check asks at an address of the host
		for _, p := range was.Ports {
			if p.Address == u.Host {
				port = p.Port
			}
		}
	}
	if u.Host, err = s.freeAddress(); err != nil {
		return err
	}
	rec.Fork.Ports = []ipc.ForkPort{{Port: port, Address: u.Host}}
	h := *rec.Health
	h.URL = u.String()
	rec.Health = &h
	return nil
}

// The ports that forks get: this many below those that the kernel gives to connections.
const forkPorts = 10_000

// freeAddress returns an address of the loopback for a fork. The fork keeps it for its life, also while it is stopped. So it is none
// that another fork has, and none that the kernel gives to connections (ip_local_port_range in ip(7)), unless there is no other.
func (s *Service) freeAddress() (string, error) {
	taken := map[string]bool{}
	for _, rec := range s.apps.Records() {
		if rec.Fork != nil {
			for _, p := range rec.Fork.Ports {
				taken[p.Address] = true
			}
		}
	}
	if low := firstConnectionPort(); low > 2*forkPorts {
		for range 100 {
			addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(low-1-rand.IntN(forkPorts)))
			if taken[addr] {
				continue
			}
			if l, err := net.Listen("tcp", addr); err == nil {
				return addr, l.Close()
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// firstConnectionPort returns the lowest port that the kernel gives to connections; 0 means that it is not known.
func firstConnectionPort() (port int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(text), &port); err != nil {
		return 0
	}
	return port
}
