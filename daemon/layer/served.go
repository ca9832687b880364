package layer

import (
	"cmp"
	"context"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres/pglogin"
)

// usualPort has the ports of servers of databases, by driver.
var usualPort = map[string]string{"postgres": "5432", "mysql": "3306", "redis": "6379"}

// serverAddress returns where the DSN of a database says that its server is; "" if that is no address of a network. byName reports whether the
// host is a name that is none of this host, such as a service's in a compose file.
func serverAddress(db ipc.Database) (host string, port int, byName bool) {
	if usualPort[db.Driver] == "" {
		return "", 0, false
	}
	var text string
	if db.Driver == "postgres" {
		s, err := pglogin.Parse(db.DSN)
		if err != nil {
			return "", 0, false
		}
		host, text = s.Host, s.Port
	} else if u, err := url.Parse(db.DSN); err == nil {
		host, text = u.Hostname(), u.Port()
	}
	port, err := strconv.Atoi(cmp.Or(text, usualPort[db.Driver]))
	if err != nil || host == "" || host[0] == '/' {
		return "", 0, false
	}
	_, err = netip.ParseAddr(host)
	return host, port, err != nil && host != "localhost"
}

// servedBy returns the port in a container at which a database is served: as the DSN names it together with the container or its service, or the
// one to which the DSN's port of this host leads. 0: the server is not in the container. Such a database is captured and restored through its
// server, which must be up for that.
func servedBy(db ipc.Database, m engine.Member, published map[int]int) int {
	host, port, byName := serverAddress(db)
	if byName {
		if host == m.Name || host == m.Service {
			return port
		}
		return 0
	}
	if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !addr.IsLoopback()) {
		return 0
	}
	return published[port]
}

// serverOf returns the server of a database, if it is in a container of the app, and whether the DSN names that container instead of a port of
// this host.
func (c *Containers) serverOf(rec store.App, db ipc.Database) (server *engine.Server, byName bool) {
	if c == nil {
		return nil, false
	}
	at := slices.IndexFunc(rec.Containers, func(m ipc.Container) bool { return slices.Contains(m.Serves, db.Name) })
	if at < 0 {
		return nil, false
	}
	m := rec.Containers[at]
	server = &engine.Server{Project: c.Project, Container: m.Name, Port: m.Port, Dial: c.user.Dial}
	_, port, byName := serverAddress(db)
	if byName {
		server.Port = port
	}
	return server, byName
}

// checkServers refuses databases in containers that could not be restored.
func (b *Binder) checkServers(ctx context.Context, rec store.App, of *Containers) error {
	for _, db := range rec.Databases {
		var in []string
		for _, c := range rec.Containers {
			if slices.Contains(c.Serves, db.Name) {
				in = append(in, c.Name)
			}
		}
		if len(in) > 1 {
			return errs.New(errs.Invalid, "", "the dsn of database %s may mean several containers, as %s and %s", db.Name, in[0], in[1]).
				WithHint("name one of them as its host, as in %s://…@%s/…", db.Driver, in[0])
		}
		server, _ := of.serverOf(rec, db)
		if server == nil || db.Driver != "redis" {
			continue
		}
		if ok, err := server.Reachable(ctx); err == nil && !ok {
			return errs.New(errs.Unsupported, "", "the redis database %s is in container %s, which has no way to this host, and its restore needs one", db.Name, server.Container).
				WithHint("protect the volume of its data instead, or run the engine as root on this host")
		}
	}
	return nil
}
