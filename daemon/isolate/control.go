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
	"mulligan/ipc"
)

// Dial connects to the init whose control socket is at path. The error is of kind errs.Unavailable if no init listens there.
func Dial(path string) (*net.UnixConn, error) {
	var conn *net.UnixConn
	addr, release, err := address(path)
	if err == nil {
		defer release()
		conn, err = net.DialUnix("unix", nil, addr)
	}
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, errs.Wrap(errs.Unavailable, "enter the fork", err)
	}
	return conn, err
}

// exits hands the ends of processes to those who wait for them.
type exits struct {
	sync.Mutex
	waits  map[int]chan syscall.WaitStatus
	closed bool // no process is started any more
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
		_ = json.NewEncoder(c).Encode(ipc.InsideAnswer{Problem: err.Error()}) // the client may be gone
		return
	}
	watch := make(chan syscall.WaitStatus, 1)
	pid, err := in.start(command{Path: r.Args[0], Args: r.Args, Env: append(r.Env, in.plan.Override...), Dir: r.Dir}, files, watch)
	if err != nil {
		_ = json.NewEncoder(c).Encode(ipc.InsideAnswer{Problem: err.Error()}) // the client may be gone
		return
	}
	ended := make(chan struct{})
	go func() {
		for d := json.NewDecoder(c); ; {
			var s ipc.InsideSignal
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
	_ = json.NewEncoder(c).Encode(ipc.InsideAnswer{Status: exitStatus(ws)}) // the client may be gone
}

// receive reads a request and its three descriptors.
func receive(c *net.UnixConn) (r ipc.InsideRequest, files []*os.File, err error) {
	var text []byte
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(3*4))
	for len(text) == 0 || text[len(text)-1] != '\n' {
		n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
		if err != nil {
			return r, files, err
		}
		if n == 0 || len(text)+n > ipc.MaxInside {
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
