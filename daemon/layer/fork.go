package layer

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/daemon/isolate"
	"mulligan/daemon/loopback"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
)

// forkUnit starts the command of a fork in namespaces of its own.
type forkUnit struct {
	rec   store.App
	owner privsep.User
	state string                // the daemon's own folder for the fork
	files func(store.App) error // makes sure that the fork's folder has its files

	servers []ownServer
	control string // path of the control socket; "": that of the fork's command
}

// launch starts the command at the parent's path. It listens at the fork's addresses on the host again, because the process
// that listened there ends with the command.
func (f forkUnit) launch(cmd *exec.Cmd, visible []string) error {
	if err := f.files(f.rec); err != nil {
		return err
	}
	tmp := tempDir(f.state)
	if err := f.folder(tmp); err != nil {
		return err
	}
	p := isolate.Place{
		Owner:   f.owner,
		Binds:   []isolate.Bind{{From: tmp, At: "/tmp"}, {From: f.rec.Workspace, At: f.rec.Fork.ParentPath}},
		Control: cmp.Or(f.control, ControlSocket(f.state)), Env: variables(f.rec),
	}
	for _, o := range f.servers {
		if err := o.reach(f.rec, &p); err != nil {
			return errs.Wrap(errs.Failed, "lead to the server of "+o.name, err)
		}
	}
	if err := f.lead(&p); err != nil {
		return err
	}
	for _, port := range f.rec.Fork.Ports {
		all, err := listen(port.Address)
		if err != nil {
			return err
		}
		for _, l := range all {
			defer l.Close() // the fork has a duplicate
			p.Fronts = append(p.Fronts, isolate.Front{Port: port.Port, Listener: l})
		}
	}
	return p.Start(cmd, visible)
}

// RollsBackWhole reports whether a rollback of a fork gives back everything that a command in it can have changed, but for its temporary
// files. It does not give back what the fork's own servers have beside the app's databases, such as other databases and roles, nor what the
// app excludes.
func RollsBackWhole(rec store.App) bool {
	onServer := func(db ipc.Database) bool { _, ok := served[db.Driver]; return ok }
	return len(rec.Exclude) == 0 && !slices.ContainsFunc(rec.Databases, onServer) && rec.Unit == "" && rec.Domain == "" &&
		rec.Fork.Isolation != ipc.IsolationPorts
}

// TempDir returns the folder that a fork has as its /tmp.
func (b *Binder) TempDir(id ipc.AppID) string { return tempDir(b.StateDir(id)) }

func tempDir(state string) string { return filepath.Join(state, "run", "tmp") }

// ControlSocket returns the path of the socket for running commands inside of a fork. state is the daemon's own folder for the
// fork.
func ControlSocket(state string) string { return filepath.Join(state, "run", "control.sock") }

// folder makes a folder that belongs to the owner and has the mode of /tmp.
func (f forkUnit) folder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if !f.owner.IsSelf() {
		if err := os.Lchown(dir, f.owner.UID, f.owner.GID); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o777|os.ModeSticky)
}

func listen(address string) (all []*net.TCPListener, err error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	l, other, err := loopback.Listen(int(addr.Port()))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errs.New(errs.Busy, "", "another process has the fork's port %d of the loopback", addr.Port()).
			WithHint("%s", fmt.Sprintf("end it: ss -ltnp 'sport = :%d' names it", addr.Port()))
	}
	if err != nil {
		return nil, err
	}
	if all = append(all, l); other != nil {
		all = append(all, other)
	}
	return all, nil
}
