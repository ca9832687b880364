package overlay

import (
	"errors"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

// onHost runs f in the mount namespace of the host's first process.
func onHost(f func() error) error {
	same, err := sharesHost()
	if err != nil {
		return err
	}
	if same {
		return f()
	}
	return onThread(func() error { return enterHost(f) })
}

// onThread calls f on a thread that ends when f returns: it is of no use to others. That is never the process's first thread, which does not end before the
// process does, and which others look at in /proc/PID.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			done <- f()
			return // without an unlock, so the thread ends
		}
		err := onThread(f) // while this goroutine holds the first thread, another one gets another thread
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// sharesHost reports whether this process is in the mount namespace of the host's first one. The numbers of mounts are unique on the host; the
// links in /proc/1/ns may be hidden from a process that has fewer rights than the first one.
func sharesHost() (bool, error) {
	var first [2]uint64
	for i, file := range []string{ownMounts, "/proc/1/mountinfo"} {
		all, err := readMounts(file)
		if err != nil {
			return false, err
		}
		if len(all) == 0 {
			return false, errs.New(errs.Unsupported, "", "%s is empty", file)
		}
		first[i] = all[0].ID
	}
	return first[0] == first[1], nil
}

func enterHost(f func() error) error {
	ns, err := os.Open("/proc/1/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	// Threads of one process share their root folder, and who shares it may not enter.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	return f()
}

// ownMounts is the table of the thread: it may be in a namespace of its own.
const ownMounts = "/proc/thread-self/mountinfo"

func readMounts(file string) ([]inode.MountPoint, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return inode.Mounts(f)
}

// Below returns the paths below dir at which something is mounted, as this process sees them.
func Below(dir string) (list []string, err error) {
	all, err := readMounts(ownMounts)
	for _, m := range all {
		if strings.HasPrefix(m.Path, dir+"/") {
			list = append(list, m.Path)
		}
	}
	return list, err
}

// unmountOne unmounts exactly this mount, unless it is not where it was.
func unmountOne(m inode.MountPoint) error {
	dir, err := beneath.Open(m.Path)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return nil // it was moved
		}
		return err
	}
	defer dir.Close()
	var x unix.Statx_t
	if err := unix.Statx(dir.FD(), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &x); err != nil {
		return os.NewSyscallError("statx", err)
	}
	if x.Mnt_id != m.ID {
		return nil
	}
	err = unix.Unmount(inode.ProcPath(dir.FD()), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		return nil // somebody else unmounted it
	}
	return os.NewSyscallError("umount", err)
}
