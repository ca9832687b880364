package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// child is a running command that this daemon started or adopted.
type child struct {
	ident
	exited chan string // receives how the command ended, in State's words; has room for one value
}

const unknown = "unknown"

// spawn starts the command with this run id.
func (p *Process) spawn(id string) (*child, error) {
	env := p.environ(id)
	path, err := p.program(env)
	if err != nil {
		return nil, err
	}
	out, err := p.newPipe()
	if err != nil {
		return nil, err
	}
	defer out.Close() // the command has its own descriptor
	if err := p.follow(); err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: path, Args: p.cfg.Command, Dir: p.cfg.Dir, Env: env, Stdout: out, Stderr: out,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := p.begin(cmd, []string{marker + "=" + id}); err != nil {
		return nil, (&errs.Error{Kind: errs.Failed, Message: fmt.Sprintf("can't run %q in %s", p.cfg.Command[0], p.cfg.Dir), Err: err}).
			WithHint("check the app's run command and its folder")
	}
	// The process cannot be reaped before the Wait below, so the pid is still the child's.
	self, err := look(cmd.Process.Pid)
	c := &child{self.ident, make(chan string, 1)}
	go func() {
		cmd.Wait() // the command's exit status is not an error of the daemon
		c.exited <- ending(cmd.ProcessState)
	}()
	return c, err
}

func (p *Process) begin(cmd *exec.Cmd, visible []string) error {
	if p.cfg.Launch != nil {
		return p.cfg.Launch(cmd, visible)
	}
	return p.cfg.Owner.Start(cmd, privsep.Options{Visible: visible})
}

// ending describes how a process ended.
func ending(s *os.ProcessState) string {
	ws, ok := s.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return unknown
	case ws.Signaled():
		return fmt.Sprintf("signal %d (%s)", int(ws.Signal()), ws.Signal())
	case ws.ExitStatus() == 0:
		return "success"
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}

// adopt watches a command that an earlier daemon started, until the command ends or the Process is closed.
func (p *Process) adopt(id ident) (*child, error) {
	fd, err := id.pidfd()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	c := &child{id, make(chan string, 1)}
	watched := make(chan struct{})
	go func() {
		select {
		case <-p.quit:
		case <-watched:
		}
		w.Close() // wakes the poll
	}()
	go func() {
		defer unix.Close(fd)
		defer r.Close()
		defer close(watched)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(fds, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if fds[0].Revents != 0 {
				c.exited <- unknown
			}
			return
		}
	}()
	return c, nil
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ returns the command's whole environment. Later entries override earlier ones.
func (p *Process) environ(id string) []string {
	return append(append(Environment(p.cfg.Owner), p.cfg.Env...), marker+"="+id)
}

// Environment returns the environment of commands that run with a user's rights: PATH, and the user's home folder and name.
func Environment(owner privsep.User) []string {
	env := []string{"PATH=" + defaultPath}
	uid := owner.UID
	if uid < 0 {
		uid = os.Geteuid()
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		env = append(env, "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
	}
	return env
}

// program returns the path of the command's program. A name with a slash is relative to Dir.
func (p *Process) program(env []string) (string, error) {
	name := p.cfg.Command[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := ""
	for _, v := range env {
		if s, ok := strings.CutPrefix(v, "PATH="); ok {
			path = s
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", errs.New(errs.Failed, "", "the command %q was not found in %s", name, path).
		WithHint("give its full path, or a PATH in the app's environment")
}
