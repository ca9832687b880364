package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"

	"mulligan/ipc"
	"mulligan/ipc/appfile"
)

// service is what detection wants to know of a service in a compose file.
type service struct {
	name, image string
	ports       []string
	env         map[string]string
}

var composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// findServices adds the databases that a compose file serves on a port of this
// host. The first file counts, as for docker compose.
func (f *findings) findServices(root *os.Root) {
	for _, name := range composeFiles {
		data, err := readHead(root, name, maxEnvFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			f.unprotected = append(f.unprotected, fmt.Sprintf("databases of %s: it could not be read", name))
			return
		}
		vars := map[string]string{}
		if env, err := readHead(root, ".env", maxEnvFile); err == nil { // as docker compose does
			for _, v := range parseDotenv(string(env)) {
				vars[v.key] = v.value
			}
		}
		for _, s := range parseCompose(string(data)) {
			f.addService(s, vars, name)
		}
		return
	}
}

// engines are the images that are databases, by a word in their names.
var engines = []struct {
	word, driver, port   string
	user, password, name []string // of the environment
	admin                string   // who is user where none is named
}{
	{"postgres", "postgres", "5432", []string{"POSTGRES_USER"}, []string{"POSTGRES_PASSWORD"}, []string{"POSTGRES_DB", "POSTGRES_USER"}, "postgres"},
	{"postgis", "postgres", "5432", []string{"POSTGRES_USER"}, []string{"POSTGRES_PASSWORD"}, []string{"POSTGRES_DB", "POSTGRES_USER"}, "postgres"},
	{"mariadb", "mysql", "3306", []string{"MARIADB_USER", "MYSQL_USER"}, []string{"MARIADB_PASSWORD", "MYSQL_PASSWORD"}, []string{"MARIADB_DATABASE", "MYSQL_DATABASE"}, "root"},
	{"mysql", "mysql", "3306", []string{"MYSQL_USER"}, []string{"MYSQL_PASSWORD"}, []string{"MYSQL_DATABASE"}, "root"},
	{"redis", "redis", "6379", nil, []string{"REDIS_PASSWORD"}, nil, ""},
	{"valkey", "redis", "6379", nil, nil, nil, ""},
}

func (f *findings) addService(s service, vars map[string]string, file string) {
	for _, e := range engines {
		if !strings.Contains(s.image, e.word) {
			continue
		}
		source := "service " + s.name + " in " + file
		port := hostPort(s.ports, e.port, vars)
		if port == "" {
			f.unprotected = append(f.unprotected, fmt.Sprintf("the %s database of %s: it has no port on this host; publish one on 127.0.0.1", e.driver, source))
			return
		}
		get := func(keys []string) (v string) {
			for _, k := range keys {
				v = cmp.Or(v, expand(s.env[k], vars))
			}
			return v
		}
		u := url.URL{Scheme: e.driver, Host: net.JoinHostPort("127.0.0.1", port), Path: get(e.name)}
		user, password := cmp.Or(get(e.user), e.admin), get(e.password)
		if user == "root" {
			password = cmp.Or(get([]string{"MARIADB_ROOT_PASSWORD", "MYSQL_ROOT_PASSWORD"}), password)
		}
		if u.Path == "" && e.driver == "postgres" {
			u.Path = user
		}
		switch {
		case password != "":
			u.User = url.UserPassword(user, password)
		case user != "":
			u.User = url.User(user)
		}
		db, err := appfile.ParseDatabase(u.String())
		if err == nil && !f.served(db, port) {
			f.addDatabase(db, source)
		}
		return
	}
}

// served reports whether a URL was found already that leads to the same server and database.
func (f *findings) served(db ipc.Database, port string) bool {
	want, err := url.Parse(db.DSN)
	for _, have := range f.databases {
		u, err2 := url.Parse(have.DSN)
		if err == nil && err2 == nil && have.Driver == db.Driver && u.Port() == port && strings.Trim(u.Path, "/") == strings.Trim(want.Path, "/") {
			return true
		}
	}
	return false
}

// hostPort is the port of this host that leads to a container's port. Of "8080:80",
// "127.0.0.1:8080:80/tcp" and "80" the last is given a port that nobody knows.
func hostPort(ports []string, target string, vars map[string]string) string {
	for _, p := range ports {
		parts := strings.Split(strings.TrimSuffix(expand(p, vars), "/tcp"), ":")
		n := len(parts)
		if n < 2 || parts[n-1] != target {
			continue
		}
		if v, err := strconv.Atoi(parts[n-2]); err == nil && v > 0 && v < 65536 {
			return parts[n-2]
		}
	}
	return ""
}

var variableSyntax = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

// expand puts the values of variables in.
func expand(s string, vars map[string]string) string {
	return variableSyntax.ReplaceAllStringFunc(s, func(ref string) string {
		m := variableSyntax.FindStringSubmatch(ref)
		return cmp.Or(vars[m[1]+m[3]], m[2])
	})
}

// parseCompose reads as much of a compose file as is needed, in YAML's block
// style: services with image, ports and environment. What is written otherwise is
// not found.
func parseCompose(data string) (all []service) {
	var path []string // keys above the line
	var indents []int
	for line := range strings.Lines(data) {
		text := strings.TrimRight(line, " \t\r\n")
		body := strings.TrimLeft(text, " ")
		if body == "" || body[0] == '#' {
			continue
		}
		indent := len(text) - len(body)
		item, isItem := strings.CutPrefix(body, "- ")
		for len(indents) > 0 && (indents[len(indents)-1] > indent || indents[len(indents)-1] == indent && !isItem) {
			path, indents = path[:len(path)-1], indents[:len(indents)-1]
		}
		key, value, _ := strings.Cut(body, ":")
		if !isItem {
			path, indents = append(path, scalar(key)), append(indents, indent)
		}
		if len(path) < 2 || path[0] != "services" {
			continue
		}
		if len(all) == 0 || all[len(all)-1].name != path[1] {
			all = append(all, service{name: path[1], env: map[string]string{}})
		}
		all[len(all)-1].take(path[2:], scalar(item), scalar(value), isItem)
	}
	return all
}

// take takes what a line of a service says: a value below keys, or an item of a list.
func (s *service) take(keys []string, item, value string, isItem bool) {
	switch {
	case len(keys) == 1 && keys[0] == "image" && !isItem:
		s.image = value
	case len(keys) == 1 && keys[0] == "ports" && isItem:
		s.ports = append(s.ports, item)
	case len(keys) == 1 && keys[0] == "environment" && isItem:
		if k, v, found := strings.Cut(item, "="); found {
			s.env[k] = v
		}
	case len(keys) == 2 && keys[0] == "environment":
		s.env[keys[1]] = value
	}
}

// scalar is a plain or quoted value without its comment.
func scalar(s string) string {
	s = strings.TrimSpace(s)
	if q := strings.IndexAny(s, `"'`); q == 0 {
		value, _, _ := strings.Cut(s[1:], s[:1])
		return value
	}
	value, _, _ := strings.Cut(s, " #")
	return strings.TrimSpace(value)
}
