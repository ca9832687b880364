package fork

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"

	"mulligan/daemon/loopback"
	"mulligan/daemon/store"
	"mulligan/ipc"
)

// ports chooses addresses of the host for the fork's ports: that of its health check, which asks there, and those that the app's
// settings name.
func (s *Service) ports(was *ipc.Fork, rec *store.App) error {
	if len(rec.Run) == 0 && rec.Unit == "" {
		return nil // nothing of the fork's would listen
	}
	rec.Fork.Ports = nil
	taken := map[string]bool{}
	expose := func(port int) (string, error) {
		address, err := s.freeAddress(taken)
		taken[address] = true
		rec.Fork.Ports = append(rec.Fork.Ports, ipc.ForkPort{Port: port, Address: address})
		return address, err
	}
	checked := 0
	if rec.Health != nil && rec.Health.URL != "" {
		u, err := url.Parse(rec.Health.URL)
		if err != nil {
			return err
		}
		if checked = insidePort(was, u); checked != 0 {
			if u.Host, err = expose(checked); err != nil {
				return err
			}
			h := *rec.Health
			h.URL = u.String()
			rec.Health = &h
		}
	}
	for _, port := range rec.Forking.Expose {
		if port == checked {
			continue
		}
		if _, err := expose(port); err != nil {
			return err
		}
	}
	return nil
}

// insidePort returns the port of an app at which its health check asks; 0 if the URL has a default port, where another server answers.
func insidePort(was *ipc.Fork, u *url.URL) int {
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return 0
	}
	if was != nil { // of a fork, the health check asks at an address of the host
		for _, p := range was.Ports {
			if p.Address == u.Host {
				return p.Port
			}
		}
	}
	return port
}

// The ports that forks get: this many below those that the kernel gives to connections.
const forkPorts = 10_000

// freeAddress returns an address of the loopback for a fork. The fork keeps it for its life, also while it is stopped. So it is none
// that another fork has or that is taken, and none that the kernel gives to connections (ip_local_port_range in ip(7)), unless there is no other.
func (s *Service) freeAddress(taken map[string]bool) (string, error) {
	addForkAddresses(s.apps.Records(), taken)
	if low := firstConnectionPort(); low > 2*forkPorts {
		for range 100 {
			port := low - 1 - rand.IntN(forkPorts)
			addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			if taken[addr] {
				continue
			}
			if l, other, err := loopback.Listen(port); err == nil {
				return addr, closed(l, other)
			}
		}
	}
	l, other, err := loopback.Listen(0)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), closed(l, other)
}

// addForkAddresses adds to taken the addresses that forks have, also those that are stopped.
func addForkAddresses(records []store.App, taken map[string]bool) {
	for _, rec := range records {
		if rec.Fork != nil {
			for _, p := range rec.Fork.Ports {
				taken[p.Address] = true
			}
		}
	}
}

// closed closes the listeners of a port; other may be nil.
func closed(l, other *net.TCPListener) error {
	if other != nil {
		return errors.Join(l.Close(), other.Close())
	}
	return l.Close()
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
