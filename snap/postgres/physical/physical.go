// Package physical is the driver for a whole PostgreSQL cluster. The daemon keeps the cluster's history: its write-ahead log,
// archived continuously, and base backups of its data folder. A snapshot is a marker: a named position in the log. A restore
// forks the cluster: it clones the nearest base backup in the history of the marker's timeline, replays the log up to the
// marker beside the running server, and then exchanges the two data folders, for which the server is down for a moment. Package
// database defines the steps of a restore, their plans and the sweep. Markers are not in the content store, so this package has
// its own captures, sizes and retention. DESIGN.md lists the invariants and the crash windows.
package physical

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asroot"
	"mulligan/snap/postgres/physical/carried"
	"mulligan/snap/postgres/physical/pgserver"
)

const driverName = "postgres"

// Config names the cluster of a driver. In physical mode a cluster belongs to one app alone: all its databases are restored
// together.
type Config struct {
	App, Name string // identify the claim on the cluster; no slashes
	DSN       string // of a superuser, directly to the server (no pooler)
	DataDir   string // absolute; its parent folder must be writable to the server's user
	// StateDir is a folder of the daemon for this driver alone: markers, plans, checksums.
	StateDir string
	// Store has the archived log, base backups and forks. It belongs to the server's user, and is on the same file system as
	// DataDir. Default: DataDir + ".mulligan".
	Store  string
	Server pgserver.Server
	Bin    string       // folder of the server's programs, such as /usr/lib/postgresql/15/bin
	Owner  privsep.User // the user that the server runs as
	// Tools are the server's programs if they are in no folder of this host.
	Tools  pgserver.Tools
	Inside *Inside // nil: the server is on this host
	// MaxReplay is the most log in bytes that may follow a base backup before Maintain takes a new one. Default: 128 MiB if
	// files are cloned, and 1 GiB if they are copied.
	MaxReplay int64
	// DigestLimit is the total size of all databases in bytes up to which the proof of a restore also compares every row.
	// Default: 64 MiB; negative: never.
	DigestLimit int64
	Failpoint   failpoint.Hook // for tests: called before each long step
	// Objects is the content store from which Import reads; nil: nothing can be imported.
	Objects carried.Objects
	Log     *slog.Logger // slog.Default() if nil
}

// Inside describes a server in a container, whose data folder is in a volume. Such a server does not see the store, so it does not archive its log into
// it: a replication slot keeps the log until the driver copies it. The owner's workers see the volume and the store alone.
type Inside struct {
	DataDir string       // the data folder, as the server names it
	Volume  string       // the volume's folder on this host: DataDir of the configuration, or a folder above it
	Client  privsep.User // with whose rights connections are made
	// Dial connects to the server; nil: it is at the DSN's address.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Driver captures and restores one cluster. Its methods form the interface to other packages; the pieces do the work, and
// engine does the steps of a restore. Safe for concurrent use.
type Driver struct {
	*database.Switcher[plan, *plan, state] // each method runs under its Do, except the copying of a base backup
	*pieces
	left bool // the cluster was disabled or released, so the driver must not change its server; guarded by Do
}

var (
	_ snap.Driver          = (*Driver)(nil)
	_ snap.LiveCapturer    = (*Driver)(nil)
	_ snap.Salvager        = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
	_ snap.Transporter     = (*Driver)(nil)
)

// New returns a driver. It does not access the cluster.
func New(cfg Config) (*Driver, error) {
	const op = "open postgres driver"
	if err := cfg.complete(op); err != nil {
		return nil, err
	}
	if err := makeFolders(cfg.StateDir); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	p := assemble(cfg)
	e := engine{p}
	return &Driver{Switcher: database.NewSwitcher[plan](p.plans, e, e, e.check), pieces: p}, nil
}

// AskServer returns the data folder, as the server names it, and the major version. Of the configuration it needs the DSN, and Inside's Client and Dial.
func AskServer(ctx context.Context, cfg Config) (dataDir string, major int, err error) {
	s := &server{name: cfg.Name, dsn: cfg.DSN, inside: cfg.Inside}
	c, err := s.connect(ctx)
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	err = c.Row(ctx, "SELECT current_setting('data_directory'), current_setting('server_version_num')::int / 10000", &dataDir, &major)
	return dataDir, major, err
}

// complete sets the defaults of the configuration. It returns an error of kind errs.Invalid if a value cannot be used.
func (cfg *Config) complete(op string) error {
	for _, name := range []string{cfg.App, cfg.Name} {
		if !database.ValidName(name) {
			return errs.New(errs.Invalid, op, "%q is not a name", name)
		}
	}
	paths := []string{cfg.DataDir, cfg.Store, cfg.StateDir}
	switch {
	case cfg.Inside != nil:
		cfg.Store = asroot.StoreOf(cfg.Inside.Volume)
		cfg.Owner.Folders = []string{cfg.Inside.Volume, cfg.Store}
	case cfg.Store == "":
		cfg.Store = pgserver.StoreOf(cfg.DataDir)
	}
	paths[1] = cfg.Store
	if cfg.Tools == nil {
		paths = append(paths, cfg.Bin)
	}
	for _, dir := range paths {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return errs.New(errs.Invalid, op, "%q is not an absolute, clean path", dir)
		}
		if strings.ContainsAny(dir, "'%\\\n") {
			return errs.New(errs.Invalid, op, "%q holds a character that cannot be part of the server's archive_command", dir)
		}
	}
	if cfg.Server == nil {
		return errs.New(errs.Invalid, op, "nothing can start and stop the server")
	}
	if cfg.DigestLimit == 0 {
		cfg.DigestLimit = 64 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return nil
}

// Close ends the connection that captures use. The driver may still be used afterwards.
func (d *Driver) Close() {
	_ = d.Do(context.Background(), "", func() error {
		d.marks.hangUp()
		return d.server.Leave(context.Background()) // what is left, a Sweep ends
	})
}

// CapturesLive returns true: a marker in the log of a running app is the state after a transaction.
func (d *Driver) CapturesLive() bool { return true }
