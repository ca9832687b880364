package daemon

import (
	"os"
	"os/user"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
)

// userName is the name of a uid, or its digits where it has none.
func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// account is what a process that works for a user runs with.
type account struct {
	uid, gid int
	groups   []int
	home     string
}

// lookup finds the account of a user's name, or of a uid in digits.
func lookup(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return account{}, errs.New(errs.Invalid, "look up user", "no user %.64q on this host", name)
		}
	}
	acc := account{home: u.HomeDir}
	if acc.uid, err = strconv.Atoi(u.Uid); err != nil {
		return account{}, err
	}
	if acc.gid, err = strconv.Atoi(u.Gid); err != nil {
		return account{}, err
	}
	ids, err := u.GroupIds()
	if err != nil {
		return account{}, err
	}
	for _, id := range ids {
		if g, err := strconv.Atoi(id); err == nil {
			acc.groups = append(acc.groups, g)
		}
	}
	return acc, nil
}

// as calls f on a thread that has the account's rights and no other, so that f
// finds and opens nothing that its user could not. The thread never gets root's
// rights back: it ends. f must start no goroutines.
func (a account) as(f func() error) error {
	if a.uid <= 0 || os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: a goroutine that ends locked takes its thread along
		err := a.assume()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// assume gives the calling thread the account's rights. The functions of package
// syscall would change all threads.
func (a account) assume() error {
	groups := make([]uint32, 0, len(a.groups)+1) // gid_t of setgroups(2)
	for _, g := range a.groups {
		groups = append(groups, uint32(g))
	}
	n := uintptr(len(groups))
	groups = append(groups, 0) // so that there is an address to give
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, n, uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(a.gid), uintptr(a.gid), uintptr(a.gid)); e != 0 {
		return os.NewSyscallError("setresgid", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(a.uid), uintptr(a.uid), uintptr(a.uid)); e != 0 {
		return os.NewSyscallError("setresuid", e)
	}
	return nil
}
