package mysql

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// alone is a process that runs a driver and nothing else, and tells what that came to.
func alone(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	cfg := config(f.Dir, "/", "app")
	if cfg.DSN = f.Socket; !strings.Contains(f.Socket, "://") {
		cfg = config(f.Dir, f.Socket, f.DB)
	}
	var err error
	cfg.Store, err = cas.Open(filepath.Join(f.Dir, "store"), cas.Options{})
	must(err)
	d, err := New(cfg)
	must(err)
	switch f.Do {
	case "restore":
		if err = (fate{Do: "prepare"}).run(d); err == nil {
			err = fate{Do: "commit"}.run(d)
		}
	default:
		_, err = d.Capture(context.Background(), snap.CaptureRequest{ID: snap.SnapshotID(f.Do)})
	}
	snaptest.PrintHostileResult(err)
	must(cfg.Store.Close())
}

// fake is a server in its protocol: it takes any login and knows one table.
type fake struct {
	net.Conn
	r   *bufio.Reader
	seq byte
}

func (f *fake) read() []byte {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil
	}
	p := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	if _, err := io.ReadFull(f.r, p); err != nil {
		return nil
	}
	f.seq = head[3] + 1
	return p
}

func (f *fake) send(packets ...string) {
	for _, p := range packets {
		n := len(p)
		_, _ = f.Write(append([]byte{byte(n), byte(n >> 8), byte(n >> 16), f.seq}, p...))
		f.seq++
	}
}

const (
	okPacket  = "\x00\x00\x00\x02\x00\x00\x00"
	eofPacket = "\xfe\x00\x00\x02\x00"
)

// text is a text as packets have it.
func text(s string) string {
	if len(s) < 0xfb {
		return string([]byte{byte(len(s))}) + s
	}
	return "\xfd" + string([]byte{byte(len(s)), byte(len(s) >> 8), byte(len(s) >> 16)}) + s
}

// columns begins an answer with so many columns.
func (f *fake) columns(n int) {
	f.send(string([]byte{byte(n)}))
	for range n {
		f.send(text("def") + text("") + text("") + text("") + text("c") + text("c") + "\x0c\x3f\x00\xff\xff\x00\x00\xfc\x00\x00\x00\x00\x00")
	}
	f.send(eofPacket)
}

func (f *fake) rows(columns int, rows ...string) {
	f.columns(columns)
	f.send(rows...)
	f.send(eofPacket)
}

// endless sends a packet that has no end, and that begins so. The connection ends after so many bytes.
func (f *fake) endless(begin string, total int) {
	defer f.Close()
	piece := []byte(begin + strings.Repeat("x", maxPiece-len(begin)))
	for ; total > 0; total -= maxPiece {
		if _, err := f.Write(append([]byte{0xff, 0xff, 0xff, f.seq}, piece...)); err != nil {
			return
		}
		f.seq++
		piece = []byte(strings.Repeat("x", maxPiece))
	}
}

// many sends a packet again and again, and ends the connection then.
func (f *fake) many(p string, times int) {
	defer f.Close()
	var block []byte
	for i := range 256 { // then the numbers are the same again
		block = append(append(block, byte(len(p)), byte(len(p)>>8), byte(len(p)>>16), f.seq+byte(i)), p...)
	}
	snaptest.Flood(f.Conn, block, int64(len(block))*int64(times/256))
}

const greeting = "\x0a10.11.0-fake\x00\x01\x00\x00\x00abcdefgh\x00\xff\xf7\x2d\x02\x00\xff\x80\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00abcdefghijkl\x00mysql_native_password\x00"

// attack is what a hostile server answers to a statement that has a text in it; "greeting" and "login" come before any.
type attack struct {
	at     string
	answer func(*fake)
}

// serve answers as a server does, until the attack.
func (a attack) serve(c net.Conn) {
	f := &fake{Conn: c, r: bufio.NewReader(c)}
	if a.at == "greeting" {
		a.answer(f)
		return
	}
	f.send(greeting)
	if f.read() == nil {
		return
	}
	if a.at == "login" {
		a.answer(f)
		return
	}
	f.send(okPacket)
	for {
		p := f.read()
		if len(p) == 0 || p[0] != comQuery {
			return
		}
		switch sql := string(p[1:]); {
		case strings.Contains(sql, a.at):
			a.answer(f)
		case strings.Contains(sql, "max_allowed_packet"):
			f.rows(1, text("16777216"))
		case strings.Contains(sql, "CONNECTION_ID"):
			f.rows(2, text("1")+text("1"))
		case strings.Contains(sql, "SHOW GRANTS"):
			f.rows(1, text("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost`"))
		case strings.Contains(sql, "default_character_set_name"):
			f.rows(2, text("utf8mb4")+text("utf8mb4_bin"))
		case strings.Contains(sql, "schema_comment"):
			f.rows(1, text(""))
		case strings.Contains(sql, "SELECT table_name, table_type"):
			tables := []string{text("t") + text("BASE TABLE") + text("InnoDB") + text("")}
			if a.at == "SHOW CREATE TABLE" {
				tables = slices.Repeat(tables, 1000)
			}
			f.rows(4, tables...)
		case strings.Contains(sql, "SHOW CREATE TABLE"):
			f.rows(2, text("t")+text("CREATE TABLE `t` (`a` longblob)"))
		case strings.Contains(sql, "information_schema.columns"):
			f.rows(3, text("a")+text("longblob")+text(""))
		case strings.HasPrefix(sql, "SELECT"), strings.HasPrefix(sql, "SHOW"):
			f.rows(4)
		default:
			f.send(okPacket)
		}
	}
}

// A server that never stops sending takes a bounded part of the daemon's memory,
// at whatever place of the protocol it is; and its nonsense is an error.
func testHostileServer(t *testing.T) {
	const much = 800 << 20
	size := func(n uint64) string { return "\xfe" + string(binary.LittleEndian.AppendUint64(nil, n)) }
	const table = "FROM `app`.`t`"
	victim := snaptest.MeasuredBinary(t)
	heavy := []string{"LargeRow", "Rows"} // these send all that they have
	taken := testkit.Sample(t, "heavy attacks", len(heavy), 1)
	for name, test := range map[string]struct {
		attack
		kind errs.Kind
		says string
	}{
		"Greeting":  {attack{"greeting", func(f *fake) { f.endless("\x0a", much) }}, errs.Unsupported, "a greeting of more than 64 KiB"},
		"Short":     {attack{"greeting", func(f *fake) { f.send("\x0a8\x00\x01\x00\x00\x00abc") }}, errs.Invalid, "violates its protocol"},
		"Login":     {attack{"login", func(f *fake) { f.endless("\x01", much) }}, errs.Unsupported, "a packet of more than 64 KiB"},
		"LoginKey":  {attack{"login", func(f *fake) { f.send("\xfemysql_native_password\x00abc") }}, errs.Invalid, "violates its protocol"},
		"LoginOK":   {attack{"login", func(f *fake) { f.send("\x00") }}, errs.Invalid, "violates its protocol"},
		"Error":     {attack{"SET NAMES", func(f *fake) { f.endless("\xff\x15\x04#28000", much) }}, errs.Unsupported, "an answer of more than 1 MiB"},
		"ErrorOf":   {attack{"SET NAMES", func(f *fake) { f.send("\xff\x15") }}, errs.Invalid, "violates its protocol"},
		"Columns":   {attack{"SHOW GRANTS", func(f *fake) { f.send(size(1 << 26)) }}, errs.Invalid, "violates its protocol"},
		"ColumnsOf": {attack{"SHOW GRANTS", func(f *fake) { f.send(size(1 << 62)) }}, errs.Invalid, "violates its protocol"},
		"Column":    {attack{"SHOW GRANTS", func(f *fake) { f.send("\x01"); f.endless("\x03def", much) }}, errs.Unsupported, "a column's description of more than 64 KiB"},
		"NoColumn":  {attack{"SELECT table_name, table_type", func(f *fake) { f.rows(1, text("t"), text("u")) }}, errs.Unsupported, "table t is"},
		"File":      {attack{"SHOW GRANTS", func(f *fake) { f.send("\xfb/etc/passwd") }}, errs.Invalid, "violates its protocol"},
		"Answer":    {attack{"SHOW GRANTS", func(f *fake) { f.columns(1); f.endless(size(1<<29), much) }}, errs.Unsupported, "an answer of more than 32 MiB"},
		"Answers":   {attack{"SHOW GRANTS", func(f *fake) { f.columns(4); f.many("\x00\x00\x00\x00", 20_000_000) }}, errs.Unsupported, "an answer of more than 32 MiB"},
		"Tables": {attack{"SELECT table_name, table_type", func(f *fake) {
			f.columns(4)
			f.many(text("t")+text("BASE TABLE")+text("InnoDB")+"\x00", 5_000_000)
		}}, errs.Unsupported, "an answer of more than 32 MiB"},
		"Definitions": {attack{"SHOW CREATE TABLE", func(f *fake) { f.rows(2, text("t")+text(strings.Repeat("<", 900<<10))) }}, errs.Unsupported, "definitions of more than 32 MiB"},
		"Row":         {attack{table, func(f *fake) { f.columns(1); f.endless(size(1<<40), much) }}, errs.Unsupported, "a row of more than 1025 MiB"},
		"LargeRow":    {attack{table, func(f *fake) { f.columns(1); f.endless(size(1<<30), much) }}, errs.Unavailable, ""},
		"Rows":        {attack{table, func(f *fake) { f.columns(1); f.many("\x01x", 8_000_000) }}, errs.Unavailable, ""},
		"LongRow":     {attack{table, func(f *fake) { f.columns(1); f.send("\x01xx") }}, errs.Invalid, "violates its protocol"},
	} {
		if i := slices.Index(heavy, name); i >= 0 && !slices.Contains(taken, i) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := snaptest.Attack(t, test.serve, func(port int) *exec.Cmd {
				cmd := command(t, "alone", fate{Dir: testkit.TempDir(t), Socket: fmt.Sprintf("mysql://root@127.0.0.1:%d/app", port), Do: "db-1"})
				cmd.Path = victim
				return cmd
			})
			if s.Kind != test.kind || !strings.Contains(s.Error, test.says) || s.Hint == "" {
				t.Errorf("want %s with %q, have %s: %s (%s)", test.kind, test.says, s.Kind, s.Error, s.Hint)
			}
		})
	}
}

// Large rows go to the store and back without being held.
func testLargeRow(t *testing.T) {
	s := newSubject(t, ownServer(t, "--max-allowed-packet=512M", "--innodb-log-file-size=256M"))
	s.sql(t, s.db, "CREATE TABLE large (id INT PRIMARY KEY, a LONGBLOB, b LONGTEXT, n LONGBLOB, e LONGBLOB, j JSON); "+
		"INSERT INTO large VALUES (1, REPEAT(RANDOM_BYTES(1000), 130000), REPEAT('ä\\n', 9000000), NULL, '', CONCAT('\"', REPEAT('ü', 700000), '\"')), (2, 'x', 'y', 'z', NULL, '1')")
	sum := func() string {
		return s.sql(t, s.db, "SELECT id, MD5(a), LENGTH(b), MD5(b), n IS NULL, LENGTH(e), MD5(j) FROM large ORDER BY id")
	}
	want := sum()
	dir, victim := testkit.TempDir(t), snaptest.MeasuredBinary(t)
	run := func(do string) {
		t.Helper()
		cmd := command(t, "alone", fate{Dir: dir, Socket: s.socket(), DB: s.db, Do: do})
		cmd.Path = victim
		out, err := cmd.Output()
		check(t, err)
		var told snaptest.HostileResult
		check(t, json.Unmarshal(out, &told))
		t.Logf("%s: %d MiB", do, told.Peak>>20)
		if told.Error != "" || told.Peak > snaptest.MostMemory {
			t.Fatalf("%s took %d MiB: %s", do, told.Peak>>20, told.Error)
		}
	}
	run("db-target")
	s.sql(t, s.db, "UPDATE large SET a = 'gone', b = 'gone', e = 'gone'")
	run("db-base")
	run("restore")
	if got := sum(); got != want {
		t.Errorf("had %s\nhas %s", want, got)
	}
}

// A server that says nothing is waited for until the context ends, and no longer.
func TestSilentServer(t *testing.T) {
	for _, at := range []string{"greeting", "login", "SET NAMES", "SHOW GRANTS", "FROM `app`.`t`"} {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			attack{at, func(f *fake) {
				cancel()
				_, _ = io.Copy(io.Discard, f.r) // until the driver hangs up
			}}.serve(c)
		}()
		s := subjectless(t, fmt.Sprintf("mysql://root@%s/app", l.Addr()))
		_, err = s.Capture(ctx, snap.CaptureRequest{ID: "db-1"})
		if errs.KindOf(err) != errs.Unavailable {
			t.Errorf("%s: %v", at, err)
		}
		<-ended
		check(t, l.Close())
	}
}

// subjectless is a driver without a server of the tests.
func subjectless(t *testing.T, dsn string) *Driver {
	t.Helper()
	dir := t.TempDir()
	cfg := config(dir, "/", "app")
	cfg.DSN = dsn
	var err error
	cfg.Store, err = cas.Open(filepath.Join(dir, "store"), cas.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, cfg.Store.Close()) })
	d, err := New(cfg)
	check(t, err)
	return d
}

// certificate writes a key and a certificate that nobody vouches for.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, about, about, k.Public(), k)
	check(t, err)
	pkcs, err := x509.MarshalPKCS8PrivateKey(k)
	check(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	check(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs}), 0o600))
	return cert, key
}

// The random bytes of an ed25519 login reach the client library as they are, also
// where they end with a zero, which it takes for the end of a text.
func TestEndOfRandomBytes(t *testing.T) {
	for _, last := range []string{"\x00", "x"} {
		random := strings.Repeat("r", 31) + last
		p := ended([]byte("\xfeclient_ed25519\x00" + random))
		if got := strings.TrimSuffix(string(p), "\x00"); got != "\xfeclient_ed25519\x00"+random {
			t.Errorf("the library reads %q", got)
		}
	}
	other := "\xfemysql_native_password\x00" + strings.Repeat("r", 20) + "\x00"
	if got := string(ended([]byte(other))); got != other {
		t.Errorf("another login is changed to %q", got)
	}
}

// TLS is begun by the driver itself, and the login goes on above it.
func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	s := newSubject(t, ownServer(t, "--ssl-cert="+cert, "--ssl-key="+key, "--ssl-ca="+cert))
	grant := " REQUIRE SSL; GRANT ALL ON *.* TO "
	s.sql(t, "", "CREATE USER erin@localhost IDENTIFIED BY '"+secret+"'"+grant+"erin@localhost; INSTALL SONAME 'auth_ed25519'; "+
		"CREATE USER fred@localhost IDENTIFIED VIA ed25519 USING PASSWORD('"+secret+"')"+grant+"fred@localhost")
	for _, user := range []string{"erin", "fred"} {
		for mode, kind := range map[string]errs.Kind{"skip-verify": "", "preferred": "", "true": errs.Failed, "": errs.Denied} {
			s.cfg.DSN = "mysql://" + user + ":" + secret + "@localhost/" + s.db + "?socket=" + url.QueryEscape(s.socket())
			if mode != "" {
				s.cfg.DSN += "&tls=" + mode
			}
			s.reopen(t)
			if err := s.capture("db-1"); errs.KindOf(err) != kind {
				t.Errorf("%s, tls=%s: %v", user, mode, err)
			}
		}
	}
	plain := newSubject(t, ownServer(t))
	for mode, kind := range map[string]errs.Kind{"skip-verify": errs.Unavailable, "preferred": ""} {
		plain.cfg.DSN = "mysql://root@localhost/" + plain.db + "?socket=" + url.QueryEscape(plain.socket()) + "&tls=" + mode
		plain.reopen(t)
		if err := plain.capture("db-1"); errs.KindOf(err) != kind {
			t.Errorf("without TLS on the server, tls=%s: %v", mode, err)
		}
	}
}
