package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Server is a server in a container of a project, such as that of a database. It needs no port on the host.
type Server struct {
	Project   *Project
	Container string
	Port      int // in the container
	// Dial connects to an address of this host's networks, with the rights of whom the engine works for.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Run runs a command in the server's container.
func (s Server) Run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) (status int, err error) {
	return s.Project.Run(ctx, s.Container, Command{Args: args, Env: env, Stdin: stdin, Stdout: stdout, Stderr: stderr})
}

// Connect connects to the server: at the container's own address, if the engine's network is one of this host, and otherwise through a command
// that it runs in the container. The arguments, a network and an address, are what a client was configured with, and do not count.
func (s Server) Connect(ctx context.Context, _, _ string) (net.Conn, error) {
	at, err := s.Project.address(ctx, s.Container)
	if err != nil {
		return nil, err
	}
	if !at.ip.IsValid() {
		return s.Project.relay(ctx, s.Container, s.Port)
	}
	c, err := s.Dial(ctx, "tcp", netip.AddrPortFrom(at.ip, uint16(s.Port)).String())
	if err != nil {
		return nil, err
	}
	again, err := s.Project.address(ctx, s.Container)
	if err == nil && again != at { // the address may belong to another container meanwhile
		err = errs.New(errs.Unavailable, "", "container %s was started again at this moment", s.Container).WithHint("try again")
	}
	if err != nil {
		return nil, errs.Also(err, c.Close())
	}
	return c, nil
}

// Reachable reports whether the server has an address that this host reaches, so that it can also reach this host.
func (s Server) Reachable(ctx context.Context) (bool, error) {
	at, err := s.Project.address(ctx, s.Container)
	return at.ip.IsValid(), err
}

// address is where a container is in the networks of this host.
type address struct {
	ip  netip.Addr // not valid: nowhere
	run string     // identifies the container and its last start
}

// address returns a running container's address. Only an engine that is root's has networks of this host, and only if the network's gateway is an
// address of this host is it one of them: an engine may as well be in a virtual machine.
func (p *Project) address(ctx context.Context, name string) (a address, err error) {
	in, err := p.e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return a, p.e.failure("look at container "+name, err)
	}
	c := in.Container
	if c.State == nil || !c.State.Running || c.State.Paused {
		return a, errs.New(errs.Unavailable, "", "container %s does not run", name).WithHint("start it: docker start %s", name)
	}
	a.run = c.ID + " " + c.State.StartedAt
	if p.e.peer.Load() != 0 || c.NetworkSettings == nil {
		return a, nil
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return a, errs.Wrap(errs.Failed, "list this host's addresses", err)
	}
	for _, n := range c.NetworkSettings.Networks {
		here := func(m net.Addr) bool {
			prefix, err := netip.ParsePrefix(m.String())
			return err == nil && prefix.Addr().Unmap() == n.Gateway.Unmap()
		}
		if n != nil && n.Gateway.IsValid() && n.IPAddress.IsValid() && slices.ContainsFunc(mine, here) && (!a.ip.IsValid() || n.IPAddress.Less(a.ip)) {
			a.ip = n.IPAddress
		}
	}
	return a, nil
}

// relayScript connects its input and output with a port in the container, and prints a dot when it has begun. Most images of databases have bash,
// and those of Alpine busybox.
//
// It ends when either side does, and leaves no process, not even one that has ended and is waited for by nobody: the first process of a container is
// often the server itself, which waits for none but its own. So bash waits for each of its processes by id (its "wait -n" misses one that has ended
// before), and ends the second one, with what that has started, as a group, until there is none. Each round starts a process
// and waits for it: if a process ends just as a wait of bash returns, bash collects it no earlier than in its next wait, and the group would never be empty.
const relayScript = `if command -v bash >/dev/null; then
	exec bash -c '
exec 3<>"/dev/tcp/127.0.0.1/$1" 4<&0 || exit 7
printf .
exec 2>/dev/null
cat <&4 >&3 & in=$!
set -m
{ trap : TERM; cat <&3; kill $in; } & out=$!
set +m
wait $in
while kill -- -$out; do (:); done' relay "$1"
fi
nc="busybox nc"
command -v busybox >/dev/null || nc=nc
command -v $nc >/dev/null || exit 8
printf .
exec $nc 127.0.0.1 "$1"`

// lacksRelay is the exit status of relayScript if the container has no program for it.
const lacksRelay = 8

// relay connects to a port in a container through a command that runs there.
func (p *Project) relay(ctx context.Context, name string, port int) (net.Conn, error) {
	id, inner, err := p.attach(ctx, name, []string{"/bin/sh", "-c", relayScript, "relay", strconv.Itoa(port)}, nil, true)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := pair()
	if err != nil {
		inner.Close()
		return nil, err
	}
	var said bytes.Buffer
	begun := &untilDot{to: theirs, begun: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = demultiplex(inner.Reader, begun, &limited{&said}) // whoever reads sees the end
		inner.Close()
		_ = theirs.Close()
	}()
	select {
	case <-begun.begun:
		go func() {
			_, _ = io.Copy(inner.Conn, theirs) // whoever writes sees the end
			_ = inner.CloseWrite()
			select { // the command ends by itself, unless something is wrong with it
			case <-ended:
			case <-time.After(leaving):
				inner.Close()
			}
		}()
		return ours, nil
	case <-ctx.Done():
		inner.Close()
		return nil, errs.Also(p.e.failure("connect to port "+strconv.Itoa(port)+" in container "+name, ctx.Err()), ours.Close())
	case <-ended:
	}
	err = errs.New(errs.Unavailable, "", "nothing answers at port %d in container %s: %s", port, name, firstLine(said.String())).WithHint("docker logs %s shows what it said", name)
	if in, e := p.e.api.ExecInspect(ctx, id, client.ExecInspectOptions{}); e == nil && in.ExitCode == lacksRelay {
		err = errs.New(errs.Unsupported, "", "container %s has neither bash nor nc, through which its port %d could be reached", name, port).
			WithHint("publish the port on 127.0.0.1, or protect the volume of its data")
	}
	return nil, errs.Also(err, ours.Close())
}

// leaving is how long the command of a relay may take to end once nobody uses it.
const leaving = 5 * time.Second

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// untilDot is a writer that takes the first byte for itself.
type untilDot struct {
	to    io.Writer
	begun chan struct{}
	open  bool
}

func (u *untilDot) Write(b []byte) (int, error) {
	if u.open || len(b) == 0 {
		return u.to.Write(b)
	}
	if b[0] != '.' {
		return 0, fmt.Errorf("the command of a connection says %.20q", b)
	}
	u.open = true
	close(u.begun)
	if len(b) == 1 {
		return 1, nil
	}
	n, err := u.to.Write(b[1:])
	return n + 1, err
}

// pair returns the two ends of a connection within this process. Unlike those of [net.Pipe], they keep some bytes.
func pair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "relay")
		var e error
		conns[i], e = net.FileConn(f)
		err = errors.Join(err, e, f.Close()) // the connection has a duplicate
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close() // err is the error to return
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}
