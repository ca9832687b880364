package logical

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/pgtest"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

const aloneEnv = "POSTGRES_TEST_ALONE"

// alone is a process that runs a driver and nothing else, and tells what that came to.
func alone(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	store, err := cas.Open(filepath.Join(f.Dir, "store"), cas.Options{})
	must(err)
	cfg := Config{App: "app-1", Name: "main", DSN: f.DSN, StateDir: filepath.Join(f.Dir, "state"), Store: store, Owner: privsep.Self}
	if _, err := os.Stat(filepath.Join(f.Dir, "bin")); err == nil {
		cfg.BinDirs = []string{filepath.Join(f.Dir, "bin")}
	}
	d, err := New(cfg)
	must(err)
	if f.Do == "restore" {
		var sw snap.Switch
		if sw, err = d.Prepare(context.Background(), snap.RestoreRequest{ID: "op-1", Target: "db-target", Base: "db-base"}); err == nil {
			err = sw.Commit(context.Background())
		}
	} else {
		_, err = d.Capture(context.Background(), snap.CaptureRequest{ID: snap.SnapshotID(f.Do)})
	}
	snaptest.PrintHostileResult(err)
	must(store.Close())
}

func aloneCommand(victim string, f fate) *exec.Cmd {
	data, err := json.Marshal(f)
	must(err)
	cmd := exec.Command(victim)
	cmd.Env = append(os.Environ(), aloneEnv+"="+string(data))
	cmd.Stderr = os.Stderr
	return cmd
}

// message is one of the server's.
func message(kind byte, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))) + body
}

// head begins a message of so many bytes.
func begin(kind byte, size uint32) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, size))
}

// line is a row of texts.
func line(values ...string) string {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(values)))
	for _, v := range values {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	return message('D', string(b))
}

// described says that rows of such columns come: t for text, b for bool, o for oid, i for bigint.
func described(columns string) string {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(columns)))
	for _, c := range columns {
		b = append(b, "c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
		b = append(b, map[rune]byte{'t': 25, 'b': 16, 'o': 26, 'i': 20}[c])
		b = append(b, "\xff\xff\xff\xff\xff\xff\x00\x00"...)
	}
	return message('T', string(b))
}

const done = "C\x00\x00\x00\x0dSELECT 1\x00Z\x00\x00\x00\x05I"

// attack is what a hostile server answers to a statement that has a text in it; "login" comes before any,
// and "tool" is the first statement of pg_dump.
type attack struct {
	at     string
	answer func(net.Conn)
}

// serve answers as a server does, until the attack.
func (a attack) serve(c net.Conn) {
	r := bufio.NewReader(c)
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return
	}
	startup := make([]byte, binary.BigEndian.Uint32(size[:])-4)
	if _, err := io.ReadFull(r, startup); err != nil {
		return
	}
	tool := !bytes.Contains(startup, []byte("client_encoding"))
	if a.at == "login" && !tool {
		a.answer(c)
		return
	}
	say := func(parts ...string) { _, _ = io.WriteString(c, strings.Join(parts, "")) }
	say(message('R', "\x00\x00\x00\x00"), message('S', "client_encoding\x00UTF8\x00"), message('S', "standard_conforming_strings\x00on\x00"),
		message('S', "server_version\x0015.1\x00"), message('K', "\x00\x00\x00\x01\x00\x00\x00\x02"), message('Z', "I"))
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(r, body); err != nil || head[0] != 'Q' {
			return
		}
		sql := string(body)
		switch {
		case tool && a.at == "tool":
			a.answer(c)
			return
		case tool:
			_, _ = io.Copy(io.Discard, r) // it is kept waiting
			return
		case strings.Contains(sql, a.at):
			a.answer(c)
			return
		case strings.Contains(sql, "server_version_num"):
			say(described("i"), line("15"), done)
		case strings.Contains(sql, "pg_export_snapshot"):
			say(described("tt"), line("00000003-00000002-1", "UTF8"), done)
		case strings.Contains(sql, "pg_control_system"):
			say(described("totbt"), line("1 2", "5", "1:1:", "t", "00000001:0/1"), done)
		case strings.Contains(sql, "SELECT c.oid, n.nspname"):
			say(described("ottti"), line("7", "public", "t", "", "100"), done)
		case strings.Contains(sql, "SELECT a.attrelid"):
			say(described("ottbt"), line("7", "a", "text", "f", ""), done)
		case strings.Contains(sql, "d.datlocprovider"), strings.Contains(sql, "datlocprovider"):
			say(described("tttttttttbi"), line("o", "UTF8", "C", "C", "c", "", "", "pg_default", "", "f", "-1"), done)
		case strings.Contains(sql, "has_table_privilege"):
			say(described("t"), done)
		case strings.Contains(sql, "pg_subscription"):
			say(described("ii"), line("0", "0"), done)
		case strings.Contains(sql, "pg_user_mappings"): // there are some, and the catalog with them may not be read
			say(described("b"), line("t"), done)
		case strings.Contains(sql, "SELECT EXISTS"):
			say(described("bb"), line("t", "t"), done)
		case strings.HasPrefix(sql, "COPY"):
			say(message('H', "\x00\x00\x01\x00\x00"), message('d', "x\n"), message('c', ""), done)
		case strings.HasPrefix(sql, "SELECT") && !strings.Contains(sql, "set_config"):
			say(described("tt"), done)
		default:
			say("C\x00\x00\x00\x08SET\x00", message('Z', "I"))
		}
	}
}

// first answers with a beginning, and then again and again with the rest.
func first(start, again string, total int64) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.WriteString(c, start); err == nil {
			snaptest.Flood(c, []byte(again), total)
		}
	}
}

// A server that never stops sending takes a bounded part of the daemon's memory,
// at whatever place of the protocol it is; nor of its tools' memory.
func testHostileServer(t *testing.T) {
	const much = 800 << 20
	victim := snaptest.MeasuredBinary(t)
	const set, list, columns, copying = "SET standard_conforming_strings", "SELECT c.oid, n.nspname", "SELECT a.attrelid", "COPY "
	attacks := map[string]struct {
		attack
		kind errs.Kind
		says string
	}{
		"Login":         {attack{"login", first(begin('R', 1<<30), "x", much)}, errs.Unsupported, "a message before the login of more than 64 KiB"},
		"LoginError":    {attack{"login", first(begin('E', 1<<30)+"M", "x", much)}, errs.Unsupported, "a message before the login of more than 64 KiB"},
		"LoginSettings": {attack{"login", first(message('R', "\x00\x00\x00\x00"), counted(func(s string) string { return message('S', s+strings.Repeat("x", 1000)+"\x00y\x00") }), much)}, errs.Unsupported, "settings of more than 1 MiB"},
		"Settings":      {attack{set, first("", counted(func(s string) string { return message('S', s+strings.Repeat("x", 1000)+"\x00y\x00") }), much)}, errs.Unsupported, "settings of more than 1 MiB"},
		"Error":         {attack{set, first(begin('E', 1<<30)+"M", "x", much)}, errs.Unsupported, "a message of more than 1 MiB"},
		"Notice":        {attack{set, first(begin('N', 1<<30)+"M", "x", much)}, errs.Unsupported, "a message of more than 1 MiB"},
		"Notifications": {attack{set, first("", message('A', "\x00\x00\x00\x01c\x00"+strings.Repeat("x", 7000)+"\x00"), much)}, errs.Unavailable, ""},
		"Row":           {attack{set, first(described("t")+begin('D', 1<<30)+"\x00\x01\x3f\xff\xff\x00", "x", much)}, errs.Unsupported, "an answer of more than 32 MiB"},
		"Rows":          {attack{set, first(described("t"), message('D', "\x00\x00"), much/8)}, errs.Unsupported, "an answer of more than 32 MiB"},
		"Columns":       {attack{set, first(begin('T', 1<<30)+"\xff\xff", "c\x00", much)}, errs.Invalid, "violates its protocol"},
		"Descriptions":  {attack{set, first("", described("t")+"C\x00\x00\x00\x0dSELECT 1\x00", much/8)}, errs.Unsupported, "an answer of more than 32 MiB"},
		"Tables":        {attack{list, first(described("ottti"), line("7", "public", "t", "", "100"), much/4)}, errs.Unsupported, "of more than 32 MiB"},
		"Texts":         {attack{columns, first(described("ottbt"), line("7", strings.Repeat("<", 1<<20), "text", "f", ""), much)}, errs.Unsupported, "definitions of more than 32 MiB"},
		"CopyRow":       {attack{copying, first(message('H', "\x00\x00\x01\x00\x00"), message('d', strings.Repeat("x", 1<<20)), much)}, errs.Unavailable, ""},
		"CopyMessage":   {attack{copying, first(message('H', "\x00\x00\x01\x00\x00")+begin('d', 1<<30), "x", much)}, errs.Unavailable, ""},
		"Copy":          {attack{copying, first(message('H', "\x00\x00\x01\x00\x00"), message('d', "xxxxxxxxxxxx\n"), much/4)}, errs.Unavailable, ""},
		"Tool":          {attack{"tool", first(described("t"), line(strings.Repeat("x", 1<<20)), 2<<30)}, errs.Failed, "pg_dump: "},
	}
	names := slices.Sorted(maps.Keys(attacks))
	for _, i := range testkit.Sample(t, "attacks", len(names), 3) {
		test := attacks[names[i]]
		t.Run(names[i], func(t *testing.T) {
			s := snaptest.Attack(t, test.serve, func(port int) *exec.Cmd {
				return aloneCommand(victim, fate{Dir: t.TempDir(), DSN: fmt.Sprintf("postgres://u@127.0.0.1:%d/app?sslmode=disable", port), Do: "db-1"})
			})
			if s.Kind != test.kind || !strings.Contains(s.Error, test.says) || s.Hint == "" && s.Kind != errs.Failed {
				t.Errorf("want %s with %q, have %s: %s (%s)", test.kind, test.says, s.Kind, s.Error, s.Hint)
			}
			if s.Child > pgtools.MaxMemory+64<<20 {
				t.Errorf("a tool took %d MiB", s.Child>>20)
			}
		})
	}
}

// counted makes parts that differ.
func counted(part func(string) string) string {
	var b strings.Builder
	for i := range 4000 {
		b.WriteString(part(fmt.Sprint(i)))
	}
	return b.String()
}

// A pg_dump without end, as a server may have it print, ends as well.
func TestEndlessSchema(t *testing.T) {
	dir, victim := t.TempDir(), snaptest.MeasuredBinary(t)
	must(os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	script := "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'pg_dump (PostgreSQL) 15.18'; else exec yes 'CREATE TABLE t (a text);'; fi\n"
	for _, name := range []string{"pg_dump", "pg_restore"} {
		must(testkit.WriteProgram(filepath.Join(dir, "bin", name), []byte(script)))
	}
	s := snaptest.Attack(t, attack{at: "nothing at all"}.serve, func(port int) *exec.Cmd {
		return aloneCommand(victim, fate{Dir: dir, DSN: fmt.Sprintf("postgres://u@127.0.0.1:%d/app?sslmode=disable", port), Do: "db-1"})
	})
	if s.Kind != errs.Unsupported || !strings.Contains(s.Error, "a schema of more than 24 MiB") || s.Hint == "" {
		t.Errorf("%s: %s (%s)", s.Kind, s.Error, s.Hint)
	}
}

// A server that says nothing is waited for until the context ends, and no longer.
func TestSilentServer(t *testing.T) {
	for _, at := range []string{"login", "SET standard_conforming_strings", "SELECT c.oid, n.nspname", "COPY "} {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					attack{at, func(c net.Conn) { cancel(); _, _ = io.Copy(io.Discard, c) }}.serve(c)
				}()
			}
		}()
		store, err := cas.Open(filepath.Join(t.TempDir(), "store"), cas.Options{})
		must(err)
		d, err := New(Config{App: "app-1", Name: "main", DSN: fmt.Sprintf("postgres://u@%s/app?sslmode=disable", l.Addr()), StateDir: t.TempDir(), Store: store, Owner: privsep.Self})
		must(err)
		if _, err = d.Capture(ctx, snap.CaptureRequest{ID: "db-1"}); errs.KindOf(err) != errs.Unavailable {
			t.Errorf("%s: %v", at, err)
		}
		must(l.Close())
		must(store.Close())
	}
}

// Large rows go to the store and back without being held.
func testLargeRow(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{Databases: []string{"large"}})
	c.Psql(t, "large", "CREATE TABLE l (id int PRIMARY KEY, b bytea, t text); INSERT INTO l SELECT 1, decode(repeat(md5('x'), 6500000), 'hex'), repeat(E'a\\nb', 1000000); INSERT INTO l VALUES (2, 'x', NULL)")
	sum := func() string {
		return c.Psql(t, "large", "SELECT id, md5(b), length(b), md5(t) FROM l ORDER BY id")
	}
	want := sum()
	dir, victim := t.TempDir(), snaptest.MeasuredBinary(t)
	run := func(do string) {
		t.Helper()
		out, err := aloneCommand(victim, fate{Dir: dir, DSN: c.DSN("large"), Do: do}).Output()
		must(err)
		var told snaptest.HostileResult
		must(json.Unmarshal(out, &told))
		t.Logf("%s: %d MiB", do, told.Peak>>20)
		if told.Error != "" || told.Peak > snaptest.MostMemory {
			t.Fatalf("%s took %d MiB: %s", do, told.Peak>>20, told.Error)
		}
	}
	run("db-target")
	c.Psql(t, "large", "UPDATE l SET b = 'gone', t = 'gone'")
	run("db-base")
	run("restore")
	if got := sum(); got != want {
		t.Errorf("had %s\nhas %s", want, got)
	}
}
