package mysql

import (
	"context"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
)

// serverKind describes a MariaDB server, as far as the server of a fork must be like it.
type serverKind struct {
	User   string // of the driver's login, with its defaults
	Host   string
	Port   string
	Socket string // used in place of Host and Port unless it is ""
	// Accounts are the accounts of the login and of the definers of the database's views and routines, each as user@host.
	Accounts []string
	// Settings are global variables of the server.
	Settings map[string]string
}

// ownSettings are the global variables that influence what statements mean. The server of a fork has the values of the parent's.
var ownSettings = []string{
	"character_set_server", "collation_server", "sql_mode", "lower_case_table_names", "event_scheduler", "max_allowed_packet",
	"explicit_defaults_for_timestamp", "innodb_strict_mode", "innodb_page_size", "innodb_default_row_format", "default_storage_engine",
	"group_concat_max_len", "log_bin_trust_function_creators", "tx_isolation",
}

// safeSetting matches the values of settings that may be passed to a server.
var safeSetting = regexp.MustCompile(`^[A-Za-z0-9_,.-]*$`)

// maxAccounts bounds the accounts that the server of a fork gets.
const maxAccounts = 1000

// ServerKind describes the server in JSON. The description has no password.
func (d *Driver) ServerKind(ctx context.Context) (string, error) {
	const op = "ask the server"
	l, err := d.complete(ctx)
	if err != nil {
		return "", d.classify(op, err)
	}
	if l.password != d.login.password {
		return "", errs.New(errs.Unsupported, op, "the password is in ~/.my.cnf, where a fork's own server cannot get it from").
			WithHint("write the user and the password into the dsn: `mulligan app set database=NAME=mysql://USER:PASSWORD@HOST/DATABASE`")
	}
	s, err := d.connect(ctx)
	if err != nil {
		return "", d.classify(op, err)
	}
	defer s.end()
	if !s.maria {
		return "", errs.New(errs.Unsupported, op, "the server is MySQL, and only forks of MariaDB databases are supported yet")
	}
	k := serverKind{User: l.user, Host: l.host, Port: l.port, Socket: l.socket, Settings: map[string]string{}}
	if k.Accounts, err = s.accounts(ctx, d.login.db); err != nil {
		return "", d.classify(op, err)
	}
	rows, err := s.rows(ctx, "SELECT LOWER(variable_name), variable_value FROM information_schema.global_variables")
	if err != nil {
		return "", d.classify(op, err)
	}
	for _, row := range rows {
		if slices.Contains(ownSettings, row[0]) {
			k.Settings[row[0]] = row[1]
		}
	}
	text, err := json.Marshal(k)
	return string(text), err
}

// accounts lists the accounts that the server of a fork needs: the one of this session and the definers in the database.
func (s *session) accounts(ctx context.Context, db string) (list []string, err error) {
	rows, err := s.rows(ctx, `SELECT CURRENT_USER() UNION SELECT definer FROM information_schema.views WHERE table_schema = ?
		UNION SELECT definer FROM information_schema.routines WHERE routine_schema = ?
		UNION SELECT definer FROM information_schema.triggers WHERE trigger_schema = ?
		UNION SELECT definer FROM information_schema.events WHERE event_schema = ?`, db, db, db, db)
	for _, row := range rows[:min(len(rows), maxAccounts)] {
		list = append(list, row[0])
	}
	return list, err
}

// Answers returns nil if the server answers.
func (d *Driver) Answers(ctx context.Context) error {
	s, err := d.connect(ctx)
	if err != nil {
		return d.classify("ask the server", err)
	}
	s.end()
	return nil
}

// The socket of a fork's server, and the account of its driver.
const (
	ownSocket   = "/tmp/mysqld.sock"
	ownUser     = "mulligan-daemon"
	ownPassword = "none" // only the fork's owner and root can reach the server
)

// ownSetup makes the system tables of an empty server under another name first, so that an interrupted attempt is never taken for a
// complete one.
const ownSetup = `PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if ! [ -d main ]; then
	rm -rf new
	mariadb-install-db --no-defaults --datadir="$PWD/new" --tmpdir=/tmp --skip-test-db --auth-root-authentication-method=normal $PAGES
	sync -f new
	mv new main
	sync .
fi`

// OwnServer returns how to run an empty server in place of the server of parents, for the clients in a fork. All parents are databases
// of that server. Their users have all rights there. The error is of kind errs.Unsupported if the clients use TLS or another address
// than one of the loopback.
func OwnServer(of ...snap.Parent) (s snap.Server, err error) {
	k, err := parseKind(of[0].Kind)
	if err != nil {
		return s, err
	}
	s = snap.Server{
		Programs: []string{"mariadbd"}, Install: "mariadb-server", ListenSocket: ownSocket, SocketName: "mysqld.sock",
		Usual: []string{"/run/mysqld"},
	}
	pages := ""
	for _, name := range ownSettings {
		value, ok := k.Settings[name]
		switch {
		case !ok || !safeSetting.MatchString(value) || name == "event_scheduler" && value == "DISABLED":
			continue
		case name == "tx_isolation":
			name = "transaction_isolation" // the name of the option
		}
		option := "--" + strings.ReplaceAll(name, "_", "-") + "=" + value
		if name == "innodb_page_size" || name == "lower_case_table_names" {
			pages += " " + option
		}
		s.Args = append(s.Args, option)
	}
	s.Setup = strings.Replace(ownSetup, " $PAGES", pages, 1)
	s.Args = slices.Concat([]string{
		"--no-defaults", "--user=root", "--datadir=" + snap.ServerData + "/main", "--socket=" + ownSocket, "--skip-networking",
		"--pid-file=/tmp/mysqld.pid", "--tmpdir=/tmp", "--init-file=" + snap.ServerConfig, "--innodb-buffer-pool-size=64M",
		"--innodb-log-file-size=48M", "--skip-log-bin",
	}, s.Args)
	if s.Config, err = ownAccounts(of); err != nil {
		return s, err
	}
	err = k.place(&s, of[0].DSN)
	return s, err
}

// parseKind reads the answer of ServerKind.
func parseKind(text string) (k serverKind, err error) {
	if text == "" {
		return k, errs.New(errs.Unsupported, "", "the fork was made before the app had this database").
			WithHint("make a new fork of the app")
	}
	err = json.Unmarshal([]byte(text), &k)
	return k, err
}

// place sets where the clients expect the server.
func (k serverKind) place(s *snap.Server, dsn string) error {
	l, err := parseDSN(dsn)
	if err != nil {
		return err
	}
	if k.Socket != "" {
		s.Socket, s.SocketName = k.Socket, ""
		return nil
	}
	switch ip := net.ParseIP(k.Host); {
	case k.Host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return errs.New(errs.Unsupported, "", "it is at %s, and a fork's own server has an address of the loopback", k.Host)
	case l.tls == "true" || l.tls == "skip-verify":
		return errs.New(errs.Unsupported, "", "its clients use TLS, and a fork's own server has no certificate")
	}
	s.Port, err = strconv.Atoi(k.Port)
	return err
}

// ownAccounts returns the statements, one per line, that create the accounts. The server executes them at each start.
func ownAccounts(of []snap.Parent) ([]byte, error) {
	var b strings.Builder
	b.WriteString("SET SESSION sql_mode = '';\n")
	create := func(user, host, how string) {
		account := literal([]byte(user)) + "@" + literal([]byte(host))
		fmt.Fprintf(&b, "CREATE USER IF NOT EXISTS %s %s;\nGRANT ALL PRIVILEGES ON *.* TO %[1]s WITH GRANT OPTION;\n", account, how)
	}
	create(ownUser, "localhost", identified(ownPassword))
	logins := map[string]string{}
	var accounts []string
	for _, p := range of {
		k, err := parseKind(p.Kind)
		if err != nil {
			return nil, err
		}
		l, err := parseDSN(p.DSN)
		if err != nil {
			return nil, err
		}
		logins[k.User] = l.password
		accounts = append(append(accounts, k.User+"@localhost"), k.Accounts...)
	}
	slices.Sort(accounts)
	for _, a := range slices.Compact(accounts) {
		at := strings.LastIndexByte(a, '@')
		if at < 0 || strings.ContainsRune(a, 0) {
			continue // a definer that the server never has
		}
		user, host := a[:at], a[at+1:]
		password, login := logins[user]
		if !login {
			create(user, host, "ACCOUNT LOCK")
			continue
		}
		create(user, host, identified(password))
		fmt.Fprintf(&b, "ALTER USER %s@%s %s;\n", literal([]byte(user)), literal([]byte(host)), identified(password))
	}
	return []byte(b.String()), nil
}

// identified returns the clause for an account with a password, of which it has the hash
// (https://mariadb.com/kb/en/authentication-plugin-mysql_native_password/).
func identified(password string) string {
	hash := ""
	if password != "" {
		once := sha1.Sum([]byte(password))
		hash = fmt.Sprintf("*%X", sha1.Sum(once[:]))
	}
	return "IDENTIFIED VIA mysql_native_password USING '" + hash + "'"
}

// OwnDSN returns the DSN of the server of OwnServer behind a Unix socket, for the driver.
func OwnDSN(of snap.Parent, socket string) (string, error) {
	l, err := parseDSN(of.DSN)
	if err != nil {
		return "", err
	}
	u := url.URL{
		Scheme: "mysql", User: url.UserPassword(ownUser, ownPassword), Path: "/" + l.db,
		RawQuery: url.Values{"socket": {socket}}.Encode(),
	}
	return u.String(), nil
}
