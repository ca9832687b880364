package layer

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/daemon/supervise"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/files"
	"mulligan/snap/files/watch"
	"mulligan/systemd"
)

// Binder binds drivers and units to apps. Safe for concurrent use.
type Binder struct {
	*accounts.Owners
	opt      *settings.Options
	contents *records.Contents
	apps     func() []store.App // the records of all registered apps

	Domains  domains
	Mounts   Mounts
	Projects Projects

	watches *watch.Budget // of the apps whose changes are only noted

	asides    sync.Map // the locks of the servers of [aside], by their folders
	entrances sync.Map // of the copies of units, by their apps: *entrance

	bus     sync.Mutex
	manager *systemd.Manager // nil until a unit is first needed
}

// NewBinder returns a binder. apps returns the records of all registered apps.
func NewBinder(opt *settings.Options, owners *accounts.Owners, contents *records.Contents, apps func() []store.App) *Binder {
	b := &Binder{Owners: owners, opt: opt, contents: contents, apps: apps, watches: budget(opt.Watches)}
	b.Mounts.b, b.Projects.b = b, b
	return b
}

// Close ends the connection to systemd.
func (b *Binder) Close() {
	if b.manager != nil {
		b.manager.Close()
	}
}

// layersOf returns an app's layers with their drivers, in the order in which they are captured: files, volumes of containers and the
// disks of a guest (each nil if there are none), databases.
func (b *Binder) layersOf(ctx context.Context, rec store.App, g *guest, containers *Containers) ([]Layer, error) {
	rest, err := b.volumeLayers(rec, containers)
	if err != nil {
		return nil, err
	}
	var skip []string
	if g != nil {
		l, own := b.diskLayer(rec, g)
		rest, skip = append(rest, l), own
	}
	for _, db := range rec.Databases {
		l, err := b.databaseLayer(ctx, rec, db, containers)
		if err != nil {
			return nil, errs.Wrap(errs.Failed, "database "+db.Name, err)
		}
		rest = append(rest, l)
		skip = append(skip, FilesOf(rec.Workspace, db)...)
	}
	owner, reader := b.eyesOf(rec)
	contents, err := b.contents.OfApp(rec)
	if err != nil {
		return nil, err
	}
	cfg := files.Config{
		App: string(rec.ID), Dir: rec.Workspace, StateDir: filepath.Join(b.StateDir(rec.ID), "files"),
		Store: contents, Exclude: rec.Exclude, Skip: skip,
		MaxFiles: b.opt.MaxFiles, MaxBytes: b.opt.MaxBytes, Owner: owner, Reader: reader, Failpoint: b.opt.Failpoint,
	}
	if !rec.Auto {
		cfg.Watch = func(o *watch.Options) { o.Budget = b.watches }
	}
	if rec.Fork != nil && rec.Fork.Pinned != "" {
		cfg.Below = filepath.Join(b.Mounts.state(rec.Fork.Pinned), "files")
	}
	driver, err := files.New(cfg)
	if err != nil {
		return nil, err
	}
	return append([]Layer{{Name: snap.Files, Family: "files", About: "files", Driver: driver}}, rest...), nil
}

// eyesOf returns the uid that an app's workspace must belong to (-1: not checked), and the user whose rights decide what the
// owner may see in it.
func (b *Binder) eyesOf(rec store.App) (owner int, reader files.Reader) {
	if b.opt.User {
		return -1, files.Reader{} // the daemon has only the rights of its user
	}
	reader = files.Reader{UID: rec.OwnerUID, GID: -1}
	if acc, err := b.AccountOf(rec); err == nil && acc.UID == rec.OwnerUID { // otherwise the account was removed, and the uid has no groups
		reader.GID, reader.Groups = acc.GID, acc.Groups
	}
	return rec.FolderUID, reader
}

// PlaceOf splits the path of a database file into a folder whose path is trusted, and a path below it that is not.
func PlaceOf(workspace, path string) (dir, rel string) {
	if !filepath.IsAbs(path) {
		return workspace, filepath.Clean(path)
	}
	path = filepath.Clean(path)
	if below, ok := strings.CutPrefix(path, workspace+"/"); ok {
		return workspace, below
	}
	return filepath.Dir(path), filepath.Base(path)
}

// UnitOf returns the service of an app: its systemd unit, or the command that the daemon supervises; nil if the app has
// neither.
func (b *Binder) UnitOf(ctx context.Context, rec store.App) (systemd.Unit, error) {
	switch {
	case len(rec.Run) > 0:
		return b.supervised(rec)
	case engine.Names(rec.Unit):
		return b.project(rec)
	case rec.Unit != "":
		m, err := b.Systemd(ctx)
		if err != nil {
			return nil, err
		}
		if rec.Fork != nil {
			return copiedUnit{m.Unit(rec.Unit), m, b, rec}, nil
		}
		return m.Unit(rec.Unit), nil
	}
	return nil, nil
}

// Kill bounds how long it takes to end a supervised command that SIGTERM did not end.
const Kill = supervise.KillWait + time.Second

func (b *Binder) supervised(rec store.App) (systemd.Unit, error) {
	cfg := supervise.Config{
		Name: rec.Slug, Command: rec.Run, Dir: rec.Workspace,
		StateDir: filepath.Join(b.StateDir(rec.ID), "run"), StopTimeout: b.opt.StopTimeout,
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return nil, err
	}
	cfg.Owner = acc.User()
	switch {
	case rec.Fork == nil:
	case rec.Fork.Isolation == ipc.IsolationPorts:
		h := hostUnit{b, rec, cfg.Owner}
		cfg.Env, cfg.Launch = variables(rec), h.launch
	default:
		f := forkUnit{rec: rec, owner: cfg.Owner, state: b.StateDir(rec.ID), files: b.Mounts.Ensure}
		if f.servers, err = b.ownServers(rec); err != nil {
			return nil, err
		}
		cfg.Dir, cfg.Env, cfg.Launch = rec.Fork.ParentPath, variables(rec), f.launch
	}
	return supervise.New(cfg)
}

// Systemd returns a connection to the service manager, which it makes on first use.
func (b *Binder) Systemd(ctx context.Context) (*systemd.Manager, error) {
	b.bus.Lock()
	defer b.bus.Unlock()
	if b.manager != nil {
		return b.manager, nil
	}
	m, err := systemd.Connect(ctx, systemd.Options{User: b.opt.User, Address: b.opt.BusAddress, Root: b.opt.BusRoot})
	if err != nil {
		return nil, err
	}
	b.manager = m
	return m, nil
}

// SetUp builds the drivers and the unit of an app.
func (b *Binder) SetUp(ctx context.Context, rec store.App) (*Setup, error) {
	g, err := b.guestOf(ctx, rec)
	if err != nil {
		return nil, err
	}
	s, err := b.assemble(ctx, rec, g)
	if err != nil && g != nil {
		err = errs.Also(err, g.driver.Close())
	}
	return s, err
}

func (b *Binder) assemble(ctx context.Context, rec store.App, g *guest) (*Setup, error) {
	if err := b.Mounts.Ensure(rec); err != nil {
		return nil, err
	}
	unit, err := b.UnitOf(ctx, rec)
	containers, _ := unit.(*Containers)
	if err == nil && g != nil {
		unit, err = b.withDomain(ctx, rec, unit, g.driver)
	}
	if err != nil {
		return nil, err
	}
	layers, err := b.layersOf(ctx, rec, g, containers)
	if err != nil {
		return nil, err
	}
	servers, fresh, err := b.startServers(ctx, rec)
	if err != nil {
		return nil, err
	}
	s := &Setup{rec, unit, layers, servers}
	if fresh {
		b.awaitServers(ctx, s, freshPatience)
	} else if len(servers) > 0 {
		b.awaitServers(ctx, s, serverPatience)
	}
	return s, nil
}

// StateDir returns the daemon's own folder for an app.
func (b *Binder) StateDir(id ipc.AppID) string {
	return filepath.Join(b.opt.StateDir, "apps", string(id))
}
