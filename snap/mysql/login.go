package mysql

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	client "github.com/go-sql-driver/mysql"

	"mulligan/errs"
)

// login is the address of a server, with the credentials.
type login struct {
	user, password string
	socket         string // if it is "", host and port are used
	host, port     string
	tls            string
	db             string
}

const defaultSocket = "/run/mysqld/mysqld.sock"

// String names the server and the database, without credentials.
func (l login) String() string { return "database " + l.db }

// parseDSN parses a DSN. Its errors never repeat the DSN, which may contain a password.
func parseDSN(dsn string) (login, error) {
	bad := func(what string) error {
		return errs.New(errs.Invalid, "", "the dsn %s", what).
			WithHint("write mysql://[user[:password]@][host[:port]]/database[?socket=PATH]")
	}
	u, err := url.Parse(dsn)
	if err != nil || u.Opaque != "" || u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return login{}, bad("is not a mysql:// URL")
	}
	l := login{user: u.User.Username(), host: u.Hostname(), port: u.Port(), db: strings.Trim(u.Path, "/"),
		socket: u.Query().Get("socket"), tls: u.Query().Get("tls")}
	l.password, _ = u.User.Password()
	switch {
	case l.db == "" || strings.ContainsAny(l.db, "/`\x00") || len(l.db) > 64:
		return login{}, bad("names no database")
	case strings.Contains(l.db, sideMark):
		return login{}, bad("names a database that a restore made")
	case l.socket != "" && (!filepath.IsAbs(l.socket) || u.Host != "" && u.Hostname() != "localhost"):
		return login{}, bad("names a socket, which takes an absolute path and no host")
	case l.tls != "" && l.tls != "true" && l.tls != "skip-verify" && l.tls != "preferred":
		return login{}, bad("has a tls that is not true, skip-verify or preferred")
	}
	return l, nil
}

// complete sets the parts that the DSN omits: from the owner's ~/.my.cnf, and then to defaults.
func (d *Driver) complete(ctx context.Context) (login, error) {
	l := d.login
	name, home := "", d.cfg.Home
	uid := d.cfg.Owner.UID
	if uid < 0 {
		uid = os.Geteuid()
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		name = u.Username
		if home == "" {
			home = u.HomeDir
		}
	}
	if l.password == "" && home != "" {
		options, err := d.readOptions(ctx, filepath.Join(home, ".my.cnf"))
		if err != nil {
			return l, err
		}
		if u := options["user"]; l.user == "" || u == l.user || u == "" {
			l.user, l.password = u, options["password"]
			if l.user == "" {
				l.user = d.login.user
			}
		}
		if l.host == "" && l.socket == "" {
			l.host, l.port, l.socket = options["host"], options["port"], options["socket"]
		}
	}
	if l.user == "" {
		l.user = name
	}
	if l.host == "localhost" && l.port == "" {
		l.host = ""
	}
	if l.host == "" && l.socket == "" {
		l.socket = defaultSocket
	}
	if l.host != "" {
		l.socket = ""
	}
	if l.port == "" {
		l.port = "3306"
	}
	return l, nil
}

// readOptions reads the client's sections of an option file (https://mariadb.com/kb/en/configuring-mariadb-with-option-files/),
// which must belong to the owner. A missing or unreadable file is not an error.
func (d *Driver) readOptions(ctx context.Context, path string) (map[string]string, error) {
	data, err := d.cfg.Owner.ReadOwnFile(ctx, path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) { // as the server's client does
		return nil, nil
	}
	if err != nil {
		return nil, errs.Wrap(errs.Denied, "", err)
	}
	m, ours := map[string]string{}, false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			ours = line == "[client]" || line == "[client-mariadb]"
			continue
		}
		if name, value, ok := strings.Cut(line, "="); ok && ours {
			m[strings.ReplaceAll(strings.TrimSpace(name), "_", "-")] = unquote(strings.TrimSpace(value))
		}
	}
	return m, nil
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// open returns the client library's configuration for the login.
func (d *Driver) open(ctx context.Context) (*client.Config, error) {
	l, err := d.complete(ctx)
	if err != nil {
		return nil, err
	}
	cfg := client.NewConfig()
	cfg.User, cfg.Passwd, cfg.TLSConfig = l.user, l.password, l.tls
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(l.host, l.port)
	if l.socket != "" {
		cfg.Net, cfg.Addr = "unix", l.socket
	}
	cfg.Logger = &client.NopLogger{}
	cfg.DialFunc = d.cfg.Owner.Dial
	if d.cfg.Dial != nil {
		cfg.DialFunc = d.cfg.Dial
	}
	return cfg, nil
}
