// Package box runs a program as PID 1 of namespaces and a control group of its own, for tests that need a whole systemd or
// container engine. It needs root, util-linux and a cgroup v2 hierarchy.
//
// A box ends with its test. When the test's process is killed the kernel ends the box, and the next Sweep removes what is left
// of it.
package box

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

// Box is a folder, a control group, and the program in it. Whoever holds the locks of both is alive: the folder may be gone when the control group is not, as
// whoever interrupts `make test` has its temporary folder removed.
type Box struct {
	Dir   string     // the folder, which the program sees too
	PID   int        // of the program, as the host sees it
	Ended chan error // the program was waited for; nil before Spawn

	cgroup string
	lock   *os.File
	group  *os.File // the control group's lock
}

// New makes a box's folder and control group, whose names begin with prefix.
func New(prefix string) (b *Box, err error) {
	hierarchy, reason := Hierarchy()
	if reason != "" {
		return nil, fmt.Errorf("%s", reason)
	}
	dir, err := os.MkdirTemp("", prefix) // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	b = &Box{Dir: dir, cgroup: filepath.Join(hierarchy, filepath.Base(dir))}
	defer func() {
		if err != nil {
			b.remove()
		}
	}()
	if b.lock, err = os.Create(dir + "/lock.new"); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(b.lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, err
	}
	if err := os.Rename(dir+"/lock.new", dir+"/lock"); err != nil { // a sweep sees it locked or not at all
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	return b, b.makeCgroup()
}

// makeCgroup makes the control group, and locks it.
func (b *Box) makeCgroup() error {
	for {
		if err := os.Mkdir(b.cgroup, 0o755); err != nil {
			return err
		}
		group, err := os.Open(b.cgroup)
		if err == nil {
			if err = unix.Flock(int(group.Fd()), unix.LOCK_EX); err == nil {
				_, err = os.Lstat(b.cgroup)
			}
			if err == nil {
				b.group = group
				return nil
			}
			group.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) { // otherwise a sweep has removed it before it was locked
			return err
		}
	}
}

// Spawn runs a shell script, whose first argument is the box's folder, as PID 1 of the box. flags name more namespaces than those
// that every box has: pid, mount, ipc and cgroup. The script dies with this process.
func (b *Box) Spawn(script string, flags uintptr) error {
	cgroup, err := os.Open(b.cgroup)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	log, err := os.Create(b.LogFile())
	if err != nil {
		return err
	}
	defer log.Close()
	// The control group's namespace is made by unshare: its root is the group
	// that a process is in when it asks for one.
	cmd := exec.Command("unshare", "--cgroup", "sh", "-euc", script, "setup", b.Dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | flags,
		UseCgroupFD: true,
		CgroupFD:    int(cgroup.Fd()),
	}
	if err := testkit.Start(cmd); err != nil {
		return err
	}
	b.PID, b.Ended = cmd.Process.Pid, make(chan error, 1)
	go func() { b.Ended <- cmd.Wait() }()
	return nil
}

// Command is a command to be run in namespaces of the box, which are given as options of nsenter.
func (b *Box) Command(ctx context.Context, namespaces []string, cmd ...string) *exec.Cmd {
	enter := append([]string{"-t", fmt.Sprint(b.PID)}, namespaces...)
	return exec.CommandContext(ctx, "nsenter", append(append(enter, "--"), cmd...)...)
}

// LogFile is what the script and its programs print to.
func (b *Box) LogFile() string { return b.Dir + "/log" }

// Down ends every process of the box and removes what it had.
func (b *Box) Down() error {
	if b.Ended != nil {
		if err := unix.Kill(b.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return err
		}
		<-b.Ended // with PID 1 the kernel ends all others
	}
	return b.remove()
}

func (b *Box) remove() error {
	if err := removeCgroup(b.cgroup); err != nil {
		return err
	}
	if err := os.RemoveAll(b.Dir); err != nil {
		return err
	}
	var err error
	for _, lock := range []*os.File{b.lock, b.group} {
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
	}
	return err
}
