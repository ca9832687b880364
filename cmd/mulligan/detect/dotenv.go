package detect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mulligan/appfile"
)

// databaseKeys names the variables that usually hold a database's URL.
var databaseKeys = map[string]bool{
	"DATABASE_URL": true, "DATABASE_URI": true, "DB_URL": true, "DB_URI": true, "SQLALCHEMY_DATABASE_URI": true,
	"POSTGRES_URL": true, "POSTGRESQL_URL": true, "PG_URL": true, "MYSQL_URL": true, "MARIADB_URL": true,
	"REDIS_URL": true, "SQLITE_URL": true,
}

// findURLs adds the databases whose URLs the .env files in dir name.
func (f *Findings) findURLs(root *os.Root, dir string) {
	for _, name := range []string{".env", ".env.local"} {
		data, err := readHead(root, name, maxEnvFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			f.Unprotected = append(f.Unprotected, fmt.Sprintf("database URLs in %s: it could not be read", name))
			continue
		}
		for _, v := range parseDotenv(string(data)) {
			if databaseKeys[v.key] && v.value != "" {
				f.addURL(root, dir, v, name)
			}
		}
	}
}

// addURL adds the database that the variable v of a file names. A value that is
// no URL of a database is never shown, because it may be a password.
func (f *Findings) addURL(root *os.Root, dir string, v variable, file string) {
	source := v.key + " in " + file
	spec, isFile := databaseSpec(dir, v.value)
	db, err := appfile.ParseDatabase(spec)
	if err != nil {
		f.Unprotected = append(f.Unprotected, source+" names no database that mulligan knows")
		return
	}
	if isFile && !filepath.IsAbs(db.DSN) && !isSQLite(root, db.DSN) {
		f.Unprotected = append(f.Unprotected, fmt.Sprintf("%s (%s): it is not a SQLite file yet; add it later with `mulligan app set database=sqlite:PATH`", db.DSN, source))
		return
	}
	f.addDatabase(db, source)
}

// databaseSpec returns the SPEC (see mulligan app add) for a URL as frameworks
// write it. The client library in the scheme (postgresql+psycopg2://) is left
// out. The forms of SQLite's URLs (sqlite:///rel, sqlite:////abs, file:rel)
// become a path, which is relative if it is below dir. isFile reports whether
// the URL is one of SQLite.
func databaseSpec(dir, url string) (spec string, isFile bool) {
	scheme, rest, found := strings.Cut(url, ":")
	if !found {
		return url, false
	}
	scheme, _, _ = strings.Cut(scheme, "+")
	switch scheme {
	case "sqlite", "sqlite3", "file":
	default:
		return appfile.OnlyKnown(scheme + ":" + rest), false
	}
	path, _, _ := strings.Cut(rest, "?")
	if after, ok := strings.CutPrefix(path, "//"); ok { // an empty host, and one / before the path
		path = strings.TrimPrefix(after, "/")
	}
	path = filepath.Clean(path)
	if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
		path = rel
	}
	return "sqlite:" + path, true
}

// variable is one line of a .env file.
type variable struct{ key, value string }

// parseDotenv returns the variables of the KEY=VALUE lines in data, in their
// order. A line may have "export" before the key, quotes around the value, or a
// comment behind it. Other lines are skipped, and references to variables are not expanded.
func parseDotenv(data string) []variable {
	var vars []variable
	for line := range strings.Lines(data) {
		line = strings.TrimSpace(line)
		line = strings.TrimSpace(strings.TrimPrefix(line, "export "))
		key, value, found := strings.Cut(line, "=")
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		if q := strings.IndexAny(value, `"'`); q == 0 {
			value, _, _ = strings.Cut(value[1:], value[:1])
		} else {
			value, _, _ = strings.Cut(value, " #")
			value = strings.TrimSpace(value)
		}
		vars = append(vars, variable{strings.TrimSpace(key), value})
	}
	return vars
}
