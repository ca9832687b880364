package layer

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/postgres"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/postgres/physical"
	"mulligan/snap/postgres/physical/asroot"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/replay"
)

// asksForCluster reports whether a database is to be captured by the files of its cluster, if that is in a container.
func asksForCluster(db ipc.Database) bool {
	return db.Driver == "postgres" && db.DataDir == "" && db.Mode == string(postgres.Physical)
}

// needsRoot reports whether the daemon works in folders of the app's container engine.
func needsRoot(rec store.App) bool {
	return len(rec.Volumes) > 0 || slices.ContainsFunc(rec.Databases, func(db ipc.Database) bool { return asksForCluster(db) })
}

// container returns the container of an app that serves a database.
func container(rec store.App, db ipc.Database) (c ipc.Container, found bool) {
	at := slices.IndexFunc(rec.Containers, func(m ipc.Container) bool { return slices.Contains(m.Serves, db.Name) })
	if at < 0 {
		return c, false
	}
	return rec.Containers[at], true
}

// sameServer reports whether a database has the same server in two records of an app, as far as containers are concerned.
func sameServer(a, b store.App, db ipc.Database) bool {
	x, _ := container(a, db)
	y, _ := container(b, db)
	return reflect.DeepEqual(x, y)
}

// findClusters records the clusters of the databases that ask for it.
func findClusters(ctx context.Context, b *Binder, rec *store.App, of *Containers) error {
	for _, db := range rec.Databases {
		if !asksForCluster(db) {
			continue
		}
		c, err := findCluster(ctx, b, *rec, db, of)
		if err != nil {
			return errs.Wrap(errs.Failed, "database "+db.Name, err)
		}
		for i := range rec.Containers {
			if slices.Contains(rec.Containers[i].Serves, db.Name) {
				rec.Containers[i].Cluster = c
			}
		}
	}
	return nil
}

// findCluster finds the cluster of a database that a container serves: it asks the server where its data is, and the engine where that is on this
// host. of are the containers in rec.
func findCluster(ctx context.Context, b *Binder, rec store.App, db ipc.Database, of *Containers) (*ipc.Cluster, error) {
	server, byName := of.serverOf(rec, db)
	if server == nil {
		return nil, errs.New(errs.Invalid, "", "database %s is served by no container of %s, and mode physical needs the data folder of its cluster", db.Name, rec.Unit).
			WithHint("correct its dsn, or name data_dir")
	}
	if os.Geteuid() != 0 {
		return nil, errs.New(errs.Unsupported, "", "mode physical of a database in a container needs a daemon that runs as root").WithHint("use mode = logical")
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return nil, err
	}
	in := &physical.Inside{Client: acc.User()}
	if byName {
		in.Dial = server.Connect
	}
	c := &ipc.Cluster{}
	if c.DataDir, c.Major, err = physical.AskServer(ctx, physical.Config{Name: db.Name, DSN: db.DSN, Inside: in}); err != nil {
		return nil, err
	}
	v, dir, err := of.VolumeAt(ctx, server.Container, c.DataDir)
	if err != nil {
		return nil, err
	}
	c.Volume, c.Folder, c.Dir = v.Name, v.Dir, dir
	return c, socketFits(v)
}

// socketFits returns an error if the path of the folder beside a volume is too long for the socket of a server that replays the log there: the daemon and the
// container in which that server runs must both reach it.
func socketFits(v engine.Volume) error {
	dir := replay.SocketFolder(asroot.StoreOf(v.Dir))
	if len(dir) <= replay.SocketLimit {
		return nil
	}
	return errs.New(errs.Unsupported, "", "for mode physical, the socket of a server would be in %s, whose path has %d bytes and may have %d", dir, len(dir), replay.SocketLimit).
		WithHint("give the volume %s a shorter name or the engine a shorter folder, or use mode = logical", v.Name)
}

// clusterInside returns the cluster of a database in a container. Its programs are those of the container's image.
func clusterInside(b *Binder, rec store.App, db ipc.Database, cfg postgres.Config, of *Containers) (*physical.Config, error) {
	m, _ := container(rec, db)
	owner := privsep.User{}
	var st unix.Stat_t
	if err := unix.Lstat(m.Cluster.Dir, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		owner.UID, owner.GID = int(st.Uid), int(st.Gid)
	}
	if known, found := cfg.Recall(); found {
		owner = known.Owner
	}
	if owner.UID == 0 {
		return nil, errs.New(errs.Unavailable, "", "there is no folder of a database server at %s", m.Cluster.Dir).
			WithHint("docker compose up makes the volume %s anew", m.Cluster.Volume)
	}
	server, byName := of.serverOf(rec, db)
	in := &physical.Inside{DataDir: m.Cluster.DataDir, Volume: m.Cluster.Folder, Client: cfg.Owner}
	if byName {
		in.Dial = server.Connect
	}
	project := of.e.Project(engine.ProjectConfig{
		Unit: "container:" + m.Name, Members: []engine.Member{{Name: m.Name, ID: m.ID}},
		StateDir: filepath.Join(b.databaseDir(rec.ID, db.Name), "container"), Failpoint: b.opt.Failpoint,
	})
	return &physical.Config{
		DataDir: m.Cluster.Dir, Owner: owner, Inside: in, Server: containerServer{project}, Log: b.opt.Log,
		Tools: containerTools{m.Cluster.Major, &engine.Aside{
			Project: project, Of: m.Name, Name: "mulligan-" + rec.Slug + "-" + db.Name, User: fmt.Sprintf("%d:%d", owner.UID, owner.GID),
			Folders: []engine.Folder{{Path: asroot.Home{Volume: m.Cluster.Folder}.Seen(), ReadOnly: true}, {Path: asroot.StoreOf(m.Cluster.Folder)}},
		}},
	}, nil
}

// containerServer starts and stops a cluster's server with its container.
type containerServer struct{ *engine.Project }

var _ pgserver.Settler = containerServer{}

// Settle gives a container back the restart policy that a stop took away.
func (s containerServer) Settle(ctx context.Context) error { return s.StartAgain(ctx) }

// containerTools are a server's programs in the image of its container.
type containerTools struct {
	major int
	*engine.Aside
}

// Start implements [pgserver.Tools].
func (t containerTools) Start(ctx context.Context, out, problem io.Writer, program string, args ...string) (pgserver.Process, error) {
	p, err := t.Aside.Start(ctx, pgtools.InsideCommand(t.major, program, args...), out, problem)
	if err != nil {
		return nil, err
	}
	return containerProgram{p}, nil
}

// Leave implements [pgserver.Tools].
func (t containerTools) Leave(ctx context.Context) error { return t.Remove(ctx) }

// containerProgram is a program beside a container.
type containerProgram struct{ p *engine.Program }

func (c containerProgram) Wait() error {
	status, err := c.p.Wait()
	if err == nil && status != 0 {
		err = pgserver.Status(status)
	}
	return err
}

func (c containerProgram) Signal(sig syscall.Signal) error { return c.p.Signal(sig) }
