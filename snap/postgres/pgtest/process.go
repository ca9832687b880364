package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// process is a running server. It ends with the test's process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the server has ended
}

// Start starts the server and waits until it takes connections.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	if c.run != nil {
		t.Fatal("the cluster runs already")
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	defer log.Close()
	cmd := c.Command("postgres", "-D", c.DataDir)
	cmd.Stdout, cmd.Stderr = log, log
	c.run, err = launch(cmd)
	must(t, err)
	waitFor(t, "the server's start", func() bool {
		select {
		case <-c.run.done:
			c.run = nil
			t.Fatal("the server ended as it was started")
		default:
		}
		return c.ready()
	})
}

// launch starts cmd so that the kernel kills it when this process ends. The kernel does this when the thread that started cmd
// ends, so the thread is kept.
func launch(cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the server's log says how it ended
			close(p.done)
		}
	}()
	return p, <-started
}

// ready reads the server's status from the eighth line of its lock file, whose first line is the pid.
func (c *Cluster) ready() bool {
	data, err := os.ReadFile(filepath.Join(c.DataDir, "postmaster.pid"))
	lines := strings.Split(string(data), "\n")
	return err == nil && len(lines) >= 8 && lines[0] == strconv.Itoa(c.run.cmd.Process.Pid) && strings.TrimSpace(lines[7]) == "ready"
}

// Running reports whether the server runs, if this Cluster started it.
func (c *Cluster) Running() bool {
	if c.run == nil {
		return false
	}
	select {
	case <-c.run.done:
		return false
	default:
		return true
	}
}

// Stop stops the server cleanly, without waiting for its clients ("fast").
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	must(t, c.run.cmd.Process.Signal(syscall.SIGINT))
	<-c.run.done
	c.run = nil
}

// Reload makes the server read its settings again. They take effect for the next connection.
func (c *Cluster) Reload(t testing.TB) {
	t.Helper()
	c.Psql(t, "postgres", "SELECT pg_reload_conf()")
}

// Kill kills the server and all its processes at once, as a power cut would.
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	server := c.run.cmd.Process
	// A stopped server forks no more. Otherwise a process that it started after the list was made would survive, and keep its
	// memory.
	must(t, server.Signal(syscall.SIGSTOP))
	waitFor(t, "the server's stop", func() bool { return state(server.Pid) != "R" && state(server.Pid) != "S" && state(server.Pid) != "D" })
	list := children(server.Pid)
	memory := sharedMemory(append(list, server.Pid))
	must(t, server.Kill())
	<-c.run.done
	for _, pid := range list {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
	}
	for _, pid := range list {
		waitFor(t, fmt.Sprintf("the end of process %d", pid), func() bool { return !isPostgres(pid) })
	}
	for _, path := range memory {
		_ = os.Remove(path) // a server that was removed with its data folder leaves it to nobody
	}
	c.run = nil
}

// sharedMemory returns the paths of the shared memory that these processes of a server have mapped. A power cut takes it as well.
func sharedMemory(pids []int) (paths []string) {
	for _, pid := range pids {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			continue // the process has ended
		}
		for line := range strings.Lines(string(maps)) {
			if i := strings.Index(line, "/dev/shm/PostgreSQL."); i >= 0 {
				paths = append(paths, strings.TrimSpace(line[i:]))
			}
		}
	}
	return paths
}

// stat returns the fields of /proc/PID/stat from the state on, or nil if there is no such process.
func stat(path string) []string {
	data, err := os.ReadFile(path)
	_, rest, found := bytes.Cut(data, []byte(") ")) // past the name
	if fields := strings.Fields(string(rest)); err == nil && found && len(fields) > 1 {
		return fields
	}
	return nil
}

// state returns a process's state as in proc(5), or "" if there is no such process.
func state(pid int) string {
	if fields := stat(fmt.Sprintf("/proc/%d/stat", pid)); fields != nil {
		return fields[0]
	}
	return ""
}

// children returns the processes whose parent is pid.
func children(pid int) (list []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, path := range stats {
		if fields := stat(path); fields == nil || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if n, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// isPostgres reports whether pid is still a server process, and not a zombie.
func isPostgres(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(data, []byte("(postgres)")) && !bytes.Contains(data, []byte(") Z "))
}
