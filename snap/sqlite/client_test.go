package sqlite

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"mulligan/testkit"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite"
)

// The clients of the tests are real ones, in processes of their own: the test
// binary once more, told by the environment which part to play.
func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv("SQLITE_TEST_ROLE")]
	if !ok {
		os.Exit(m.Run())
	}
	role(os.Getenv("SQLITE_TEST_ARG"))
}

var roles = map[string]func(arg string){
	"client": serve,
	"writer": write,
	"user":   user,
	"victim": victim,
}

// command is a process of the test binary in a role.
func command(t *testing.T, role string, arg any) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(arg)
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SQLITE_TEST_ROLE="+role, "SQLITE_TEST_ARG="+string(data))
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
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

// client talks to a process that uses the database when it is told to.
type client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// order is one thing for a client to do.
type order struct {
	Path string
	SQL  []string // in one connection; each must succeed
	Hold bool     // keep the connection open; the next order closes it
	Die  bool     // SIGKILL itself after the last statement, without closing
}

func startClient(t *testing.T) *client {
	t.Helper()
	c := &client{cmd: command(t, "client", nil)}
	var err error
	c.in, err = c.cmd.StdinPipe()
	check(t, err)
	out, err := c.cmd.StdoutPipe()
	check(t, err)
	c.out = bufio.NewScanner(out)
	check(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.in.Close(); _ = c.cmd.Wait() })
	return c
}

// do has the client carry out the order, and waits.
func (c *client) do(t testing.TB, o order) {
	t.Helper()
	check(t, json.NewEncoder(c.in).Encode(o))
	if !c.out.Scan() {
		if o.Die {
			return
		}
		t.Fatal("the client is gone")
	}
	if c.out.Text() != "ok" {
		t.Fatalf("client: %s", c.out.Text())
	}
}

// serve is the client's side.
func serve(string) {
	in := json.NewDecoder(os.Stdin)
	var db *sql.DB
	for {
		var o order
		if in.Decode(&o) == io.EOF {
			return
		}
		if db != nil {
			must(db.Close())
		}
		db = open(o.Path)
		fmt.Println(run(db, o))
	}
}

func run(db *sql.DB, o order) string {
	for _, q := range o.SQL {
		if _, err := db.Exec(q); err != nil {
			return fmt.Sprintf("%s: %v", q, err)
		}
	}
	if o.Die {
		must(unix.Kill(os.Getpid(), unix.SIGKILL))
		select {}
	}
	if !o.Hold {
		must(db.Close())
	}
	return "ok"
}

// open opens a database with one connection.
func open(path string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=synchronous(off)")
	must(err)
	db.SetMaxOpenConns(1)
	return db
}

// change is a transaction, and more, drawn at random; it leaves at
// least 40 KiB that were not there before.
func change(t testing.TB, seed int64) []string {
	random := testkit.Rand(t)
	list := []string{
		"CREATE TABLE IF NOT EXISTS kv(k INTEGER PRIMARY KEY, seed INT, v BLOB)",
		"BEGIN",
		fmt.Sprintf("DELETE FROM kv WHERE k %% 3 = %d", random.IntN(5)),
		"DELETE FROM kv WHERE k < (SELECT max(k) FROM kv) - 30", // for the tests' speed
		fmt.Sprintf("UPDATE kv SET seed = -seed WHERE k %% 7 = %d", random.IntN(7)),
	}
	for range 10 {
		list = append(list, fmt.Sprintf("INSERT INTO kv(seed, v) VALUES(%d, x'%x')", seed, noise(random, 4<<10)))
	}
	list = append(list, "COMMIT")
	switch random.IntN(8) {
	case 0:
		list = append(list, fmt.Sprintf("CREATE TABLE \"t%d\"(a, b UNIQUE)", seed), fmt.Sprintf("INSERT INTO \"t%d\" VALUES(1, 2)", seed))
	case 1:
		list = append(list, fmt.Sprintf("CREATE INDEX \"i%d\" ON kv(seed)", seed))
	case 2:
		list = append(list, "VACUUM")
	case 3:
		list = append(list, "PRAGMA journal_mode=WAL", "UPDATE kv SET seed = seed + 1")
	case 4:
		list = append(list, "PRAGMA journal_mode=DELETE")
	case 5:
		list = append(list, "PRAGMA journal_mode=PERSIST", "UPDATE kv SET seed = seed + 1")
	case 6:
		list = append(list, "PRAGMA journal_mode=DELETE", fmt.Sprintf("PRAGMA page_size=%d", 512<<random.IntN(8)), "VACUUM")
	}
	return list
}

func noise(random *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

// halfway is what a writer does before it is killed inside a transaction, with
// a cache so small that the database file is written to already.
func halfway(seed int64) []string {
	return []string{
		"PRAGMA cache_size=2", "PRAGMA cache_spill=1", "BEGIN IMMEDIATE",
		"UPDATE kv SET v = randomblob(5000)",
		fmt.Sprintf("INSERT INTO kv(seed, v) VALUES(%d, randomblob(100000))", seed),
		"DELETE FROM kv WHERE k % 2 = 0",
	}
}
