package detect

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

	"go.yaml.in/yaml/v3"

	"mulligan/appfile"
	"mulligan/ipc"
)

// service is what detection wants to know of a service in a compose file. Package compose-go is
// not used: it makes the client a quarter larger, follows the paths that a file names, and refuses a file as a
// whole for one word that it does not know.
type service struct {
	name        string
	Image       string
	Ports       []portMapping
	Environment environment
}

// portMapping is a port of this host and a port of the container, as in "127.0.0.1:8080:80/tcp".
type portMapping string

// UnmarshalYAML reads the short form and the long form (target, published).
func (p *portMapping) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		*p = portMapping(n.Value)
		return nil
	}
	var long struct{ Target, Published string }
	err := n.Decode(&long)
	*p = portMapping(long.Published + ":" + long.Target)
	return err
}

type environment map[string]string

// UnmarshalYAML reads a mapping, or a list of KEY=VALUE.
func (e *environment) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return n.Decode((*map[string]string)(e))
	}
	var list []string
	err := n.Decode(&list)
	*e = environment{}
	for _, line := range list {
		key, value, _ := strings.Cut(line, "=")
		(*e)[key] = value
	}
	return err
}

var composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// findServices adds the databases that a compose file serves on a port of this
// host. The first file counts, as for docker compose.
func (f *Findings) findServices(root *os.Root) {
	for _, name := range composeFiles {
		data, err := readHead(root, name, maxEnvFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var services []service
		if err == nil {
			services, err = parseCompose(data)
		}
		if err != nil {
			f.Unprotected = append(f.Unprotected, fmt.Sprintf("databases of %s: it could not be read", name))
			return
		}
		vars := map[string]string{}
		if env, err := readHead(root, ".env", maxEnvFile); err == nil { // as docker compose does
			for _, v := range parseDotenv(string(env)) {
				vars[v.key] = v.value
			}
		}
		for _, s := range services {
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

func (f *Findings) addService(s service, vars map[string]string, file string) {
	for _, e := range engines {
		if !strings.Contains(s.Image, e.word) {
			continue
		}
		source := "service " + s.name + " in " + file
		port := hostPort(s.Ports, e.port, vars)
		if port == "" {
			f.Unprotected = append(f.Unprotected, fmt.Sprintf("the %s database of %s: it has no port on this host; publish one on 127.0.0.1", e.driver, source))
			return
		}
		get := func(keys []string) (v string) {
			for _, k := range keys {
				v = cmp.Or(v, expand(s.Environment[k], vars))
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
func (f *Findings) served(db ipc.Database, port string) bool {
	want, err := url.Parse(db.DSN)
	for _, have := range f.Databases {
		u, err2 := url.Parse(have.DSN)
		if err == nil && err2 == nil && have.Driver == db.Driver && u.Port() == port && strings.Trim(u.Path, "/") == strings.Trim(want.Path, "/") {
			return true
		}
	}
	return false
}

// hostPort is the port of this host that leads to a container's port. Of "8080:80",
// "127.0.0.1:8080:80/tcp" and "80" the last is given a port that nobody knows.
func hostPort(ports []portMapping, target string, vars map[string]string) string {
	for _, p := range ports {
		parts := strings.Split(strings.TrimSuffix(expand(string(p), vars), "/tcp"), ":")
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

// parseCompose returns the services of a compose file in their order. A part of a service that is not of
// the expected shape is left out.
func parseCompose(data []byte) ([]service, error) {
	var file struct{ Services yaml.Node }
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	var all []service
	for i := 1; i < len(file.Services.Content); i += 2 {
		s := service{name: file.Services.Content[i-1].Value}
		var shape *yaml.TypeError
		if err := file.Services.Content[i].Decode(&s); err != nil && !errors.As(err, &shape) {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
