package files

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setgroupsHere sets the calling thread's supplementary groups; the function of
// package syscall would set those of all threads.
func setgroupsHere(groups []uint32) error {
	n := uintptr(len(groups))
	groups = append(groups, 0) // so that there is an address to give
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, n, uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return e
	}
	return nil
}
