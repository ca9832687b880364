package physical

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgwire"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/wal"
)

// conn is one connection, for one piece of work. Only captures keep theirs.
type conn struct {
	*pgx.Conn
	refusal *pgwire.Refusal
}

// connect connects to the live server: to the maintenance database, so that the
// app's can be dropped and made again meanwhile.
func (d *Driver) connect(ctx context.Context) (conn, error) {
	cfg, err := d.config(ctx)
	if err != nil {
		return conn{}, err
	}
	own := cfg.Database
	cfg.Database = "postgres"
	c, err := open(ctx, cfg)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "3D000" { // no such database
		cfg.Database = own
		c, err = open(ctx, cfg)
	}
	return c, err
}

// config is the DSN read. Where it names no user, that is the server's own; on a
// unix socket the server also sees it as that user (SO_PEERCRED), for peer login.
func (d *Driver) config(ctx context.Context) (*pgx.ConnConfig, error) {
	l, err := d.login()
	if err != nil {
		return nil, err
	}
	password, err := l.Secret(ctx, d.owner)
	if err != nil {
		return nil, err
	}
	cfg, err := configOf(map[string]string{
		"host": l.Host, "port": l.Port, "user": l.User, "password": password, "dbname": l.Database, "sslmode": l.TLS["sslmode"],
	})
	if err != nil {
		return nil, pglogin.Bad("of database %s cannot be used", d.cfg.Name)
	}
	cfg.DialFunc = d.owner.Dial
	return cfg, nil
}

// login takes the DSN apart, and fills in the server's user where it names none.
func (d *Driver) login() (*pglogin.Settings, error) {
	l, err := pglogin.Parse(d.cfg.DSN)
	if err != nil {
		return nil, err
	}
	for _, name := range pglogin.Certificates {
		if l.TLS[name] != "" {
			return nil, errs.New(errs.Unsupported, "", "the dsn of database %s has %s, and a cluster on this host is reached without certificates", d.cfg.Name, name).
				WithHint("name the server's socket: postgres://USER@/DATABASE?host=/run/postgresql")
		}
	}
	if l.User == "" {
		uid := d.owner.UID
		if uid < 0 {
			uid = os.Geteuid()
		}
		u, err := user.LookupId(strconv.Itoa(uid))
		if err != nil {
			return nil, pglogin.Bad("names no user, and user %d has no name", uid)
		}
		l.User = u.Username
	}
	if l.Database == "" {
		l.Database = l.User
	}
	return l, nil
}

// configOf is what pgx makes of settings, and of nothing else: no file is read.
func configOf(settings map[string]string) (*pgx.ConnConfig, error) {
	text := "passfile=" + os.DevNull + " sslrootcert='' sslcert='' sslkey='' target_session_attrs=any"
	for k, v := range settings {
		text += " " + k + "=" + pglogin.Quote(v)
	}
	cfg, err := pgx.ParseConfig(text)
	if err == nil {
		cfg.RuntimeParams = map[string]string{}
	}
	return cfg, err
}

const connectTimeout = 10 * time.Second

func open(ctx context.Context, cfg *pgx.ConnConfig) (conn, error) {
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	refusal := &pgwire.Refusal{}
	pgwire.Guard(cfg, refusal)
	for k, v := range map[string]string{
		"application_name": "mulligan", "log_min_error_statement": "panic", "search_path": "pg_catalog", "synchronous_commit": "on", "statement_timeout": "0",
		"lock_timeout": "0", "default_transaction_read_only": "off", "extra_float_digits": "1", "DateStyle": "ISO", "bytea_output": "hex",
	} {
		cfg.RuntimeParams[k] = v
	}
	c, err := snap.Login(ctx, connectTimeout, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg) })
	if err != nil {
		return conn{}, explain(refusal.Take(err))
	}
	return conn{c, refusal}, nil
}

// explain gives a kind to what the server, or its absence, says.
func explain(err error) error {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var known *errs.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &known):
		return errs.Wrap(errs.Failed, "", err)
	case errors.As(err, &pg) && pg.Code == "42501":
		return errs.New(errs.Denied, "", "the role of the DSN is not a superuser, and only one can take a cluster back as a whole").
			WithHint("give a DSN of a superuser, or use mode = logical")
	case errors.As(err, &pg) && (pg.Code == "28P01" || pg.Code == "28000"):
		return &errs.Error{Kind: errs.Denied, Message: "the server does not let us in: " + pg.Message, Hint: "correct the user or the password of the DSN, or pg_hba.conf"}
	case errors.As(err, &pg) && (pg.Code == "53100" || pg.Code == "53200"):
		return &errs.Error{Kind: errs.Failed, Err: err, Hint: "free some space, or memory, for the server"}
	case errors.As(err, &pg) && strings.HasPrefix(pg.Code, "57P"), errors.As(err, &connect) && pg == nil, errors.Is(err, net.ErrClosed):
		return &errs.Error{Kind: errs.Unavailable, Err: err, Hint: "see that the server runs and takes connections"}
	}
	return err
}

func (c conn) close() { _ = c.Conn.Close(context.Background()) } // the work is done or has failed by then

// row reads one row.
func (c conn) row(ctx context.Context, sql string, into ...any) error {
	return c.explain(c.QueryRow(ctx, sql).Scan(into...))
}

// exec runs statements.
func (c conn) exec(ctx context.Context, sql string) error {
	_, err := c.Exec(ctx, sql)
	return c.explain(err)
}

// explain also knows when the server died in the middle.
func (c conn) explain(err error) error {
	why := explain(c.refusal.Take(err))
	if e := (*errs.Error)(nil); why != nil && c.IsClosed() && !errors.As(why, &e) && !errors.Is(why, context.Canceled) && !errors.Is(why, context.DeadlineExceeded) {
		return &errs.Error{Kind: errs.Unavailable, Message: "the server ended the connection", Err: err, Hint: "see that the server runs and takes connections"}
	}
	return why
}

// column reads the only column of all rows.
func (c conn) column(ctx context.Context, sql string) ([]string, error) {
	rows, err := c.Query(ctx, sql)
	if err != nil {
		return nil, c.explain(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return all, c.explain(err)
}

// facts are what the driver has to know of a cluster.
type facts struct {
	Version        int
	System         string // the cluster's identifier
	DataDir        string
	ConfigFile     string
	Inside         bool // ConfigFile is in the data folder
	Superuser      bool
	Bootstrap      string // the role that the cluster was made with, which is in every state of it
	Standby        bool
	ArchiveMode    string
	ArchiveCommand string // as the server has it now
	FileCommand    string // as it has it after a restart
	ArchiveLibrary string
	WALLevel       string
	Segments       wal.Segments
	Fsync          bool
	TLI            wal.Timeline `json:",omitzero"`
	Spaces         []string     // tablespaces of its own
	Databases      []string
	Size           int64 // of all databases, in bytes
	Slot           bool  // whether ours is there
	// Given are settings that the server has from its command line or environment.
	Given []string
}

const factsSQL = `SELECT current_setting('server_version_num')::int, (SELECT system_identifier::text FROM pg_control_system()),
	current_setting('data_directory'), current_setting('config_file'), (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
	(SELECT rolname FROM pg_roles WHERE oid = 10), pg_is_in_recovery(), current_setting('archive_mode'), current_setting('archive_command'),
	coalesce((SELECT setting FROM pg_file_settings WHERE name = 'archive_command' AND error IS NULL ORDER BY seqno DESC LIMIT 1), ''),
	coalesce(current_setting('archive_library', true), ''), current_setting('wal_level'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'), current_setting('fsync')::bool,
	ARRAY(SELECT spcname::text FROM pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global') ORDER BY 1),
	ARRAY(SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1),
	(SELECT sum(pg_database_size(oid)) FROM pg_database)::bigint,
	EXISTS(SELECT FROM pg_replication_slots WHERE slot_name = '` + slot + `'),
	ARRAY(SELECT name::text FROM pg_settings WHERE source IN ('command line', 'environment variable') AND name NOT IN ('config_file', 'data_directory', 'client_encoding') ORDER BY 1)`

// inspect asks the live server.
func (d *Driver) inspect(ctx context.Context, c conn) (f facts, err error) {
	var superuser bool
	if err := c.row(ctx, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user", &superuser); err != nil {
		return f, err
	}
	if !superuser {
		return f, errs.New(errs.Denied, "", "%s is not a superuser, and only one can take a cluster back as a whole", c.Config().User).
			WithHint("give a DSN of a superuser, or use mode = logical")
	}
	err = c.row(ctx, factsSQL, &f.Version, &f.System, &f.DataDir, &f.ConfigFile, &f.Superuser, &f.Bootstrap,
		&f.Standby, &f.ArchiveMode, &f.ArchiveCommand, &f.FileCommand, &f.ArchiveLibrary, &f.WALLevel, &f.Segments, &f.Fsync,
		&f.Spaces, &f.Databases, &f.Size, &f.Slot, &f.Given)
	if err != nil {
		return f, err
	}
	same, err := asowner.SameFile(filepath.Dir(f.ConfigFile), d.cfg.DataDir)
	f.Inside = err == nil && same || filepath.Dir(f.ConfigFile) == d.cfg.DataDir
	if f.Standby {
		return f, nil
	}
	f.TLI, err = c.timeline(ctx)
	return f, err
}

func (c conn) timeline(ctx context.Context) (wal.Timeline, error) {
	var name string
	if err := c.row(ctx, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &name); err != nil {
		return 0, err
	}
	return wal.ParseTimeline(name)
}

// refuse says what keeps a cluster from being handled in this mode.
func (d *Driver) refuse(ctx context.Context, f facts) error {
	no := func(format string, args ...any) *errs.Error {
		return errs.New(errs.Unsupported, "", format, args...).WithHint("use mode = logical")
	}
	same, err := asowner.SameFile(f.DataDir, d.cfg.DataDir)
	switch {
	case err != nil:
		return err
	case !same:
		return errs.New(errs.Invalid, "", "the server of the DSN keeps its data in %s, not in %s", f.DataDir, d.cfg.DataDir).
			WithHint("correct the DSN or the data folder")
	case f.Version < 150000:
		return no("PostgreSQL %d is too old: at least 15 is needed", f.Version/10000)
	case f.Standby:
		return no("the server is a standby of another")
	case len(f.Spaces) > 0:
		return no("the cluster has tablespaces outside its data folder (%s), which would be shared by all copies", strings.Join(f.Spaces, ", "))
	case f.WALLevel == "minimal":
		return errs.New(errs.Unsupported, "", "wal_level is minimal, with which the log cannot be replayed").
			WithHint("set wal_level = replica and restart the server")
	}
	if _, err = asowner.Layout.Call(ctx, d.owner, d.home()); err != nil {
		return err
	}
	return d.refuseStarting(f)
}

// refuseStarting says what keeps the daemon from starting the server by itself, as it
// was started by somebody else.
func (d *Driver) refuseStarting(f facts) error {
	p, ours := d.cfg.Server.(pgserver.PgCtl)
	switch {
	case !ours:
		return nil
	case p.Config == "" && !f.Inside:
		return errs.New(errs.Unsupported, "", "the configuration of the server is in %s, outside of its data folder, and no unit starts it", f.ConfigFile).
			WithHint("have root name the unit that serves the cluster, or use mode = logical")
	case len(f.Given) > 0:
		return errs.New(errs.Unsupported, "", "the server was started with settings of its own (%s), which it would not have after a restore", strings.Join(f.Given, ", ")).
			WithHint("write them into postgresql.conf and start the server without them, or use mode = logical")
	}
	return nil
}

// ownDatabases lists the databases besides the DSN's and the maintenance one.
func (f facts) others(own string) []string {
	return slices.DeleteFunc(slices.Clone(f.Databases), func(s string) bool { return s == own || s == "postgres" })
}

// connectTo connects to one database of the live server.
func (d *Driver) connectTo(ctx context.Context, database string) (conn, error) {
	cfg, err := d.config(ctx)
	if err != nil {
		return conn{}, err
	}
	cfg.Database = database
	return open(ctx, cfg)
}
