package physical

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/user"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mulligan/errs"
	"mulligan/snap/postgres/pglogin"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// server is the cluster's live server, which the app uses. The driver starts and stops it, and connects to it as a superuser.
// Forks have other servers.
type server struct {
	pgserver.Cluster
	name   string // of the cluster
	dsn    string
	store  *store
	inside *Inside // nil: on this host
}

// connect connects to the maintenance database of the live server, so that the app's database can be dropped and created
// meanwhile.
func (s *server) connect(ctx context.Context) (session.Conn, error) {
	cfg, err := s.config(ctx)
	if err != nil {
		return session.Conn{}, err
	}
	own := cfg.Database
	cfg.Database = "postgres"
	c, err := session.Open(ctx, cfg)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "3D000" { // no such database
		cfg.Database = own
		c, err = session.Open(ctx, cfg)
	}
	return c, err
}

// connectTo connects to a database of the live server.
func (s *server) connectTo(ctx context.Context, database string) (session.Conn, error) {
	cfg, err := s.config(ctx)
	if err != nil {
		return session.Conn{}, err
	}
	cfg.Database = database
	return session.Open(ctx, cfg)
}

// config parses the DSN. If the DSN names no user, the user is that of the server. Connections to a unix socket are made as
// that user (SO_PEERCRED), so that peer authentication works.
func (s *server) config(ctx context.Context) (*pgx.ConnConfig, error) {
	l, err := s.login()
	if err != nil {
		return nil, err
	}
	client := s.Owner
	if s.inside != nil {
		client = s.inside.Client
	}
	password, err := l.Secret(ctx, client)
	if err != nil {
		return nil, err
	}
	cfg, err := session.Config(map[string]string{
		"host": l.Host, "port": l.Port, "user": l.User, "password": password, "dbname": l.Database, "sslmode": l.TLS["sslmode"],
	})
	if err != nil {
		return nil, pglogin.Bad("of database %s cannot be used", s.name)
	}
	cfg.DialFunc = client.Dial
	if s.inside != nil && s.inside.Dial != nil {
		cfg.DialFunc = s.inside.Dial
		cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // only the container's network knows the name
	}
	return cfg, nil
}

// login parses the DSN. If it names no user, login takes the user that the server runs as.
func (s *server) login() (*pglogin.Settings, error) {
	l, err := pglogin.Parse(s.dsn)
	if err != nil {
		return nil, err
	}
	for _, name := range pglogin.Certificates {
		if l.TLS[name] != "" {
			return nil, errs.New(errs.Unsupported, "", "the dsn of database %s has %s, and a cluster on this host is reached without certificates", s.name, name).
				WithHint("name the server's socket: postgres://USER@/DATABASE?host=/run/postgresql")
		}
	}
	if l.User == "" {
		uid := s.Owner.UID
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

// database returns the name of the database in the DSN, or "".
func (s *server) database() string {
	l, err := s.login()
	if err != nil {
		return ""
	}
	return l.Database
}

// head returns the end of the live folder's log: timeline and position. After a crash of the server the position is 0, because
// only reading the log shows it.
func (s *server) head(ctx context.Context) (t wal.Timeline, size wal.Segments, end wal.LSN, err error) {
	running, err := pgserver.InUse(s.DataDir)
	if err != nil {
		return 0, 0, 0, err
	}
	ctl, err := s.ReadControl(ctx, s.DataDir)
	if err != nil || !running {
		if ctl.State == pgserver.ShutDown {
			end = ctl.Checkpoint // only the checkpoint record follows
		}
		return ctl.TLI, ctl.Segments, end, err
	}
	c, err := s.connect(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	defer c.Close()
	if t, err = c.Timeline(ctx); err == nil {
		end, err = c.Barrier(ctx)
	}
	return t, ctl.Segments, end, err
}

// writeOut makes the server write its buffers to the disk, and reports whether the server is up.
func (s *server) writeOut(ctx context.Context) (up bool, err error) {
	if s.Status(ctx, s.DataDir) != "ready" {
		return false, nil
	}
	c, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	defer c.Close()
	return true, c.Run(ctx, "CHECKPOINT")
}

// revive starts a server that is down if may is true, and its cluster is not another one than ours. why is the error that the caller got from the
// server; revive returns it if the server runs.
func (s *server) revive(ctx context.Context, may bool, why error, ours known.Clusters) error {
	if running, err := pgserver.InUse(s.DataDir); err != nil || running {
		return cmp.Or(err, why)
	}
	if err := ours.CheckFolder(ctx, s.Programs, s.DataDir); err != nil {
		return err
	}
	if !may {
		return &errs.Error{Kind: errs.Unavailable, Message: "the server of cluster " + s.name + " is down", Err: why,
			Hint: "start it, if it is not down on purpose: only a rollback starts it by itself"}
	}
	if err := s.Start(ctx); err != nil {
		return &errs.Error{Kind: errs.Unavailable, Message: "the server is down and cannot be started", Err: errs.Also(why, err), Hint: "its own log says why"}
	}
	return nil
}
