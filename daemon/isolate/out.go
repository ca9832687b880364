package isolate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// The way out of a fork leads to where its host gets to by IPv4, and not to the host itself. pasta(1), of the project passt, makes it: an
// interface in the fork's network namespace, and behind it ordinary sockets of a process in the host's, which runs with the rights of the
// app's owner. It needs no firewall and no root.
//
// A process can reach the fork's namespaces and the host's network only while it is in the second, so the way out is made first: an init
// with one is started in the host's network, leaves it, has pasta started behind itself, and executes itself again. pasta is in the fork's
// namespace of process ids, and ends with it.
//
// The host's own addresses are the fork's own inside, as its loopback is. Networks of the host's bridges, where its containers and guests
// are, are unreachable, unless the host itself gets out by that bridge; and so are groups of multicast, in which a fork could join a
// cluster of its parent's. All this is of the moment at which the way out is made.

// Pasta returns the path of the program that makes ways out; "" if the host has none.
func Pasta() string {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/run/current-system/sw/bin"} {
		path := dir + "/pasta"
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// tun is the device by which pasta makes interfaces.
const tun = "/dev/net/tun"

// NoWayOut says in a sentence why forks on this host would have no way out; "": they would have one, as far as one can see beforehand.
func NoWayOut() string {
	const so = "The fork reaches nothing outside of itself, because "
	if Pasta() == "" {
		return so + "this host does not have the program pasta, which is in the package passt."
	}
	if _, err := os.Stat(tun); err != nil {
		return so + "this host has no " + tun + "."
	}
	if out, err := outward(); err == nil && len(out) == 0 {
		return so + "this host has no default route for IPv4 at present. Once it has one, stop the fork and start it."
	}
	return ""
}

// Resolver is an address at which a fork with a way out reaches the host's resolver of names, which may listen on the host's loopback.
const Resolver = "169.254.1.1"

// ResolvConf is the resolv.conf(5) that a fork with a way out needs in place of the host's, whose text is given. It is nil if the host's
// serves, because no resolver in it is on this host. own are the host's addresses.
func ResolvConf(host []byte, own []netip.Addr) []byte {
	var lines []string
	local, named := false, false
	for line := range strings.Lines(string(host)) {
		line = strings.TrimRight(line, "\n")
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			named = true
			if a, err := netip.ParseAddr(f[1]); err == nil && (a.IsLoopback() || slices.Contains(own, a.WithZone(""))) {
				local = true
				line = "nameserver " + Resolver
			}
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if !named { // the C library asks at 127.0.0.1
		local = true
		lines = append(lines, "nameserver "+Resolver)
	}
	if !local {
		return nil
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// outName is the name (argv[0]) by which a process recognizes that it was started as an init that is still in the host's network.
const outName = "mulligand-fork-out"

// OutName is the name (argv[0]) by which a process recognizes that it was started, by root, to make the way out of the network namespace that
// it is in. Its arguments are the path of pasta, and the numbers of the user and the group with whose rights that runs.
const OutName = "mulligand-way-out"

func init() {
	if len(os.Args) > 0 && (os.Args[0] == outName || os.Args[0] == OutName) {
		runtime.LockOSThread() // what the first thread is in, others find in /proc/PID
	}
}

// noWayOut is what the output of a fork's command begins with, before the reason, if it has no way out for once.
const noWayOut = "mulligan: this fork reaches nothing outside:"

// outMain is the life of an init in the host's network. It executes itself again, as an init in the network of the fork.
func outMain() int {
	err := enterNetwork()
	_, _ = unix.Write(statusFD, failure(err)) // there is nobody else to tell
	return 2
}

func enterNetwork() error {
	paper, err := unix.FcntlInt(planFD, unix.F_DUPFD_CLOEXEC, firstFrontFD) // the next init reads the plan too
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	p, err := readPlan(paper)
	if err != nil {
		return err
	}
	last := firstFrontFD + len(p.Fronts)
	for fd := planFD; fd < last; fd++ {
		unix.CloseOnExec(fd)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	o := out{p.Out, p.User}
	// Only this thread, the first, has left the host's network.
	open, err := o.open(func(do func() error) error {
		done := make(chan error)
		go func() { done <- do() }()
		return <-done
	})
	if open && err != nil {
		return err
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, noWayOut, err)
	}
	for fd := planFD; fd < last; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
	}
	return os.NewSyscallError("execve", unix.Exec("/proc/self/exe", []string{initName}, os.Environ()))
}

// wayOutMain makes a way out for a unit.
func wayOutMain() int {
	if err := makeWayOut(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func makeWayOut(args []string) error {
	if len(args) != 3 {
		return errs.New(errs.Invalid, "", "a program, a user and a group are needed")
	}
	uid, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	host, err := os.Open("/proc/1/ns/net")
	if err != nil {
		return err
	}
	defer host.Close() // it was only read
	_, err = out{args[0], privsep.User{UID: uid, GID: gid}}.open(func(do func() error) error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			err := os.NewSyscallError("setns", unix.Setns(int(host.Fd()), unix.CLONE_NEWNET))
			if err == nil {
				err = do()
			}
			done <- err
		}()
		return <-done
	})
	return err
}

// out is a way out.
type out struct {
	program string       // pasta
	user    privsep.User // as whom it runs
}

// open makes the way out of the network namespace of this thread, to that in which onHost runs a function. made reports whether there is one,
// also if not all of it is as it must be.
func (o out) open(onHost func(func() error) error) (made bool, err error) {
	inside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false, err
	}
	defer inside.Close() // it is not written to
	var near nearby
	err = onHost(func() (err error) {
		if near, err = nearbyOf(); err != nil {
			return err
		}
		return o.pasta(inside)
	})
	if err != nil {
		return false, err
	}
	return true, near.bar()
}

// pastaTimeout bounds the time until pasta is ready.
const pastaTimeout = 10 * time.Second

// Nobody has the rights of pasta in place of root.
var Nobody = privsep.User{UID: 65534, GID: 65534}

// pasta starts pasta for a network namespace, and returns when it is ready: its first process ends then.
func (o out) pasta(inside *os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), pastaTimeout)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, o.program, "--quiet", "--ipv4-only", "--config-net",
		"--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none", // nothing is forwarded
		"--no-map-gw", // the gateway's address is the gateway's, and not the host's loopback
		"--no-dhcp", "--dns-forward", Resolver,
		// pasta closes most of the descriptors that it inherits, and it ends with the namespace of process ids, or its unit.
		"--netns", "/proc/self/fd/0", "--no-netns-quit")
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr, cmd.WaitDelay = "/", []string{"LC_ALL=C"}, inside, &said, time.Second
	user := o.user
	if user.IsSelf() && os.Geteuid() == 0 {
		user = Nobody
	}
	// It enters the namespace, configures its interface, and gives both rights up.
	err := privsep.StartWith(cmd, user, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)
	if err == nil {
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		return errs.New(errs.Unavailable, "", "pasta was not ready after %s", pastaTimeout)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return errs.New(errs.Failed, "", "pasta ended with %v: %s", err, sayings(said.String()))
	}
	return err
}

// sayings is what pasta wrote, in one line, without its complaints that nobody logs for it.
func sayings(text string) string {
	var list []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "Failed to send ") {
			list = append(list, line)
		}
	}
	return fmt.Sprintf("%.500s", strings.Join(list, "; "))
}

// nearby is what a way out must not lead to.
type nearby struct {
	own    []netip.Addr   // the host's addresses
	barred []netip.Prefix // networks
}

// multicast are the addresses of groups.
var multicast = netip.MustParsePrefix("224.0.0.0/4")

// nearbyOf looks at the network namespace that the calling thread is in.
func nearbyOf() (n nearby, err error) {
	n.barred = []netip.Prefix{multicast}
	out, err := outward()
	if err != nil {
		return n, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return n, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	list, err := net.Interfaces()
	if err != nil {
		return n, err
	}
	for _, i := range list {
		info, err := unix.IoctlGetEthtoolDrvinfo(fd, i.Name)
		bridge := err == nil && unix.ByteSliceToString(info.Driver[:]) == "bridge"
		addrs, err := i.Addrs()
		if err != nil {
			return n, err
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() || p.Addr().IsLoopback() {
				continue // IPv6, or the fork's own already
			}
			n.own = append(n.own, p.Addr())
			if bridge && !slices.Contains(out, i.Name) {
				n.barred = append(n.barred, p.Masked())
			}
		}
	}
	return n, nil
}

// outward lists the interfaces that have default routes.
func outward() (names []string, err error) {
	text, err := os.ReadFile("/proc/thread-self/net/route")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			names = append(names, f[0])
		}
	}
	return names, nil
}

// bar takes the host's addresses for the fork's own, and makes the barred networks unreachable, in the network namespace of this thread.
func (n nearby) bar() error {
	if err := loopbackUp(); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for _, a := range n.own {
		r := unix.RtMsg{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
		if err := addRoute(fd, r, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return errs.Wrap(errs.Failed, fmt.Sprintf("keep %s inside", a), err)
		}
	}
	for _, p := range n.barred {
		r := unix.RtMsg{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNREACHABLE}
		if err := addRoute(fd, r, p); err != nil {
			return errs.Wrap(errs.Failed, fmt.Sprintf("bar %s", p), err)
		}
	}
	return nil
}

// loopbackIndex is the number of the loopback interface in every network namespace.
const loopbackIndex = 1

// addRoute adds a route for IPv4 (rtnetlink(7)), by the loopback interface if it is a local one.
func addRoute(fd int, r unix.RtMsg, to netip.Prefix) error {
	r.Family, r.Dst_len, r.Protocol = unix.AF_INET, uint8(to.Bits()), unix.RTPROT_STATIC
	body, err := binary.Append(nil, binary.NativeEndian, r)
	if err != nil {
		return err
	}
	body = attribute(body, unix.RTA_DST, to.Masked().Addr().AsSlice())
	if r.Type == unix.RTN_LOCAL {
		body = attribute(body, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loopbackIndex))
	}
	head := unix.NlMsghdr{Len: uint32(unix.SizeofNlMsghdr + len(body)), Type: unix.RTM_NEWROUTE,
		Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL}
	message, err := binary.Append(nil, binary.NativeEndian, head)
	if err != nil {
		return err
	}
	if err := unix.Sendto(fd, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	got, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	if got < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errs.New(errs.Internal, "", "the kernel gave no answer about a route")
	}
	if e := -int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); e != 0 && unix.Errno(e) != unix.EEXIST { // an interface has it already
		return unix.Errno(e)
	}
	return nil
}

// attribute appends an attribute, whose value is a multiple of four bytes.
func attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(unix.SizeofRtAttr+len(value)))
	to = binary.NativeEndian.AppendUint16(to, kind)
	return append(to, value...)
}
