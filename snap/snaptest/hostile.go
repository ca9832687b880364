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

// MostMemory is how many bytes of memory a process may use when its driver talks to a hostile
// server.
const MostMemory = 256 << 20

// HostileResult is what a process reports after it ran a driver against a hostile server.
type HostileResult struct {
	Peak  int64     // the peak memory of the process, in bytes
	Child int64     // the largest peak of any of its children, in bytes
	Kind  errs.Kind // the kind of the driver's error; "" if there was none
	Error string
	Hint  string
}

// PrintHostileResult prints err and the peak memory of this process as a HostileResult, which
// Attack reads.
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

// MeasuredBinary returns the path of a test binary for a process whose memory is measured. It has
// no race detector, which would multiply the memory; if the running binary has one, MeasuredBinary
// builds another, once for all tests.
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

// buildMeasured returns the path of an open, deleted file that holds the binary, so that nothing
// has to be removed afterwards.
var buildMeasured = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "victim-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "victim")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-trimpath", "-ldflags=-s -w", "-o", path, ".") // nobody debugs it
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

// measuredFile keeps the binary's file open until this process ends.
var measuredFile *os.File

// Attack serves every connection to a port of loopback with serve, while victim runs a driver
// against that port. The process must end with PrintHostileResult. Attack fails the test if the
// process used more than MostMemory.
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

// Flood writes p repeatedly, until about total bytes are written or the reader is gone.
func Flood(c net.Conn, p []byte, total int64) {
	block := bytes.Repeat(p, max(1, (256<<10)/len(p)))
	for ; total > 0; total -= int64(len(block)) {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}
