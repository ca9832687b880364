package redis

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	client "github.com/redis/go-redis/v9"

	"mulligan/privsep"
	"mulligan/testkit"
)

// The writers and the daemons that get killed are processes of their own: the
// test binary once more, told by the environment which part to play.
func TestMain(m *testing.M) {
	privsep.Main()
	role, ok := roles[os.Getenv("REDIS_TEST_ROLE")]
	if !ok {
		os.Exit(m.Run())
	}
	role(os.Getenv("REDIS_TEST_ARG"))
}

var roles = map[string]func(arg string){"writer": write, "victim": victim, "hostile": captureHostile}

// command is a process of the test binary in a role.
func command(t *testing.T, role string, arg any) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(arg)
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "REDIS_TEST_ROLE="+role, "REDIS_TEST_ARG="+string(data))
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
		fmt.Fprintln(os.Stderr, "redis test:", err)
		os.Exit(1)
	}
}

const secret = "s3cret-word" // no error and no command line may hold it

// server is a Redis server that only this test knows.
type server struct {
	dir, port string
	args      []string
	cmd       *exec.Cmd
	db        *client.Client
}

// startServer starts a server in a folder of its own; args are settings.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	testkit.Need(t, "redis")
	port := strconv.Itoa(testkit.Port(t))
	s := &server{dir: testkit.TempDir(t), port: port, args: args}
	conf := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nunixsocket %s\nrequirepass %s\nhz 100\nenable-debug-command yes\nlogfile %s\n",
		port, s.dir, s.socket(), secret, filepath.Join(s.dir, "log"))
	check(t, os.WriteFile(filepath.Join(s.dir, "conf"), []byte(conf), 0o600))
	s.start(t)
	t.Cleanup(s.kill)
	s.db = s.client(0)
	t.Cleanup(func() { _ = s.db.Close() })
	return s
}

func (s *server) socket() string { return filepath.Join(s.dir, "sock") }
func (s *server) dsn() string    { return "redis://:" + secret + "@127.0.0.1:" + s.port }

// client is an independent one.
func (s *server) client(db int) *client.Client {
	return client.NewClient(&client.Options{Addr: "127.0.0.1:" + s.port, Password: secret, DB: db, MaxRetries: 8})
}

// start runs the server and waits until it says that it is ready.
func (s *server) start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command("redis-server", append([]string{filepath.Join(s.dir, "conf"), "--logfile", ""}, s.args...)...)
	out, err := s.cmd.StdoutPipe()
	check(t, err)
	check(t, s.cmd.Start())
	lines := bufio.NewScanner(out)
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), "Ready to accept connections") {
			go func() {
				for lines.Scan() { // or it would block
				}
			}()
			return
		}
	}
	t.Fatalf("redis-server did not start:\n%s", strings.Join(said, "\n"))
}

// kill ends the server as a crash would.
func (s *server) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// restart is a crash and a new start.
func (s *server) restart(t testing.TB) {
	t.Helper()
	s.kill()
	s.start(t)
}

// digest is what the server itself, and not the driver, says of all its data.
func (s *server) digest(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	sum, err := s.db.Do(ctx, "DEBUG", "DIGEST").Text()
	check(t, err)
	functions, err := s.db.Do(ctx, "FUNCTION", "DUMP").Text()
	check(t, err)
	var ends []string
	for db := range 3 {
		c := s.client(db)
		for it := c.Scan(ctx, 0, "*", 1000).Iterator(); it.Next(ctx); {
			at, err := c.PExpireTime(ctx, it.Val()).Result()
			check(t, err)
			if at > 0 {
				ends = append(ends, strconv.Itoa(db)+it.Val()+at.String())
			}
		}
		check(t, c.Close())
	}
	return fmt.Sprintf("%s %x %d %s", sum, functions, len(ends), strings.Join(sortedStrings(ends), " "))
}
