package sysfault

import "golang.org/x/sys/unix"

// What newer architectures no longer have, and C libraries still use here.
func init() {
	calls[unix.SYS_OPEN] = call{"open", pathArg(0)}
	calls[unix.SYS_RENAME] = call{"rename", pathArg(1)}
	calls[unix.SYS_UNLINK] = call{"unlink", pathArg(0)}
	calls[unix.SYS_MKDIR] = call{"mkdir", pathArg(0)}
	calls[unix.SYS_LINK] = call{"link", pathArg(1)}
	calls[unix.SYS_CHMOD] = call{"chmod", pathArg(0)}
}
