// Package internet makes a small internet for a test: a host's network, whose default route leads to the outside, and on the host a bridge
// with a guest behind it. Each is a network namespace of its own, which ends with the test's process. It needs root, and the program ip of
// iproute2.
package internet

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

// The addresses of this internet, of ranges that are for documentation (RFC 5737) and private ones.
const (
	HostAddress   = "198.51.100.2"
	BridgeAddress = "172.30.0.1" // the host's too
	GuestAddress  = "172.30.0.2"
	OutsideServer = "203.0.113.9"
)

// Place is one of the networks.
type Place int

// The places of a [Net].
const (
	Host Place = iota
	Outside
	Guest
)

// Net is such an internet.
type Net struct {
	t      testing.TB
	spaces [3]*os.File
}

// New makes an internet for the test.
func New(t testing.TB) *Net {
	t.Helper()
	testkit.Need(t, "root", "ip")
	n := &Net{t: t}
	here := open(t)
	for i := range n.spaces {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Fatal(err) // on a thread that ends with this goroutine
		}
		n.spaces[i] = open(t)
		enter(t, here)
		runtime.UnlockOSThread()
		t.Cleanup(func() { n.spaces[i].Close() })
	}
	here.Close()
	n.link(Outside, "wan", "lan")
	n.link(Guest, "port", "eth0")
	n.run(Host, "link set lo up; addr add 198.51.100.2/24 dev wan; link set wan up; route add default via 198.51.100.1;"+
		"link add bridge0 type bridge; link set port master bridge0; addr add 172.30.0.1/16 dev bridge0; link set port up; link set bridge0 up")
	n.run(Outside, "link set lo up; addr add 198.51.100.1/24 dev lan; link set lan up; addr add 203.0.113.9/32 dev lo")
	n.run(Guest, "link set lo up; addr add 172.30.0.2/16 dev eth0; link set eth0 up; route add default via 172.30.0.1")
	return n
}

// open opens the network namespace of this thread.
func open(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func enter(t testing.TB, space *os.File) {
	t.Helper()
	if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// At calls f on a thread that is in the place: what f starts, and where f listens, is there.
func (n *Net) At(where Place, f func()) {
	n.t.Helper()
	runtime.LockOSThread()
	here := open(n.t)
	defer here.Close()
	enter(n.t, n.spaces[where])
	f() // a failed test ends this goroutine, and with it the thread
	enter(n.t, here)
	runtime.UnlockOSThread()
}

// link connects the host with another place.
func (n *Net) link(to Place, ours, theirs string) {
	n.t.Helper()
	resident := exec.Command("sleep", "1000") // ip takes the other place by the number of a process in it
	n.At(to, func() {
		if err := resident.Start(); err != nil {
			n.t.Fatal(err)
		}
	})
	defer func() {
		_ = resident.Process.Kill()
		_ = resident.Wait() // by that signal
	}()
	n.run(Host, fmt.Sprintf("link add %s type veth peer name %s netns %d", ours, theirs, resident.Process.Pid))
}

// run runs commands of ip(8) in a place.
func (n *Net) run(where Place, commands string) {
	n.t.Helper()
	for c := range strings.SplitSeq(commands, ";") {
		n.At(where, func() {
			if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				n.t.Fatalf("ip %s: %v: %s", c, err, out)
			}
		})
	}
}

// Serve has a web server in a place say the text at an address, until the test ends.
func (n *Net) Serve(where Place, address, text string) {
	n.t.Helper()
	n.At(where, func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			n.t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })}
		go s.Serve(l)
		n.t.Cleanup(func() { s.Close() })
	})
}

// ServeNames has a server in a place answer at an address, by UDP, that all names are those of [OutsideServer].
func (n *Net) ServeNames(where Place, address string) {
	n.t.Helper()
	n.At(where, func() {
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 1500)
			for {
				size, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				if size > 12 {
					_, _ = c.WriteTo(answer(buf[:size]), from) // who asked may be gone
				}
			}
		}()
	})
}

// answer answers a query (RFC 1035): for addresses of IPv4 with one, and else that there is none.
func answer(query []byte) []byte {
	end := bytes.IndexByte(query[12:], 0) + 12 + 1 + 4 // of the question
	if end < 17 || end > len(query) {
		return nil
	}
	out := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
	if query[end-3] != 1 { // not of type A
		return out
	}
	out[7] = 1
	out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4)
	return append(out, net.ParseIP(OutsideServer).To4()...)
}

// Processes lists those processes in the place whose command line has the word.
func (n *Net) Processes(where Place, word string) (pids []int) {
	n.t.Helper()
	var space unix.Stat_t
	if err := unix.Fstat(int(n.spaces[where].Fd()), &space); err != nil {
		n.t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && unix.Stat("/proc/"+e.Name()+"/ns/net", &st) == nil && st.Ino == space.Ino && bytes.Contains(line, []byte(word)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
