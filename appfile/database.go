package appfile

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/ipc"
)

var nameSyntax = newSyntax(`^[a-z0-9][a-z0-9_-]{0,62}$`)

const (
	nameHint = "use lower-case letters, digits, _ and -, at most 63, beginning with a letter or digit"
	specHint = "write [NAME=]sqlite:PATH, or [NAME=] and a postgres://, mysql:// or redis:// URL; postgres: takes key=value pairs too"
)

// schemes are the URL schemes of each driver's DSN; sqlite's is a path.
var schemes = map[string][]string{
	"postgres": {"postgres", "postgresql"},
	"mysql":    {"mysql", "mariadb"},
	"redis":    {"redis", "rediss"},
	"sqlite":   nil,
}

// ParseDatabase reads a database in the form of the command line: [NAME=]sqlite:PATH, [NAME=]URL or [NAME=]postgres:KEY=VALUE….
// The fragment of a Postgres URL, after #, may have mode, data_dir and unit in the form of a query. The default name is that of
// the database itself.
func ParseDatabase(spec string) (ipc.Database, error) {
	name, dsn := "", spec
	// The name ends at a = before the colon of the scheme. The URL may contain other ones.
	if before, after, found := strings.Cut(spec, "="); found && !strings.Contains(before, ":") {
		name, dsn = before, after
		if name == "" {
			return ipc.Database{}, invalid(&fault{what: "the database's name before = is empty", hint: specHint})
		}
	}
	scheme, _, found := strings.Cut(dsn, ":")
	driver := driverOf(scheme)
	if !found || driver == "" {
		return ipc.Database{}, invalid(&fault{what: "this is not the address of a database that mulligan knows", hint: specHint})
	}
	db := ipc.Database{Name: name, Driver: driver, DSN: dsn}
	f := takeSettings(&db)
	if f == nil {
		db, f = complete(db)
	}
	if f == nil {
		f = checkDatabase(db)
	}
	if f != nil {
		return ipc.Database{}, invalid(f)
	}
	return db, nil
}

// takeSettings reads and removes the fragment of a Postgres URL, which is not sent to a server.
func takeSettings(db *ipc.Database) *fault {
	before, after, found := strings.Cut(db.DSN, "#")
	if db.Driver != "postgres" || !found || !strings.Contains(before, "://") {
		return nil
	}
	settings, err := url.ParseQuery(after)
	if err != nil {
		return &fault{what: "the part of the URL after # cannot be read", hint: settingsHint}
	}
	fields := map[string]*string{"mode": &db.Mode, "data_dir": &db.DataDir, "unit": &db.Unit}
	for key, values := range settings {
		field := fields[key]
		if field == nil {
			return &fault{what: "only mode, data_dir and unit may follow the # of the URL", hint: settingsHint}
		}
		*field = values[len(values)-1]
	}
	db.DSN = before
	return nil
}

const settingsHint = "write it like postgres:///shop#mode=physical&data_dir=/var/lib/postgresql/15/main&unit=postgresql@15-main.service; a # of the URL's own is %23"

func invalid(f *fault) error {
	return errs.New(errs.Invalid, "read database", "%s", f.what).WithHint("%s", f.hint)
}

// complete sets missing fields: the driver from the URL, a plain path for sqlite, and the name from the database.
func complete(db ipc.Database) (ipc.Database, *fault) {
	if db.Driver == "" {
		scheme, _, _ := strings.Cut(db.DSN, ":")
		db.Driver = driverOf(scheme)
	}
	if db.Driver == "" {
		return db, &fault{key: "driver", what: "a database has no driver", hint: "set driver to " + driverNames()}
	}
	if db.Driver == "sqlite" && strings.HasPrefix(db.DSN, "sqlite:") {
		db.DSN = strings.TrimPrefix(strings.TrimPrefix(db.DSN, "sqlite:"), "//")
	}
	if scheme, pairs, found := strings.Cut(db.DSN, ":"); found && db.Driver == "postgres" && slices.Contains(schemes["postgres"], scheme) && !strings.HasPrefix(pairs, "//") {
		db.DSN = pairs
	}
	if _, known := schemes[db.Driver]; known && db.Name == "" {
		db.Name = defaultName(db)
		if !nameSyntax.MatchString(db.Name) {
			return db, &fault{key: "name", what: "the database needs a name: the one in its address cannot be used", hint: nameHint}
		}
	}
	return db, nil
}

// defaultName returns the name of the database in lower case, or that of the driver if the DSN names no database.
func defaultName(db ipc.Database) string {
	if db.Driver == "sqlite" {
		base := path.Base(db.DSN)
		return strings.ToLower(strings.TrimSuffix(base, path.Ext(base)))
	}
	if db.Driver == "postgres" && !strings.Contains(db.DSN, "://") {
		set, _ := pairs(db.DSN)
		return strings.ToLower(cmp.Or(set["dbname"], db.Driver))
	}
	u, err := url.Parse(db.DSN)
	if err != nil {
		return db.Driver
	}
	name := strings.Trim(u.Path, "/")
	switch {
	case name == "":
		return db.Driver
	case db.Driver == "redis": // Redis numbers its databases
		return "redis-" + name
	}
	return strings.ToLower(name)
}

func checkDatabase(db ipc.Database) *fault {
	allowed, known := schemes[db.Driver]
	switch {
	case !known:
		return &fault{key: "driver", what: "the database's driver is not a known one", hint: "use " + driverNames()}
	case !nameSyntax.MatchString(db.Name):
		return &fault{key: "name", what: "the database's name is not usable", hint: nameHint}
	case db.DSN == "":
		return &fault{key: "dsn", what: fmt.Sprintf("database %s has no dsn", db.Name), hint: "set dsn to the database's URL; for sqlite, to its path"}
	case db.Driver == "sqlite" && (unprintable(db.DSN) || strings.HasPrefix(db.DSN, ":memory:") || strings.HasPrefix(db.DSN, "file:")):
		return &fault{key: "dsn", what: fmt.Sprintf("the dsn of database %s is not a path", db.Name), hint: "give the database file's path, in the workspace or absolute"}
	case db.Driver == "postgres" && !strings.Contains(db.DSN, "://"):
		if _, ok := pairs(db.DSN); !ok {
			return &fault{key: "dsn", what: fmt.Sprintf("the dsn of database %s is neither a URL nor made of key=value pairs", db.Name),
				hint: "write postgres://USER@HOST/DATABASE, or host=/run/postgresql dbname=DATABASE user=USER"}
		}
	case db.Driver != "sqlite" && !isURL(db.DSN, allowed):
		return &fault{key: "dsn", what: fmt.Sprintf("the dsn of database %s is not a URL for %s", db.Name, db.Driver),
			hint: fmt.Sprintf("write %s://USER@HOST/DATABASE, special characters as %%XX", allowed[0])}
	}
	for _, rule := range []func(ipc.Database) *fault{unknownParameter, checkMode, checkCluster} {
		if f := rule(db); f != nil {
			return f
		}
	}
	return nil
}

func checkMode(db ipc.Database) *fault {
	modes := []string{"", "auto", "logical", "physical"}
	if db.Driver == "postgres" && slices.Contains(modes, db.Mode) || slices.Contains(modes[:2], db.Mode) {
		return nil
	}
	if db.Driver != "postgres" {
		return &fault{key: "mode", what: fmt.Sprintf("database %s has a mode, but %s has only one", db.Name, db.Driver), hint: "leave mode out"}
	}
	return &fault{key: "mode", what: fmt.Sprintf("database %s has no such mode", db.Name), hint: "use logical, physical or auto"}
}

const clusterHint = `name the cluster's folder, and the unit that serves it, if there is one: data_dir = "/var/lib/postgresql/15/main" and unit = "postgresql@15-main.service"`

// checkCluster checks the keys with which the daemon may manage the files of a cluster.
func checkCluster(db ipc.Database) *fault {
	const hint = clusterHint
	switch {
	case db.Driver != "postgres" && (db.DataDir != "" || db.Unit != ""):
		return &fault{key: "data_dir", what: fmt.Sprintf("data_dir and unit are for postgres, and database %s is not", db.Name), hint: "leave them out"}
	case db.Unit != "" && db.DataDir == "":
		return &fault{key: "data_dir", what: fmt.Sprintf("database %s has a unit, but no data_dir that the unit serves", db.Name), hint: hint}
	case db.DataDir == "":
		return nil
	case !path.IsAbs(db.DataDir) || path.Clean(db.DataDir) != db.DataDir || db.DataDir == "/" || unprintable(db.DataDir):
		return &fault{key: "data_dir", what: fmt.Sprintf("data_dir of database %s is not a plain absolute path", db.Name), hint: hint}
	case db.Unit != "" && !unitSyntax.MatchString(db.Unit):
		return &fault{key: "unit", what: fmt.Sprintf("unit of database %s is not a systemd service's name", db.Name), hint: hint}
	}
	return nil
}

// pairs reads a libpq connection string of key=value pairs ("Keyword/Value Connection Strings" in PostgreSQL's manual). It does
// not check keys or values.
func pairs(dsn string) (set map[string]string, ok bool) {
	set = map[string]string{}
	for rest := strings.TrimSpace(dsn); rest != ""; {
		key, after, found := strings.Cut(rest, "=")
		key = strings.TrimSpace(key)
		if !found || !keySyntax.MatchString(key) {
			return nil, false
		}
		value, left, closed := pairValue(strings.TrimSpace(after))
		if !closed {
			return nil, false
		}
		set[key], rest = value, strings.TrimSpace(left)
	}
	return set, len(set) > 0
}

var keySyntax = newSyntax(`^[a-z_]+$`)

// pairValue reads one value. closed is false if the value has an opening quote and no closing one.
func pairValue(s string) (value, rest string, closed bool) {
	var b strings.Builder
	quoted := strings.HasPrefix(s, "'")
	if quoted {
		s = s[1:]
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'', !quoted && strings.IndexByte(" \t\n", c) >= 0:
			return b.String(), s[i+1:], true
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", !quoted
}

// isURL reports whether dsn is a URL with one of the schemes. It does not return the parser's error, because that repeats the
// URL with its password.
func isURL(dsn string, schemes []string) bool {
	u, err := url.Parse(dsn)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Opaque == "" && strings.Contains(dsn, "://")
}

func driverOf(scheme string) string {
	if scheme == "sqlite" {
		return "sqlite"
	}
	for driver, list := range schemes {
		if slices.Contains(list, scheme) {
			return driver
		}
	}
	return ""
}

func driverNames() string { return "postgres, mysql, sqlite or redis" }
