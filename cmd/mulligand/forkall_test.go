package main

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// wholeApp is an app with files in a git repository, a SQLite database, a web server, and a server each of PostgreSQL, MariaDB and Redis;
// or a fork of it.
type wholeApp struct {
	d       *daemonProcess
	ws      string
	fork    string // its name; "": the parent
	servers []appServer
}

// appServer is a server of the app's: the commands that write to it and that dump it.
type appServer struct {
	kind        forkedServer
	write, dump []string
}

// client runs a client of a server where the app is.
func (a wholeApp) client(t *testing.T, command []string, input string) string {
	t.Helper()
	if a.fork != "" {
		command = append([]string{filepath.Join(bin, "mulligan"), "exec", "--app", "shop", a.fork, "--"}, command...)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PGPASSWORD=hunter2", "MYSQL_PWD=hunter2", "REDISCLI_AUTH=hunter2", "MULLIGAN_SOCKET="+a.d.socket)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(input), &out, &problems, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.d.cred}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s of fork %q: %v: %s%s", command, a.fork, err, out.String(), problems.String())
	}
	return out.String()
}

// change makes n random writes: to files, with a commit, to the SQLite database and to each server.
func (a wholeApp) change(t *testing.T, r *rand.Rand, n int, word string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(a.ws, "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range n / 5 {
		path := filepath.Join(a.ws, fmt.Sprintf("d%d", r.IntN(10)), fmt.Sprintf("f%d", r.IntN(200)))
		_, err := db.Exec(`INSERT INTO words (word) VALUES (?)`, fmt.Sprint(word, r.Int()))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, fmt.Appendf(nil, "%s %d", word, r.Int()), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(a.ws, "page.html"), []byte(word), 0o644); err != nil {
		t.Fatal(err)
	}
	shell(t, a.ws, `g() { git -c 'safe.directory=*' "$@"; }; g add -A && g commit -qm "$1" && chown -R --from=root --reference=. .`, word)
	for _, s := range a.servers {
		for range max(1, n/5/60) {
			a.client(t, s.write, s.kind.write(r, word))
		}
	}
}

// state is everything that the app has, by part.
func (a wholeApp) state(t *testing.T) map[string]string {
	t.Helper()
	parts := map[string]string{}
	for _, s := range a.servers {
		lines := strings.Split(a.client(t, s.dump, ""), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, `\restrict `) || strings.HasPrefix(l, `\unrestrict `) })
		slices.Sort(lines)
		parts[s.kind.need] = strings.Join(lines, "\n")
		if s.kind.cluster { // a replay of the log may leave sequences ahead
			parts[s.kind.need] = withoutSequences(parts[s.kind.need])
		}
	}
	var files strings.Builder
	err := filepath.WalkDir(a.ws, func(path string, e fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(e.Name(), "shop.db") || e.Name() == "index" && filepath.Base(filepath.Dir(path)) == ".git" { // has inode numbers
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(a.ws, path)
		var text []byte
		if err == nil && e.Type().IsRegular() {
			text, err = os.ReadFile(path)
		}
		fmt.Fprintf(&files, "%s %s %x\n", rel, info.Mode(), sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	parts["files"] = files.String()
	parts["git"] = output(t, "", "git", "-C", a.ws, "-c", "safe.directory=*", "log", "--format=%H %s") + output(t, "", "git", "-C", a.ws, "-c", "safe.directory=*", "status", "--porcelain")
	parts["sqlite"] = output(t, "", "sqlite3", "-readonly", filepath.Join(a.ws, "shop.db"), ".dump")
	return parts
}

func sameState(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for part := range want {
		sameDump(t, what+" in its "+part, got[part], want[part])
	}
}

// testForksOfEverything makes forks of an app that has everything, and many random writes to each of them through its own files and
// servers. Neither the parent nor another fork changes by a byte or a row. One is kept, and redo goes back and forth. Nothing is left of
// the forks.
//
// PostgreSQL is protected by dumps, or by its files.
func testForksOfEverything(t *testing.T) {
	t.Parallel()
	ways := []string{"postgres by tcp", "postgres by its files"}
	for _, i := range testkit.Sample(t, "ways of PostgreSQL", len(ways), 1) {
		t.Run(ways[i], func(t *testing.T) { forkEverything(t, "redis by tcp", "mariadb by tcp", ways[i]) })
	}
}

func forkEverything(t *testing.T, servers ...string) {
	for _, need := range []string{"root", "postgres", "mariadb", "redis", "sqlite3", "git"} {
		testkit.Need(t, need)
	}
	files, count, writes := 200, 2, 50
	if testkit.Long() {
		files, count, writes = 20_000, 5, 1000
	}
	d := newDaemon(t)
	d.args = []string{} // root's
	d.start()
	d.cred = &syscall.Credential{Uid: ordinary, Gid: ordinary}
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	parent := wholeApp{d: d, ws: filepath.Join(dir, "ws")}
	check(os.Mkdir(parent.ws, 0o755))
	check(os.Chmod(dir, 0o755))
	check(copyApp(filepath.Join(parent.ws, "app")))
	check(os.WriteFile(filepath.Join(parent.ws, ".gitignore"), []byte("shop.db*\n/app\n"), 0o644))
	for i := range files {
		path := filepath.Join(parent.ws, "src", fmt.Sprint(i%100), fmt.Sprint(i))
		check(errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, fmt.Appendf(nil, "file %d", i), 0o644)))
	}
	output(t, "CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)", "sqlite3", filepath.Join(parent.ws, "shop.db"))
	// Git packs a repository of this size after a commit, in the background: the app would change by itself while it is compared.
	shell(t, parent.ws, `git init -q && git config gc.auto 0 && git config user.name Ada && git config user.email ada@example.org && git add -A && git commit -qm first && chown -R $1:$1 "$(dirname "$PWD")"`, fmt.Sprint(ordinary))

	addr := freeAddr(t)
	file := fmt.Sprintf("slug = 'shop'\nowner = 'nobody'\nworkspace = '%s'\nrun = ['./app', 'serve-app', '%s', '%[1]s/page.html']\n[health]\nurl = 'http://%[2]s/'\n[[database]]\ndsn = 'sqlite:shop.db'\n", parent.ws, addr)
	for _, kind := range forkedServers() {
		if !slices.Contains(servers, kind.name) {
			continue
		}
		own := filepath.Join(dir, kind.need)
		check(os.Mkdir(own, 0o755))
		dsn, client := kind.start(t, own)
		at := slices.Index(client, "--")
		parent.servers = append(parent.servers, appServer{kind, client[:at], client[at+1:]})
		url, folder, files := strings.Cut(dsn, "#mode=physical&data_dir=")
		file += fmt.Sprintf("[[database]]\nname = '%s'\ndsn = '%s'\n", kind.need, url)
		if files {
			file += fmt.Sprintf("mode = 'physical'\ndata_dir = '%s'\n", folder)
		}
	}
	path := filepath.Join(dir, "shop.toml")
	check(os.WriteFile(path, []byte(file), 0o600))
	r := testkit.Rand(t)
	parent.change(t, r, writes, "broken")
	owner := d.cred
	d.cred = nil // root names the files of the cluster
	d.must("app", "add", "--file", path)
	d.cred = owner
	broken := parent.state(t)

	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", fmt.Sprint(count)).Forks
	if len(made) != count {
		t.Fatalf("made are %+v", made)
	}
	var forks []wholeApp
	var tried []map[string]string
	for i, f := range made {
		fork := wholeApp{d, f.Workspace, f.Fork.Name, parent.servers}
		sameState(t, fmt.Sprintf("fork %d begins", i+1), fork.state(t), broken)
		word := fmt.Sprintf("try%d", i+1)
		fork.change(t, r, writes, word)
		eventually(t, "the fork serves its own page", func() bool { return visit(t.Context(), f.Fork.Ports[0].Address) == word })
		forks, tried = append(forks, fork), append(tried, fork.state(t))
	}
	sameState(t, "the parent is", parent.state(t), broken)
	for i, f := range forks {
		sameState(t, fmt.Sprintf("fork %d is", i+1), f.state(t), tried[i])
	}
	kept := count - 1
	d.must("keep", forks[kept].fork, "--app", "shop")
	sameState(t, "after keep the parent is", parent.state(t), tried[kept])
	eventually(t, "the parent serves the page of the fork that was kept", func() bool { return visit(t.Context(), addr) == fmt.Sprintf("try%d", count) })
	d.must("redo", "--app", "shop")
	sameState(t, "after redo the parent is", parent.state(t), broken)
	d.must("redo", "--app", "shop")
	sameState(t, "after another redo the parent is", parent.state(t), tried[kept])
	sameState(t, "in the end fork 1 is", forks[0].state(t), tried[0])
	d.must("drop", "--all", "--app", "shop")
	if left := d.inForks(""); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
	if list, err := os.ReadDir(filepath.Join(d.dir, "state", "apps")); err != nil || len(list) != 1 {
		t.Errorf("there is state of %v, %v", list, err)
	}
	if _, err := os.Stat(filepath.Dir(made[0].Workspace)); !os.IsNotExist(err) {
		t.Errorf("the folder of forks is left: %v", err)
	}
	d.keepsSecret(t, "hunter2")
}
