package layer

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mulligan/daemon/isolate"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/systemd"
)

// copiedUnit is the unit of a fork whose parent is run by a systemd unit: a copy of that, which is written when the fork is started.
type copiedUnit struct {
	*systemd.Service
	m *systemd.Manager
	b *Binder
	// rec is the fork's record.
	rec store.App
}

// CopyName names the unit of a fork whose parent has a unit.
func CopyName(id ipc.AppID, parentUnit string) string {
	name := systemd.CopyPrefix + strings.TrimPrefix(string(id), "app-")
	if _, instance, ok := strings.Cut(parentUnit, "@"); ok {
		return name + "@" + instance
	}
	return name + ".service"
}

// copyOf describes the copy, and makes the folders that it needs.
func (b *Binder) copyOf(rec store.App) (c systemd.Copy, err error) {
	if err := b.Mounts.Ensure(rec); err != nil {
		return c, err
	}
	c = systemd.Copy{
		Of: rec.Fork.ParentUnit, Name: rec.Unit, Description: "Fork " + rec.Slug, Folder: rec.Workspace, At: rec.Fork.ParentPath,
	}
	for _, p := range rec.Fork.Ports {
		c.Ports = append(c.Ports, systemd.CopyPort{Port: p.Port, Address: p.Address})
	}
	servers, err := b.ownServers(rec)
	if err != nil {
		return c, err
	}
	for _, o := range servers {
		if err := o.prepare(); err != nil { // the server may not have been started yet
			return c, err
		}
		covered, err := o.covered(rec)
		if err != nil {
			return c, errs.Wrap(errs.Failed, "lead to the server of "+o.name, err)
		}
		for _, at := range covered {
			if !slices.ContainsFunc(c.Binds, func(b systemd.CopyBind) bool { return b.At == at }) {
				c.Binds = append(c.Binds, systemd.CopyBind{From: o.at(), At: at})
			}
		}
		if o.Socket == "" {
			uid, gid := numbers(o.client)
			c.Servers = append(c.Servers, systemd.CopyServer{Port: o.Port, Folder: o.at(), Socket: o.socketName(), UID: uid, GID: gid})
		}
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return c, err
	}
	program, err := os.Executable()
	if err != nil {
		return c, err
	}
	uid, gid := numbers(acc.User())
	// A daemon that was replaced while it runs finds the new program at the same path.
	program = strings.TrimSuffix(program, " (deleted)")
	c.Inside = &systemd.CopyInside{Program: program, Arg0: isolate.InsideName, Socket: ControlSocket(b.StateDir(rec.ID)), UID: uid, GID: gid}
	if pasta := isolate.Pasta(); pasta != "" && rec.Forking.HasNetwork() {
		if uid == 0 {
			uid, gid = isolate.Nobody.UID, isolate.Nobody.GID
		}
		c.Out = []string{"@" + program, isolate.OutName, pasta, strconv.Itoa(uid), strconv.Itoa(gid)}
		from, at, err := resolver(b.StateDir(rec.ID))
		if err != nil {
			return c, errs.Wrap(errs.Failed, "let the fork resolve names", err)
		}
		if at != "" {
			c.Binds = append(c.Binds, systemd.CopyBind{From: from, At: at})
		}
	}
	return c, os.MkdirAll(filepath.Dir(c.Inside.Socket), 0o700)
}

// numbers returns the ids of a user.
func numbers(u privsep.User) (uid, gid int) {
	if u.IsSelf() {
		return os.Geteuid(), os.Getegid()
	}
	return u.UID, u.GID
}

// Start writes the copy, which a reboot has removed and which the parent's unit may have changed since, and starts it.
func (u copiedUnit) Start(ctx context.Context) error {
	if s, err := u.State(ctx); err == nil && s.Running() {
		return nil
	}
	if err := u.Write(ctx); err != nil {
		return err
	}
	return u.Service.Start(ctx)
}

// Write writes the copy, and does not start it.
func (u copiedUnit) Write(ctx context.Context) error {
	c, err := u.b.copyOf(u.rec)
	if err != nil {
		return err
	}
	return u.m.WriteCopy(ctx, c)
}

// enter connects to the process that runs commands inside of the copy's namespaces. end ends it if the copy does not run.
func (u copiedUnit) enter(ctx context.Context) (conn *net.UnixConn, end func(), err error) {
	found, _ := u.b.entrances.LoadOrStore(u.rec.ID, &entrance{})
	e := found.(*entrance)
	e.Lock()
	defer e.Unlock()
	if err := u.Write(ctx); err != nil {
		return nil, nil, err
	}
	if err := u.m.OpenInside(ctx, u.rec.Unit); err != nil {
		return nil, nil, err
	}
	e.inside++
	leave := func() {
		if e.inside--; e.inside > 0 {
			return
		}
		ctx := context.WithoutCancel(ctx)
		if s, err := u.State(ctx); err != nil || s.Down() {
			_ = u.m.CloseInside(ctx, u.rec.Unit) // a stop of the copy, or a drop, ends it
		}
	}
	end = func() {
		e.Lock()
		defer e.Unlock()
		leave()
	}
	if conn, err = isolate.Dial(ControlSocket(u.b.StateDir(u.rec.ID))); err != nil {
		leave()
	}
	return conn, end, err
}

// entrance counts those who run commands inside of the copy of a unit: the last to leave closes it, if the copy does not run.
type entrance struct {
	sync.Mutex
	inside int
}

// Stop stops the copy, if it was ever written.
func (u copiedUnit) Stop(ctx context.Context) error {
	if err := u.Service.Stop(ctx); err != nil && errs.KindOf(err) != errs.NotFound {
		return err
	}
	return u.m.CloseInside(ctx, u.rec.Unit)
}

// State says of a copy that was not written that it is down.
func (u copiedUnit) State(ctx context.Context) (systemd.Status, error) {
	s, err := u.Service.State(ctx)
	if errs.KindOf(err) == errs.NotFound {
		return systemd.Status{Active: "inactive", Sub: "dead"}, nil
	}
	return s, err
}

// Remove removes the files of the copy, which is stopped.
func (u copiedUnit) Remove(ctx context.Context) error { return u.m.RemoveCopy(ctx, u.rec.Unit) }
