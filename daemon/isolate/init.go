package isolate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// initMain is the init's whole life. It returns the exit status.
func initMain() int {
	unix.CloseOnExec(planFD)
	unix.CloseOnExec(statusFD)
	unix.CloseOnExec(controlFD)
	report := os.NewFile(statusFD, "status")
	in, main, err := prepare()
	if err != nil {
		_, _ = report.Write(failure(err)) // there is nobody else to tell
		return 2
	}
	// The daemon may be gone; then the fork goes on without it.
	_, _ = report.WriteString("\n")
	_ = report.Close()
	return in.reap(main)
}

// failure is an error as an init reports it.
func failure(err error) []byte {
	text, _ := json.Marshal(errs.Error{Kind: errs.KindOf(err), Message: err.Error()}) // the causes as text: it has only strings
	return text
}

// insideMain is the whole life of a process that runs commands in the namespaces that it was started in.
func insideMain() int {
	if err := serveInside(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func serveInside() error {
	control, err := controlAt(planFD)
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGHUP) // as an init
	held, hold, err := os.Pipe()
	if err != nil {
		return err
	}
	defer hold.Close() // it is held as long as this process lives
	_, err = attend(plan{}, control, held)
	return err
}

// controlAt returns the control socket that this process was started with as the descriptor fd.
func controlAt(fd int) (*net.UnixListener, error) {
	l, err := inherited(fd)
	if err != nil {
		return nil, err
	}
	control, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errs.New(errs.Invalid, "", "the control socket is no Unix socket")
	}
	return control, nil
}

// attend runs commands for those who ask at the control socket, until the other end of the pipe held is closed.
func attend(p plan, control *net.UnixListener, held *os.File) (*inside, error) {
	in := newInside(p)
	go in.control(control)
	// A process that has no child cannot wait for those that are still to come, so it has one that does nothing.
	pid, err := in.start(command{Path: "/bin/cat", Args: []string{"cat"}, Dir: "/"}, []*os.File{held, os.Stdout, os.Stderr}, nil)
	if err == nil {
		in.reap(pid)
	}
	return in, err
}

// readPlan reads the plan that this process was started with, and closes its descriptor.
func readPlan(fd int) (p plan, err error) {
	paper := os.NewFile(uintptr(fd), "plan")
	defer paper.Close() // it is in memory
	text, err := io.ReadAll(io.NewSectionReader(paper, 0, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// prepare arranges the namespaces, drops to the owner and starts the command.
func prepare() (*inside, int, error) {
	p, err := readPlan(planFD)
	if err != nil {
		return nil, 0, err
	}
	if err := p.mounts(); err != nil {
		return nil, 0, err
	}
	if err := loopbackUp(); err != nil {
		return nil, 0, err
	}
	backs, err := p.listenInside()
	if err != nil {
		return nil, 0, err
	}
	if !p.User.IsSelf() {
		if err := privsep.Become(p.User); err != nil {
			return nil, 0, err
		}
	}
	// SIGTERM is for the command, which gets it from whoever stops the fork; the init outlives the command. A signal that is
	// ignored would be ignored by the command too: so the init receives them, and does nothing.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	in := newInside(p)
	if err := in.serve(backs); err != nil {
		return nil, 0, err
	}
	pid, err := in.start(command{Path: p.Path, Args: p.Args, Env: p.Env, Dir: p.Dir}, []*os.File{os.Stdin, os.Stdout, os.Stderr}, nil)
	return in, pid, err
}

// mounts makes the mounts of the fork. They are seen by the fork alone; those that the host makes later are seen by the fork too.
func (p plan) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("mount --make-rslave /", err)
	}
	// A bind may cover the folders of those that follow it, so all are opened first.
	var from []int
	for _, b := range p.Binds {
		fd, err := b.open()
		if err != nil {
			return errs.Wrap(errs.Failed, "open "+b.From, err)
		}
		defer unix.Close(fd)
		from = append(from, fd)
	}
	for i, b := range p.Binds {
		if err := b.mount(from[i], p.Binds[:i]); err != nil {
			return errs.Wrap(errs.Failed, "put "+b.From+" at "+b.At, err)
		}
	}
	if err := unix.Mount("shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "mount", Path: "/dev/shm", Err: err}
	}
	if !p.Pids {
		return nil
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return &os.PathError{Op: "mount", Path: "/proc", Err: err}
	}
	return nil
}

// open opens the folder that is to be mounted, and checks that it is the caller's.
func (b Bind) open() (int, error) {
	fd, err := openPath(b.From, b.File)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fstat", err)
	}
	if b.Inode != 0 && (st.Ino != b.Inode || uint64(st.Dev) != b.Device) { //nolint:unconvert // of another type on other machines
		unix.Close(fd)
		return -1, errs.New(errs.Conflict, "", "another folder is there now")
	}
	return fd, nil
}

// mount puts an open folder in its place, which is made where an earlier bind covers it.
func (b Bind) mount(from int, earlier []Bind) error {
	for _, e := range earlier {
		if rel, err := filepath.Rel(e.At, b.At); err == nil && filepath.IsLocal(rel) && rel != "." {
			if err := mkdirs(e.At, rel); err != nil {
				return err
			}
		}
	}
	at, err := openPath(b.At, b.File)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return os.NewSyscallError("mount", unix.Mount(procPath(from), procPath(at), "", unix.MS_BIND|unix.MS_REC, ""))
}

// mkdirs makes the folders of rel below base. All of them are in a folder that was mounted for the fork.
func mkdirs(base, rel string) error {
	root, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer root.Close() // nothing was written through it
	done := ""
	for _, name := range strings.Split(rel, "/") {
		done = filepath.Join(done, name)
		if err := root.Mkdir(done, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// openPath opens a folder, or a file, for its place alone, without following a link anywhere on the way: the owner could exchange folders
// on it.
func openPath(path string, file bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	if file {
		how.Flags &^= unix.O_DIRECTORY
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// inside is the state of an init.
type inside struct {
	plan plan
	// starts runs functions on a thread that has lost what its children must not inherit.
	starts chan func()
	exits  exits
}

func newInside(p plan) *inside {
	in := &inside{plan: p, starts: make(chan func()), exits: exits{waits: map[int]chan syscall.WaitStatus{}}}
	go func() {
		runtime.LockOSThread() // never unlocked: capabilities belong to the thread
		// In a user namespace the init's rights over it are ambient; without them, a command has none.
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // it has none where this fails
		for do := range in.starts {
			do()
		}
	}()
	return in
}

// command is a program to be run inside, and how.
type command struct {
	Path      string
	Args, Env []string
	Dir       string
}

// start starts a command with the files as its first descriptors. One that is watched has a process group of its own, and its end
// is sent to watch, which needs room for one value.
func (in *inside) start(c command, files []*os.File, watch chan syscall.WaitStatus) (pid int, err error) {
	done := make(chan struct{})
	in.starts <- func() {
		defer close(done)
		path := c.Path
		if !strings.Contains(path, "/") {
			if path, err = lookPath(path, c.Env); err != nil {
				return
			}
		}
		in.exits.Lock()
		defer in.exits.Unlock()
		if in.exits.closed {
			err = errs.New(errs.Unavailable, "", "what runs inside of the fork is being ended")
			return
		}
		env := c.Env
		if len(env) > 0 {
			env = (&exec.Cmd{Env: env}).Environ() // of two values of a variable, programs differ in which they take
		}
		var fds []uintptr
		for _, f := range files {
			fds = append(fds, f.Fd())
		}
		pid, err = syscall.ForkExec(path, c.Args, &syscall.ProcAttr{Dir: c.Dir, Env: env, Files: fds, Sys: &syscall.SysProcAttr{Setpgid: watch != nil}})
		if err != nil {
			err = &os.PathError{Op: "run", Path: c.Path, Err: err}
			return
		}
		if watch != nil {
			in.exits.waits[pid] = watch
		}
	}
	<-done
	return pid, err
}

// lookPath finds a program in the PATH of an environment.
func lookPath(name string, env []string) (string, error) {
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, v := range env {
		if s, ok := strings.CutPrefix(v, "PATH="); ok {
			path = s
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// reap waits for all processes that end inside, and returns when the main command has ended, with its status.
func (in *inside) reap(main int) int {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 3 // no child is left: the main one was not ours
		}
		if pid == main {
			return exitStatus(ws)
		}
		in.exits.tell(pid, ws)
	}
}

// exitStatus returns the status that a shell would give.
func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// loopbackUp brings up 127.0.0.1 and ::1 of the network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("bring up the loopback interface", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
}

// listenInside listens where the parent's databases listen. It runs before the drop: a port may be below 1024.
func (p plan) listenInside() (map[net.Listener]string, error) {
	list := map[net.Listener]string{}
	for _, b := range p.Backs {
		n := 0
		var failed error
		for _, host := range []string{"127.0.0.1", "::1"} {
			l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(host), Port: b.Port})
			if err != nil {
				failed = err // a host without IPv6 has no ::1
				continue
			}
			n++
			list[l] = b.Socket
		}
		if n == 0 {
			return nil, failed
		}
	}
	return list, nil
}

// procPath names an open file for system calls that take paths.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
