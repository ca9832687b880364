package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mulligan/ipc"
)

// databases checks the programs that drivers run and the servers of apps.
func (e *exam) databases(ctx context.Context) {
	e.pgDump(ctx)
	e.add("databases", "mysql", OK, "no program is needed: mulligan talks to MySQL and MariaDB directly", "")
	e.add("databases", "redis", OK, "no program is needed: mulligan talks to Redis directly", "")
	e.add("databases", "sqlite", OK, "no program is needed: it is built in", "")
	for _, a := range e.apps {
		for _, db := range a.Databases {
			e.server(a, db)
			if dir := OwnCluster(e.Root+"/proc", os.Getuid(), db); dir != "" {
				e.add("databases", a.Slug+"'s "+db.Name+" as marks", Advice, MarkerAdvice(dir, db), "")
			}
		}
	}
}

// pgPlaces lists where distributions put PostgreSQL's programs, by version.
var pgPlaces = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"}

// pgDump checks for a pg_dump of each server's major version, or of a newer one.
func (e *exam) pgDump(ctx context.Context) {
	have := e.pgDumps(ctx)
	need, from := 0, ""
	for _, a := range e.apps {
		for _, db := range a.Databases {
			if db.Driver != "postgres" {
				continue
			}
			if from == "" {
				from = a.Slug
			}
			if major := e.pgServer(db.DSN); major > need {
				need, from = major, a.Slug
			}
		}
	}
	install := "apt-get install postgresql-client"
	if need > 0 {
		install += "-" + strconv.Itoa(need)
	}
	var words []string
	for _, major := range have {
		words = append(words, strconv.Itoa(major))
	}
	switch {
	case len(have) == 0:
		e.add("databases", "pg_dump", needed(from != ""), "no pg_dump with its pg_restore: apps with a Postgres database need them", install)
	case have[len(have)-1] < need:
		e.add("databases", "pg_dump", Problem, fmt.Sprintf("version %s; the server of %s is %d", strings.Join(words, ", "), from, need), install)
	default:
		e.add("databases", "pg_dump", OK, fmt.Sprintf("version %s: for servers up to %d", strings.Join(words, ", "), have[len(have)-1]), "")
	}
}

// pgDumps returns the major versions of the installed pg_dumps, oldest first.
func (e *exam) pgDumps(ctx context.Context) (majors []int) {
	var dirs []string
	for _, p := range pgPlaces {
		found, _ := filepath.Glob(e.Root + p) // the patterns are valid
		dirs = append(dirs, found...)
	}
	for _, dir := range append(dirs, filepath.SplitList(os.Getenv("PATH"))...) {
		path := filepath.Join(dir, "pg_dump")
		if _, err := os.Stat(filepath.Join(dir, "pg_restore")); err != nil {
			continue
		}
		short, cancel := context.WithTimeout(ctx, askTimeout)
		out, err := exec.CommandContext(short, path, "--version").Output()
		cancel()
		if major := firstNumber(string(out)); err == nil && major > 0 && !slices.Contains(majors, major) {
			majors = append(majors, major)
		}
	}
	slices.Sort(majors)
	return majors
}

// firstNumber returns the first number in s: 15 for "pg_dump (PostgreSQL) 15.18 (Debian 15.18-0)".
func firstNumber(s string) int {
	s = strings.TrimLeftFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		s = s[:end]
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// pgServer returns the major version of this host's cluster at the port of dsn,
// from Debian's folder of clusters. It returns 0 if only a login could tell.
func (e *exam) pgServer(dsn string) int {
	u, err := url.Parse(dsn)
	if err != nil || u.Hostname() != "" && u.Hostname() != "localhost" && u.Hostname() != "127.0.0.1" {
		return 0
	}
	port := u.Port()
	if q := u.Query().Get("port"); q != "" {
		port = q
	}
	if port == "" {
		port = "5432"
	}
	confs, _ := filepath.Glob(e.Root + "/etc/postgresql/*/*/postgresql.conf") // the pattern is valid
	for _, conf := range confs {
		if setting(conf, "port") == port {
			return firstNumber(filepath.Base(filepath.Dir(filepath.Dir(conf))))
		}
	}
	return 0
}

// setting returns the value of name in a file of lines "name = value".
func setting(path, name string) (value string) {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		line, _, _ := strings.Cut(s.Text(), "#")
		key, v, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) == name {
			value = strings.Trim(strings.TrimSpace(v), "'")
		}
	}
	return value
}

// server checks that the server of an app's database accepts connections.
func (e *exam) server(a ipc.App, db ipc.Database) {
	name := a.Slug + "'s " + db.Name
	network, addr := address(db)
	switch {
	case db.Driver == "sqlite":
		path := db.DSN
		if !filepath.IsAbs(path) {
			path = filepath.Join(a.Workspace, path)
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			e.add("databases", name, Advice, path+" is not there (yet)", "")
			return
		}
		e.add("databases", name, OK, path, "")
		return
	case addr == "":
		return // the DSN does not say where the server is
	}
	if err := reach(network, addr); err != nil {
		e.add("databases", name, Problem, "nothing answers on "+addr+": "+plain(err), "start the server, or correct the database's dsn")
		return
	}
	e.add("databases", name, OK, "it answers on "+addr, "")
}

// address returns where a database's server listens, or "" if its DSN does not say.
func address(db ipc.Database) (network, addr string) {
	u, err := url.Parse(db.DSN)
	if err != nil {
		return "", ""
	}
	q := u.Query()
	if s := q.Get("socket"); filepath.IsAbs(s) {
		return "unix", s
	}
	usual, local := map[string]struct{ port, local string }{
		"postgres": {"5432", "/var/run/postgresql"}, "mysql": {"3306", "/run/mysqld/mysqld.sock"}, "redis": {"6379", ""},
	}[db.Driver], ""
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = q.Get("host")
	}
	if port == "" {
		port = q.Get("port")
	}
	if port == "" {
		port = usual.port
	}
	switch {
	case usual.port == "":
		return "", ""
	case filepath.IsAbs(host):
		local = host
	case host == "" && usual.local != "":
		local = usual.local
	case host == "":
		host = "localhost"
	}
	if local != "" {
		if db.Driver == "postgres" {
			local = filepath.Join(local, ".s.PGSQL."+port)
		}
		return "unix", local
	}
	return "tcp", net.JoinHostPort(host, port)
}
