// Package pglogin parses a PostgreSQL DSN: which server, and which user. It completes a DSN
// with fixed defaults only: the environment and the files of the daemon's user are not the
// app's.
package pglogin

import (
	"bytes"
	"context"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgpassfile"

	"mulligan/errs"
	"mulligan/privsep"
)

// Settings are the parts of a DSN.
type Settings struct {
	Host, Port     string // Host is a folder with a socket when it begins with "/"
	User, Password string // "" where the DSN has none
	Database       string // "" where the DSN has none
	Passfile       string
	TLS            map[string]string // sslmode, sslrootcert, sslcert, sslkey
}

// Unlimit is a statement that lifts the limits by which a server, a database or a role ends sessions: those of a driver are idle while others load or
// copy, and read all rows in one transaction. Older servers do not know these settings.
const Unlimit = `SELECT pg_catalog.set_config(name, '0', false) FROM (VALUES ('idle_session_timeout'), ('transaction_timeout')) v (name)
	WHERE pg_catalog.current_setting(name, true) IS NOT NULL`

// Certificates are the DSN keys that name files, which libpq and pgx read whole.
var Certificates = []string{"sslrootcert", "sslcert", "sslkey"}

// keys are the DSN keys that are supported, with their synonyms.
var keys = map[string]string{
	"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname", "database": "dbname",
	"passfile": "passfile", "sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey",
	"application_name": "", "connect_timeout": "", "channel_binding": "", "target_session_attrs": "",
}

// Bad returns an error about a DSN. It must not repeat the DSN, which may hold a password.
func Bad(format string, args ...any) error {
	return errs.New(errs.Invalid, "", "the dsn "+format, args...).
		WithHint("write it like postgres://USER@HOST:PORT/DATABASE, or postgres:///DATABASE?host=/run/postgresql&user=USER")
}

// Parse parses a DSN. Its errors repeat only keys of the DSN.
func Parse(dsn string) (*Settings, error) {
	set, err := keywords(dsn)
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		set, err = urlSettings(dsn)
	}
	if err != nil {
		return nil, err
	}
	l := &Settings{TLS: map[string]string{}}
	places := map[string]*string{"host": &l.Host, "port": &l.Port, "user": &l.User, "password": &l.Password, "dbname": &l.Database, "passfile": &l.Passfile}
	for k, v := range set {
		name, known := keys[k]
		switch place := places[name]; {
		case !known:
			return nil, Bad("has a key %.32q that is not supported here", k)
		case strings.ContainsRune(v, 0):
			return nil, Bad("has a zero byte in it")
		case place != nil:
			*place = v
		case name != "":
			l.TLS[name] = v
		}
	}
	return l, l.complete()
}

// complete adds libpq's defaults and checks the settings.
func (l *Settings) complete() error {
	if l.Host == "" {
		l.Host = "/run/postgresql"
	}
	if l.Port == "" {
		l.Port = "5432"
	}
	if n, err := strconv.Atoi(l.Port); err != nil || n < 1 || n > 65535 || strings.Contains(l.Host, ",") {
		return Bad("must name one host and one port")
	}
	for _, name := range Certificates {
		if v := l.TLS[name]; v != "" && v != "system" && !filepath.IsAbs(v) {
			return Bad("has a %s that is not an absolute path", name)
		}
	}
	if l.TLS["sslmode"] == "" {
		l.TLS["sslmode"] = "prefer"
	}
	return nil
}

func urlSettings(dsn string) (map[string]string, error) {
	set := map[string]string{}
	dsn = socketHost(dsn, set)
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, Bad("is not a URL that can be read")
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

// socketHost extracts a host that is an escaped path, as libpq allows, from a URL: package
// net/url rejects it.
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

// keywords parses "key=value key='value with \' in it'".
func keywords(dsn string) (map[string]string, error) {
	set := map[string]string{}
	rest := strings.TrimSpace(dsn)
	for rest != "" {
		key, after, found := strings.Cut(rest, "=")
		if !found {
			return nil, Bad("is neither a URL nor made of key=value")
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
			return nil, Bad("has a quote that does not end")
		}
		set[strings.TrimSpace(key)] = value.String()
		rest = strings.TrimSpace(after[i:])
	}
	return set, nil
}

// Secret returns the password of the DSN, or of a password file that the owner may read; "" if
// there is none.
func (l *Settings) Secret(ctx context.Context, owner privsep.User) (string, error) {
	if l.Password != "" {
		return l.Password, nil
	}
	path := l.Passfile
	if path == "" {
		path = passfileOf(owner)
	}
	text, err := owner.ReadFile(ctx, path)
	if errs.KindOf(err) == errs.Invalid && l.Passfile != "" {
		return "", errs.Wrap(errs.Invalid, "passfile", err)
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	file, err := pgpassfile.ParsePassfile(bytes.NewReader(text))
	if err != nil { // without a file there is no password: the server decides whether one is needed
		return "", nil
	}
	host := l.Host
	if strings.HasPrefix(host, "/") {
		host = "localhost"
	}
	return file.FindPassword(host, l.Port, l.Database, l.User), nil
}

// passfileOf returns the path of the owner's password file. PGPASSFILE applies only to the
// daemon's own user.
func passfileOf(owner privsep.User) string {
	uid := owner.UID
	if uid < 0 {
		uid = os.Geteuid()
	}
	if env := os.Getenv("PGPASSFILE"); env != "" && uid == os.Geteuid() {
		return env
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return os.DevNull
	}
	return filepath.Join(u.HomeDir, ".pgpass")
}

// Quote quotes a value for a keyword/value DSN.
func Quote(v string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v) + "'"
}
