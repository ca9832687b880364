package logical

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgwire"
)

// login has the parts of a DSN. Only fixed defaults complete it, because the environment and the files of the daemon's user are
// not the app's.
type login struct {
	host, port     string // host is the folder of a socket if it begins with "/"
	user, password string
	database       string
	passfile       string
	tls            map[string]string // sslmode, sslrootcert, sslcert, sslkey
}

// parseDSN parses a DSN. Its errors mention only keys of the DSN.
func parseDSN(dsn string) (*login, error) {
	s, err := pglogin.Parse(dsn)
	if err != nil {
		return nil, err
	}
	return &login{host: s.Host, port: s.Port, user: s.User, password: s.Password, database: s.Database, passfile: s.Passfile, tls: s.TLS}, nil
}

// bind sets the user to the owner's name if the DSN names none.
func (d *Driver) bind() error {
	l := d.login
	if l.user == "" {
		uid := d.uid()
		u, err := user.LookupId(strconv.Itoa(uid))
		if err != nil {
			return pglogin.Bad("names no user, and user %d has no name", uid)
		}
		l.user = u.Username
	}
	if l.database == "" {
		l.database = l.user
	}
	return nil
}

// secret returns the password in the DSN, or in a password file that the owner may read, or "" if there is none.
func (d *Driver) secret(ctx context.Context) (string, error) {
	l := d.login
	s := pglogin.Settings{Host: l.host, Port: l.port, User: l.user, Password: l.password, Database: l.database, Passfile: l.passfile}
	return s.Secret(ctx, d.cfg.Owner)
}

// uid returns the uid of the owner, or of the daemon's own user.
func (d *Driver) uid() int {
	if d.cfg.Owner.UID < 0 {
		return os.Geteuid()
	}
	return d.cfg.Owner.UID
}

// config returns the pgx configuration for db. It sets everything that pgx would otherwise read from the environment or a home
// folder.
func (d *Driver) config(ctx context.Context, db string) (*pgx.ConnConfig, error) {
	l := d.login
	password, err := d.secret(ctx)
	if err != nil {
		return nil, err
	}
	set := map[string]string{
		"host": l.host, "port": l.port, "user": l.user, "dbname": db, "passfile": os.DevNull,
		"sslmode": l.tls["sslmode"], "target_session_attrs": "any", "password": password,
	}
	for _, name := range pglogin.Certificates {
		f, err := d.certificate(ctx, name)
		if err != nil {
			return nil, err
		}
		if f == nil {
			set[name] = l.tls[name] // "" or "system"
			continue
		}
		defer f.Close() // a file in memory
		set[name] = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	var text strings.Builder
	for k, v := range set {
		fmt.Fprintf(&text, "%s=%s ", k, pglogin.Quote(v))
	}
	cfg, err := pgx.ParseConfig(text.String())
	if err != nil {
		return nil, pglogin.Bad("cannot be used: a certificate or its settings are not right")
	}
	cfg.RuntimeParams = map[string]string{"application_name": "mulligan", "client_encoding": "UTF8"}
	cfg.DialFunc = d.cfg.Owner.Dial
	switch {
	case d.cfg.Private:
		cfg.DialFunc = privsep.Self.Dial
	case d.cfg.Inside != nil && d.cfg.Inside.Dial != nil:
		cfg.DialFunc = d.cfg.Inside.Dial
		cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // only the container's network knows the name
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pgwire.Guard(cfg, &d.refusal)
	return cfg, nil
}

// certificate reads a certificate file with the owner's rights and returns a copy in memory, because pgx accepts only file
// names. It returns nil if the DSN names none.
func (d *Driver) certificate(ctx context.Context, name string) (*os.File, error) {
	path := d.login.tls[name]
	if path == "" || path == "system" {
		return nil, nil
	}
	text, err := d.cfg.Owner.ReadFile(ctx, path)
	if errs.KindOf(err) == errs.Invalid {
		return nil, errs.Wrap(errs.Invalid, name, err)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, pglogin.Bad("cannot be used: its %s cannot be read by the app's owner", name)
	}
	return d.memory(name, text)
}

// env returns the environment of a child that connects by libpq. It has nothing of the daemon's environment. passfile is the
// path of a file with the password.
func (l *login) env(passfile string) []string {
	env := []string{
		"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent", "PGHOST=" + l.host, "PGPORT=" + l.port, "PGUSER=" + l.user,
		"PGPASSFILE=" + passfile, "PGCONNECT_TIMEOUT=10", "PGAPPNAME=mulligan",
		"PGOPTIONS=-c statement_timeout=0 -c default_transaction_read_only=off",
	}
	for k, v := range l.tls {
		if v != "" {
			env = append(env, "PG"+strings.ToUpper(k)+"="+v)
		}
	}
	return slices.Clip(env)
}

// place returns the server's address for messages.
func (l *login) place() string {
	if strings.HasPrefix(l.host, "/") {
		return l.host + " (port " + l.port + ")"
	}
	return net.JoinHostPort(l.host, l.port)
}
