// Package sysfault lets a test fail any one system call of a program that knows
// nothing of it. The kernel asks the test about each call that touches files,
// connections or programs (seccomp's user notification, see
// seccomp_unotify(2)); the test lets it through, or answers in the kernel's
// place with an error. So the failpoints of a program are its real system calls,
// enumerated by its running, those in libraries and in the tools that it starts
// among them, and the program that is shipped pays nothing for them.
//
//	p, _ := sysfault.Start(exec.Command(…), sysfault.Options{})
//	p.Arm(sysfault.Fault{})          // watch only
//	… have it do its work …
//	calls := p.Disarm().Calls        // "fsync /state/mulligan.db-wal", "execve pg_dump", …
//	p.Arm(sysfault.Fault{Call: calls[7], Nth: 1, Errno: unix.EIO})
//
// It is for tests alone. Watching another process takes no privilege where it
// is the test's own child.
package sysfault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Options say what is looked at.
type Options struct {
	// Name words a path; calls on paths for which it is "" are let through
	// unseen. By default paths are left as they are.
	Name func(path string) string
	// Spare reports whether a process is none of the test's business; it is told
	// the process's command line.
	Spare func(args []string) bool
}

// Fault is one call that fails. A write to a socket that fails breaks its connection: a program may take a failed write for the
// end of the connection, and wait until it reads that end (libpq does).
type Fault struct {
	Call  string // as Report.Calls names it; "": none
	Nth   int    // of the calls of that name, counted from 1; 0: each of them
	Errno unix.Errno
	// From and To are offsets in the file: if To is not 0, only reads and writes at an offset fail (pread, pwrite), of any byte from From up to To.
	From, To int64
}

// touches reports whether n is a call for the bytes that the fault is limited to.
func (f Fault) touches(n *notification) bool {
	if f.To == 0 {
		return true
	}
	off := int64(n.args[3])
	return (n.nr == unix.SYS_PREAD64 || n.nr == unix.SYS_PWRITE64) && off < f.To && f.From < off+int64(n.args[2])
}

// Report is what was seen while a fault was armed.
type Report struct {
	Calls []string // in order
	Hit   bool     // the fault happened
}

// Process is a program under watch.
type Process struct {
	*exec.Cmd
	opt      Options
	listener int
	ended    chan struct{}

	mu     sync.Mutex
	armed  bool
	fault  Fault
	seen   int // calls of the fault's name
	report Report
}

// Start starts cmd, whose children are watched like itself. Wait is to be called as for any
// command; the watch ends when the last of the processes does.
func Start(cmd *exec.Cmd, opt Options) (*Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "launcher")
	defer theirs.Close()
	wrap(cmd, theirs)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close()
	listener, err := receive(pair[0])
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the launcher of %s: %w", cmd.Path, err), cmd.Process.Kill(), cmd.Wait())
	}
	p := &Process{Cmd: cmd, opt: opt, listener: listener, ended: make(chan struct{})}
	go p.serve()
	return p, nil
}

// Arm has f happen from now on, and begins a new report.
func (p *Process) Arm(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.fault, p.seen, p.report = true, f, 0, Report{}
}

// Disarm lets everything through again.
func (p *Process) Disarm() Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	return p.report
}

// Ended is closed when the program and all that it started are gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// decide says what becomes of a call: 0 lets it through.
func (p *Process) decide(n *notification) unix.Errno {
	p.mu.Lock()
	armed := p.armed
	p.mu.Unlock()
	if !armed || p.opt.Spare != nil && p.opt.Spare(args(n.pid)) {
		return 0
	}
	call, ok := p.word(n)
	if !ok {
		return 0
	}
	errno := p.count(n, call)
	if errno != 0 && call == calls[unix.SYS_SENDTO].name+socketSuffix {
		n.shutDown()
	}
	return errno
}

// count counts a call, and says how it fails; 0: it does not.
func (p *Process) count(n *notification, call string) unix.Errno {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed {
		return 0
	}
	p.report.Calls = append(p.report.Calls, call)
	if call != p.fault.Call || !p.fault.touches(n) {
		return 0
	}
	if p.seen++; p.fault.Nth > 0 && p.seen != p.fault.Nth {
		return 0
	}
	p.report.Hit = true
	return p.fault.Errno
}

// socketSuffix is what a call is done to, if that is a socket.
const socketSuffix = " socket"

// word names a call: what it does, and to what.
func (p *Process) word(n *notification) (string, bool) {
	what := calls[n.nr]
	path, ok := what.object(n)
	if !ok {
		return "", false
	}
	if strings.HasPrefix(path, "socket:") {
		return what.name + socketSuffix, true
	}
	if p.opt.Name != nil {
		path = p.opt.Name(path)
	}
	return what.name + " " + path, path != ""
}

// args is a process's command line.
func args(pid uint32) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}
