package layer

import (
	"context"
	"path/filepath"
	"slices"

	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/files"
	"mulligan/snap/volume"
)

// Containers is a unit that is containers, with the connection to their engine.
type Containers struct {
	*engine.Project
	e    *engine.Engine
	user privsep.User // with whose rights the engine is reached
	// before is called ahead of each start; nil: nothing is to be done then.
	before func(context.Context) error
}

// Start starts what the last stop found running, or all.
func (c *Containers) Start(ctx context.Context) error { return c.begin(ctx, c.Project.Start) }

// StartAgain starts what the last stop found running.
func (c *Containers) StartAgain(ctx context.Context) error {
	return c.begin(ctx, c.Project.StartAgain)
}

func (c *Containers) begin(ctx context.Context, start func(context.Context) error) error {
	if c.before != nil {
		if err := c.before(ctx); err != nil {
			return err
		}
	}
	return start(ctx)
}

// Close ends the connection to the engine. It accepts nil.
func (c *Containers) Close() error {
	if c == nil {
		return nil
	}
	return c.e.Close()
}

// containersOf returns the containers of an app, or nil if it has none. The caller must close them.
func containersOf(b *Binder, rec store.App) (*Containers, error) {
	if !engine.Names(rec.Unit) || len(rec.Run) > 0 {
		return nil, nil
	}
	return b.project(rec)
}

// The values of ipc.App.EngineAs.
const (
	EngineAsRoot  = "root"
	EngineAsOwner = "owner"
)

// Engine returns the container engine of an app. The daemon connects as root only if root named the containers; otherwise the kernel
// decides at each connection whether the app's owner may. An engine with volumes of the app must run as root: one of a user's could name
// any folder, and root would read and write there.
func (b *Binder) Engine(rec store.App) (*engine.Engine, error) {
	user, err := b.engineUser(rec)
	if err != nil {
		return nil, err
	}
	return engine.New(engine.Config{Socket: rec.Engine, Dial: user.Dial, OfRoot: needsRoot(rec) && !b.opt.User, Patience: b.opt.Engines})
}

// engineUser returns the user with whose rights the container engine of an app is reached.
func (b *Binder) engineUser(rec store.App) (privsep.User, error) {
	if b.opt.User || rec.EngineAs == EngineAsRoot {
		return privsep.Self, nil
	}
	acc, err := b.AccountOf(rec)
	return acc.User(), err
}

// project returns the containers of an app.
func (b *Binder) project(rec store.App) (*Containers, error) {
	user, err := b.engineUser(rec)
	if err != nil {
		return nil, err
	}
	e, err := b.Engine(rec)
	if err != nil {
		return nil, err
	}
	cfg := engine.ProjectConfig{Unit: rec.Unit, StateDir: filepath.Join(b.StateDir(rec.ID), "containers"), Failpoint: b.opt.Failpoint}
	for _, c := range rec.Containers {
		cfg.Members = append(cfg.Members, engine.Member{Name: c.Name, ID: c.ID, Stays: len(c.Serves) > 0})
	}
	c := &Containers{Project: e.Project(cfg), e: e, user: user}
	if rec.Fork != nil {
		c.before = func(ctx context.Context) error { return ownLines(ctx, b, rec) }
	}
	return c, nil
}

// volumeLayers returns the layers of the volumes of an app's containers.
func (b *Binder) volumeLayers(rec store.App, of *Containers) (list []Layer, err error) {
	if len(rec.Volumes) == 0 {
		return nil, nil
	}
	contents, err := b.contents.OfApp(rec)
	if err != nil {
		return nil, err
	}
	for _, v := range rec.Volumes {
		driver, err := volume.New(volume.Config{
			Name: v.FullName, Keeper: of,
			// The engine's folders belong to root, and their files to the users of the containers: none of them is the app's owner.
			Files: files.Config{
				App: string(rec.ID) + ".volume." + v.Name, Dir: v.Dir, StateDir: filepath.Join(b.StateDir(rec.ID), "volumes", v.Name),
				Store: contents, MaxFiles: b.opt.MaxFiles, MaxBytes: b.opt.MaxBytes, Owner: -1, Failpoint: b.opt.Failpoint, Log: b.opt.Log,
			},
		})
		if err != nil {
			return nil, errs.Wrap(errs.Failed, "volume "+v.Name, err)
		}
		list = append(list, Layer{Name: snap.Volume(v.Name), Kind: Volume, Family: "volume", About: "volume " + v.FullName, Driver: driver})
	}
	return list, nil
}

// FindContainers completes what a record says of an app's containers: which engine has them, which containers they are, and where their
// volumes are.
func (b *Binder) FindContainers(ctx context.Context, rec *store.App) error {
	sockets := []string{rec.Engine}
	if rec.Engine == "" {
		sockets = engine.Sockets(rec.OwnerUID)
	}
	var first error
	for _, socket := range sockets {
		try := *rec
		try.Engine = socket
		err := b.findContainers(ctx, &try)
		if err == nil {
			*rec = try
			return nil
		}
		if first == nil || errs.KindOf(first) == errs.Unavailable { // an engine that is not there says less than one that knows no such containers
			first = err
		}
	}
	return first
}

func (b *Binder) findContainers(ctx context.Context, rec *store.App) error {
	e, err := b.Engine(*rec)
	if err != nil {
		return err
	}
	defer e.Close()
	members, err := e.Members(ctx, rec.Unit)
	if err != nil {
		return err
	}
	rec.Containers = nil
	for _, m := range members {
		ports, err := e.Ports(ctx, m.Name)
		if err != nil {
			return err
		}
		c := ipc.Container{Name: m.Name, ID: m.ID}
		for _, db := range rec.Databases {
			if port := servedBy(db, m, ports); port > 0 {
				c.Serves, c.Port = append(c.Serves, db.Name), port
			}
		}
		rec.Containers = append(rec.Containers, c)
	}
	p := e.Project(engine.ProjectConfig{Unit: rec.Unit, Members: members})
	user, err := b.engineUser(*rec)
	if err != nil {
		return err
	}
	of := &Containers{Project: p, e: e, user: user}
	if err := b.checkServers(ctx, *rec, of); err != nil {
		return err
	}
	if err := findClusters(ctx, b, rec, of); err != nil {
		return err
	}
	volumes := make([]ipc.Volume, len(rec.Volumes))
	for i, v := range rec.Volumes {
		found, err := p.Volume(ctx, v.Name)
		if err != nil {
			return err
		}
		if err := clashes(ctx, p, found, rec.Containers); err != nil {
			return err
		}
		volumes[i] = ipc.Volume{Name: v.Name, FullName: found.Name, Dir: found.Dir}
	}
	rec.Volumes = volumes
	return nil
}

// clashes refuses a volume of a container that serves a database: a rollback would restore both, and below a server that runs.
func clashes(ctx context.Context, p *engine.Project, v engine.Volume, containers []ipc.Container) error {
	users, err := p.Mounts(ctx, v.Name)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if len(c.Serves) > 0 && slices.Contains(users, c.Name) {
			return errs.New(errs.Invalid, "", "volume %s is used by container %s, which serves the database %s", v.Name, c.Name, c.Serves[0]).
				WithHint("leave one of the two out: the database is captured through its server")
		}
	}
	return nil
}
