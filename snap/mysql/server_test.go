package mysql

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"mulligan/privsep"
	"mulligan/testkit"
)

// The writers and the daemons that get killed are processes of their own: the
// test binary once more, told by the environment which part to play.
func TestMain(m *testing.M) {
	privsep.Main()
	if role, ok := roles[os.Getenv("MYSQL_TEST_ROLE")]; ok {
		role(os.Getenv("MYSQL_TEST_ARG"))
		return
	}
	code := m.Run()
	if shared.server != nil {
		shared.kill()
		_ = os.RemoveAll(shared.dir)
	}
	if template.dir != "" {
		_ = os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

var roles = map[string]func(arg string){"writer": write, "victim": victim, "alone": alone}

// command is a process of the test binary in a role.
func command(t *testing.T, role string, arg any) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(arg)
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MYSQL_TEST_ROLE="+role, "MYSQL_TEST_ARG="+string(data))
	cmd.Stderr = os.Stderr
	return cmd
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must is for the other processes: they fail loudly.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mysql test:", err)
		os.Exit(1)
	}
}

// oracle says that the host's server is MySQL, and not MariaDB: snap/versions.sh has such hosts.
var oracle = func() bool {
	_, maria := exec.LookPath("mariadbd")
	_, mysql := exec.LookPath("mysqld")
	return maria != nil && mysql == nil
}()

// needServer is testkit.Need for the server and its programs.
func needServer(t testing.TB) {
	t.Helper()
	if !oracle {
		testkit.Need(t, "mariadb")
	}
}

// tool is a program of the server's, by MariaDB's name for it.
func tool(name string) string {
	if !oracle {
		return name
	}
	return map[string]string{"mariadbd": "mysqld", "mariadb": "mysql", "mariadb-dump": "mysqldump", "mariadb-admin": "mysqladmin"}[name]
}

// server is a MariaDB or MySQL server that only these tests know.
type server struct {
	dir  string
	args []string
	cmd  *exec.Cmd
}

// template is a folder of data that MySQL servers begin with.
var template struct {
	once sync.Once
	dir  string
	err  error
}

func makeTemplate() {
	dir, err := os.MkdirTemp(testkit.Quick(), "mulligan-mysql-template")
	template.dir, template.err = dir, err
	if err == nil {
		make := exec.Command("mysqld", "--no-defaults", "--initialize-insecure", "--user=root", "--datadir="+dir+"/data")
		if out, err := make.CombinedOutput(); err != nil {
			template.err = fmt.Errorf("%w: %s", err, out)
		}
	}
}

// newServer starts a server in the folder dir; args are settings.
func newServer(t testing.TB, dir string, args ...string) *server {
	t.Helper()
	needServer(t)
	s := &server{dir: dir, args: args}
	if oracle {
		template.once.Do(makeTemplate)
		check(t, template.err)
		check(t, os.CopyFS(filepath.Join(dir, "data"), os.DirFS(template.dir+"/data")))
	} else {
		testkit.MariaDB(t, filepath.Join(dir, "data"))
	}
	s.start(t)
	return s
}

// ownServer is a server of the test's own.
func ownServer(t testing.TB, args ...string) *server {
	t.Helper()
	dir, err := os.MkdirTemp(testkit.Quick(), "mulligan-mysql") // a socket's path must be short
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := newServer(t, dir, args...)
	t.Cleanup(s.kill)
	return s
}

var shared struct {
	once sync.Once
	*server
}

// sharedServer is the server of those tests that leave it alone.
func sharedServer(t testing.TB) *server {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp(testkit.Quick(), "mulligan-mysql")
		check(t, err)
		shared.server = newServer(t, dir, "--log-bin=log")
	})
	if shared.server == nil {
		testkit.Lack(t, "there is no server")
	}
	return shared.server
}

func (s *server) socket() string { return filepath.Join(s.dir, "sock") }

// start runs the server and waits until it answers.
func (s *server) start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(t, err)
	args := []string{"--no-defaults", "--user=root", "--datadir=" + s.dir + "/data", "--socket=" + s.socket(),
		"--skip-networking", "--pid-file=" + s.dir + "/pid", "--tmpdir=" + s.dir, "--innodb-buffer-pool-size=64M",
		"--log-bin-trust-function-creators=1", "--event-scheduler=ON", "--server-id=1"}
	if oracle {
		args = append(args, "--mysqlx=OFF", "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF") // 8.x has no GTIDs unless asked to
	} else {
		args = append(args, "--innodb-log-file-size=8M")
	}
	s.cmd = exec.Command(tool("mariadbd"), append(args, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	check(t, s.cmd.Start())
	check(t, log.Close())
	testkit.Eventually(t, "the server answers", func() bool {
		return exec.Command(tool("mariadb-admin"), "--no-defaults", "-uroot", "-S", s.socket(), "ping").Run() == nil
	})
}

// kill ends the server as a crash would.
func (s *server) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// sql runs statements in a client of the server's own, and gives its answer.
func (s *server) sql(t testing.TB, db, text string) string {
	t.Helper()
	out, err := s.trySQL(db, text)
	if err != nil {
		t.Fatalf("%v: %s\n%.3000s", err, out, "")
	}
	return out
}

func (s *server) trySQL(db, text string) (string, error) {
	cmd := exec.Command(tool("mariadb"), "--no-defaults", "-uroot", "-S", s.socket(), "-N", "-B", "--default-character-set=utf8mb4", "--max-allowed-packet=64M", db)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// dump is what the server's own tools, and not the driver, say of a database.
func (s *server) dump(t testing.TB, db string) string {
	t.Helper()
	if s.sql(t, "", "SHOW DATABASES LIKE '"+db+"'") == "" {
		return "absent"
	}
	cmd := exec.Command(tool("mariadb-dump"), "--no-defaults", "-uroot", "-S", s.socket(), "--force", "--routines", "--events", "--triggers", "--hex-blob",
		"--skip-comments", "--skip-dump-date", "--order-by-primary", "--skip-extended-insert", "--databases", db)
	if oracle {
		cmd.Args = slices.Insert(cmd.Args, 2, "--set-gtid-purged=OFF") // behind --no-defaults
	}
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil && !strings.Contains(errors.String(), "1356") {
		t.Fatalf("%v: %s", err, errors.String())
	}
	tables := s.sql(t, "", "SET group_concat_max_len = 1000000; SELECT GROUP_CONCAT(CONCAT('`', table_schema, '`.`', REPLACE(table_name, '`', '``'), '`') ORDER BY 1) FROM information_schema.tables WHERE table_type='BASE TABLE' AND table_name <> 'o_many' AND table_schema='"+db+"'")
	sums := ""
	if tables != "NULL" {
		sums = s.sql(t, "", "CHECKSUM TABLE "+tables+" EXTENDED") // FLOATs to the last bit
	}
	text := out.Bytes()
	if oracle { // it tells of a column's collation in two ways
		text = regexp.MustCompile(` CHARACTER SET \w+( COLLATE )`).ReplaceAll(text, []byte("$1"))
	}
	return fmt.Sprintf("%x %s", sha256.Sum256(text), sums)
}

// restart is a crash and a new start.
func (s *server) restart(t testing.TB) {
	t.Helper()
	s.kill()
	s.start(t)
}
