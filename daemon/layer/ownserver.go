package layer

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"mulligan/daemon/isolate"
	"mulligan/daemon/store"
	"mulligan/daemon/supervise"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/mysql"
	"mulligan/snap/postgres"
	"mulligan/snap/postgres/own"
	"mulligan/snap/redis"
)

// ownServer is a database server that one fork has for itself. It runs in namespaces of its own, apart from the fork's, because it
// runs while the fork's command is stopped and its data replaced. The daemon reaches it through a Unix socket in a folder of the
// daemon's, which is mounted where the fork's command looks for the server, or has a port there.
type ownServer struct {
	snap.Server
	driver string
	name   string       // the database's, or that of the first of several
	dbs    []string     // the names of all databases on the server
	slug   string       // the fork's
	id     string       // the fork's app id
	owner  privsep.User // as whom the server runs
	client privsep.User // the app's owner, who may connect
	dir    string       // the daemon's own folder for the server
	// shared: clients may be other users than the owner, as the fork is run by a unit. They reach the server's socket, which is below
	// a folder that only the daemon may enter, in the fork's namespaces alone.
	shared bool
	first  bool // its data are the copy that was made before the fork's server was first started; see aside
}

// The folders of an ownServer. Only data and tmp belong to the fork's owner: the names in the others are the daemon's.
func (o ownServer) data() string {
	if o.Seeded != nil {
		return filepath.Join(o.Seeded.Folder, o.seed())
	}
	return filepath.Join(o.dir, "data")
}

// seed is the name of the data that a [snap.ServerSource] makes, or of the copy of them.
func (o ownServer) seed() string {
	if o.first {
		return o.id + "+" + o.name
	}
	return o.id + "-" + o.name
}

func (o ownServer) tmp() string { return filepath.Join(o.dir, "tmp") }
func (o ownServer) config() string {
	return filepath.Join(o.dir, "etc", filepath.Base(snap.ServerConfig))
}
func (o ownServer) at() string { return filepath.Join(o.dir, "at") }

// socket is where the daemon and the fork's command reach the server.
func (o ownServer) socket() string { return filepath.Join(o.at(), o.socketName()) }

func (o ownServer) socketName() string {
	switch {
	case o.SocketName != "":
		return o.SocketName
	case o.Socket != "":
		return filepath.Base(o.Socket)
	}
	return "s"
}

// control is the path of the socket for running commands beside the server.
func (o ownServer) control() string { return filepath.Join(o.dir, "run", "control.sock") }

// maxSocket is the length that the kernel allows for the path of a Unix socket (unix(7)).
const maxSocket = 107

// callback is the name of the socket, beside the server's, where the server reaches the driver.
const callback = ".call"

// served are the drivers of databases of which each fork has a server of its own: how to run the server, and the driver's DSN for it.
var served = map[string]struct {
	server func(...snap.Parent) (snap.Server, error)
	dsn    func(of snap.Parent, socket string) (string, error)
	drop   func(ctx context.Context, of snap.Seeded, name string) error // removes data that a [snap.ServerSource] made
}{
	"mysql":    {server: mysql.OwnServer, dsn: mysql.OwnDSN},
	"postgres": {own.Server, own.DSN, postgres.DropServer},
	"redis":    {server: redis.OwnServer, dsn: redis.OwnDSN},
}

// ServerKinds asks the servers of an app's databases what those of its forks must be like. The result is by the databases' names.
func (s *Setup) ServerKinds(ctx context.Context) (map[string]string, error) {
	kinds := map[string]string{}
	for _, db := range s.Rec.Databases {
		l, _ := s.Layer(DbLayer(db))
		d, ok := l.Driver.(snap.ServerDriver)
		if _, its := served[db.Driver]; !its || !ok {
			continue
		}
		kind, err := d.ServerKind(ctx)
		if err != nil {
			return nil, cannotFork(db.Name, err)
		}
		if kind != "" {
			kinds[db.Name] = kind
		}
	}
	return kinds, nil
}

// CheckOwnServers refuses a fork whose databases need servers that it cannot have. rec is the fork's record.
func (b *Binder) CheckOwnServers(rec store.App) error {
	list, err := b.ownServers(rec)
	if err != nil {
		return err
	}
	for i, o := range list {
		if err := o.check(rec, list[:i]); err != nil {
			return cannotFork(o.name, err)
		}
	}
	return nil
}

func cannotFork(database string, err error) error {
	return &errs.Error{Kind: errs.KindOf(err), Message: "the database " + database + " cannot be forked", Err: err, Hint: errs.HintOf(err)}
}

// check refuses a server that the fork cannot have beside the others.
func (o ownServer) check(rec store.App, others []ownServer) error {
	if o.Socket != "" {
		dir := filepath.Dir(o.Socket)
		if usedBeside(rec, dir) {
			return errs.New(errs.Unsupported, "", "its socket lies in %s, beside other files", dir).
				WithHint("give the socket a folder of its own, as in /run/redis/redis.sock")
		}
		for _, other := range others {
			if other.Socket != "" && filepath.Dir(other.Socket) == dir {
				return errs.New(errs.Unsupported, "", "its socket lies in %s, as that of %s", dir, other.name).
					WithHint("give each server's socket a folder of its own")
			}
		}
	}
	for _, socket := range []string{o.socket(), o.control()} {
		if len(socket) > maxSocket {
			return errs.New(errs.Unsupported, "", "the path of its socket, %s, would be longer than %d bytes", socket, maxSocket).
				WithHint("give the database a shorter name, or the daemon a state folder with a shorter path")
		}
	}
	if o.NeedsUser {
		if err := o.checkUser(); err != nil {
			return err
		}
	}
	_, err := o.program()
	return err
}

// checkUser refuses an owner for whom the server does not run.
func (o ownServer) checkUser() error {
	uid := o.owner.UID
	if o.owner.IsSelf() {
		uid = os.Geteuid()
	}
	if uid == 0 {
		return errs.New(errs.Unsupported, "", "a fork's own server has the rights of the app's owner, and this server does not run as root").
			WithHint("let another user own the workspace and register the app")
	}
	if _, err := user.LookupId(strconv.Itoa(uid)); err != nil {
		return errs.New(errs.Unsupported, "", "a fork's own server has the rights of the app's owner, and user %d has no name on this host", uid).
			WithHint("give the user an account: useradd --uid %d NAME", uid)
	}
	return nil
}

// usedBeside reports whether a server's socket folder, put over dir, would cover more than sockets.
func usedBeside(rec store.App, dir string) bool {
	for _, used := range []string{rec.Fork.ParentPath, "/tmp", "/run", "/var/run", "/usr", "/etc", "/dev/shm", "/proc"} {
		if rel, err := filepath.Rel(dir, used); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

// serverPath is where programs of servers are looked for.
var serverPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}

// program finds the server's program.
func (o ownServer) program() (string, error) {
	for _, name := range o.Programs {
		dirs := serverPath
		if filepath.IsAbs(name) {
			dirs = []string{""}
		}
		for _, dir := range dirs {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", errs.New(errs.Unsupported, "", "a fork needs a server of its own, and this host has no %s", strings.Join(o.Programs, " or ")).
		WithHint("install %s on this host", o.Install)
}

// ownServers lists the servers that a fork has for itself. Databases that are on one server of the parent's are on one of the fork's.
func (b *Binder) ownServers(rec store.App) (list []ownServer, err error) {
	if rec.Fork == nil {
		return nil, nil
	}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return nil, err
	}
	var parents [][]snap.Parent
	for _, db := range rec.Databases {
		how, ok := served[db.Driver]
		if !ok || rec.Fork.Project != "" { // the fork's containers have it
			continue
		}
		if rec.Fork.Isolation == ipc.IsolationPorts {
			return nil, errs.New(errs.Unsupported, "", "the database %s is on a server, and a fork without namespaces cannot have one of its own", db.Name).
				WithHint("let forks have namespaces, or let the app use SQLite")
		}
		p := parentOf(rec, db)
		s, err := how.server(p)
		if err != nil {
			return nil, cannotFork(db.Name, err)
		}
		at := slices.IndexFunc(list, func(o ownServer) bool { return o.driver == db.Driver && o.Port == s.Port && o.Socket == s.Socket })
		if at < 0 {
			list = append(list, ownServer{s, db.Driver, db.Name, []string{db.Name}, rec.Slug, string(rec.ID), acc.User(), acc.User(),
				filepath.Join(b.StateDir(rec.ID), serverPrefix+db.Name), rec.Unit != "", false})
			parents = append(parents, []snap.Parent{p})
			continue
		}
		list[at].dbs, parents[at] = append(list[at].dbs, db.Name), append(parents[at], p)
		if list[at].Server, err = how.server(parents[at]...); err != nil {
			return nil, cannotFork(db.Name, err)
		}
	}
	for i, o := range list {
		if o.Seeded != nil {
			list[i].owner = privsep.User{UID: o.Seeded.UID, GID: o.Seeded.GID}
		}
	}
	return list, nil
}

func parentOf(rec store.App, db ipc.Database) snap.Parent {
	return snap.Parent{DSN: db.DSN, Kind: rec.Fork.Servers[db.Name]}
}

// ownServerOf returns the server that a fork has for a database, with the DSN for its driver; nil if it has none. The server is
// reached through the daemon's own folder.
func (b *Binder) ownServerOf(rec store.App, db ipc.Database) (*ownServer, string, error) {
	list, err := b.ownServers(rec)
	if err != nil {
		return nil, "", err
	}
	for _, o := range list {
		if slices.Contains(o.dbs, db.Name) {
			dsn, err := served[db.Driver].dsn(parentOf(rec, db), o.socket())
			return &o, dsn, err
		}
	}
	return nil, "", nil
}

// supervised takes charge of the server.
func (o ownServer) supervised(stopTimeout time.Duration) (*supervise.Process, error) {
	program, err := o.program()
	if err != nil {
		program = o.Programs[0] // to stop it, it need not be there
	}
	command := append([]string{program}, o.Args...)
	if o.Setup != "" {
		command = append([]string{"/bin/sh", "-euc", o.Setup + "\nexec \"$0\" \"$@\""}, command...)
	}
	return supervise.New(supervise.Config{
		Name: o.slug + "'s " + o.name, Command: command, Dir: snap.ServerData, Owner: o.owner,
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
	hidden, err := o.hidden(cmd.Path)
	if err != nil {
		return err
	}
	p := isolate.Place{
		Owner: o.owner,
		Binds: append(hidden,
			isolate.Bind{From: o.tmp(), At: "/tmp"}, isolate.Bind{From: o.data(), At: snap.ServerData},
			isolate.Bind{From: filepath.Dir(o.config()), At: filepath.Dir(snap.ServerConfig)}, isolate.Bind{From: o.at(), At: "/tmp/at"}),
		Fronts:  []isolate.Front{{Port: o.Listen, Socket: o.ListenSocket, Listener: l}},
		Control: o.control(),
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
	if err := os.WriteFile(o.config(), o.Config, 0o600); err != nil {
		return err
	}
	if err := give(o.config(), o.owner); err != nil || o.Seeded != nil {
		return err
	}
	if err := os.Mkdir(o.data(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return give(o.data(), o.owner)
}

// give makes a user the owner of a file, which is in a folder of the daemon's.
func give(path string, to privsep.User) error {
	if to.IsSelf() {
		return nil
	}
	return os.Lchown(path, to.UID, to.GID)
}

// listen makes the server's socket anew. It belongs to the app's owner, and nobody else may connect unless it is shared.
func (o ownServer) listen() (*net.UnixListener, error) {
	if err := os.Remove(o.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.socket(), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	mode := os.FileMode(0o600)
	if o.shared {
		mode = 0o666
	}
	if err := errors.Join(os.Chmod(o.socket(), mode), give(o.socket(), o.client)); err != nil {
		return nil, errs.Also(err, l.Close())
	}
	return l, nil
}

// reach adds to a fork's place what leads its command to the server.
func (o ownServer) reach(rec store.App, p *isolate.Place) error {
	if err := o.prepare(); err != nil { // the server may not have been started yet
		return err
	}
	covered, err := o.covered(rec)
	if err != nil {
		return err
	}
	if o.Socket == "" {
		at := filepath.Join("/tmp/.mulligan", o.name)
		covered = append(covered, at)
		p.Backs = append(p.Backs, isolate.Back{Port: o.Port, Socket: filepath.Join(at, o.socketName())})
	}
	for _, at := range covered {
		if !slices.ContainsFunc(p.Binds, func(b isolate.Bind) bool { return b.At == at }) { // no other server's is there
			p.Binds = append(p.Binds, isolate.Bind{From: o.at(), At: at})
		}
	}
	return nil
}

// covered are the folders in whose place a fork sees the folder of the server's socket.
func (o ownServer) covered(rec store.App) (list []string, err error) {
	if o.Socket != "" {
		at, err := filepath.EvalSymlinks(filepath.Dir(o.Socket))
		if err != nil {
			return nil, err
		}
		list = append(list, at)
	}
	for _, dir := range o.Usual {
		if at, err := filepath.EvalSymlinks(dir); err == nil && !usedBeside(rec, at) {
			list = append(list, at)
		}
	}
	return list, nil
}

// startServers starts a fork's own servers, or takes them over if they run. fresh reports whether one of them has no data yet.
func (b *Binder) startServers(ctx context.Context, rec store.App) (running []runningServer, fresh bool, err error) {
	list, err := b.ownServers(rec)
	if err != nil {
		return nil, false, err
	}
	for _, o := range list {
		b.endAside(ctx, rec, o)
		if _, err := os.Stat(o.data()); err != nil {
			fresh = true
		}
		p, err := o.supervised(b.opt.StopTimeout)
		if err != nil {
			return running, fresh, err
		}
		running = append(running, runningServer{p, o.Seeded != nil})
		if err := p.Start(ctx); err != nil {
			// The fork's other layers work; an operation that needs the server says that it does not answer.
			b.opt.Log.Error("a database server of a fork could not be started", "app", rec.Slug, "database", o.name, "err", err)
		}
	}
	return running, fresh, nil
}

// runningServer is the process of a server that a fork has for itself.
type runningServer struct {
	*supervise.Process
	seeded bool // its data were made by the parent's driver, so that it is one of SeededLayers
}

// StopSeeded stops those of the fork's own servers that have the layers of SeededLayers. StartSeeded starts them again.
func (s *Setup) StopSeeded(ctx context.Context) error {
	for _, p := range s.servers {
		if !p.seeded {
			continue
		}
		if err := p.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// StartSeeded starts what StopSeeded stopped, and waits until it answers.
func (b *Binder) StartSeeded(ctx context.Context, s *Setup) error {
	for _, p := range s.servers {
		if !p.seeded {
			continue
		}
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	b.awaitServers(ctx, s, serverPatience)
	return nil
}

// DropServers stops a fork's own servers, whether or not the fork could be set up, and removes their data.
func (b *Binder) DropServers(ctx context.Context, rec store.App) error {
	if err := b.StopServers(ctx, rec); err != nil {
		return err
	}
	list, err := b.ownServers(rec)
	if err != nil {
		return err
	}
	for _, o := range list {
		b.asides.Delete(o.dir)
		if o.Seeded != nil {
			for _, name := range []string{o.seed(), o.aside().seed()} {
				if err := served[o.driver].drop(ctx, *o.Seeded, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
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
		if err := b.stopAside(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// How long a fork's own server may take until it answers after its start: with data, and when it makes them first.
const (
	serverPatience = 30 * time.Second
	freshPatience  = 3 * time.Minute
)

// awaitServers waits until a fork's own servers answer, and gives up on one that does not: its layer's operations say why.
func (b *Binder) awaitServers(ctx context.Context, s *Setup, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, l := range s.Layers {
		d, ok := l.Driver.(snap.ServerDriver)
		for ok && ctx.Err() == nil && s.serversRun(ctx) && d.Answers(ctx) != nil {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	for _, p := range s.servers {
		if ctx.Err() != nil || !s.serversRun(ctx) {
			b.opt.Log.Error("a database server of a fork does not answer", "server", p.Name(), "output", tail(p.LogPath()))
		}
	}
}

// serversRun reports whether none of the fork's own servers was given up.
func (s *Setup) serversRun(ctx context.Context) bool {
	return !slices.ContainsFunc(s.servers, func(p runningServer) bool {
		st, err := p.State(ctx)
		return err != nil || st.Active == "failed"
	})
}

// tail returns the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path) // its size is bounded
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}
