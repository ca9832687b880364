// Package pgserver controls the server of a PostgreSQL cluster: it starts and stops the server, finds out from processes and
// files whether it runs, finds its programs, and runs them as the cluster's owner.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/asowner"
)

// Server starts and stops the cluster's server by the means of this host: a systemd unit, a container, or [PgCtl]. Both methods may be
// called again after they succeeded. They may return before the server has started or stopped; the caller waits for that.
type Server interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error // does not wait for clients ("fast")
}

// Settler is a Server whose Start does more than to start it. Settle does the rest, if there is any, for a server that runs: the process that
// started it may have died in between.
type Settler interface {
	Settle(ctx context.Context) error
}

// PgCtl is the Server of a cluster that no unit runs. It adds no settings to those of the cluster's own configuration.
type PgCtl struct {
	Bin, DataDir string
	Log          string // file for the server's output before its own configuration sets a log
	Config       string // path of the configuration file, if that is not in DataDir
	Owner        privsep.User
}

// LogFile returns the path of the log of a server that the daemon starts itself.
func LogFile(dataDir string) string { return filepath.Join(StoreOf(dataDir), "server.log") }

// StoreOf returns the path of the store beside a data folder.
func StoreOf(dataDir string) string { return dataDir + ".mulligan" }

// Start starts the server in the background, in a session of its own. It returns an error if the server ends at once. A
// previous server that has ended may leave the lock of its socket: it counts until its parent process has reaped it, which in a
// container may be never, or another process may have got its number. Start waits for that, and after patience removes a lock that
// nobody stands behind. It waits at most patience for a server that is stopping, and for a port that another process has: a previous
// server that has just ended, or a connection. A server that runs by then counts as started: a daemon
// that was killed may have asked for it.
func (p PgCtl) Start(ctx context.Context) error {
	for began := time.Now(); ; {
		err := p.StartOnce(ctx)
		if err != nil && hindered(err) && p.runs(ctx) {
			return nil
		}
		if err == nil || !hindered(err) || time.Since(began) > patience && !p.dropLock(ctx, err) && !p.lockIsDead(ctx, err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(patience / 10):
		}
	}
}

// runs reports whether a server runs in the data folder, and is not about to stop.
func (p PgCtl) runs(ctx context.Context) bool {
	status := Programs{Owner: p.Owner}.Status(ctx, p.DataDir)
	return status != "" && status != "stopping"
}

// hindered reports whether a server could not start because of a lock or a port that another process has. A lock that it cannot make, since the
// socket's folder is missing or full, is not that: waiting would not help.
func hindered(err error) bool {
	text := err.Error()
	return strings.Contains(text, "lock file") && !strings.Contains(text, "could not create lock file") || strings.Contains(text, "could not create any")
}

// lockSyntax finds the path of the lock file in a server's error message.
var lockSyntax = regexp.MustCompile(`lock file "([^"]+)"`)

// dropLock removes the lock file of a socket in the error failure, unless a server listens there, and reports whether it did.
func (p PgCtl) dropLock(ctx context.Context, failure error) bool {
	found := lockSyntax.FindStringSubmatch(failure.Error())
	if found == nil {
		return false
	}
	dropped, err := dropSocketLock.Call(ctx, p.Owner, found[1])
	return err == nil && dropped
}

// socketLockSyntax is the path of the lock file of a socket (postmaster.c, UNIXSOCK_PATH). That of a data folder is not touched: it also
// tells of processes that outlived their server.
var socketLockSyntax = regexp.MustCompile(`^/.+/\.s\.PGSQL\.[0-9]+\.lock$`)

// dropSocketLock removes a socket's lock file if it is older than patience and nobody listens on the socket. A server that is about to
// listen made its lock file just before.
var dropSocketLock = privsep.Define("physical.dropSocketLock", func(ctx context.Context, path string) (bool, error) {
	if !socketLockSyntax.MatchString(path) {
		return false, nil
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < patience {
		return false, err
	}
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", strings.TrimSuffix(path, ".lock"))
	if err == nil {
		return false, c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, os.Remove(path)
})

// lockIsDead reports whether the lock file in the error failure was removed, or the process that it names has ended.
func (p PgCtl) lockIsDead(ctx context.Context, failure error) bool {
	found := lockSyntax.FindStringSubmatch(failure.Error())
	if found == nil {
		return false
	}
	path := found[1]
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.DataDir, path) // where the server works
	}
	data, err := p.Owner.ReadFile(ctx, path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return errors.Is(err, fs.ErrNotExist) || strings.Contains(string(stat), ") Z ")
}

// StartOnce does the work of Start without waiting for a lock file.
func (p PgCtl) StartOnce(ctx context.Context) error {
	args := []string{"-w", "-t", strconv.Itoa(int(startTimeout / time.Second)), "-l", p.Log}
	if p.Config != "" {
		args = append(args, "-o", "-c config_file="+p.Config)
	}
	err := p.run(ctx, "start", args...)
	if text, e := asowner.Tail.Call(ctx, p.Owner, p.Log); err != nil && e == nil {
		if why := fatal(lastLines(string(text), 20)); why != "" {
			err = fmt.Errorf("%w: %.300s", err, why)
		}
	}
	return err
}

// lastLines returns the last n lines of a text, or all of it.
func lastLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// fatal returns the last fatal error in a server's log, or "".
func fatal(log string) (why string) {
	for line := range strings.Lines(log) {
		for _, level := range []string{"FATAL:", "PANIC:"} {
			if _, text, found := strings.Cut(line, level); found {
				why = strings.TrimSpace(text)
			}
		}
	}
	return why
}

// Stop asks the server to stop at once, even if its data folder was removed or replaced. A server that ends by itself before it is
// asked, as one that was asked before does, has stopped.
func (p PgCtl) Stop(ctx context.Context) error {
	if p.absent(ctx) {
		return p.endStrays(ctx)
	}
	err := p.run(ctx, "stop", "-W", "-m", "fast")
	if err != nil && p.absent(ctx) {
		return p.endStrays(ctx)
	}
	return err
}

// absent reports whether pg_ctl finds no server: none runs, or DataDir is not a data folder.
func (p PgCtl) absent(ctx context.Context) bool {
	var exit *exec.ExitError
	return errors.As(p.run(ctx, "status"), &exit)
}

// patience is how long a server whose folder was removed may take to stop cleanly.
const patience = 5 * time.Second

// endStrays ends servers that pg_ctl does not find because their data folder was removed, moved or emptied. It waits for their
// end.
func (p PgCtl) endStrays(ctx context.Context) error {
	began := time.Now()
	return Await(ctx, func() (bool, error) {
		left, err := endStraysAsOwner.Call(ctx, p.Owner, strays{p.Bin, p.DataDir, time.Since(began) > patience})
		return left == 0, err
	})
}

func (p PgCtl) run(ctx context.Context, verb string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin, "pg_ctl"), append([]string{verb, "-s", "-D", p.DataDir}, args...)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	var out Printed
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.Owner.Run(cmd, privsep.Options{}); err != nil { // the server may need programs that gain privileges
		return fmt.Errorf("pg_ctl %s: %w: %s", verb, err, out.LastLine())
	}
	return nil
}

// poll is the first interval between two checks of the server's state. The intervals become longer with the waiting time.
const poll = 5 * time.Millisecond

// slowPoll is the longest interval between two checks.
const slowPoll = 20 * poll

// Await calls ok until it returns true or an error, or ctx ends. The delay after a change is at most a tenth of the waiting
// time, or slowPoll.
func Await(ctx context.Context, ok func() (bool, error)) error {
	for began := time.Now(); ; {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(max(time.Since(began)/10, poll), slowPoll)):
		}
	}
}

// InUse reports whether a process has its working folder in dir, as all processes of a server do, including those that live a
// moment longer than the server or the folder. dir need not exist any more. Where the working folder of the server's main process may
// not be read, InUse goes by the server's lock file. Root may read them all, and must not open a file that is the owner's to replace.
func InUse(dir string) (bool, error) {
	var st unix.Stat_t
	err := unix.Lstat(dir, &st)
	if err != nil && !asowner.Absent(err) {
		return false, &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	servers := err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK // the link may lead to a folder where other programs work
	if version := (unix.Stat_t{}); servers && unix.Lstat(filepath.Join(dir, "PG_VERSION"), &version) == nil {
		_ = unix.Stat(dir, &st) // otherwise only the link itself is compared, in which no process works
	}
	procs, err := processes()
	if err != nil {
		return false, err
	}
	for _, proc := range procs {
		link := proc + "/cwd"
		var at unix.Stat_t // of the link's target; processes that end meanwhile or cannot be read are skipped
		if unix.Stat(link, &at) != nil {
			continue
		}
		if at.Ino == st.Ino && at.Dev == st.Dev && (!servers || isServer(proc)) {
			return true, nil
		}
		if name, err := os.Readlink(link); err == nil && name == dir+gone {
			return true, nil
		}
	}
	if os.Geteuid() == 0 {
		return false, nil
	}
	lock, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return false, nil // no server runs, or another user's, whose processes only root could look at
	}
	line, _, _ := strings.Cut(string(lock), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	return err == nil && unseen(pid), nil
}

// unseen reports whether the process with the id pid is a server whose working folder this process may not read, though it has the same
// user: it has another group, as a server has that was started with newgrp (ptrace(2), access mode checking).
func unseen(pid int) bool {
	var at unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/cwd", pid), &at); !errors.Is(err, unix.EACCES) {
		return false
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.TrimSpace(string(name)) == "postgres"
}

// processes returns the folders of the processes in /proc.
func processes() (list []string, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close() // it was only read
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if name[0] >= '1' && name[0] <= '9' {
			list = append(list, "/proc/"+name)
		}
	}
	return list, err
}

// gone is the suffix of a removed working folder or program in /proc (proc(5)).
const gone = " (deleted)"

// isServer reports whether the process with this folder in /proc runs a program named postgres.
func isServer(proc string) bool {
	program, err := os.Readlink(filepath.Join(proc, "exe"))
	return err == nil && strings.TrimSuffix(filepath.Base(program), gone) == "postgres"
}

// Cluster is a data folder, and the means to start and stop the server in it.
type Cluster struct {
	Programs
	DataDir string
	Server  Server
}

// startTimeout bounds the start of a server, including crash recovery.
const startTimeout = 10 * time.Minute

// Start starts the server unless it runs, and waits until it takes connections.
func (c Cluster) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var started time.Time
	return Await(ctx, func() (bool, error) {
		if c.Status(ctx, c.DataDir) == "ready" {
			if s, ok := c.Server.(Settler); ok {
				return true, s.Settle(ctx)
			}
			return true, nil
		}
		switch running, err := InUse(c.DataDir); {
		case err != nil || running:
			return false, err // the server is starting, or the rest of an old one is ending
		case started.IsZero():
			started = time.Now()
			return false, errs.Wrap(errs.Failed, "start the server", c.Server.Start(ctx))
		case time.Since(started) > startGrace:
			return false, errs.New(errs.Failed, "start the server", "the server of %s ended at once", c.DataDir).WithHint("its own log says why")
		}
		return false, nil
	})
}

// startGrace bounds the time from Server.Start to the server's first process.
const startGrace = 10 * time.Second

// stopTimeout bounds the time until all of the server's processes have ended, including its last checkpoint.
const stopTimeout = 10 * time.Minute

// askAgain is how long Stop waits for a running server before it asks it to stop again.
const askAgain = time.Second

// Stop stops the server and waits until all of its processes have ended. It calls Server.Stop even if no server runs, so that a
// unit does not start it later, and calls it again while a server runs: a start that a killed daemon requested may happen only
// after the first Stop.
func (c Cluster) Stop(ctx context.Context) error {
	const op = "stop the server"
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout,
		errs.New(errs.Failed, op, "processes of it still work in %s after %v", c.DataDir, stopTimeout).WithHint("its own log says why"))
	defer cancel()
	var asked time.Time
	err := Await(ctx, func() (bool, error) {
		if time.Since(asked) > askAgain {
			if err := c.Server.Stop(ctx); err != nil {
				return false, errs.Wrap(errs.Failed, op, err)
			}
			asked = time.Now()
		}
		running, err := InUse(c.DataDir)
		return !running, err
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// AwaitEnd waits until no process works in dir.
func AwaitEnd(ctx context.Context, dir string) error {
	return Await(ctx, func() (bool, error) {
		running, err := InUse(dir)
		return !running, err
	})
}

// Status returns the status of the server in dir: the eighth line of postmaster.pid (miscadmin.h, LOCK_FILE_LINE_PM_STATUS),
// which is "ready" once the server takes connections. Status returns "" unless the process with the id in the first line is
// alive. The id may be one in a container's pid namespace.
func (p Programs) Status(ctx context.Context, dir string) string {
	data, err := p.Owner.ReadFile(ctx, filepath.Join(dir, "postmaster.pid"))
	lines := strings.Split(string(data), "\n")
	if err != nil || len(lines) < 8 {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || !WorksIn(pid, dir) && !worksInside(pid, dir) && !unseen(pid) {
		return ""
	}
	return strings.TrimSpace(lines[7])
}

// worksInside reports whether a process works in dir whose id is pid in a pid namespace below this one.
func worksInside(pid int, dir string) bool {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is good
	for _, link := range links {
		outer, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil || !WorksIn(outer, dir) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(link), "status"))
		if err != nil {
			continue // it ended
		}
		for line := range strings.Lines(string(status)) {
			if ids, found := strings.CutPrefix(line, "NSpid:"); found {
				all := strings.Fields(ids)
				if len(all) > 1 && all[len(all)-1] == strconv.Itoa(pid) {
					return true
				}
			}
		}
	}
	return false
}

// WorksIn reports whether process pid has its working folder in dir.
func WorksIn(pid int, dir string) bool {
	var a, b unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d/cwd", pid), &a) == nil && unix.Stat(dir, &b) == nil && a.Ino == b.Ino && a.Dev == b.Dev
}
