package loopback

import (
	"errors"
	"net"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

func TestListen(t *testing.T) {
	l, other, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !testkit.IPv6() {
		if other != nil {
			t.Errorf("it listens at %v", other.Addr())
		}
		return
	}
	defer other.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for _, host := range []string{"127.0.0.1", "::1"} {
		addr := net.JoinHostPort(host, port)
		if _, err := net.Listen("tcp", addr); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s can be had by another program: %v", addr, err)
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Errorf("nobody listens at %s: %v", addr, err)
			continue
		}
		c.Close()
	}
}

// TestTaken: a port that another program has at one of the addresses is not taken at the other one either.
func TestTaken(t *testing.T) {
	if !testkit.IPv6() {
		testkit.Lack(t, "this host has no ::1")
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		port := testkit.Port(t) // that the kernel gives nobody meanwhile
		squatter, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Listen(port); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("beside a program at %s: %v", squatter.Addr(), err)
		}
		if err := squatter.Close(); err != nil {
			t.Fatal(err)
		}
		l, other, err := Listen(port)
		if err != nil {
			t.Errorf("after it: %v", err)
			continue
		}
		l.Close()
		other.Close()
	}
}

func TestTwinOfOthers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if other, alone, err := Twin(l); other != nil || alone || err != nil {
		t.Errorf("%v has the twin %v, alone %t, %v", l.Addr(), other, alone, err)
	}
}
