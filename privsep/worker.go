package privsep

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// socketFD is the worker's end of the socket.
const socketFD = 3

// Limits of a worker.
const (
	maxMemory = 512 << 20 // bytes beyond the memory of the program itself
	maxOpen   = 1024      // open files
)

// work serves calls until the daemon closes the socket. It returns the exit status.
func work() int {
	unix.CloseOnExec(socketFD)
	f := os.NewFile(socketFD, "daemon")
	c, err := net.FileConn(f)
	_ = f.Close() // c has a duplicate
	conn, ok := c.(*net.UnixConn)
	if err != nil || !ok {
		return 2
	}
	var first request
	if _, err := receive(conn, &first); err != nil || first.User == nil {
		return 2
	}
	err = confine(*first.User)
	if send(conn, reply{Err: encodeError(err)}) != nil || err != nil {
		return 1
	}
	requests := make(chan request)
	go read(conn, requests)
	for r := range requests {
		result, files, err := r.serve()
		err = send(conn, reply{Result: result, Err: encodeError(err)}, files...)
		for _, f := range files {
			_ = f.Close() // the daemon has a duplicate
		}
		if err != nil {
			return 1
		}
	}
	return 0
}

// read reads requests until the daemon closes the socket. Then it ends the process, even in the middle of a call, so that no
// worker of an old daemon still works beside a new daemon.
func read(conn *net.UnixConn, requests chan<- request) {
	for {
		var r request
		if _, err := receive(conn, &r); err != nil {
			os.Exit(0)
		}
		requests <- r
	}
}

// confine drops this process's privileges and limits its resources.
func confine(u User) error {
	debug.SetMemoryLimit(maxMemory / 2)
	if err := limit(unix.RLIMIT_NOFILE, maxOpen); err != nil {
		return err
	}
	if !raceDetector { // the race detector maps much more memory than it uses
		if err := limit(unix.RLIMIT_DATA, maxMemory); err != nil {
			return err
		}
	}
	if err := limit(unix.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || on != 1 {
		return fmt.Errorf("the worker was started without no_new_privs: %d %w", on, err)
	}
	if len(u.Folders) > 0 {
		if err := enclose(u.Folders); err != nil {
			return err
		}
	}
	if err := drop(u); err != nil {
		return err
	}
	// Changing ids clears the flag by default, but an administrator can change this (fs.suid_dumpable).
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// serve executes one call, and returns an errs.Internal error if the function panics.
func (r request) serve() (result json.RawMessage, files []*os.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errs.New(errs.Internal, "", "%s panicked: %v", r.Func, p)
		}
	}()
	f, ok := functions[r.Func]
	if !ok {
		return nil, nil, errs.New(errs.Internal, "", "no function %q is defined", r.Func)
	}
	return f(r.Arg)
}
