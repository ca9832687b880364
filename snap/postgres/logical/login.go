package logical

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/postgres/pgwire"
)

// bind sets the user to the owner's name if the DSN names none.
func (d *Driver) bind() error {
	l := d.login
	if l.User == "" {
		uid := d.uid()
		u, err := user.LookupId(strconv.Itoa(uid))
		if err != nil {
			return pglogin.Bad("names no user, and user %d has no name", uid)
		}
		l.User = u.Username
	}
	if l.Database == "" {
		l.Database = l.User
	}
	return nil
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
	password, err := l.Secret(ctx, d.cfg.Owner)
	if err != nil {
		return nil, err
	}
	set := map[string]string{
		"host": l.Host, "port": l.Port, "user": l.User, "dbname": db, "passfile": os.DevNull,
		"sslmode": l.TLS["sslmode"], "target_session_attrs": "any", "password": password,
	}
	for _, name := range pglogin.Certificates {
		f, err := d.certificate(ctx, name)
		if err != nil {
			return nil, err
		}
		if f == nil {
			set[name] = l.TLS[name] // "" or "system"
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
	path := d.login.TLS[name]
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
	return pgtools.Memory(d.cfg.Owner, name, text)
}

// place returns the server's address for messages.
func place(l *pglogin.Settings) string {
	if strings.HasPrefix(l.Host, "/") {
		return l.Host + " (port " + l.Port + ")"
	}
	return net.JoinHostPort(l.Host, l.Port)
}
