package ipc

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

const opEnter = "enter the fork"

// enterProtocol is the protocol that a connection changes to, to pass an open connection.
const enterProtocol = "mulligan-enter"

// Enter returns a connection for RunInside. end must be called after the command has ended.
func (c *Client) Enter(ctx context.Context, app, fork string) (conn *net.UnixConn, end func(), err error) {
	var mu sync.Mutex
	var raw net.Conn
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
		if err != nil {
			return nil, dialError{err}
		}
		mu.Lock()
		defer mu.Unlock()
		raw = conn
		return conn, nil
	}}
	path := "/api/apps/" + url.PathEscape(app) + "/forks/" + url.PathEscape(fork) + "/enter"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mulligan"+path, nil)
	if err != nil {
		return nil, nil, errs.Wrap(errs.Invalid, opEnter, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", enterProtocol)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, nil, c.lost(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		return nil, nil, c.refusal(ctx, resp)
	}
	// The daemon sends nothing until it has got one byte: so the connection that it passes is not read by anybody else.
	mu.Lock()
	defer mu.Unlock()
	uc := raw.(*net.UnixConn) // the dialer's network is unix
	conn, err = receiveConn(uc)
	if err != nil {
		return nil, nil, errs.Also(errs.Wrap(errs.Unavailable, opEnter, err), resp.Body.Close())
	}
	return conn, func() { _ = resp.Body.Close() }, nil // the daemon sees the end of the connection
}

// receiveConn receives a connection.
func receiveConn(c *net.UnixConn) (*net.UnixConn, error) {
	if _, err := c.Write([]byte{0}); err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	list, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(list) != 1 {
		return nil, errs.New(errs.Unavailable, "", "the daemon closed the connection")
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "fork")
	defer f.Close() // the connection has a duplicate
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errs.Also(errs.New(errs.Internal, "", "the daemon passed %T", conn), conn.Close())
	}
	return uc, nil
}

// PassConn answers a request with a connection, and returns when the client has ended its own to the daemon.
func PassConn(w http.ResponseWriter, r *http.Request, pass *net.UnixConn) error {
	if r.Header.Get("Upgrade") != enterProtocol {
		return errs.New(errs.Invalid, opEnter, "the request does not ask for the protocol %s", enterProtocol)
	}
	f, err := pass.File()
	if err != nil {
		return errs.Wrap(errs.Failed, opEnter, err)
	}
	defer f.Close() // the client has a duplicate
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return errs.Wrap(errs.Unsupported, opEnter, err)
	}
	defer conn.Close() // the client has ended it, or is gone
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil // the route is for the unix socket only
	}
	_, err = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + enterProtocol + "\r\n\r\n")
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		_, err = buffered.ReadByte()
	}
	if err != nil {
		return nil // the client is gone
	}
	if _, _, err := uc.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		return nil // the client is gone
	}
	_, _ = buffered.ReadByte() // until the client ends the connection
	return nil
}

// Messages on a connection that leads into a fork are lines of JSON. The client sends one InsideRequest with three descriptors, then
// any number of InsideSignals. The process inside answers with one InsideAnswer.
type (
	InsideRequest struct {
		Args, Env []string
		Dir       string
	}
	InsideSignal struct{ Signal int }
	InsideAnswer struct {
		Status  int    // as a shell would give it
		Problem string // why the command did not run
	}
)

// MaxInside bounds an InsideRequest in bytes.
const MaxInside = 1 << 20

// Command is a command to be run inside of a fork.
type Command struct {
	Args, Env []string
	Dir       string
	Files     [3]*os.File // its standard input, output and error
}

// RunInside runs a command inside of the fork that conn leads to, and returns its exit status. The values of signals are sent to the
// command's process group. When the caller ends or closes conn, the command gets SIGHUP. A connection is good for one command;
// RunInside closes it.
func RunInside(conn *net.UnixConn, c Command, signals <-chan os.Signal) (status int, err error) {
	defer conn.Close()
	rights := unix.UnixRights(int(c.Files[0].Fd()), int(c.Files[1].Fd()), int(c.Files[2].Fd()))
	text, err := json.Marshal(InsideRequest{Args: c.Args, Env: c.Env, Dir: c.Dir})
	if err != nil {
		return 0, err
	}
	if len(text) >= MaxInside {
		return 0, errs.New(errs.Invalid, opEnter, "arguments and environment have %d bytes, and may have %d", len(text), MaxInside)
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
					_ = json.NewEncoder(conn).Encode(InsideSignal{int(n)}) // the command may have ended
				}
			case <-done:
				return
			}
		}
	}()
	var a InsideAnswer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return 0, errs.New(errs.Unavailable, opEnter, "the fork ended").WithHint("start it again: `mulligan forks` shows its state")
	}
	if a.Problem != "" {
		return 0, errs.New(errs.Failed, opEnter, "%s", a.Problem)
	}
	return a.Status, nil
}
