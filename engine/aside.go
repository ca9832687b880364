package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mulligan/errs"
)

// Folder is a folder of the host that an [Aside] sees, at the same path.
type Folder struct {
	Path     string
	ReadOnly bool
}

// Aside runs programs of a container's image beside it: in a container of its own, without a network and without privileges, which sees what the first
// one has mounted, but cannot write there, and some folders of the host. That container is made when a program is started, and removed when none was
// running for a while. Safe for concurrent use.
type Aside struct {
	Project *Project
	Of      string // the container whose image has the programs
	Name    string // of the container that is made
	User    string // uid:gid, as which the programs run
	Folders []Folder

	mu   sync.Mutex
	id   string // "": there is no container
	busy int    // programs that run
	rest *time.Timer
}

// asideLabel marks the containers that an Aside makes; its value is their name.
const asideLabel = "mulligan.aside"

// asideRest is how long the container stays when no program runs.
const asideRest = 20 * time.Second

// asideMemory is what the container may keep in its /dev/shm, in bytes.
const asideMemory = 512 << 20

// prepare returns the id of the container, which it makes if there is none. The caller must call done once its program has ended.
func (a *Aside) prepare(ctx context.Context) (id string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rest != nil {
		a.rest.Stop()
	}
	if a.id == "" {
		if a.id, err = a.make(ctx); err != nil {
			return "", errs.Wrap(errs.Failed, "make a container beside "+a.Of, err)
		}
	}
	a.busy++
	return a.id, nil
}

func (a *Aside) done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy--; a.busy > 0 || a.id == "" {
		return
	}
	id := a.id
	a.rest = time.AfterFunc(asideRest, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.busy == 0 && a.id == id {
			_ = a.remove(context.Background()) // if this fails, the next Sweep does it
		}
	})
}

func (a *Aside) make(ctx context.Context) (id string, err error) {
	if err := a.sweep(ctx); err != nil {
		return "", err
	}
	api := a.Project.e.api
	of, err := api.ContainerInspect(ctx, a.Of, client.ContainerInspectOptions{})
	if err != nil {
		return "", a.Project.e.failure("look at container "+a.Of, err)
	}
	var binds []string
	for _, m := range of.Container.Mounts { // by its folder: a volume that the engine knows to be used cannot be removed
		if m.Type != mount.TypeBind && m.Type != mount.TypeVolume || strings.Contains(m.Source+m.Destination, ":") {
			continue
		}
		binds = append(binds, m.Source+":"+m.Destination+":ro")
	}
	for _, f := range a.Folders {
		if strings.Contains(f.Path, ":") {
			return "", errs.New(errs.Unsupported, "", "the folder %q has a colon in its path, and cannot be given to a container", f.Path)
		}
		bind := f.Path + ":" + f.Path
		if f.ReadOnly {
			bind += ":ro"
		}
		binds = append(binds, bind)
	}
	made, err := api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: a.Name,
		Config: &container.Config{
			Image: of.Container.Image, User: a.User, WorkingDir: "/", Labels: map[string]string{asideLabel: a.Name},
			Entrypoint:  []string{"/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"},
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", Binds: binds, ReadonlyRootfs: true, Tmpfs: map[string]string{"/tmp": ""},
			CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges", "label=disable"}, ShmSize: asideMemory,
		},
	})
	if err != nil {
		return "", a.Project.e.failure("", err)
	}
	if _, err := api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		return "", errs.Also(a.Project.e.failure("", err), a.sweep(context.WithoutCancel(ctx)))
	}
	return made.ID, nil
}

// remove removes the container that this Aside has made, with all its processes.
func (a *Aside) remove(ctx context.Context) error {
	if a.id == "" {
		return nil
	}
	_, err := a.Project.e.api.ContainerRemove(ctx, a.id, client.ContainerRemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return a.Project.e.failure("remove container "+a.Name, err)
	}
	a.id = ""
	return nil
}

// Remove removes the container with all programs that run in it.
func (a *Aside) Remove(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.remove(ctx)
}

// Sweep removes the container that an Aside of the same name has left whose process has died.
func (a *Aside) Sweep(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id != "" {
		return nil
	}
	return a.sweep(ctx)
}

func (a *Aside) sweep(ctx context.Context) error {
	api := a.Project.e.api
	in, err := api.ContainerInspect(ctx, a.Name, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return a.Project.e.failure("look at container "+a.Name, err)
	case in.Container.Config == nil || in.Container.Config.Labels[asideLabel] != a.Name:
		return errs.New(errs.Conflict, "", "container %s is not mulligan's", a.Name).WithHint("docker rename %s to another name", a.Name)
	}
	_, err = api.ContainerRemove(ctx, in.Container.ID, client.ContainerRemoveOptions{Force: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return a.Project.e.failure("remove container "+a.Name, err)
}

// asideScript runs its arguments as a program. Each line of its input is the name of a signal for the program; at the end of the input, the program is
// asked to end at once. A program hears of INT and QUIT only if it asks the kernel for them, as servers do: a shell starts others without.
const asideScript = `exec 3<&0
"$@" </dev/null 3<&- & pid=$!
{ while read -r signal; do kill -s "$signal" $pid; done; kill -s QUIT $pid; sleep 5; kill -s KILL $pid; } <&3 3<&- >/dev/null 2>&1 & reader=$!
exec 3<&-
wait $pid; status=$?
kill $reader 2>/dev/null
exit $status`

// Program is a program that an [Aside] runs.
type Program struct {
	to    io.WriteCloser // its input, where the script expects signals
	ended chan struct{}
	code  int
	err   error // why it is not known how the program ended
}

// Start starts a program, which is ended when ctx ends or this process does. Its outputs have been written when Wait returns.
func (a *Aside) Start(ctx context.Context, args []string, stdout, stderr io.Writer) (*Program, error) {
	name, err := a.prepare(ctx)
	if err != nil {
		return nil, err
	}
	what := "run a program beside " + a.Of
	id, conn, err := a.Project.attach(ctx, name, append([]string{"/bin/sh", "-c", asideScript, "sh"}, args...), []string{"LC_ALL=C"}, true)
	if err != nil {
		a.done()
		return nil, err
	}
	p := &Program{to: input{conn}, ended: make(chan struct{})}
	stop := context.AfterFunc(ctx, conn.Close)
	go func() {
		defer close(p.ended)
		defer a.done()
		defer conn.Close()
		defer stop()
		if p.err = demultiplex(conn.Reader, stdout, stderr); ctx.Err() != nil {
			p.err = ctx.Err()
		}
		if p.err == nil {
			in, err := a.Project.e.api.ExecInspect(context.WithoutCancel(ctx), id, client.ExecInspectOptions{})
			p.code, p.err = in.ExitCode, err
			if err == nil && in.Running {
				p.err = errors.New("it closed its output, and runs on")
			}
		}
		p.err = a.Project.e.failure(what, p.err)
	}()
	return p, nil
}

// input is the writing side of an attached command.
type input struct{ conn attached }

func (in input) Write(b []byte) (int, error) { return in.conn.Conn.Write(b) }
func (in input) Close() error                { return in.conn.CloseWrite() }

// Wait waits for the program's end, and returns its exit status.
func (p *Program) Wait() (status int, err error) {
	<-p.ended
	return p.code, p.err
}

// Signal sends the program a signal. A program that has ended gets none.
func (p *Program) Signal(sig syscall.Signal) error {
	names := map[syscall.Signal]string{syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT", syscall.SIGTERM: "TERM"}
	if names[sig] == "" {
		return errs.New(errs.Internal, "", "signal %v is not foreseen", sig)
	}
	select {
	case <-p.ended:
		return nil
	default:
	}
	_, err := fmt.Fprintln(p.to, names[sig])
	select {
	case <-p.ended: // meanwhile
		return nil
	default:
		return err
	}
}
