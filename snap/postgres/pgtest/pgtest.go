// Package pgtest starts real PostgreSQL servers for tests from the host's own packages: new clusters on loopback and on a unix
// socket, which are removed at the end of the test. As root they run as the user postgres.
//
//	c := pgtest.Start(t, pgtest.Options{})
//	c.Psql(t, "postgres", "CREATE DATABASE app")
//	pgx.Connect(ctx, c.DSN("app"))
//	c.Kill(t)  // as a power cut would
//	c.Start(t) // and crash recovery
package pgtest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

// Superuser is the role that owns the cluster. On the socket it needs no password.
const Superuser = "postgres"

// Options adjust a cluster. The zero value suffices for most tests.
type Options struct {
	// Dir is the parent folder of the cluster, for a test that needs a certain file system. Default: a temporary folder. The
	// server's user must be able to reach it. Everything that Start makes in it is removed in the end.
	Dir string
	// Settings are added to postgresql.conf. The values must not be quoted.
	Settings map[string]string
	// HBA replaces pg_hba.conf. By default sockets are trusted and loopback
	// HBA replaces pg_hba.conf. By default, connections to the socket are trusted, and loopback requires a password
	// (scram-sha-256).
	HBA string
	// Init are additional arguments of initdb.
	Init []string
	// Databases are created besides postgres.
	Databases []string
	// Slim leaves out template0, which is a third of a new cluster.
	Slim bool
	// Bin is the folder of the server's programs. Default: the newest on the host.
	Bin string
}

// Cluster is a server together with its data. Its methods are not safe for concurrent use.
type Cluster struct {
	DataDir string
	Bin     string // folder of the server's programs
	Socket  string // folder of the unix socket
	Port    int
	Log     string // file of the server's log

	tools string // folder of psql and other programs that Bin lacks, or ""
	cred  *syscall.Credential
	run   *process // nil while stopped
}

// defaults are the settings of a small server that need not survive a power cut.
var defaults = map[string]string{
	"fsync": "off", "shared_buffers": "32MB", "max_connections": "120", "listen_addresses": "127.0.0.1",
	"log_line_prefix": "%m [%p] %d ", "logging_collector": "off", "timezone": "UTC", "password_encryption": "scram-sha-256",
}

const defaultHBA = "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

// Start makes a cluster and starts it. Without PostgreSQL on the host, the test is skipped, or installs it; see testkit.Need.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := New(t, o)
	c.Start(t)
	return c
}

// New makes a cluster without starting it.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{Bin: o.Bin}
	if c.Bin == "" {
		c.Bin = Bin(t)
	}
	if _, err := os.Stat(filepath.Join(c.Bin, "psql")); err != nil { // Bin is of a package with the server only
		c.tools = newest(t)
	}
	c.cred = credential(t)
	dir := mkdir(t, o.Dir, "pgtest-", c.cred)
	c.Socket = mkdir(t, "/tmp", "pgs-", c.cred) // its path must be short
	c.DataDir, c.Log = filepath.Join(dir, "data"), filepath.Join(dir, "log")
	t.Cleanup(func() { c.shutdown(t) })
	must(t, testkit.CopyTree(template(t, c, o), c.DataDir))
	c.configure(t, o)
	return c
}

// Memory returns a folder on a file system in memory, for tests that are not about power cuts. It returns "" if less than 4 GiB
// are free there.
func Memory() string {
	const dir, room = "/dev/shm", 4 << 30
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type != unix.TMPFS_MAGIC || st.Bavail*uint64(st.Bsize) < room {
		return ""
	}
	return dir
}

// Bin returns the folder of the server's programs: the value of MULLIGAN_TEST_POSTGRES, or that of the newest version on this
// host. Without one, the test is skipped.
func Bin(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("MULLIGAN_TEST_POSTGRES"); dir != "" {
		return dir
	}
	return newest(t)
}

// newest returns the folder of the newest server programs from Debian's packages.
func newest(t testing.TB) string {
	t.Helper()
	testkit.Need(t, "postgres")
	list, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	must(t, err)
	slices.SortFunc(list, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(list[len(list)-1])
}

func version(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 sorts first
	return n
}

// credential returns the user that the server runs as, or nil for the caller's.
func credential(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	must(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	must(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	must(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// mkdir makes a temporary folder that belongs to the server's user.
func mkdir(t testing.TB, parent, prefix string, cred *syscall.Credential) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, prefix)
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	if cred != nil {
		must(t, os.Chown(dir, int(cred.Uid), int(cred.Gid)))
	}
	return dir
}

// configure writes the settings, with a free port.
func (c *Cluster) configure(t testing.TB, o Options) {
	t.Helper()
	c.Port = testkit.Port(t)
	settings := maps.Clone(defaults)
	settings["port"], settings["unix_socket_directories"] = strconv.Itoa(c.Port), c.Socket
	maps.Copy(settings, o.Settings)
	c.Configure(t, settings)
	hba := o.HBA
	if hba == "" {
		hba = defaultHBA
	}
	c.WriteHBA(t, hba)
}

// Configure adds settings to postgresql.conf. They take effect with the next start or reload.
func (c *Cluster) Configure(t testing.TB, settings map[string]string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(c.DataDir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		_, err := fmt.Fprintf(f, "%s = '%s'\n", k, strings.ReplaceAll(settings[k], "'", "''"))
		must(t, err)
	}
	must(t, f.Close())
}

// WriteHBA replaces pg_hba.conf, and keeps its owner.
func (c *Cluster) WriteHBA(t testing.TB, hba string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(c.DataDir, "pg_hba.conf"), []byte(hba), 0o600))
}

// DSN returns the URL of a database on the socket, for the superuser.
func (c *Cluster) DSN(db string) string { return c.DSNAs(Superuser, db) }

// DSNAs returns the URL of a database on the socket for a role, which needs no password there.
func (c *Cluster) DSNAs(role, db string) string {
	q := url.Values{"host": {c.Socket}, "port": {strconv.Itoa(c.Port)}, "user": {role}}
	return (&url.URL{Scheme: "postgres", Path: "/" + db, RawQuery: q.Encode()}).String()
}

// TCP returns the URL of a database on loopback, which requires a password.
func (c *Cluster) TCP(role, password, db string) string {
	u := &url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Path: "/" + db,
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port)), RawQuery: "sslmode=disable"}
	return u.String()
}

// Psql runs SQL as the superuser with psql, each statement by itself. It returns the output: columns separated by "|", without
// a header.
func (c *Cluster) Psql(t testing.TB, db, sql string) string {
	t.Helper()
	out, err := c.TryPsql(db, sql)
	must(t, err)
	return out
}

// TryPsql does the same as Psql for SQL that may fail.
func (c *Cluster) TryPsql(db, sql string) (string, error) {
	cmd := c.Command("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", c.Socket, "-p", strconv.Itoa(c.Port), "-U", Superuser, "-d", db, "-f", "-")
	cmd.Stdin = strings.NewReader(sql)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, stderr.String())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// Command returns the command that runs one of the server's programs as the server's user.
func (c *Cluster) Command(program string, args ...string) *exec.Cmd {
	if program != "cp" {
		program = c.path(program)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	if c.cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred}
	}
	return cmd
}

// path returns the path of a program.
func (c *Cluster) path(program string) string {
	path := filepath.Join(c.Bin, program)
	if _, err := os.Stat(path); err != nil && c.tools != "" {
		return filepath.Join(c.tools, program)
	}
	return path
}

// Owner returns the user and the group that the server runs as.
func (c *Cluster) Owner() (uid, gid int) {
	if c.cred == nil {
		return os.Getuid(), os.Getgid()
	}
	return int(c.cred.Uid), int(c.cred.Gid)
}

func (c *Cluster) command(t testing.TB, program string, args ...string) {
	t.Helper()
	if out, err := c.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

func (c *Cluster) shutdown(t testing.TB) {
	if t.Failed() {
		if data, err := os.ReadFile(c.Log); err == nil {
			t.Logf("the server's log ends:\n%s", data[max(0, len(data)-4000):])
		}
	}
	if c.run != nil {
		c.Kill(t)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// waitFor polls until ok returns true.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(testkit.Patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: waited in vain", what)
		}
	}
}
