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

// MaxFile bounds the bytes of a file that ReadFile and ReadOwnFile read: a password file, a certificate, an option file.
const MaxFile = 1 << 20

// fileTimeout bounds the time to read or create a small file.
const fileTimeout = 15 * time.Second

type reading struct {
	Path string
	Own  bool // the file must belong to the user
}

var readFile = Define("privsep.readFile", func(_ context.Context, r reading) ([]byte, error) { return r.small() }).Within(fileTimeout)

// ReadFile reads a small regular file with the user's rights. The error is of kind errs.Invalid for any other type of file, and
// for more than [MaxFile] bytes.
func (u User) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return readFile.Call(ctx, u, reading{Path: path})
}

// ReadOwnFile is ReadFile for a file that must belong to the user. The error for another user's file is of kind errs.Denied.
func (u User) ReadOwnFile(ctx context.Context, path string) ([]byte, error) {
	return readFile.Call(ctx, u, reading{path, true})
}

// small reads the file. It opens the file without blocking, because the file may be a fifo, and reads at most one byte more
// than [MaxFile].
func (r reading) small() ([]byte, error) {
	path := r.Path
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the file was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errs.New(errs.Invalid, "", "%q is not a regular file", path).WithHint("name a regular file")
	}
	if r.Own && int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return nil, errs.New(errs.Denied, "", "%q belongs to another user", path).WithHint("name a file that belongs to the app's owner")
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

// Create creates or truncates a regular file with the user's rights.
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

// DialTimeout bounds the time to open a connection.
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

// Dial connects to an address with the user's rights: the worker looks up the name and opens a unix socket as the user, and a
// server that asks the kernel for the client's ids (SO_PEERCRED) gets the user's. network is "tcp" or "unix".
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

// dialError returns err in the form that package net would have returned.
func dialError(network, addr string, err error) error {
	var r *remoteError
	if errors.As(err, &r) && r.errno != 0 {
		err = os.NewSyscallError("connect", r.errno)
	}
	return &net.OpError{Op: "dial", Net: network, Addr: address{network, addr}, Err: err}
}

// address is the address of a failed connection, for the error.
type address struct{ network, addr string }

// Network implements net.Addr.
func (a address) Network() string { return a.network }

// String implements net.Addr.
func (a address) String() string { return a.addr }
