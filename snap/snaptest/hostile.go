package snaptest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// MostMemory is what a process that runs a driver may take against a hostile server, in bytes.
const MostMemory = 256 << 20

// HostileResult is what a process tells that ran a driver against a hostile server.
type HostileResult struct {
	Peak  int64     // the most memory that the process ever had, in bytes
	Child int64     // the same of any of its children
	Kind  errs.Kind // of the error; "" without one
	Error string
	Hint  string
}

// PrintHostileResult prints what err and the process' memory came to, for Attack to read.
func PrintHostileResult(err error) {
	s := HostileResult{Kind: errs.KindOf(err), Hint: errs.HintOf(err)}
	if err != nil {
		s.Error = err.Error()
	}
	status, e := os.ReadFile("/proc/self/status")
	if e == nil {
		_, after, _ := strings.Cut(string(status), "VmHWM:")
		var kib int64
		_, e = fmt.Sscan(after, &kib)
		s.Peak = kib << 10
	}
	var used unix.Rusage
	if e == nil {
		e = unix.Getrusage(unix.RUSAGE_CHILDREN, &used)
	}
	if s.Child = used.Maxrss << 10; e == nil {
		e = json.NewEncoder(os.Stdout).Encode(s)
	}
	if e != nil {
		fmt.Fprintln(os.Stderr, "hostile test:", e)
		os.Exit(1)
	}
}

// MeasuredBinary is the test binary, for a process whose memory is measured: one without the
// race detector, which would take several times as much, is built where there is none,
// once for all tests.
func MeasuredBinary(t *testing.T) string {
	t.Helper()
	if !race {
		return os.Args[0]
	}
	path, err := buildMeasured()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildMeasured gives the program as an open file of this process, which has no name that would have to be removed.
var buildMeasured = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "victim-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "victim")
	cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", path, ".") // nobody debugs it
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c: %w: %s", err, out)
	}
	measuredFile, err = os.Open(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), measuredFile.Fd()), nil
})

// measuredFile is never closed.
var measuredFile *os.File

// Attack has serve answer every connection to a port of loopback, while victim, a
// process that ends with PrintHostileResult, runs a driver against it. It checks the memory.
func Attack(t *testing.T, serve func(net.Conn), victim func(port int) *exec.Cmd) HostileResult {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	cmd := victim(l.Addr().(*net.TCPAddr).Port)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var s HostileResult
	if err := json.Unmarshal(bytes.TrimSpace(out), &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%d MiB; %s: %.300s (%s)", s.Peak>>20, s.Kind, s.Error, s.Hint)
	if s.Peak == 0 || s.Peak > MostMemory {
		t.Errorf("the process took %d MiB", s.Peak>>20)
	}
	return s
}

// Flood writes p again and again, until about total bytes are written or nobody reads any more.
func Flood(c net.Conn, p []byte, total int64) {
	block := bytes.Repeat(p, max(1, (256<<10)/len(p)))
	for ; total > 0; total -= int64(len(block)) {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}
