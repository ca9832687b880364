package isolate

import (
	"io"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// serve begins to serve the control socket, the fronts and the backs.
func (in *inside) serve(backs map[net.Listener]string) error {
	l, err := inherited(controlFD)
	if err != nil {
		return err
	}
	go in.control(l.(*net.UnixListener))
	for i, front := range in.plan.Fronts {
		l, err := inherited(firstFrontFD + i)
		if err != nil {
			return err
		}
		go forward(l, func() (net.Conn, error) { return front.dial() })
	}
	for l, socket := range backs {
		go forward(l, func() (net.Conn, error) { return net.Dial("unix", socket) })
	}
	return nil
}

// inherited returns the listener that the daemon opened as a descriptor.
func inherited(fd int) (net.Listener, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close() // the listener has a duplicate
	return net.FileListener(f)
}

// dial connects to the app inside. At a port, the app may listen for one version of IP alone.
func (f Front) dial() (net.Conn, error) {
	if f.Socket != "" {
		return net.Dial("unix", f.Socket)
	}
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.Port)))
	if err == nil {
		return c, nil
	}
	if six, e := net.Dial("tcp", net.JoinHostPort("::1", strconv.Itoa(f.Port))); e == nil {
		return six, nil
	}
	return nil, err
}

// forward hands each connection that l accepts to one that dial makes. Where nobody answers, the client's connection is closed,
// as it would be by a server that went away.
func forward(l net.Listener, dial func() (net.Conn, error)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			d, err := dial()
			if err != nil {
				return
			}
			defer d.Close()
			var both sync.WaitGroup
			both.Go(func() { pipe(d, c) })
			both.Go(func() { pipe(c, d) })
			both.Wait()
		}()
	}
}

// pipe copies from one connection to the other until the first ends, and says so to the other.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // whatever broke, this direction is over
	if w, ok := to.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite() // the other end may be gone
	}
}
