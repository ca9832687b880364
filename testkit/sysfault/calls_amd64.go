package sysfault

import "golang.org/x/sys/unix"

// What newer architectures no longer have, and C libraries still use here.
func init() {
	calls[unix.SYS_OPEN] = call{"open", path(0)}
	calls[unix.SYS_RENAME] = call{"rename", path(1)}
	calls[unix.SYS_UNLINK] = call{"unlink", path(0)}
	calls[unix.SYS_MKDIR] = call{"mkdir", path(0)}
	calls[unix.SYS_LINK] = call{"link", path(1)}
	calls[unix.SYS_CHMOD] = call{"chmod", path(0)}
}
