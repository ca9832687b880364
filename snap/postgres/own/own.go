// Package own says how to run a PostgreSQL server of an app's own, as each fork of an app has one.
package own

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pgbin"
	"mulligan/snap/postgres/pglogin"
)

// Kind is what a server must be like to stand in for another.
type Kind struct {
	Major          int
	User, Database string // those of the DSN, with their defaults
	Superuser      bool   // the user is one
	Cluster        *Cluster
}

// Cluster says how to run a server on a copy of a cluster, if the driver manages its files.
type Cluster struct {
	Folder    string // with the copies
	Bin       string // with the server's programs
	UID, GID  int    // the user whom the copies belong to
	Bootstrap string // the cluster's first role, a superuser
}

// String writes the kind for [Parse].
func (k Kind) String() string {
	v := url.Values{
		"major": {strconv.Itoa(k.Major)}, "user": {k.User}, "database": {k.Database}, "superuser": {strconv.FormatBool(k.Superuser)},
	}
	if c := k.Cluster; c != nil {
		v["folder"], v["bin"], v["role"] = []string{c.Folder}, []string{c.Bin}, []string{c.Bootstrap}
		v["uid"], v["gid"] = []string{strconv.Itoa(c.UID)}, []string{strconv.Itoa(c.GID)}
	}
	return v.Encode()
}

// Parse reads what String wrote.
func Parse(s string) (k Kind, err error) {
	if s == "" {
		return k, errs.New(errs.Unsupported, "", "the fork was made before the app had this database").
			WithHint("make a new fork of the app")
	}
	v, err := url.ParseQuery(s)
	if err != nil {
		return k, err
	}
	k.User, k.Database, k.Superuser = v.Get("user"), v.Get("database"), v.Get("superuser") == "true"
	if k.Major, err = strconv.Atoi(v.Get("major")); err != nil || k.User == "" || k.Database == "" {
		return k, errs.New(errs.Internal, "", "%.200q does not describe a PostgreSQL server", s)
	}
	if !v.Has("folder") {
		return k, nil
	}
	k.Cluster = &Cluster{Folder: v.Get("folder"), Bin: v.Get("bin"), Bootstrap: v.Get("role")}
	uid, err := strconv.Atoi(v.Get("uid"))
	gid, gidErr := strconv.Atoi(v.Get("gid"))
	if err != nil || gidErr != nil || !filepath.IsAbs(k.Cluster.Folder) || !filepath.IsAbs(k.Cluster.Bin) || k.Cluster.Bootstrap == "" {
		return k, errs.New(errs.Internal, "", "%.200q does not describe a PostgreSQL cluster", s)
	}
	k.Cluster.UID, k.Cluster.GID = uid, gid
	return k, nil
}

// The server's own socket, and its first role, which is a superuser.
const (
	folder    = "/tmp"
	port      = "5432"
	superuser = "postgres"
)

// setup makes an empty cluster under another name first, so that one in the making is never taken for a whole one. The lock files are
// of a server that was killed: whoever starts this script has made sure that none runs.
const setup = `bin=${0%/*}
if ! [ -d main ]; then
	rm -rf new
	"$bin/initdb" --pgdata=new --username=` + superuser + ` --auth=trust --encoding=UTF8 --locale=C
	if [ -s ` + snap.ServerConfig + ` ]; then
		"$0" --single -D new -j postgres <` + snap.ServerConfig + `
		echo
	fi
	sync new
	mv new main
	sync .
fi
rm -f main/postmaster.pid ` + folder + `/.s.PGSQL.*`

// Server says how to run an empty server that answers the clients of a server. All databases are on that server. Whoever can reach the
// new one may log in as any role: only its owner can.
func Server(of ...snap.Parent) (s snap.Server, err error) {
	l, err := pglogin.Parse(of[0].DSN)
	if err != nil {
		return s, err
	}
	s = snap.Server{ListenSocket: socket(folder, port), SocketName: socket("", l.Port), Usual: []string{"/run/postgresql"}}
	settings := []string{
		"listen_addresses=", "unix_socket_directories=" + folder, "unix_socket_permissions=0700", "port=" + port,
		"shared_buffers=32MB", "max_wal_size=256MB", "fsync=on", "full_page_writes=on", "archive_mode=off", "ssl=off",
		"logging_collector=off", "log_destination=stderr", "shared_preload_libraries=", "cluster_name=fork",
	}
	c, err := clusterOf(of)
	if err != nil {
		return s, err
	}
	if c != nil {
		c.serve(&s)
		settings = append(settings, clusterSettings...)
	} else {
		s.NeedsUser, s.Setup = true, setup
	}
	s.Args = []string{"-D", "main"}
	for _, set := range settings {
		s.Args = append(s.Args, "-c", set)
	}
	if err := place(&s, l); err != nil || c != nil {
		if s.Socket != "" {
			s.Hidden = append(s.Hidden, filepath.Dir(s.Socket))
		}
		return s, err
	}
	err = fit(&s, of)
	return s, err
}

// ClusterData is the name of a copied cluster's data folder, in a folder that also has the ClusterFiles.
const ClusterData = "main"

// The configuration of a copied cluster's server.
const (
	clusterConf  = "postgresql.conf"
	clusterHBA   = "hba.conf"
	clusterIdent = "ident.conf"
)

// ClusterFiles returns the content of the files beside a copied cluster's data folder. All settings are on the server's command line;
// whoever can reach the server may log in as any role.
func ClusterFiles() map[string][]byte {
	return map[string][]byte{clusterConf: nil, clusterIdent: nil, clusterHBA: []byte("local all all trust\n")}
}

// clusterSettings take the place of those in the configuration of a copied cluster, which are for another server.
var clusterSettings = []string{
	"config_file=" + snap.ServerData + "/" + clusterConf, "hba_file=" + snap.ServerData + "/" + clusterHBA,
	"ident_file=" + snap.ServerData + "/" + clusterIdent, "unix_socket_group=", "external_pid_file=", "huge_pages=off",
	"session_preload_libraries=", "local_preload_libraries=", "max_logical_replication_workers=0", "primary_conninfo=", "primary_slot_name=",
	"archive_command=", "restore_command=", "archive_cleanup_command=", "recovery_end_command=", "synchronous_standby_names=",
	"default_transaction_read_only=off", "max_prepared_transactions=200", // those of the cluster are in the copy, and its server must hold them
}

// clusterOf returns the cluster that a server is to run on a copy of; nil if there is none.
func clusterOf(of []snap.Parent) (*Cluster, error) {
	for _, p := range of {
		if k, err := Parse(p.Kind); err != nil || k.Cluster != nil {
			return k.Cluster, err
		}
	}
	return nil, nil
}

// serve says how to run a server on a copy of the cluster. The lock files are of a server that was killed.
func (c *Cluster) serve(s *snap.Server) {
	s.Programs, s.Install = []string{filepath.Join(c.Bin, "postgres")}, "PostgreSQL in "+c.Bin
	s.Setup = "rm -f main/postmaster.pid " + folder + "/.s.PGSQL.*"
	s.Seeded = &snap.Seeded{Folder: c.Folder, UID: c.UID, GID: c.GID}
	// The server's user may write to the cluster's own files, and log in to its server at the socket.
	s.Hidden = append([]string{filepath.Dir(filepath.Dir(c.Folder))}, s.Usual...)
}

func socket(dir, port string) string { return filepath.Join(dir, ".s.PGSQL."+port) }

// place says where clients expect the server.
func place(s *snap.Server, l *pglogin.Settings) (err error) {
	if strings.HasPrefix(l.Host, "/") {
		s.Socket = socket(l.Host, l.Port)
		return nil
	}
	switch ip := net.ParseIP(l.Host); {
	case l.Host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return errs.New(errs.Unsupported, "", "it is at %s, and a fork's own server has an address of the loopback", l.Host)
	case !slices.Contains([]string{"disable", "allow", "prefer"}, l.TLS["sslmode"]):
		return errs.New(errs.Unsupported, "", "its clients use TLS, and a fork's own server has no certificate")
	}
	s.Port, err = strconv.Atoi(l.Port)
	return err
}

// fit makes the server one of the same version, with the users that a restore does not make: superusers who own nothing.
func fit(s *snap.Server, of []snap.Parent) error {
	var roles []string
	for i, p := range of {
		k, err := Parse(p.Kind)
		if err != nil {
			return err
		}
		if i == 0 {
			s.Programs, s.Install = programs(strconv.Itoa(k.Major)), "postgresql-"+strconv.Itoa(k.Major)
		}
		if strings.ContainsAny(k.User, "\n\x00") { // a blank line would end the statement
			return errs.New(errs.Unsupported, "", "the name of its user has a line break")
		}
		if k.Superuser && k.User != superuser && !slices.Contains(roles, k.User) {
			roles = append(roles, k.User)
		}
	}
	var sql strings.Builder
	for _, r := range roles {
		sql.WriteString("CREATE ROLE " + pgx.Identifier{r}.Sanitize() + " LOGIN SUPERUSER;\n\n")
	}
	s.Config = []byte(sql.String())
	return nil
}

// programs lists where a server of a version may be.
func programs(major string) (list []string) {
	for _, dir := range pgbin.Places {
		if named := strings.Replace(dir, "*", major, 1); named != dir {
			list = append(list, filepath.Join(named, "postgres"))
		}
	}
	return list
}

// DSN is the DSN of such a server behind a Unix socket, for the driver, which logs in as the server's superuser.
func DSN(of snap.Parent, path string) (string, error) {
	k, err := Parse(of.Kind)
	if err != nil {
		return "", err
	}
	role := superuser
	if k.Cluster != nil {
		role = k.Cluster.Bootstrap
	}
	_, port, _ := strings.Cut(filepath.Base(path), socket("", ""))
	set := ""
	for _, v := range [][2]string{
		{"host", filepath.Dir(path)}, {"port", port}, {"user", role}, {"password", "none"}, {"dbname", k.Database}, {"sslmode", "disable"},
	} {
		set += v[0] + "=" + pglogin.Quote(v[1]) + " "
	}
	return set, nil
}
