// Package loopback listens at a port of the loopback at both of its addresses.
//
// Browsers ask for a name below .localhost at ::1 and then at 127.0.0.1, and other programs do so for localhost. Whoever listens at one of the
// two alone leaves the other one to any user of the host, who could pose as the server.
package loopback

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

var (
	four = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	six  = netip.IPv6Loopback()
)

// tries is the number of ports that Listen tries for port 0. Another program may have each of them at the other address.
const tries = 20

// Listen listens at a port at 127.0.0.1 and at ::1. Port 0 is any that is free at both. other is nil if this host has no ::1.
func Listen(port int) (l, other *net.TCPListener, err error) {
	for range tries {
		l, other, err = listenAtBoth(port)
		if port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return l, other, err
}

func listenAtBoth(port int) (l, other *net.TCPListener, err error) {
	l, err = listen(netip.AddrPortFrom(four, uint16(port)))
	if err != nil {
		return nil, nil, err
	}
	if other, _, err = Twin(l); err != nil {
		return nil, nil, errs.Also(err, l.Close())
	}
	return l, other, nil
}

// Twin listens at the port of l at the other address, if l is at one of the two. alone reports whether nobody else can.
func Twin(l net.Listener) (other *net.TCPListener, alone bool, err error) {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, false, nil
	}
	addr := four
	switch at.AddrPort().Addr().Unmap() {
	case four:
		addr = six
	case six:
	default:
		return nil, false, nil
	}
	other, err = listen(netip.AddrPortFrom(addr, uint16(at.Port)))
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, true, nil // this host has one version of IP alone
	}
	return other, err == nil, err
}

func listen(at netip.AddrPort) (*net.TCPListener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
}
