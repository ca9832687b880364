// Package isolate runs a fork of an app where the fork sees itself in its parent's place: at the same path, on the same ports,
// with the same addresses of databases.
//
// A fork's processes live in namespaces of their own (namespaces(7)): mounts, network, IPC and process ids. The first process in
// them is this program again, the init of the fork. It mounts the fork's folder over the parent's path and private folders over
// /tmp and the like, drops to the rights of the app's owner, starts the app's command, and then does four things until the
// command ends:
//
//   - It forwards connections from listeners of the host, which it inherited, to the app's ports or sockets inside ([Front]).
//   - It listens inside where the parent's databases listen, and forwards to the Unix sockets of the fork's own ([Back]).
//   - It starts further commands inside for those who ask at its control socket ([Dial]).
//   - It reaps processes whose parents are gone.
//
// A fork may have a way out, to where its host gets to, which leads to nothing of the host's own ([Place.Out], out.go).
//
// When the init ends, the kernel ends all other processes of the namespaces, and removes their mounts: nothing stays behind,
// even after SIGKILL. When the daemon ends, the fork goes on.
//
// Everything inside runs with no_new_privs: the owner of the app decides what lies at paths inside, so a set-user-ID program must
// not believe what it reads there.
//
// The daemon needs root for this, or a kernel that lets users make user namespaces; [Probe] tells. Where there are no namespaces, a
// fork's further commands run on the host ([OnHost]).
package isolate

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// Bind is a folder or a file of the host that the fork sees at another path.
type Bind struct {
	From string // the folder as the host sees it
	At   string // an existing path of the host, which it covers; or a path below an earlier bind, which is made
	// Inode and Device identify From, as the caller has opened it. Zero: whatever is there.
	Inode, Device uint64
	File          bool // From and At are files
}

// Front is a port or a Unix socket of the app, reachable from the host.
type Front struct {
	Port     int      // inside, at 127.0.0.1 or ::1
	Socket   string   // in place of a port: the path of a Unix socket, as the fork sees it
	Listener Listener `json:"-"` // of the host
}

// Listener is a *net.TCPListener or a *net.UnixListener.
type Listener interface{ File() (*os.File, error) }

// Back is an address of the parent's databases. Inside the fork, it leads to a Unix socket.
type Back struct {
	Port   int    // of 127.0.0.1 and ::1 inside
	Socket string // the path of a Unix socket, as the fork sees it
}

// Place is where a fork lives.
type Place struct {
	Owner   privsep.User
	Binds   []Bind // mounted in this order
	Fronts  []Front
	Backs   []Back
	Control string   // the path of the control socket, in a folder that only the owner may enter
	Env     []string // variables of all further commands, over those that they bring
	Out     string   // the path of the program that makes the way out ([Pasta]); "": the fork reaches nothing but its own loopback
}

// plan is what the init is told.
type plan struct {
	User   privsep.User
	Binds  []Bind
	Fronts []Front // their listeners are descriptors from firstFrontFD on
	Backs  []Back
	Pids   bool // the init is the first process of a namespace of process ids
	// The command and its place.
	Path      string
	Args, Env []string
	Dir       string
	// Override has variables of all further commands, over those that they bring.
	Override []string
	Out      string // the program that makes the way out; it is not there yet if the init is in the host's network
}

// The descriptors that an init starts with.
const (
	planFD       = 3
	statusFD     = 4
	controlFD    = 5
	firstFrontFD = 6
)

// initName is the name (argv[0]) by which a process recognizes that it was started as an init.
const initName = "mulligand-fork"

// InsideName is the name (argv[0]) by which a process recognizes that it was started to run commands in the namespaces that it is in.
// Its descriptor 3 is the listening control socket ([Dial]).
const InsideName = "mulligand-inside"

// startTimeout bounds the time in which an init must have started its command.
const startTimeout = 30 * time.Second

var hasMain atomic.Bool

// Main turns the process into an init if it was started as one, and then does not return. A program that uses the package calls
// it after [privsep.Main] and before anything else.
func Main() {
	switch os.Args[0] {
	case initName:
		os.Exit(initMain())
	case outName:
		os.Exit(outMain())
	case OutName:
		os.Exit(wayOutMain())
	case InsideName:
		os.Exit(insideMain())
	case hostName:
		os.Exit(hostMain())
	}
	hasMain.Store(true)
}

// Start starts cmd inside of the place. cmd.Process is the init, which ends when the command ends, and with its status. Start
// returns when the command runs, or with the error that kept it from running. The variables in visible are in the environment of
// the init.
//
// cmd.Dir is a path inside. cmd.SysProcAttr may have Setsid and nothing else.
func (p Place) Start(cmd *exec.Cmd, visible []string) error {
	if err := p.start(cmd, visible); err != nil {
		return errs.Wrap(errs.Failed, "start in namespaces of its own", err)
	}
	return nil
}

func (p Place) start(cmd *exec.Cmd, visible []string) error {
	if !hasMain.Load() {
		return errs.New(errs.Internal, "", "this program does not call isolate.Main")
	}
	if cmd.Err != nil {
		return cmd.Err
	}
	ask := plan{User: p.Owner, Binds: p.Binds, Backs: p.Backs, Override: p.Env, Pids: true, Out: p.Out, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir}
	files, err := p.files(&ask)
	defer closeAll(&files)
	if err != nil {
		return err
	}
	status, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close() // nothing was written through it
	paper, err := ask.file()
	if err != nil {
		return errs.Also(err, report.Close())
	}
	files = append([]*os.File{paper, report}, files...)
	setsid := cmd.SysProcAttr != nil && cmd.SysProcAttr.Setsid
	cmd.Path, cmd.Args, cmd.Dir = "/proc/self/exe", []string{initName}, "/"
	cmd.Env = append(append([]string{"PATH=/usr/bin:/bin", "LC_ALL=C"}, raceSettings()...), visible...)
	cmd.ExtraFiles = files
	cmd.SysProcAttr = namespaces(setsid)
	if p.Out != "" { // it leaves the host's network itself
		cmd.Args[0] = outName
		cmd.SysProcAttr.Cloneflags &^= unix.CLONE_NEWNET
	}
	if err := privsep.StartConfined(cmd); err != nil {
		return err
	}
	if err := report.Close(); err != nil {
		return err
	}
	if err := started(status); err != nil {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()         // err says more
		return err
	}
	return nil
}

// files opens the control socket and duplicates the listeners, in the order of the init's descriptors.
func (p Place) files(ask *plan) (files []*os.File, err error) {
	control, err := listen(p.Control, p.Owner)
	if err != nil {
		return nil, err
	}
	files = append(files, control)
	for _, f := range p.Fronts {
		file, err := f.Listener.File()
		if err != nil {
			return files, err
		}
		files = append(files, file)
		ask.Fronts = append(ask.Fronts, f)
	}
	return files, nil
}

func closeAll(files *[]*os.File) {
	for _, f := range *files {
		_ = f.Close() // the init has duplicates
	}
}

// raceSettings returns the race detector's settings, which tests need in every process.
func raceSettings() []string {
	if race := os.Getenv("GORACE"); race != "" {
		return []string{"GORACE=" + race}
	}
	return nil
}

// namespaces returns the attributes of a process with namespaces of its own. Without root they are made in a user namespace,
// which gives the init, and nobody else, the rights to mount and to configure the network inside.
func namespaces(setsid bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Setsid:     setsid,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
	}
	if os.Geteuid() != 0 {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE}
	}
	return a
}

// file writes the plan to an unnamed file in memory.
func (p plan) file() (*os.File, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("mulligan-fork", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "plan")
	if _, err := f.WriteAt(text, 0); err != nil {
		return nil, errs.Also(err, f.Close())
	}
	return f, nil
}

// maxReport bounds, in bytes, the error that an init may report.
const maxReport = 64 << 10

// started waits until the init has started its command, which it reports by one line break, or has reported why it cannot.
func started(status *os.File) error {
	if err := status.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	said, err := io.ReadAll(io.LimitReader(status, maxReport))
	switch {
	case err != nil:
		return err
	case len(said) == 0:
		return errs.New(errs.Failed, "", "the fork's first process ended without a message")
	case string(said) != "\n":
		var e errs.Error
		if err := json.Unmarshal(said, &e); err != nil {
			return fmt.Errorf("the fork's first process ended: %.200q", said)
		}
		return &e
	}
	return nil
}

// Probe returns nil if this kernel lets the daemon run forks for the owner, and otherwise the reason. It needs a folder for a moment,
// in which it makes one of its own.
func Probe(owner privsep.User, dir string) error {
	dir, err := os.MkdirTemp(dir, "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := &exec.Cmd{Path: "/bin/true", Args: []string{"true"}, Dir: "/"}
	p := Place{Owner: owner, Control: filepath.Join(dir, "s")}
	if err := p.Start(cmd, nil); err != nil {
		return err
	}
	return cmd.Wait()
}
