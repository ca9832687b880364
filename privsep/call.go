package privsep

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Func is a function that can be called as a user.
type Func[A, R any] struct {
	name   string
	do     func(context.Context, A) (R, error)
	within time.Duration // time limit of a call; 0: until the caller's context ends
}

// Within returns f with a time limit. A call that takes longer returns an errs.Unavailable error. A function needs a limit if
// it opens a file that the user names, because the file may be on a filesystem that never answers.
func (f Func[A, R]) Within(limit time.Duration) Func[A, R] {
	f.within = limit
	return f
}

// functions has the functions that a worker can call, by name.
var functions = map[string]func(json.RawMessage) (json.RawMessage, []*os.File, error){}

// Define makes the function do callable as a user. It must be called during package initialization. name is the package's and
// the function's name. Argument and result are sent as JSON; a result that implements [Carrier] may also have open files. do
// must not keep state between calls. Its process is killed when the caller's context ends.
func Define[A, R any](name string, do func(context.Context, A) (R, error)) Func[A, R] {
	if functions[name] != nil {
		panic("privsep: two functions are called " + name)
	}
	functions[name] = func(raw json.RawMessage) (json.RawMessage, []*os.File, error) {
		var arg A
		if err := json.Unmarshal(raw, &arg); err != nil {
			return nil, nil, err
		}
		result, err := do(context.Background(), arg)
		if err != nil {
			return nil, nil, err
		}
		var files []*os.File
		if c, ok := any(&result).(Carrier); ok {
			for _, f := range c.Files() {
				files = append(files, *f)
			}
		}
		text, err := json.Marshal(result)
		return text, files, err
	}
	return Func[A, R]{name: name, do: do}
}

// Carrier is implemented by *R if the result R has open files. R's JSON must leave the files out. Files returns pointers to R's
// fields for them.
type Carrier interface{ Files() []**os.File }

// Call calls f as the user: in a worker, or directly if the daemon runs as that user.
func (f Func[A, R]) Call(ctx context.Context, u User, arg A) (result R, err error) {
	if u.IsSelf() {
		return f.do(ctx, arg)
	}
	if f.within > 0 {
		late := errs.New(errs.Unavailable, "", "%s for %s took longer than %s", f.name, u, f.within).WithHint("check that the files named in the app's settings are readable and on a filesystem that answers")
		limited, cancel := context.WithTimeoutCause(ctx, f.within, late)
		defer cancel()
		ctx = limited
	}
	raw, err := json.Marshal(arg)
	if err != nil {
		return result, err
	}
	r, files, err := pool.call(ctx, u, request{Func: f.name, Arg: raw})
	if err == nil {
		err = json.Unmarshal(r, &result)
	}
	var places []**os.File
	if c, ok := any(&result).(Carrier); ok {
		places = c.Files()
	}
	if err == nil && len(files) != len(places) {
		err = errs.New(errs.Internal, "", "%s returned %d open files instead of %d", f.name, len(files), len(places))
	}
	if err != nil {
		closeAll(files)
		return result, err
	}
	for i := range places {
		*places[i] = files[i]
	}
	return result, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing was written to the file
	}
}

// Limits of the pool: the number of idle workers of one user, and the time for which a worker may be idle.
const (
	maxIdle  = 4
	idleTime = 10 * time.Minute
)

// workers is the pool of idle workers, by user.
type workers struct {
	mu   sync.Mutex
	idle map[string][]*worker
}

var pool = &workers{idle: map[string][]*worker{}}

// worker is a worker process, as the daemon sees it.
type worker struct {
	conn  *net.UnixConn
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	rest  *time.Timer   // ends the worker after idleTime
}

// call runs one call in a worker of the user.
func (p *workers) call(ctx context.Context, u User, r request) (json.RawMessage, []*os.File, error) {
	w, err := p.take(ctx, u)
	if err != nil {
		return nil, nil, err
	}
	answer, files, err := w.exchange(ctx, r)
	if err != nil {
		closeAll(files)
		w.end()
		w.awaitEnd()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		return nil, nil, (&errs.Error{Kind: errs.Unavailable, Message: "the daemon's worker process for " + u.String() + " ended", Err: err}).
			WithHint("try again; the user may have ended it")
	}
	p.put(u, w)
	if answer.Err != nil {
		closeAll(files)
		return nil, nil, answer.Err.decode()
	}
	return answer.Result, files, nil
}

// exchange sends a request and waits for its answer. When ctx ends, exchange kills the worker,
// which may be blocked for ever.
func (w *worker) exchange(ctx context.Context, r request) (answer reply, files []*os.File, err error) {
	stop := context.AfterFunc(ctx, w.kill)
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
	}()
	if err := send(w.conn, r); err != nil {
		return answer, nil, err
	}
	files, err = receive(w.conn, &answer)
	return answer, files, err
}

// take returns an idle worker of the user, or a new one.
func (p *workers) take(ctx context.Context, u User) (*worker, error) {
	p.mu.Lock()
	list := p.idle[u.key()]
	for len(list) > 0 {
		w := list[len(list)-1]
		list = list[:len(list)-1]
		p.idle[u.key()] = list
		if w.rest.Stop() && w.alive() {
			p.mu.Unlock()
			return w, nil
		}
		w.end()
	}
	delete(p.idle, u.key())
	p.mu.Unlock()
	return start(ctx, u)
}

// put returns a worker to the pool.
func (p *workers) put(u User, w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := u.key()
	if len(p.idle[key]) >= maxIdle {
		w.end()
		return
	}
	p.idle[key] = append(p.idle[key], w)
	w.rest = time.AfterFunc(idleTime, w.end)
}

// alive reports whether the process runs. The user may have killed it between two calls.
func (w *worker) alive() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

func (w *worker) kill() { _ = w.cmd.Process.Kill() } // an error means that the process has ended already

// end kills the worker, if it still runs.
func (w *worker) end() {
	w.kill()
	_ = w.conn.Close() // the connection is not used any more
}

// endTimeout bounds the wait for a killed process. The process ends only after its present system call, which may take long.
const endTimeout = 10 * time.Second

// awaitEnd waits until the process has ended, so that it does no work after the caller returns.
func (w *worker) awaitEnd() {
	select {
	case <-w.ended:
	case <-time.After(endTimeout):
	}
}

// start starts a worker, and returns when the worker has the user's ids.
func start(ctx context.Context, u User) (*worker, error) {
	if err := u.mayBecome(); err != nil {
		return nil, err
	}
	w, err := spawn(len(u.Folders) > 0)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "start a process for "+u.String(), err)
	}
	answer, files, err := w.exchange(ctx, request{User: &u})
	closeAll(files)
	if err == nil {
		err = answer.Err.decode()
	}
	if err != nil {
		w.end()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, errs.Wrap(errs.Failed, "start a process for "+u.String(), err)
	}
	return w, nil
}

// spawn executes the daemon's program as a worker, which is root until it drops its privileges. If apart is true, the worker has a mount namespace
// of its own.
func spawn(apart bool) (*worker, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "worker"), os.NewFile(uintptr(fds[1]), "daemon")
	defer theirs.Close() // the worker has a duplicate
	c, err := net.FileConn(ours)
	if err = errs.Also(err, ours.Close()); err != nil { // c has a duplicate
		return nil, err
	}
	cmd := &exec.Cmd{Path: program, Args: []string{WorkerName}, Env: environment(), Dir: "/", ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if apart {
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS // and nothing that is mounted there is seen outside
	}
	if err := StartConfined(cmd); err != nil {
		return nil, errs.Also(err, c.Close())
	}
	w := &worker{conn: c.(*net.UnixConn), cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the caller sees the end on the socket
		close(w.ended)
	}()
	return w, nil
}

// StartConfined starts cmd so that neither it nor its children gain privileges from set-user-ID programs. The flag no_new_privs
// (prctl(2)) belongs to a thread, which cannot clear it, and is inherited by the thread's children. Therefore StartConfined
// sets it in a thread of its own, which ends.
func StartConfined(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		if err == nil {
			err = cmd.Start()
		}
		done <- err
	}()
	return <-done
}
