package isolate

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
)

// listen makes the control socket anew. The socket belongs to the owner, and nobody else may connect.
func listen(path string, owner privsep.User) (*os.File, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	addr, release, err := address(path)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close() // the file is a duplicate
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if !owner.IsSelf() {
		if err := os.Lchown(path, owner.UID, owner.GID); err != nil {
			return nil, err
		}
	}
	return l.File()
}

// address returns the address of the socket at path, until release is called. If the path is longer than an address may be (unix(7)),
// which depends on where the daemon's state is, the address leads through the open folder.
func address(path string) (addr *net.UnixAddr, release func(), err error) {
	addr = &net.UnixAddr{Name: path, Net: "unix"}
	if len(path) < len(unix.RawSockaddrUnix{}.Path) {
		return addr, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	addr.Name = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	return addr, func() { dir.Close() }, nil // it was only read
}
