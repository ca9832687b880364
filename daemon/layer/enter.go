package layer

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"mulligan/daemon/isolate"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/daemon/supervise"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
)

// Enter connects to a process that runs commands inside of a fork ([ipc.RunInside]): the init of the fork's command, or, if that does
// not run, one without a command. end must be called once; it ends an init without a command with everything that runs inside.
func (b *Binder) Enter(ctx context.Context, rec store.App) (conn *net.UnixConn, end func(), err error) {
	if rec.Unit != "" && !engine.Names(rec.Unit) {
		m, err := b.Systemd(ctx)
		if err != nil {
			return nil, nil, err
		}
		return copiedUnit{m.Unit(rec.Unit), m, b, rec}.enter(ctx)
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return nil, nil, err
	}
	state := b.StateDir(rec.ID)
	if rec.Fork.Isolation == ipc.IsolationPorts {
		return hostUnit{b, rec, acc.User()}.enter(state)
	}
	if len(rec.Run) > 0 {
		conn, err = isolate.Dial(ControlSocket(state))
		if errs.KindOf(err) != errs.Unavailable {
			return conn, func() {}, err
		}
	}
	f := forkUnit{rec: rec, owner: acc.User(), state: state, files: b.Mounts.Ensure}
	if f.servers, err = b.ownServers(rec); err != nil {
		return nil, nil, err
	}
	return f.idle()
}

// idle starts an init whose command does nothing, without the fork's addresses on the host. The init ends when end is called, and also
// when the daemon ends.
func (f forkUnit) idle() (conn *net.UnixConn, end func(), err error) {
	held, hold, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	control := filepath.Join(f.state, "run", records.NewID("exec-")+".sock")
	cmd := &exec.Cmd{Path: "/bin/cat", Args: []string{"cat"}, Dir: f.rec.Fork.ParentPath, Stdin: held} // ends when the pipe is closed
	bare := *f.rec.Fork                                                                                // the record is shared
	bare.Ports = nil
	f.rec.Fork, f.control = &bare, control
	err = os.MkdirAll(filepath.Dir(control), 0o700)
	if err == nil {
		err = f.launch(cmd, nil)
	}
	err = errs.Also(err, held.Close())
	if err != nil {
		return nil, nil, errs.Also(err, hold.Close())
	}
	end = func() {
		_ = hold.Close()       // nothing was written to it
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // its status says nothing
		_ = os.Remove(control) // a later drop removes the folder
	}
	if conn, err = isolate.Dial(control); err != nil {
		end()
	}
	return conn, end, err
}

// Ran is what became of a command inside of a fork.
type Ran struct {
	Status int    // as a shell gives it
	Output string // the end of its output
	Late   bool   // it was ended because ctx had ended
}

// RunInside runs a command inside of the fork that conn, which it closes, leads to: with the rights of the app's owner, in the folder that the
// fork sees as the workspace. Of its output it keeps the last max bytes.
func (b *Binder) RunInside(ctx context.Context, rec store.App, conn *net.UnixConn, argv []string, max int) (ran Ran, err error) {
	acc, err := b.AccountOf(rec)
	if err != nil {
		return ran, errs.Also(err, conn.Close())
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return ran, errs.Also(err, conn.Close())
	}
	defer null.Close() // it is only read
	out, in, err := os.Pipe()
	if err != nil {
		return ran, errs.Also(err, conn.Close())
	}
	kept := &lastOutput{max: max}
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(kept, out) }) // until the deadline
	signals := make(chan os.Signal, 1)
	stop := context.AfterFunc(ctx, func() { signals <- syscall.SIGKILL })
	env := append(supervise.Environment(acc.User()), "LANG=C.UTF-8", "PWD="+rec.Fork.ParentPath)
	ran.Status, err = ipc.RunInside(conn, ipc.Command{
		Args: argv, Env: env, Dir: rec.Fork.ParentPath, Files: [3]*os.File{null, in, in},
	}, signals)
	ran.Late = !stop()
	err = errs.Also(err, in.Close())
	// A process that the command left behind may keep the pipe open.
	err = errs.Also(err, out.SetReadDeadline(time.Now().Add(leftoverPatience)))
	reading.Wait()
	ran.Output = strings.ToValidUTF8(string(kept.text), "\uFFFD")
	return ran, errs.Also(err, out.Close())
}

// leftoverPatience bounds the wait for output of processes that a command left behind.
const leftoverPatience = 100 * time.Millisecond

// lastOutput is a writer that keeps the end of what is written.
type lastOutput struct {
	text []byte
	max  int
}

// Write implements io.Writer and never fails.
func (l *lastOutput) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	if over := len(l.text) - l.max; over > 0 {
		l.text = append(l.text[:0], l.text[over:]...)
	}
	return len(p), nil
}
