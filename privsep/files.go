package privsep

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// MaxFile is how many bytes a file may have that a user names as a setting: a
// password file, a certificate, an option file.
const MaxFile = 1 << 20

// fileTimeout bounds how long a small file takes to be read, or made.
const fileTimeout = 15 * time.Second

type reading struct {
	Path string
	Own  bool // it must belong to the user
}

var readFile = Define("privsep.readFile", func(_ context.Context, r reading) ([]byte, error) { return r.small() }).Within(fileTimeout)

// ReadFile reads a small regular file with the user's rights. Anything else that
// is there, and a file of more than [MaxFile] bytes, is errs.Invalid.
func (u User) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return readFile.Call(ctx, u, reading{Path: path})
}

// ReadOwnFile is ReadFile of a file that belongs to the user: another's is errs.Denied.
func (u User) ReadOwnFile(ctx context.Context, path string) ([]byte, error) {
	return readFile.Call(ctx, u, reading{path, true})
}

// small opens the file without waiting, as a fifo would have it, and reads no
// more than it may.
func (r reading) small() ([]byte, error) {
	path := r.Path
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errs.New(errs.Invalid, "", "%q is not a regular file", path).WithHint("name a regular file")
	}
	if r.Own && int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return nil, errs.New(errs.Denied, "", "%q is another user's file", path).WithHint("make it a file of your own")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(data) > MaxFile {
		err = errs.New(errs.Invalid, "", "the file %q has more than %d KiB", path, MaxFile>>10).WithHint("name a smaller file")
	}
	return data, err
}

type creation struct {
	Path string
	Mode os.FileMode
}

type file struct {
	File *os.File `json:"-"`
}

// Files implements [Carrier].
func (f *file) Files() []**os.File { return []**os.File{&f.File} }

var create = Define("privsep.create", func(_ context.Context, c creation) (file, error) {
	f, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, c.Mode)
	return file{f}, err
}).Within(fileTimeout)

// Create makes a regular file, or empties the one that is there, with the user's rights.
func (u User) Create(ctx context.Context, path string, mode os.FileMode) (*os.File, error) {
	f, err := create.Call(ctx, u, creation{path, mode})
	if err != nil {
		return nil, err
	}
	if info, err := f.File.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errs.Also(errs.New(errs.Invalid, "", "%q is not a regular file", path), f.File.Close())
	}
	return f.File, nil
}

// DialTimeout bounds how long a connection takes to be opened.
const DialTimeout = 10 * time.Second

type target struct{ Network, Addr string }

var dial = Define("privsep.dial", func(ctx context.Context, t target) (file, error) {
	c, err := (&net.Dialer{Timeout: DialTimeout}).DialContext(ctx, t.Network, t.Addr)
	if err != nil {
		return file{}, err
	}
	defer c.Close() // the result has a duplicate
	f, err := c.(interface{ File() (*os.File, error) }).File()
	return file{f}, err
})

// Dial connects to an address with the user's rights: the name is looked up, and
// a unix socket reached, as the user, and a server that asks the kernel who calls
// (SO_PEERCRED) hears the user's name. network is "tcp" or "unix".
func (u User) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if u.IsSelf() {
		return (&net.Dialer{Timeout: DialTimeout, KeepAlive: time.Minute}).DialContext(ctx, network, addr)
	}
	limited, cancel := context.WithTimeout(ctx, DialTimeout+5*time.Second)
	defer cancel()
	f, err := dial.Call(limited, u, target{network, addr})
	if err != nil {
		return nil, dialError(network, addr, err)
	}
	defer f.File.Close() // c has a duplicate
	c, err := net.FileConn(f.File)
	if err != nil {
		return nil, dialError(network, addr, err)
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		return c, errs.Also(tcp.SetKeepAlive(true), tcp.SetKeepAlivePeriod(time.Minute))
	}
	return c, nil
}

// dialError gives an error the form that package net would have given it.
func dialError(network, addr string, err error) error {
	var r *remoteError
	if errors.As(err, &r) && r.errno != 0 {
		err = os.NewSyscallError("connect", r.errno)
	}
	return &net.OpError{Op: "dial", Net: network, Addr: address{network, addr}, Err: err}
}

// address is where a connection was to lead.
type address struct{ network, addr string }

// Network implements net.Addr.
func (a address) Network() string { return a.network }

// String implements net.Addr.
func (a address) String() string { return a.addr }
