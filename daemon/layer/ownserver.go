package layer

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"mulligan/daemon/isolate"
	"mulligan/daemon/store"
	"mulligan/daemon/supervise"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/redis"
)

// ownServer is a database server that one fork has for itself. It runs in namespaces of its own, apart from the fork's, because it
// runs while the fork's command is stopped and its data replaced. The daemon reaches it through a Unix socket in a folder of the
// daemon's, which is mounted where the fork's command looks for the server, or has a port there.
type ownServer struct {
	snap.Server
	name  string // the database's
	slug  string // the fork's
	owner privsep.User
	dir   string // the daemon's own folder for the server
}

// The folders of an ownServer. Only data and tmp belong to the fork's owner: the names in the others are the daemon's.
func (o ownServer) data() string { return filepath.Join(o.dir, "data") }
func (o ownServer) tmp() string  { return filepath.Join(o.dir, "tmp") }
func (o ownServer) config() string {
	return filepath.Join(o.dir, "etc", filepath.Base(snap.ServerConfig))
}
func (o ownServer) at() string { return filepath.Join(o.dir, "at") }

// socket is where the daemon and the fork's command reach the server.
func (o ownServer) socket() string { return filepath.Join(o.at(), o.socketName()) }

func (o ownServer) socketName() string {
	if o.Socket != "" {
		return filepath.Base(o.Socket)
	}
	return "s"
}

// callback is the name of the socket, beside the server's, where the server reaches the driver.
const callback = ".call"

// hasOwnServer reports whether each fork of an app has a server of its own for the database.
func hasOwnServer(db ipc.Database) bool { return db.Driver == "redis" }

// CheckOwnServer refuses a fork whose database needs a server that it cannot have.
func CheckOwnServer(rec store.App, db ipc.Database) error {
	if !hasOwnServer(db) {
		return errs.New(errs.Unsupported, "", "forks with %s databases are not supported yet", db.Driver)
	}
	s, err := redis.OwnServer(db.DSN)
	if err == nil && rec.Unit != "" {
		err = errs.New(errs.Unsupported, "", "%s is run by the unit %s, and forks of units cannot have database servers yet", rec.Slug, rec.Unit).
			WithHint("let mulligan run it: mulligan app set %s --run COMMAND", rec.Slug)
	}
	if err == nil && s.Socket != "" {
		err = checkSocketFolder(rec, filepath.Dir(s.Socket))
	}
	if err == nil {
		_, err = findProgram(s.Programs)
	}
	if err != nil {
		return &errs.Error{Kind: errs.KindOf(err), Message: "the database " + db.Name + " cannot be forked", Err: err, Hint: errs.HintOf(err)}
	}
	return nil
}

// checkSocketFolder refuses a folder that a server's socket folder cannot cover without covering more.
func checkSocketFolder(rec store.App, dir string) error {
	workspace := rec.Workspace
	if rec.Fork != nil {
		workspace = rec.Fork.ParentPath
	}
	covers := func(path string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	}
	for _, used := range []string{workspace, "/tmp", "/run", "/var/run", "/usr", "/etc", "/dev/shm", "/proc"} {
		if covers(used) {
			return errs.New(errs.Unsupported, "", "its socket lies in %s, beside other files", dir).
				WithHint("give the socket a folder of its own, as in /run/redis/redis.sock")
		}
	}
	return nil
}

// serverPath is where programs of servers are looked for.
var serverPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}

func findProgram(names []string) (string, error) {
	for _, name := range names {
		for _, dir := range serverPath {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", errs.New(errs.Unsupported, "", "a fork needs a server of its own, and this host has no %s", strings.Join(names, " or ")).
		WithHint("install %s on this host", names[0])
}

// ownServers lists the servers that a fork has for itself.
func (b *Binder) ownServers(rec store.App) (list []ownServer, err error) {
	if rec.Fork == nil {
		return nil, nil
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return nil, err
	}
	for _, db := range rec.Databases {
		if !hasOwnServer(db) {
			continue
		}
		s, err := redis.OwnServer(db.DSN)
		if err != nil {
			return nil, errs.Wrap(errs.Failed, "database "+db.Name, err)
		}
		list = append(list, ownServer{s, db.Name, rec.Slug, acc.User(), filepath.Join(b.StateDir(rec.ID), "srv-"+db.Name)})
	}
	return list, nil
}

// redisConfig is the configuration of the driver of a database. A fork's own server is reached through the daemon's own folder.
func (b *Binder) redisConfig(rec store.App, db ipc.Database, cfg redis.Config) (redis.Config, error) {
	list, err := b.ownServers(rec)
	if err != nil {
		return cfg, err
	}
	for _, o := range list {
		if o.name != db.Name {
			continue
		}
		cfg.Owner = privsep.Self
		cfg.Callback = &redis.Callback{Port: o.Call, Socket: filepath.Join(o.at(), callback)}
		cfg.DSN, err = redis.OwnDSN(db.DSN, o.socket())
	}
	return cfg, err
}

// supervised takes charge of the server.
func (o ownServer) supervised(stopTimeout time.Duration) (*supervise.Process, error) {
	program, err := findProgram(o.Programs)
	if err != nil {
		program = o.Programs[0] // to stop it, it need not be there
	}
	return supervise.New(supervise.Config{
		Name: o.slug + "'s " + o.name, Command: append([]string{program}, o.Args...), Dir: snap.ServerData, Owner: o.owner,
		StateDir: filepath.Join(o.dir, "run"), Launch: o.launch, StopTimeout: stopTimeout,
	})
}

// launch starts the server in namespaces of its own, behind a new socket.
func (o ownServer) launch(cmd *exec.Cmd, visible []string) error {
	if err := o.prepare(); err != nil {
		return err
	}
	l, err := o.listen()
	if err != nil {
		return err
	}
	defer l.Close() // the server's namespaces have a duplicate
	p := isolate.Place{
		Owner: o.owner,
		Binds: []isolate.Bind{
			{From: o.tmp(), At: "/tmp"}, {From: o.data(), At: snap.ServerData},
			{From: filepath.Dir(o.config()), At: filepath.Dir(snap.ServerConfig)}, {From: o.at(), At: "/tmp/at"},
		},
		Fronts:  []isolate.Front{{Port: o.Listen, Listener: l}},
		Control: filepath.Join(o.dir, "run", "control.sock"),
	}
	if o.Call != 0 {
		p.Backs = []isolate.Back{{Port: o.Call, Socket: filepath.Join("/tmp/at", callback)}}
	}
	return p.Start(cmd, visible)
}

// prepare makes the server's folders and writes its configuration.
func (o ownServer) prepare() error {
	for _, dir := range []string{o.at(), filepath.Dir(o.config())} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o711); err != nil { // whatever the umask is
			return err
		}
	}
	if err := (forkUnit{owner: o.owner}).folder(o.tmp()); err != nil {
		return err
	}
	if err := os.Mkdir(o.data(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.WriteFile(o.config(), o.Config, 0o600); err != nil {
		return err
	}
	return errors.Join(o.give(o.data()), o.give(o.config()))
}

// give makes the server's owner the owner of a file.
func (o ownServer) give(path string) error {
	if o.owner.IsSelf() {
		return nil
	}
	return os.Lchown(path, o.owner.UID, o.owner.GID)
}

// listen makes the server's socket anew. It belongs to the fork's owner, and nobody else may connect.
func (o ownServer) listen() (*net.UnixListener, error) {
	if err := os.Remove(o.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.socket(), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(o.socket(), 0o600), o.give(o.socket())); err != nil {
		return nil, errs.Also(err, l.Close())
	}
	return l, nil
}

// reach adds to a fork's place what leads its command to the server.
func (o ownServer) reach(p *isolate.Place) error {
	if err := o.prepare(); err != nil { // the server may not have been started yet
		return err
	}
	if o.Socket != "" {
		at, err := filepath.EvalSymlinks(filepath.Dir(o.Socket))
		if err != nil {
			return err
		}
		p.Binds = append(p.Binds, isolate.Bind{From: o.at(), At: at})
		return nil
	}
	at := filepath.Join("/tmp/.mulligan", o.name)
	p.Binds = append(p.Binds, isolate.Bind{From: o.at(), At: at})
	p.Backs = append(p.Backs, isolate.Back{Port: o.Port, Socket: filepath.Join(at, o.socketName())})
	return nil
}

// startServers starts a fork's own servers, or takes them over if they run.
func (b *Binder) startServers(ctx context.Context, rec store.App) (running []*supervise.Process, err error) {
	list, err := b.ownServers(rec)
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		p, err := o.supervised(b.opt.StopTimeout)
		if err != nil {
			return running, err
		}
		running = append(running, p)
		if err := p.Start(ctx); err != nil {
			// The fork's other layers work; an operation that needs the server says that it does not answer.
			b.opt.Log.Error("a database server of a fork could not be started", "app", rec.Slug, "database", o.name, "err", err)
		}
	}
	return running, nil
}

// StopServers stops a fork's own servers, whether or not the fork could be set up.
func (b *Binder) StopServers(ctx context.Context, rec store.App) error {
	list, err := b.ownServers(rec)
	if err != nil {
		return err
	}
	for _, o := range list {
		p, err := o.supervised(b.opt.StopTimeout)
		if err != nil {
			return err
		}
		if err := errs.Also(p.Stop(ctx), p.Close()); err != nil {
			return err
		}
	}
	return nil
}

// serverPatience bounds how long a fork's own server may take until it answers after its start.
const serverPatience = 30 * time.Second

// awaitServers waits until a fork's own servers answer, and gives up on one that does not: its layer's operations say why.
func awaitServers(ctx context.Context, layers []Layer) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	for _, l := range layers {
		d, ok := l.Driver.(interface{ Answers(context.Context) error })
		for ok && ctx.Err() == nil && d.Answers(ctx) != nil {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}
