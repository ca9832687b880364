package ipc

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

const opEnter = "enter the fork"

// enterProtocol is the protocol that a connection changes to, to pass an open connection.
const enterProtocol = "mulligan-enter"

// Enter returns a connection to a process that runs commands inside of a fork (package isolate). end must be called after the command
// has ended.
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
