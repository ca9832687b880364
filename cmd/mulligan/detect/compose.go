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
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"mulligan/appfile"
	"mulligan/ipc"
)

// service is one service of a compose file, as far as detection reads it.
type service struct {
	name        string
	Image       string
	Ports       []portMapping
	Environment environment
	Volumes     []volumeMount
}

// volumeMount is the name of the volume that a service mounts; "" for a folder of the host.
type volumeMount string

// UnmarshalYAML reads the short form (NAME:/PATH) and the long form (type, source).
func (v *volumeMount) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		name, _, found := strings.Cut(n.Value, ":")
		if found && !strings.ContainsAny(name[:min(len(name), 1)], "./~$") {
			*v = volumeMount(name)
		}
		return nil
	}
	var long struct{ Type, Source string }
	err := n.Decode(&long)
	if long.Type == "volume" {
		*v = volumeMount(long.Source)
	}
	return err
}

// projectName is what docker compose calls a project whose file gives no name: the folder's name, without characters that it does not
// accept.
func projectName(folder string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return -1
	}, strings.ToLower(folder))
	return strings.TrimLeft(name, "_-")
}

// portMapping maps a port of this host to a port of the container, as in "127.0.0.1:8080:80/tcp".
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

// environment holds the variables that a compose file sets in a container.
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

// composeFiles names the files that docker compose reads, in its order.
var composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// findServices adds the databases that a compose file serves on a port of this
// host, and the project with its volumes. Like docker compose, it reads only the first file of composeFiles. folder is the folder's name.
func (f *Findings) findServices(root *os.Root, folder string) {
	for _, name := range composeFiles {
		data, err := readHead(root, name, maxEnvFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var services []service
		var called string
		if err == nil {
			called, services, err = parseCompose(data)
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
		p := Project{Name: cmp.Or(vars["COMPOSE_PROJECT_NAME"], expand(called, vars), projectName(folder)), File: name}
		others := 0 // services that are no databases among the findings, and those that are and are reached in their containers
		var served []string
		for _, s := range services {
			var volumes []string
			for _, v := range s.Volumes {
				if v != "" {
					volumes = append(volumes, string(v))
				}
			}
			switch f.addService(s, vars, name, volumes) {
			case inside:
				others++
				fallthrough
			case onHost:
				served = append(served, volumes...)
				continue
			}
			p.Volumes, others = append(p.Volumes, volumes...), others+1
		}
		if others > 0 {
			slices.Sort(p.Volumes)
			p.Volumes = slices.DeleteFunc(slices.Compact(p.Volumes), func(v string) bool { return slices.Contains(served, v) })
			f.Project = p
		}
		return
	}
}

// engine describes the images of one kind of database.
type engine struct {
	word, driver, port   string   // word is a part of the image's name
	user, password, name []string // variables of the environment that hold these; the first that is set counts
	admin                string   // the user if no variable names one
}

var engines = []engine{
	{"postgres", "postgres", "5432", []string{"POSTGRES_USER"}, []string{"POSTGRES_PASSWORD"}, []string{"POSTGRES_DB", "POSTGRES_USER"}, "postgres"},
	{"postgis", "postgres", "5432", []string{"POSTGRES_USER"}, []string{"POSTGRES_PASSWORD"}, []string{"POSTGRES_DB", "POSTGRES_USER"}, "postgres"},
	{"mariadb", "mysql", "3306", []string{"MARIADB_USER", "MYSQL_USER"}, []string{"MARIADB_PASSWORD", "MYSQL_PASSWORD"}, []string{"MARIADB_DATABASE", "MYSQL_DATABASE"}, "root"},
	{"mysql", "mysql", "3306", []string{"MYSQL_USER"}, []string{"MYSQL_PASSWORD"}, []string{"MYSQL_DATABASE"}, "root"},
	{"redis", "redis", "6379", nil, []string{"REDIS_PASSWORD"}, nil, ""},
	{"valkey", "redis", "6379", nil, nil, nil, ""},
}

// reach is how a service's database among the findings is reached.
type reach int

const (
	notFound reach = iota // it is none, or not among the findings
	onHost                // by a port of this host
	inside                // in its container, by the service's name
)

// addService adds the database that s serves, if its image is one of a database, and returns how the database is reached. One that has volumes,
// and neither a port on this host nor a URL with its name, is captured by its volumes instead; and so is every Redis, whose restore needs
// a network between it and the daemon.
func (f *Findings) addService(s service, vars map[string]string, file string, volumes []string) reach {
	if f.named(s.name) {
		return inside
	}
	at := slices.IndexFunc(engines, func(e engine) bool { return strings.Contains(s.Image, e.word) })
	if at < 0 {
		return notFound
	}
	e, source := engines[at], "service "+s.name+" in "+file
	port := hostPort(s.Ports, e.port, vars)
	if len(volumes) > 0 && (port == "" || e.driver == "redis") {
		return notFound
	}
	host, how := net.JoinHostPort("127.0.0.1", port), onHost
	if port == "" {
		host, how = net.JoinHostPort(s.name, e.port), inside
	}
	db, err := appfile.ParseDatabase(e.url(s, host, vars))
	if err != nil {
		return notFound
	}
	if how == inside && e.driver == "mysql" && s.variable(vars, e.name...) == "" {
		f.Unprotected = append(f.Unprotected, fmt.Sprintf("the mysql database of %s: its environment names none; `mulligan app set database=mysql://root:PASSWORD@%s/NAME` adds it", source, s.name))
		return notFound
	}
	if port == "" || !f.served(db, port) {
		f.addDatabase(db, source)
		f.Databases[len(f.Databases)-1].Inside = how == inside
	}
	return how
}

// named reports whether the findings have databases of the service with this name: the URLs that the app's own containers use have it as their host.
func (f *Findings) named(service string) (found bool) {
	for i := range f.Databases {
		if u, err := url.Parse(f.Databases[i].DSN); err == nil && u.Hostname() == service && service != "localhost" {
			f.Databases[i].Inside, found = true, true
		}
	}
	return found
}

// variable returns the first of the variables that is set in the containers of s.
func (s service) variable(vars map[string]string, keys ...string) (v string) {
	for _, k := range keys {
		v = cmp.Or(v, expand(s.Environment[k], vars))
	}
	return v
}

// url returns the URL of the database that s serves at an address.
func (e engine) url(s service, address string, vars map[string]string) string {
	get := func(keys ...string) string { return s.variable(vars, keys...) }
	u := url.URL{Scheme: e.driver, Host: address, Path: get(e.name...)}
	user, password := cmp.Or(get(e.user...), e.admin), get(e.password...)
	if user == "root" {
		password = cmp.Or(get("MARIADB_ROOT_PASSWORD", "MYSQL_ROOT_PASSWORD"), password)
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
	return u.String()
}

// served reports whether the findings have a URL of the database db on the server at port.
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

// hostPort returns the port of this host that is mapped to the container's port
// target, or "". A mapping without a host port, such as "80", gets a random port from docker, which no file names.
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

// expand replaces references to variables in s by their values, or by the default that the reference gives.
func expand(s string, vars map[string]string) string {
	return variableSyntax.ReplaceAllStringFunc(s, func(ref string) string {
		m := variableSyntax.FindStringSubmatch(ref)
		return cmp.Or(vars[m[1]+m[3]], m[2])
	})
}

// parseCompose returns the project's name, if the file gives one, and the services in their order. It leaves out the parts of a service
// that have an unexpected type.
func parseCompose(data []byte) (name string, all []service, err error) {
	var file struct {
		Name     string
		Services yaml.Node
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return "", nil, err
	}
	for i := 1; i < len(file.Services.Content); i += 2 {
		s := service{name: file.Services.Content[i-1].Value}
		var shape *yaml.TypeError
		if err := file.Services.Content[i].Decode(&s); err != nil && !errors.As(err, &shape) {
			return "", nil, err
		}
		all = append(all, s)
	}
	return file.Name, all, nil
}
