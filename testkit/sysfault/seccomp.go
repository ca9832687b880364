package sysfault

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launchEnv tells a copy of the test's program to become the program under watch.
const launchEnv = "MULLIGAN_SYSFAULT_EXEC"

// launcherFD is the launcher's end of the socket.
const launcherFD = 3

// wrap has cmd run through a copy of this program. A descriptor of its own goes before cmd's.
func wrap(cmd *exec.Cmd, socket *os.File) {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, launchEnv+"="+cmd.Path)
	cmd.Path = "/proc/self/exe"
	cmd.ExtraFiles = []*os.File{socket}
}

// A process that Start has begun becomes the program that is to be watched, before anything else is done in it.
func init() {
	path := os.Getenv(launchEnv)
	if path == "" {
		return
	}
	os.Unsetenv(launchEnv)
	fmt.Fprintln(os.Stderr, "sysfault:", launch(path))
	os.Exit(127)
}

func launch(path string) error {
	runtime.LockOSThread() // the filter is this thread's, and exec makes it the only one
	unix.CloseOnExec(launcherFD)
	if os.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	filter := program()
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// A call that was reported is not taken back for a signal: Go sends many.
	flags := unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if err := unix.Sendmsg(launcherFD, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	unix.CloseOnExec(int(fd))
	return os.NewSyscallError("exec", unix.Exec(path, os.Args, os.Environ()))
}

// program asks the listener about the watched calls. Classic BPF, see seccomp(2):
// the call's number is the first word of what it looks at.
func program() []unix.SockFilter {
	var nrs []int32
	for nr := range calls {
		nrs = append(nrs, nr)
	}
	slices.Sort(nrs)
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for i, nr := range nrs {
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jt: uint8(len(nrs) - i)})
	}
	return append(prog,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
}

// receive gets the listener from the launcher.
func receive(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, got, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("recvmsg", err)
	}
	if n == 0 {
		return 0, net.ErrClosed
	}
	messages, err := unix.ParseSocketControlMessage(oob[:got])
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(errors.New("no descriptor came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	return fds[0], nil
}

// notification is struct seccomp_notif, and response struct seccomp_notif_resp.
type (
	notification struct {
		id    uint64
		pid   uint32 // of the thread
		flags uint32
		nr    int32
		arch  uint32
		ip    uint64
		args  [6]uint64
	}
	response struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}
)

// letThrough is SECCOMP_USER_NOTIF_FLAG_CONTINUE: the kernel does the call.
const letThrough = 1

// serve answers until the last of the processes is gone.
func (p *Process) serve() {
	defer close(p.ended)
	defer unix.Close(p.listener)
	for {
		poll := []unix.PollFd{{Fd: int32(p.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && err != unix.EINTR {
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
				return
			}
			continue
		}
		var n notification
		if p.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != 0 {
			continue // it was killed meanwhile
		}
		r := response{id: n.id, flags: letThrough}
		if errno := p.decide(&n); errno != 0 {
			r.err, r.flags = -int32(errno), 0
		}
		p.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) // who was killed wants no answer
	}
}

func (p *Process) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.listener), request, uintptr(arg))
	return errno
}
