package main

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // the database/sql driver

	"mulligan/ipc"
)

// testApp is an app that a daemon keeps running: a page, some files, a database.
type testApp struct {
	d    *daemonProcess
	ws   string
	addr string
}

// newApp registers an app with n files in its workspace.
func newApp(t testing.TB, d *daemonProcess, n int) *testApp {
	t.Helper()
	a := &testApp{d: d, ws: filepath.Join(d.dir, "ws"), addr: freeAddr(t)}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	a.registerIn(t, n)
	return a
}

func (a *testApp) registerIn(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		a.write(t, fmt.Sprintf("src/d%d/f%d", i/100, i%100), fmt.Sprintf("file %d\n", i))
	}
	a.set(t, "zero")
	if a.d.cred != nil {
		shell(t, a.ws, fmt.Sprintf("chown -R %d:%d .", a.d.cred.Uid, a.d.cred.Gid))
	}
	a.d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--db", "sqlite:shop.db",
		"--run", fmt.Sprintf("%s serve-app %s page.html", filepath.Join(bin, "app"), a.addr), "--health", "http://"+a.addr+"/")
	a.up(t)
}

// up waits until the app answers.
func (a *testApp) up(t testing.TB) {
	t.Helper()
	eventually(t, "the app answers", func() bool { return visit(t.Context(), a.addr) != "" })
}

func (a *testApp) write(t testing.TB, rel, text string) {
	t.Helper()
	path := filepath.Join(a.ws, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// set puts the whole app into the state called word: page, rows, a few files.
func (a *testApp) set(t testing.TB, word string) {
	t.Helper()
	a.write(t, "page.html", word+"\n")
	for i := range 20 {
		a.write(t, fmt.Sprintf("src/d0/f%d", i), word)
	}
	shell(t, a.ws, `rm -rf made-in-*; mkdir -p "made-in-$1/sub"; echo x >"made-in-$1/sub/file"`, word)
	db := a.db(t)
	defer db.Close()
	for _, q := range []string{
		`PRAGMA journal_mode=WAL`,
		`CREATE TABLE IF NOT EXISTS words (id INTEGER PRIMARY KEY, word TEXT)`,
		`DELETE FROM words`,
		`INSERT INTO words (word) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 500) SELECT '` + word + `' FROM n`,
	} {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func (a *testApp) db(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(a.ws, "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	return db
}

// word is the state that the app is in, by all that can be seen of it. It
// fails the test when they disagree: then the app is in two states at once.
func (a *testApp) word(t testing.TB) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(a.ws, "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	word := string(page[:len(page)-1])
	db := a.db(t)
	defer db.Close()
	var n int
	var least, most string
	if err := db.QueryRow(`SELECT count(*), min(word), max(word) FROM words`).Scan(&n, &least, &most); err != nil {
		t.Fatal(err)
	}
	if n != 500 || least != word || most != word {
		t.Fatalf("the page says %q, the database has %d rows from %q to %q", word, n, least, most)
	}
	for i := range 20 {
		b, err := os.ReadFile(filepath.Join(a.ws, fmt.Sprintf("src/d0/f%d", i)))
		if err != nil || string(b) != word {
			t.Fatalf("the page says %q, file %d says %q (%v)", word, i, b, err)
		}
	}
	made, err := filepath.Glob(filepath.Join(a.ws, "made-in-*"))
	if err != nil || len(made) != 1 || filepath.Base(made[0]) != "made-in-"+word {
		t.Fatalf("the page says %q, and there are %q (%v)", word, made, err)
	}
	return word
}

// files is the listing of the workspace less the database, whose file changes
// its bytes when it is merely opened.
func (a *testApp) files(t testing.TB) []string {
	t.Helper()
	var lines []string
	for _, l := range listing(t, a.ws) {
		if len(l) > 6 && l[:6] == `"/shop` || l[:3] == `"" ` {
			continue
		}
		lines = append(lines, l)
	}
	return lines
}

func (a *testApp) create() ipc.Checkpoint { return ask[ipc.Checkpoint](a.d, "create", "--app", "shop") }

func (a *testApp) checkpoints() []ipc.Checkpoint {
	return ask[ipc.CheckpointList](a.d, "list", "--app", "shop").Checkpoints
}
