package privsep

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// drop gives this process the user's ids and groups for ever. No other code of mulligan changes ids. The functions of package
// syscall change the ids of all threads, as is necessary here: the whole process works for the user.
func drop(u User) error {
	if err := syscall.Setgroups(u.Groups); err != nil {
		return os.NewSyscallError("setgroups", err)
	}
	if err := syscall.Setresgid(u.GID, u.GID, u.GID); err != nil {
		return os.NewSyscallError("setresgid", err)
	}
	if err := syscall.Setresuid(u.UID, u.UID, u.UID); err != nil {
		return os.NewSyscallError("setresuid", err)
	}
	return isDropped(u)
}

// Become gives this process the user's ids and groups for ever. It is for a process that from then on works only for the user.
func Become(u User) error { return drop(u) }

// StartWith starts cmd as the user with some capabilities (capabilities(7)) and no other right. It is for a trusted program, whose first
// steps need them. The user can stop the process before it executes the program, and the caller with it: so it is not for the daemon, but
// for a process that works only for the user. cmd.SysProcAttr must be nil.
func StartWith(cmd *exec.Cmd, u User, capabilities ...uintptr) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{AmbientCaps: capabilities}
	if !u.IsSelf() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}
	}
	return cmd.Start()
}

// isDropped returns an error unless the kernel reports that this process has u's ids and no
// capability.
func isDropped(u User) error {
	r, e, s := unix.Getresuid()
	if r != u.UID || e != u.UID || s != u.UID {
		return fmt.Errorf("the process has uids %d, %d and %d instead of %d", r, e, s, u.UID)
	}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for _, c := range caps { // ambient ones are permitted ones
		if c.Effective != 0 || c.Permitted != 0 {
			return fmt.Errorf("the process kept capabilities: %x", caps)
		}
	}
	return nil
}

// limit bounds this process's use of a resource (setrlimit(2)).
func limit(resource int, most uint64) error {
	return os.NewSyscallError("setrlimit", unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}))
}
