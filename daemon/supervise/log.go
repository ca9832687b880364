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

// A command never has a descriptor of its log: with one it could make the file
// as large as the disk. It writes into a named pipe in StateDir, run.out, and
// the daemon writes what comes out of it to run.log.
//
// The command's end of the pipe is open for reading, too. So the pipe has a
// reader while no daemon lives, and the command meets neither SIGPIPE nor EPIPE:
// what it writes waits in the pipe, and a command that fills the pipe waits,
// until the next daemon opens the pipe by its name and reads on. All that a
// command can do with that end is to read its own output and to change how much
// the pipe holds, up to the kernel's limit.
//
// Each run has a pipe of its own, so what is left of an earlier run can't read
// the output of a later one.

// pipeSize is how many bytes of output wait for the next daemon, where the
// kernel allows that.
const pipeSize = 1 << 20

// drainWait is how long the last output of a run is waited for. Only a process
// that was lost sight of, and holds the pipe, makes anybody wait.
const drainWait = time.Second

func (p *Process) pipePath() string { return filepath.Join(p.cfg.StateDir, "run.out") }

// newPipe makes the pipe of a new run and returns the command's end of it.
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
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // a smaller one does, too
	return os.NewFile(uintptr(fd), p.pipePath()), nil
}

// openPipe opens the pipe, and nothing else that may have its name: a user's own
// daemon keeps it where the command can put what it likes.
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

// output is the goroutine that takes a run's output from its pipe to the log.
type output struct {
	from *os.File
	done chan struct{} // closed when the goroutine is gone
}

// follow starts to log what comes out of the pipe, until the last process that
// holds its other end is gone.
func (p *Process) follow() error {
	fd, err := p.openPipe(unix.O_RDONLY | unix.O_NONBLOCK) // non-blocking: Close then interrupts a read
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

// copy logs at most rate bytes per second: a command that writes more waits, and
// takes neither the disk nor the daemon's time from others.
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

// close ends the goroutine. What it has taken out of the pipe is in the log then.
func (o *output) close() {
	if o != nil {
		o.from.Close()
		<-o.done
	}
}

// drain returns when the output of a run that was ended is in the log.
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
	_ = os.Remove(p.pipePath()) // the next run makes its own anyway
}

// logFile is run.log, which becomes run.log.1 before it grows beyond limit
// bytes. An output that can't be logged is dropped: a full disk is not worth an
// app that hangs.
type logFile struct {
	path  string
	limit int64
	file  *os.File // nil: it could not be opened again
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
