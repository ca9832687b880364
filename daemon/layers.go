package daemon

import (
	"context"
	"io"
	"path/filepath"
	"strings"

	"mulligan/daemon/store"
	"mulligan/daemon/supervise"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files"
	"mulligan/systemd"
)

// layersOf binds the drivers of an app's layers to it, in the order in which
// they are captured: files, a guest's disks (nil: there is no guest), databases.
func (d *Daemon) layersOf(ctx context.Context, rec store.App, g *guest) ([]layer, error) {
	var rest []layer
	var skip []string
	if g != nil {
		l, own := d.diskLayer(rec, g)
		rest, skip = append(rest, l), own
	}
	for _, db := range rec.Databases {
		l, err := d.databaseLayer(ctx, rec, db)
		if err != nil {
			return nil, errs.Wrap(errs.Failed, "database "+db.Name, err)
		}
		rest = append(rest, l)
		skip = append(skip, filesOf(rec.Workspace, db)...)
	}
	owner, reader := d.eyesOf(rec)
	contents, err := d.store.Contents.OfApp(rec)
	if err != nil {
		return nil, err
	}
	driver, err := files.New(files.Config{
		App: string(rec.ID), Dir: rec.Workspace, StateDir: filepath.Join(d.stateDir(rec.ID), "files"),
		Store: contents, Exclude: rec.Exclude, Skip: skip,
		MaxFiles: d.opt.MaxFiles, MaxBytes: d.opt.MaxBytes, Owner: owner, Reader: reader, Failpoint: d.opt.Failpoint,
	})
	if err != nil {
		return nil, err
	}
	return append([]layer{{name: snap.Files, kind: "files", prefix: "fs-", driver: driver}}, rest...), nil
}

// eyesOf says whom an app's workspace must belong to (-1: it is not checked), and
// what its owner may see in it.
func (d *Daemon) eyesOf(rec store.App) (owner int, reader files.Reader) {
	if d.opt.User {
		return -1, files.Reader{} // what the daemon cannot reach as its user, it cannot reach
	}
	reader = files.Reader{UID: rec.OwnerUID, GID: -1}
	if acc, err := d.AccountOf(rec); err == nil && acc.UID == rec.OwnerUID { // else the account is gone: a uid without groups
		reader.GID, reader.Groups = acc.GID, acc.Groups
	}
	return rec.FolderUID, reader
}

// placeOf splits a database file's path into the folder that is trusted to be
// what it is called and the path below it, which is not.
func placeOf(workspace, path string) (dir, rel string) {
	if !filepath.IsAbs(path) {
		return workspace, filepath.Clean(path)
	}
	path = filepath.Clean(path)
	if below, ok := strings.CutPrefix(path, workspace+"/"); ok {
		return workspace, below
	}
	return filepath.Dir(path), filepath.Base(path)
}

// unitOf finds the service of an app: its systemd unit, or a command that the
// daemon supervises; nil when it names neither.
func (d *Daemon) unitOf(ctx context.Context, rec store.App) (systemd.Unit, error) {
	switch {
	case len(rec.Run) > 0:
		return d.supervised(rec)
	case rec.Unit != "":
		m, err := d.systemd(ctx)
		if err != nil {
			return nil, err
		}
		return m.Unit(rec.Unit), nil
	}
	return nil, nil
}

func (d *Daemon) supervised(rec store.App) (systemd.Unit, error) {
	cfg := supervise.Config{
		Name: rec.Slug, Command: rec.Run, Dir: rec.Workspace,
		StateDir: filepath.Join(d.stateDir(rec.ID), "run"), StopTimeout: d.opt.StopTimeout,
	}
	acc, err := d.AccountOf(rec)
	if err != nil {
		return nil, err
	}
	cfg.Owner = acc.User()
	return supervise.New(cfg)
}

// systemd connects to the service manager when it is first needed.
func (d *Daemon) systemd(ctx context.Context) (*systemd.Manager, error) {
	d.bus.Lock()
	defer d.bus.Unlock()
	if d.manager != nil {
		return d.manager, nil
	}
	m, err := systemd.Connect(ctx, systemd.Options{User: d.opt.User, Address: d.opt.BusAddress})
	if err != nil {
		return nil, err
	}
	d.manager = m
	return m, nil
}

// stopSupervised stops the apps that nobody would stop once the daemon is gone,
// and gives up charge of them.
func (d *Daemon) stopSupervised(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first error
	for _, a := range d.apps {
		if len(a.rec().Run) == 0 || a.hostPart() == nil {
			continue
		}
		err := a.hostPart().Stop(ctx)
		if c, ok := a.hostPart().(io.Closer); ok {
			err = errs.Also(err, c.Close())
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}
