package isolate

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Messages on the control socket are packets of JSON. A client sends one request with three descriptors, then any number of
// signals; the init answers with the process's end, or why it did not begin.
type (
	request struct {
		Args, Env []string
		Dir       string
	}
	signalled struct{ Signal int }
	answer    struct {
		Status  int    // as a shell would give it
		Problem string // why the command did not run
	}
)

// maxRequest bounds a message in bytes: arguments and environment.
const maxRequest = 1 << 20

// Dial connects to the init whose control socket is at path. The error is of kind errs.Unavailable if no init listens there.
func Dial(path string) (*net.UnixConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, errs.Wrap(errs.Unavailable, "enter the fork", err)
	}
	return conn, err
}

// Command is a command to be run inside of a fork.
type Command struct {
	Args, Env []string
	Dir       string
	Files     [3]*os.File // its standard input, output and error
}

// Exec runs a command inside of the fork whose init conn leads to, and returns its exit status. The values of signals are sent to the
// command's process group. When the caller ends or closes conn, the command gets SIGHUP. A connection is good for one command; Exec
// closes it.
func Exec(conn *net.UnixConn, c Command, signals <-chan os.Signal) (status int, err error) {
	defer conn.Close()
	rights := unix.UnixRights(int(c.Files[0].Fd()), int(c.Files[1].Fd()), int(c.Files[2].Fd()))
	text, err := json.Marshal(request{Args: c.Args, Env: c.Env, Dir: c.Dir})
	if err != nil {
		return 0, err
	}
	if len(text) >= maxRequest {
		return 0, errs.New(errs.Invalid, "exec", "arguments and environment have %d bytes, and may have %d", len(text), maxRequest)
	}
	if _, _, err := conn.WriteMsgUnix(append(text, '\n'), rights, nil); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				if n, ok := s.(syscall.Signal); ok {
					_ = json.NewEncoder(conn).Encode(signalled{int(n)}) // the command may have ended
				}
			case <-done:
				return
			}
		}
	}()
	var a answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return 0, errs.New(errs.Unavailable, "exec", "the fork ended").WithHint("start it again: mulligan forks shows its state")
	}
	if a.Problem != "" {
		return 0, errs.New(errs.Failed, "exec", "%s", a.Problem)
	}
	return a.Status, nil
}

// exits hands the ends of processes to those who wait for them.
type exits struct {
	sync.Mutex
	waits map[int]chan syscall.WaitStatus
}

// tell hands on the end of a process. The lock that a start holds until the process is in the map comes before.
func (e *exits) tell(pid int, ws syscall.WaitStatus) {
	e.Lock()
	defer e.Unlock()
	if w := e.waits[pid]; w != nil {
		delete(e.waits, pid)
		w <- ws
	}
}

// control serves the control socket until the init ends.
func (in *inside) control(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			in.exec(c)
		}()
	}
}

// exec serves one client.
func (in *inside) exec(c *net.UnixConn) {
	r, files, err := receive(c)
	defer closeAll(&files)
	if err != nil {
		_ = json.NewEncoder(c).Encode(answer{Problem: err.Error()}) // the client may be gone
		return
	}
	watch := make(chan syscall.WaitStatus, 1)
	pid, err := in.start(command{Path: r.Args[0], Args: r.Args, Env: r.Env, Dir: r.Dir}, files, watch)
	if err != nil {
		_ = json.NewEncoder(c).Encode(answer{Problem: err.Error()}) // the client may be gone
		return
	}
	ended := make(chan struct{})
	go func() {
		for d := json.NewDecoder(c); ; {
			var s signalled
			if d.Decode(&s) != nil {
				s.Signal = int(unix.SIGHUP) // the client is gone
			}
			in.exits.Lock()
			if in.exits.waits[pid] != nil { // it was not reaped: the number is its own
				_ = unix.Kill(-pid, syscall.Signal(s.Signal)) // its group may have ended
			}
			in.exits.Unlock()
			select {
			case <-ended:
				return
			default:
				if s.Signal == int(unix.SIGHUP) {
					return
				}
			}
		}
	}()
	ws := <-watch
	close(ended)
	_ = json.NewEncoder(c).Encode(answer{Status: exitStatus(ws)}) // the client may be gone
}

// receive reads a request and its three descriptors.
func receive(c *net.UnixConn) (r request, files []*os.File, err error) {
	var text []byte
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(3*4))
	for len(text) == 0 || text[len(text)-1] != '\n' {
		n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
		if err != nil {
			return r, files, err
		}
		if n == 0 || len(text)+n > maxRequest {
			return r, files, errors.New("the request is too long or was cut off")
		}
		text = append(text, buf[:n]...)
		list, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return r, files, err
		}
		for _, m := range list {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				return r, files, err
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				files = append(files, os.NewFile(uintptr(fd), "of the client"))
			}
		}
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, files, err
	}
	if len(files) != 3 || len(r.Args) == 0 || r.Args[0] == "" {
		return r, files, errors.New("a command and three descriptors are needed")
	}
	return r, files, nil
}
