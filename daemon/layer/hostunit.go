package layer

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"mulligan/daemon/dotenv"
	"mulligan/daemon/isolate"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/privsep"
)

// hostUnit starts the command of a fork that has no namespaces: on the host, in the fork's folder.
type hostUnit struct {
	b     *Binder
	rec   store.App
	owner privsep.User
}

// launch starts the command. A rollback of the fork, or a keep that was cut short, may have left its parent's lines in its dotenv files.
func (h hostUnit) launch(cmd *exec.Cmd, visible []string) error {
	if err := h.b.Mounts.Ensure(h.rec); err != nil {
		return err
	}
	if err := ownLines(context.Background(), h.b, h.rec); err != nil {
		return err
	}
	return h.owner.Start(cmd, privsep.Options{Visible: visible})
}

// ownLines puts a fork's lines into its dotenv files.
func ownLines(ctx context.Context, b *Binder, rec store.App) error {
	now, ok := b.record(rec.ID) // the lines are known only after the unit was bound
	if !ok || len(now.Fork.Dotenv) == 0 {
		return nil
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return err
	}
	return dotenv.Replace(ctx, acc.User(), rec.Workspace, now.Fork.Dotenv, false)
}

// enter starts a process that runs commands with the fork's variables.
func (h hostUnit) enter(state string) (conn *net.UnixConn, end func(), err error) {
	if err := h.b.Mounts.Ensure(h.rec); err != nil {
		return nil, nil, err
	}
	control := filepath.Join(state, "run", records.NewID("exec-")+".sock")
	if err := os.MkdirAll(filepath.Dir(control), 0o700); err != nil {
		return nil, nil, err
	}
	if end, err = isolate.OnHost(h.owner, control, variables(h.rec)); err != nil {
		return nil, nil, err
	}
	if conn, err = isolate.Dial(control); err != nil {
		end()
		return nil, nil, err
	}
	return conn, end, nil
}

// variables are those that were set for a fork, and those that lead its commands to what is its own.
func variables(rec store.App) (list []string) {
	for name, value := range rec.Fork.Env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// CanIsolate returns nil if the kernel lets the daemon make namespaces for the forks of an app, and otherwise the reason.
func (b *Binder) CanIsolate(rec store.App) error {
	acc, err := b.AccountOf(rec)
	if err != nil {
		return err
	}
	return isolate.Probe(acc.User(), b.opt.StateDir)
}
