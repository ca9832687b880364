package logical

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"mulligan/snap/cas"
	"mulligan/testkit"
)

func openStore(t *testing.T) *cas.Store {
	t.Helper()
	store, err := cas.Open(filepath.Join(t.TempDir(), "store"), cas.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	return store
}

// write stores rows, given in bites of any size, and reads them back.
func write(t *testing.T, s *cas.Store, data []byte, bite int) (*rowWriter, []cas.Hash) {
	t.Helper()
	b := s.Begin()
	defer b.Discard()
	w := &rowWriter{batch: b}
	for rest := data; len(rest) > 0; {
		n := min(bite, len(rest))
		_, err := w.Write(rest[:n])
		check(t, err)
		rest = rest[n:]
	}
	node, err := w.end()
	check(t, err)
	r, err := openRows(s, node)
	check(t, err)
	got, err := io.ReadAll(iotest.OneByteReader(io.LimitReader(r, 1000)))
	check(t, err)
	rest, err := io.ReadAll(r)
	check(t, err)
	if !bytes.Equal(append(got, rest...), data) {
		t.Fatalf("%d bytes in bites of %d come back otherwise", len(data), bite)
	}
	return w, w.refs
}

// TestStoppedRows: a COPY FROM that was cancelled may read on after it has
// returned, and gets nothing more once its rows were stopped.
func TestStoppedRows(t *testing.T) {
	s := openStore(t)
	b := s.Begin()
	defer b.Discard()
	w := &rowWriter{batch: b}
	for i := range 20_000 {
		_, err := fmt.Fprintf(w, "%d\ta row\n", i)
		check(t, err)
	}
	node, err := w.end()
	check(t, err)
	r, err := openRows(s, node)
	check(t, err)
	begun, ended := make(chan bool), make(chan error)
	go func() {
		p := make([]byte, 10)
		for n := 0; ; n++ {
			if _, err := r.Read(p); err != nil {
				ended <- err
				return
			}
			if n == 0 {
				close(begun)
			}
		}
	}()
	<-begun
	check(t, r.stop())
	if _, err := r.Read(make([]byte, 10)); err != io.ErrClosedPipe {
		t.Errorf("stopped rows are read: %v", err)
	}
	// Unless it had come to their end before.
	if err := <-ended; err != io.ErrClosedPipe && err != io.EOF {
		t.Errorf("who still read got %v", err)
	}

	// What went wrong is told to who stops.
	r = &rowReader{store: s, refs: []cas.Hash{{1}}}
	_, err = r.Read(make([]byte, 10))
	if stopped := r.stop(); err == nil || stopped != err {
		t.Errorf("reading failed with %v, and stop says %v", err, stopped)
	}
}

func TestRows(t *testing.T) {
	s := openStore(t)
	random := testkit.Bytes(t, 1<<20) // some 34 pieces
	var rows []string
	for i := 0; i+50 < len(random); i += 50 {
		rows = append(rows, fmt.Sprintf("%d\t%s\n", i, hex.EncodeToString(random[i:i+50])))
	}
	data := []byte(strings.Join(rows, ""))
	w, pieces := write(t, s, data, 7000)
	if len(pieces) < 8 || len(pieces) > len(data)/minPiece {
		t.Errorf("%d bytes are in %d pieces", len(data), len(pieces))
	}
	for _, bite := range []int{1, 113, 1 << 20} {
		again, same := write(t, s, data, bite)
		if again.String() != w.String() || again.Rows != w.Rows || fmt.Sprint(same) != fmt.Sprint(pieces) {
			t.Errorf("in bites of %d, sum or pieces are others", bite)
		}
	}

	// A row more in the middle, and one moved to the end: all but few pieces are the same.
	changed := append(append(append([]string{}, rows[:2000]...), rows[2001:]...), "new\trow\n", rows[2000])
	_, others := write(t, s, []byte(strings.Join(changed, "")), 1<<16)
	have := map[cas.Hash]bool{}
	for _, p := range pieces {
		have[p] = true
	}
	fresh := 0
	for _, p := range others {
		if !have[p] {
			fresh++
		}
	}
	if fresh > 3 {
		t.Errorf("two rows make %d of %d pieces new", fresh, len(others))
	}

	// The order does not matter for the sum, everything else does.
	var a, b, c rowSum
	for i := range rows {
		a.add([]byte(rows[i]))
		b.add([]byte(rows[len(rows)-1-i]))
		c.add([]byte(rows[0]))
	}
	if a != b || a == c {
		t.Error("the sum goes by the order, or not by the content")
	}

	big := append(bytes.Repeat([]byte("x"), 5<<20), '\n')
	if _, pieces := write(t, s, big, 1<<16); len(pieces) < 5 {
		t.Errorf("a row of 5 MiB is in %d pieces", len(pieces))
	}
	if _, pieces := write(t, s, nil, 1); len(pieces) != 0 {
		t.Errorf("no rows are in %d pieces", len(pieces))
	}
	torn := &rowWriter{}
	_, err := torn.Write([]byte("no end"))
	check(t, err)
	if _, err := torn.end(); err == nil {
		t.Error("half a row passes for one")
	}
}

// The daemon's own environment and files do not reach a connection.
func TestEnvironmentIsLeftOut(t *testing.T) {
	home := t.TempDir()
	check(t, os.Mkdir(filepath.Join(home, ".postgresql"), 0o700))
	check(t, os.WriteFile(filepath.Join(home, ".postgresql", "root.crt"), []byte("not a certificate"), 0o600))
	for k, v := range map[string]string{"HOME": home, "PGHOST": "elsewhere", "PGPASSWORD": "s3cret", "PGUSER": "root", "PGSSLMODE": "verify-full",
		"PGOPTIONS": "-c x=y", "PGPORT": "1", "PGDATABASE": "other", "PGTZ": "Mars"} {
		t.Setenv(k, v)
	}
	d, err := New(Config{App: "a", Name: "n", DSN: "host=h user=u dbname=d", StateDir: t.TempDir(), Store: openStore(t)})
	check(t, err)
	cfg, err := d.config(t.Context(), "d")
	check(t, err)
	if cfg.Host != "h" || cfg.Port != 5432 || cfg.User != "u" || cfg.Database != "d" || cfg.Password != "" || len(cfg.RuntimeParams) != 2 {
		t.Errorf("%+v", cfg.Config)
	}
}

func TestTidy(t *testing.T) {
	text := "--\n-- PostgreSQL database dump\n--\n\n\\restrict abc\n\n-- Dumped from database version 15.1\n-- Dumped by pg_dump version 15.2\n\nSET x;\n" +
		strings.Repeat("CREATE\n", 20) + "-- Dumped from within\n\\restrict in a body\n" + strings.Repeat("CREATE\n", 20) + "\n\\unrestrict abc\n\n"
	got := string(tidy([]byte(text)))
	for _, gone := range []string{"abc", "15.1", "15.2"} {
		if strings.Contains(got, gone) {
			t.Errorf("%q is left", gone)
		}
	}
	for _, kept := range []string{"-- Dumped from within", `\restrict in a body`, "SET x;"} {
		if !strings.Contains(got, kept) {
			t.Errorf("%q is gone", kept)
		}
	}
}

// What two schemas differ in is named, also where tables, rows and the usual objects are the same.
func TestSaysWhatDiffers(t *testing.T) {
	part := func(name, kind, sql string) string {
		return "\n--\n-- Name: " + name + "; Type: " + kind + "; Schema: public; Owner: me\n--\n\n" + sql + "\n\n"
	}
	head := "--\n-- PostgreSQL database dump\n--\n\nSET check_function_bodies = false;\n"
	base := head + part("t", "TABLE", "CREATE TABLE t (\n    a integer\n);") + part("t a", "DEFAULT", "ALTER TABLE ONLY t ALTER COLUMN a SET DEFAULT 1;")
	for _, tt := range []struct{ text, want string }{
		{strings.Replace(base, "DEFAULT 1", "DEFAULT 2", 1), "public.t a: ALTER DEFAULT t a"},
		{strings.Replace(base, "bodies = false", "bodies = true", 1), `db: the dump begins with "SET check_function_bodies = true;", was "SET check_function_bodies = false;"`},
		{strings.Replace(base, "    a integer\n", "    a integer,\n    CHECK (a > 0)\n", 1), "public.t: ALTER TABLE t"},
		{head + part("t a", "DEFAULT", "ALTER TABLE ONLY t ALTER COLUMN a SET DEFAULT 1;") + part("t", "TABLE", "CREATE TABLE t (\n    a integer\n);"), "db: the dump has DEFAULT t a where it had TABLE t"},
	} {
		a, b := &side{&state{Schema: "1"}, []byte(base)}, &side{&state{Schema: "2"}, []byte(tt.text)}
		if got := summarize(compare("db", a, b)); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	a, b := state{Tables: []table{{Name: "t", Columns: []column{{Name: "a"}, {Name: "b"}}}}}, state{Tables: []table{{Name: "t", Columns: []column{{Name: "b"}, {Name: "a"}}}}}
	if got, want := summarize(differences(&a, &b)), ".t: the order of its columns is b, a, was a, b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBeside(t *testing.T) {
	for _, db := range []string{"app", strings.Repeat("x", 63), strings.Repeat("ü", 31), ""} {
		a, b := beside(db, "op-0123456789ab", "new"), beside(db, "op-0123456789ab", "old")
		if len(a) > 63 || a == b || !strings.HasSuffix(a, "__mulligan_op-0123456789ab_new") || strings.ToValidUTF8(a, "?") != a {
			t.Errorf("%q: %q, %q", db, a, b)
		}
	}
}
