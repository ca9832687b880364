package supervise

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// A command never has a descriptor of its log, because it could then fill the disk. It writes to a named pipe in StateDir,
// run.out, and the daemon copies the output from there to run.log.
//
// The command's end of the pipe is open for reading too. So the pipe has a reader while no daemon runs, and the command gets
// neither SIGPIPE nor EPIPE: its output waits in the pipe, and a command that fills the pipe blocks, until the next daemon
// opens the pipe by its name and reads on. With its end, the command can only read its own output and change the capacity of
// the pipe, up to the kernel's limit.
//
// Each run has a pipe of its own, so processes of an earlier run cannot read the output of a later one.

// pipeSize is the capacity of the pipe in bytes, if the kernel allows it. So much output can wait for the next daemon.
const pipeSize = 1 << 20

// drainWait bounds the wait for the last output of a run. Only a process that escaped supervision, and keeps the pipe open,
// causes a wait.
const drainWait = time.Second

func (p *Process) pipePath() string { return filepath.Join(p.cfg.StateDir, "run.out") }

// newPipe makes the pipe of a new run and returns the command's end.
func (p *Process) newPipe() (*os.File, error) {
	if err := os.Remove(p.pipePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := unix.Mkfifo(p.pipePath(), 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: p.pipePath(), Err: err}
	}
	fd, err := p.openPipe(unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // the default capacity is enough
	return os.NewFile(uintptr(fd), p.pipePath()), nil
}

// openPipe opens the pipe, and refuses any other file of that name. In a user's own daemon, the command may write to the folder
// of the pipe.
func (p *Process) openPipe(how int) (fd int, err error) {
	fd, err = unix.Open(p.pipePath(), how|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: p.pipePath(), Err: err}
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = errs.New(errs.Conflict, "", "%s is not a pipe", p.pipePath()).WithHint("stop the app's processes and remove it")
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// output is the goroutine that copies a run's output from its pipe to the log.
type output struct {
	from *os.File
	done chan struct{} // closed when the goroutine has ended
}

// follow starts to log the output from the pipe. It ends when the last process that has the other end open has ended.
func (p *Process) follow() error {
	fd, err := p.openPipe(unix.O_RDONLY | unix.O_NONBLOCK) // non-blocking, so that Close interrupts a read
	if err != nil {
		return err
	}
	log, err := openLog(p.LogPath(), p.time.logLimit)
	if err != nil {
		unix.Close(fd)
		return err
	}
	out := &output{os.NewFile(uintptr(fd), p.pipePath()), make(chan struct{})}
	p.out = out
	go func() {
		defer close(out.done)
		defer out.from.Close()
		defer log.close()
		out.copy(log, p.time.logRate)
	}()
	return nil
}

// copy logs at most rate bytes per second. A command that writes more blocks, so it cannot use up the disk's or the daemon's
// time.
func (o *output) copy(log *logFile, rate int) {
	buf := make([]byte, 64<<10)
	for {
		n, err := o.from.Read(buf)
		log.write(buf[:n])
		if err != nil {
			return
		}
		time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
	}
}

// close ends the goroutine, after it has logged what it read from the pipe.
func (o *output) close() {
	if o != nil {
		o.from.Close()
		<-o.done
	}
}

// drain waits until the output of a run that has ended is in the log.
func (p *Process) drain() {
	if p.out == nil {
		return
	}
	timer := time.NewTimer(drainWait)
	defer timer.Stop()
	select {
	case <-p.out.done:
	case <-timer.C:
	case <-p.quit:
	}
	p.out.close()
	p.out = nil
	_ = os.Remove(p.pipePath()) // the next run makes its own pipe anyway
}

// logFile writes run.log, and renames it to run.log.1 before it grows beyond limit bytes. It drops output that cannot be
// written, because a full disk must not block the app.
type logFile struct {
	path  string
	limit int64
	file  *os.File // nil if it could not be opened again
	size  int64
}

func openLog(path string, limit int64) (*logFile, error) {
	l := &logFile{path: path, limit: limit}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, info.Size()
	return nil
}

func (l *logFile) write(b []byte) {
	if l.size+int64(len(b)) > l.limit {
		l.close()
		if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	if l.file == nil && l.open() != nil {
		return
	}
	n, _ := l.file.Write(b)
	l.size += int64(n)
}

func (l *logFile) close() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
