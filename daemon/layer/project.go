package layer

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"

	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
)

// Projects are the compose projects of forks.
type Projects struct{ b *Binder }

// Engine returns the container engine of an app, reached with the rights of the app's owner also if root named it: what the owner's compose
// tool makes for a fork is the owner's affair.
func (p Projects) Engine(rec store.App) (*engine.Engine, error) {
	rec.EngineAs = EngineAsOwner
	return p.b.Engine(rec)
}

// Of returns the project of a fork. The caller must close its engine.
func (p Projects) Of(rec store.App) (engine.Fork, error) {
	e, err := p.Engine(rec)
	return engine.Fork{Engine: e, Project: rec.Fork.Project, ID: string(rec.ID), Failpoint: p.b.opt.Failpoint}, err
}

// Drop removes the project of a fork: its containers, volumes and networks.
func (p Projects) Drop(ctx context.Context, rec store.App) error {
	f, err := p.Of(rec)
	if err != nil {
		return err
	}
	return errs.Also(f.Remove(ctx, rec.Fork.Made), f.Engine.Close())
}

// Find completes the record of a fork whose project has been made. volumes has the names of its volumes by those of the parent's, which are in the record.
func (p Projects) Find(ctx context.Context, rec *store.App, volumes map[string]string) error {
	was := rec.Volumes
	rec.Volumes = nil
	for _, v := range was {
		name := volumes[v.FullName]
		if name == "" {
			return errs.New(errs.Unsupported, "", "the volume %s is mounted by no container of the app, so that a fork has none of its own", v.FullName).
				WithHint("leave it out: `mulligan app set volumes=…`")
		}
		rec.Volumes = append(rec.Volumes, ipc.Volume{Name: name})
	}
	if err := p.b.findContainers(ctx, rec); err != nil {
		return err
	}
	for i, v := range rec.Volumes {
		if v.FullName != v.Name { // somebody made one of a name that is meant to be mistaken
			return errs.New(errs.Conflict, "", "the engine has two volumes that may be %s: %s is the other one", v.Name, v.FullName).WithHint("remove the other one")
		}
		rec.Volumes[i].Name = was[i].Name // as the layer is called
	}
	return nil
}

// ForkedDSN returns where a database in a container of the app is in a fork. service is the container's, and ports are the fork's.
func ForkedDSN(db ipc.Database, service string, ports []ipc.ForkPort) (string, error) {
	host, port, byName := serverAddress(db)
	u, err := url.Parse(db.DSN)
	if err != nil || host == "" || u.Hostname() != host {
		return "", errs.New(errs.Unsupported, "", "the dsn of the database %s is no URL with a host, and that of a fork cannot be made of it", db.Name).
			WithHint("write it as %s://USER@%s/…, with the service as its host", db.Driver, service)
	}
	if byName {
		if u.Host = service; u.Port() != "" {
			u.Host = net.JoinHostPort(service, strconv.Itoa(port))
		}
		return u.String(), nil
	}
	at := slices.IndexFunc(ports, func(p ipc.ForkPort) bool { return p.Port == port })
	if at < 0 {
		return "", errs.New(errs.Unsupported, "", "port %d of the database %s is that of no container", port, db.Name)
	}
	_, number, err := net.SplitHostPort(ports[at].Address)
	u.Host = net.JoinHostPort(u.Hostname(), number)
	return u.String(), err
}

// Await waits until the database servers of a fork answer, which have no data yet.
func (p Projects) Await(ctx context.Context, s *Setup) { p.b.awaitServers(ctx, s, freshPatience) }
