package logical

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgpassfile"
	"github.com/jackc/pgx/v5"

	"mulligan/ipc/errs"
	"mulligan/snap/postgres/pgwire"
)

// login is where the server is and as whom to enter: a DSN taken apart. What a
// DSN leaves out comes from nowhere but here: the environment and the files of
// the daemon's user are not the app's.
type login struct {
	host, port     string // host is a folder with a socket when it begins with "/"
	user, password string
	database       string
	passfile       string
	tls            map[string]string // sslmode, sslrootcert, sslcert, sslkey
}

// keys are those that a DSN may have, with their other names.
var keys = map[string]string{
	"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname", "database": "dbname",
	"passfile": "passfile", "sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey",
	"application_name": "", "connect_timeout": "", "channel_binding": "", "target_session_attrs": "",
}

func badDSN(format string, args ...any) error {
	return errs.New(errs.Invalid, "", "the dsn "+format, args...).
		WithHint("write it like postgres://USER@HOST:PORT/DATABASE, or postgres:///DATABASE?host=/run/postgresql&user=USER")
}

// parseDSN reads a DSN. Its errors repeat nothing of it but keys.
func parseDSN(dsn string) (*login, error) {
	set, err := keywords(dsn)
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		set, err = urlSettings(dsn)
	}
	if err != nil {
		return nil, err
	}
	l := &login{tls: map[string]string{}}
	places := map[string]*string{"host": &l.host, "port": &l.port, "user": &l.user, "password": &l.password, "dbname": &l.database, "passfile": &l.passfile}
	for k, v := range set {
		name, known := keys[k]
		switch place := places[name]; {
		case !known:
			return nil, badDSN("has a key %.32q that is not supported here", k)
		case strings.ContainsRune(v, 0):
			return nil, badDSN("has a zero byte in it")
		case place != nil:
			*place = v
		case name != "":
			l.tls[name] = v
		}
	}
	return l, l.complete()
}

// complete fills in what libpq would, and checks the rest.
func (l *login) complete() error {
	if l.host == "" {
		l.host = "/run/postgresql"
	}
	if l.port == "" {
		l.port = "5432"
	}
	if n, err := strconv.Atoi(l.port); err != nil || n < 1 || n > 65535 || strings.Contains(l.host, ",") {
		return badDSN("must name one host and one port")
	}
	for _, name := range certificates {
		if v := l.tls[name]; v != "" && v != "system" && !filepath.IsAbs(v) {
			return badDSN("has a %s that is not an absolute path", name)
		}
	}
	if l.tls["sslmode"] == "" {
		l.tls["sslmode"] = "prefer"
	}
	return nil
}

// bind takes what the DSN leaves to the user who enters: the owner's name.
func (d *Driver) bind() error {
	l := d.login
	if l.user == "" {
		uid := d.uid()
		u, err := user.LookupId(strconv.Itoa(uid))
		if err != nil {
			return badDSN("names no user, and user %d has no name", uid)
		}
		l.user = u.Username
	}
	if l.database == "" {
		l.database = l.user
	}
	return nil
}

func urlSettings(dsn string) (map[string]string, error) {
	set := map[string]string{}
	dsn = socketHost(dsn, set)
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, badDSN("is not a URL that can be read")
	}
	for k, v := range u.Query() {
		set[k] = v[len(v)-1]
	}
	if u.User != nil {
		set["user"] = u.User.Username()
		if p, ok := u.User.Password(); ok {
			set["password"] = p
		}
	}
	if h := u.Hostname(); h != "" {
		set["host"] = h
	}
	if p := u.Port(); p != "" {
		set["port"] = p
	}
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		set["dbname"] = db
	}
	return set, nil
}

// socketHost takes a host that is an escaped path, as libpq allows, out of a
// URL: package url does not.
func socketHost(dsn string, set map[string]string) string {
	scheme, rest, _ := strings.Cut(dsn, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	host, port, _ := strings.Cut(rest[begin:end], ":")
	path, err := url.PathUnescape(host)
	if err != nil || !strings.HasPrefix(path, "/") {
		return dsn
	}
	set["host"] = path
	if port != "" {
		set["port"] = port
	}
	return scheme + "://" + rest[:begin] + rest[end:]
}

// keywords reads "key=value key='value with \' in it'".
func keywords(dsn string) (map[string]string, error) {
	set := map[string]string{}
	rest := strings.TrimSpace(dsn)
	for rest != "" {
		key, after, found := strings.Cut(rest, "=")
		if !found {
			return nil, badDSN("is neither a URL nor made of key=value")
		}
		var value strings.Builder
		after = strings.TrimLeft(after, " \t\n")
		quoted := strings.HasPrefix(after, "'")
		i := 0
		if quoted {
			i = 1
		}
		ended := false
		for ; i < len(after) && !ended; i++ {
			switch c := after[i]; {
			case c == '\\' && i+1 < len(after):
				i++
				value.WriteByte(after[i])
			case quoted && c == '\'', !quoted && strings.IndexByte(" \t\n", c) >= 0:
				ended = true
			default:
				value.WriteByte(c)
			}
		}
		if quoted && !ended {
			return nil, badDSN("has a quote that does not end")
		}
		set[strings.TrimSpace(key)] = value.String()
		rest = strings.TrimSpace(after[i:])
	}
	return set, nil
}

// secret is the password: the DSN's, or one from a password file that the
// owner may read. "" means none.
func (d *Driver) secret(ctx context.Context) (string, error) {
	l := d.login
	if l.password != "" {
		return l.password, nil
	}
	path := l.passfile
	if path == "" {
		path = d.ownerPassfile()
	}
	text, err := d.cfg.Owner.ReadFile(ctx, path)
	if errs.KindOf(err) == errs.Invalid && l.passfile != "" {
		return "", errs.Wrap(errs.Invalid, "passfile", err)
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	file, err := pgpassfile.ParsePassfile(bytes.NewReader(text))
	if err != nil { // no file, no password: the server says whether one is needed
		return "", nil
	}
	host := l.host
	if strings.HasPrefix(host, "/") {
		host = "localhost"
	}
	return file.FindPassword(host, l.port, l.database, l.user), nil
}

// ownerPassfile is where the owner keeps passwords: PGPASSFILE counts only for
// the daemon's own user.
func (d *Driver) ownerPassfile() string {
	uid := d.uid()
	if env := os.Getenv("PGPASSFILE"); env != "" && uid == os.Geteuid() {
		return env
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return os.DevNull
	}
	return filepath.Join(u.HomeDir, ".pgpass")
}

// uid is the owner's, or the daemon's own.
func (d *Driver) uid() int {
	if d.cfg.Owner.UID < 0 {
		return os.Geteuid()
	}
	return d.cfg.Owner.UID
}

// config is what pgx needs for db. Every setting that pgx would take from the
// environment or a home folder is given.
func (d *Driver) config(ctx context.Context, db string) (*pgx.ConnConfig, error) {
	l := d.login
	password, err := d.secret(ctx)
	if err != nil {
		return nil, err
	}
	set := map[string]string{
		"host": l.host, "port": l.port, "user": l.user, "dbname": db, "passfile": os.DevNull, "connect_timeout": "10",
		"sslmode": l.tls["sslmode"], "target_session_attrs": "any", "password": password,
	}
	for _, name := range certificates {
		f, err := d.certificate(ctx, name)
		if err != nil {
			return nil, err
		}
		if f == nil {
			set[name] = l.tls[name] // "" or "system"
			continue
		}
		defer f.Close() // in memory
		set[name] = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	var text strings.Builder
	for k, v := range set {
		fmt.Fprintf(&text, "%s=%s ", k, quoteValue(v))
	}
	cfg, err := pgx.ParseConfig(text.String())
	if err != nil {
		return nil, badDSN("cannot be used: a certificate or its settings are not right")
	}
	cfg.RuntimeParams = map[string]string{"application_name": "mulligan", "client_encoding": "UTF8"}
	cfg.DialFunc = d.cfg.Owner.Dial
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pgwire.Guard(cfg, &d.refusal)
	return cfg, nil
}

// certificates are the keys that name files, which libpq and pgx read whole.
var certificates = []string{"sslrootcert", "sslcert", "sslkey"}

// certificate reads one of these files with the owner's rights, and gives a copy
// in memory for pgx, which takes only names. nil: the DSN names none.
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
		return nil, badDSN("cannot be used: its %s cannot be read by the app's owner", name)
	}
	return d.memory(name, text)
}

// quoteValue quotes a value for a keyword DSN.
func quoteValue(v string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v) + "'"
}

// env is the environment of a child that connects by libpq: nothing of the
// daemon's own. passfile is the path of the file that holds the password.
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

// place names the server for a message.
func (l *login) place() string {
	if strings.HasPrefix(l.host, "/") {
		return l.host + " (port " + l.port + ")"
	}
	return net.JoinHostPort(l.host, l.port)
}
