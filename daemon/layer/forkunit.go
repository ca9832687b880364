package layer

import (
	"context"
	"strings"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd"
)

// copiedUnit is the unit of a fork whose parent is run by a systemd unit: a copy of that, which is written when the fork is started.
type copiedUnit struct {
	*systemd.Service
	m *systemd.Manager
	c systemd.Copy
}

// CopyName names the unit of a fork whose parent has a unit.
func CopyName(id ipc.AppID, parentUnit string) string {
	name := systemd.CopyPrefix + strings.TrimPrefix(string(id), "app-")
	if _, instance, ok := strings.Cut(parentUnit, "@"); ok {
		return name + "@" + instance
	}
	return name + ".service"
}

func copyOf(rec store.App) systemd.Copy {
	c := systemd.Copy{
		Of: rec.Fork.ParentUnit, Name: rec.Unit, Description: "Fork " + rec.Slug, Folder: rec.Workspace, At: rec.Fork.ParentPath,
	}
	for _, p := range rec.Fork.Ports {
		c.Ports = append(c.Ports, systemd.CopyPort(p))
	}
	return c
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
func (u copiedUnit) Write(ctx context.Context) error { return u.m.WriteCopy(ctx, u.c) }

// Stop stops the copy, if it was ever written.
func (u copiedUnit) Stop(ctx context.Context) error {
	if err := u.Service.Stop(ctx); errs.KindOf(err) != errs.NotFound {
		return err
	}
	return nil
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
func (u copiedUnit) Remove(ctx context.Context) error { return u.m.RemoveCopy(ctx, u.c.Name) }
