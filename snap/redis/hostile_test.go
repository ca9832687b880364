package redis

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
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

// captureHostile is a process that captures from a hostile server.
func captureHostile(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	cfg := config(f.Dir)
	var err error
	cfg.Store, err = cas.Open(filepath.Join(f.Dir, "store"), cas.Options{})
	must(err)
	cfg.DSN = f.DSN
	d, err := New(cfg)
	must(err)
	if f.Do == "diff" {
		_, err = d.Diff(context.Background(), "", "", nil)
	} else {
		_, err = d.Capture(context.Background(), snap.CaptureRequest{ID: "db-1"})
	}
	snaptest.PrintHostileResult(err)
}

// request reads a command of a client's, in a hostile server.
func request(r *bufio.Reader) (words []string, err error) {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		p := make([]byte, size+2)
		if _, err := io.ReadFull(r, p); err != nil {
			return nil, err
		}
		words = append(words, string(p[:size]))
	}
	return words, nil
}

// bulk is a string as an answer has it.
func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// hostile answers as a server does, but for the commands in answers.
func hostile(answers map[string]func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			words, err := request(r)
			if err != nil {
				return
			}
			answer := "-ERR unknown command\r\n"
			switch line := strings.Join(words, " "); {
			case answers[line] != nil:
				answers[line](c)
				return
			case line == "INFO replication":
				answer = bulk("role:master\r\nmaster_replid:" + strings.Repeat("a", 40) + "\r\nmaster_repl_offset:7\r\n")
			case words[0] == "INFO":
				answer = bulk("redis_mode:standalone\r\n")
			case words[0] == "TIME":
				answer = "*2\r\n" + bulk("1700000000") + bulk("1")
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	}
}

// snapshot answers PSYNC with an RDB file that has this at its beginning, and then repeats.
func snapshot(begin string, repeat string, total int64) func(net.Conn) {
	return hostile(map[string]func(net.Conn){"PSYNC ? -1": func(c net.Conn) {
		head := "+FULLRESYNC " + strings.Repeat("a", 40) + " 7\r\n$4611686018427387904\r\nREDIS0011" + begin
		if _, err := io.WriteString(c, head); err == nil {
			snaptest.Flood(c, []byte(repeat), total)
		}
	}})
}

// long is the head of a string of so many bytes.
func long(n uint64) string { return "\x81" + string(binary.BigEndian.AppendUint64(nil, n)) }

// counted makes records that differ: the %08d of p.
func counted(p string, n int) string {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, p, i)
	}
	return b.String()
}

// A server that never stops sending takes a bounded part of the daemon's memory,
// at whatever place of the protocol it is.
func TestHostileServer(t *testing.T) {
	const much, many = 800 << 20, 400 << 20
	answer := func(command, begin, repeat string) func(net.Conn) {
		return hostile(map[string]func(net.Conn){command: func(c net.Conn) {
			if _, err := io.WriteString(c, begin); err == nil {
				snaptest.Flood(c, []byte(repeat), much)
			}
		}})
	}
	victim := snaptest.MeasuredBinary(t)
	heavy := []string{"Keys", "DiffKeys", "Set", "HashValue", "String", "List2", "Function", "Bomb"} // these send all that they have
	taken := testkit.Sample(t, "heavy attacks", len(heavy), 1)
	lzf := "\x00a" + strings.Repeat("\xe0\xff\x00", 1<<21) // each of the three bytes stands for 264
	for name, test := range map[string]struct {
		serve func(net.Conn)
		kind  errs.Kind
		says  string
		do    string
	}{
		"Line":       {answer("INFO server", "$", "0"), errs.Invalid, "not a Redis server", ""},
		"Error":      {answer("INFO server", "-ERR ", "x"), errs.Invalid, "not a Redis server", ""},
		"Answer":     {answer("INFO server", "$67108864\r\n", "a:b\r\nc:d\r\n"), errs.Unsupported, "an answer of more than 1 MiB", ""},
		"List":       {answer("INFO server", "*67108864\r\n", ":1\r\n"), errs.Unsupported, "an answer of more than 1 MiB", ""},
		"Lists":      {answer("INFO server", "*67108864\r\n*9\r\n*9\r\n", "*0\r\n"), errs.Unsupported, "an answer of more than 1 MiB", ""},
		"String":     {snapshot("\x00\x01k"+long(1<<30), "x", much), errs.Unavailable, "", ""},
		"StringMore": {snapshot("\x00\x01k"+long(1<<31), "x", much), errs.Unsupported, "a string of more than 1024 MiB", ""},
		"Key":        {snapshot("\x00"+long(1<<29), "x", much), errs.Unsupported, "a key, a member or a field of more", ""},
		"Aux":        {snapshot("\xfa"+long(1<<29), "x", much), errs.Unsupported, "a key, a member or a field of more", ""},
		"Packed":     {snapshot("\x10\x01k"+long(1<<29), "x", much), errs.Unsupported, "a packed value of more than 16 MiB", ""},
		"Function":   {snapshot("\xf5"+long(1<<30), "x", much), errs.Unavailable, "", ""},
		"Bomb":       {snapshot("\x00\x01k\xc3"+long(uint64(len(lzf)))+long(1+264<<21), lzf, int64(len(lzf))), errs.Unavailable, "", ""},
		"Set":        {snapshot("\x02\x01k"+long(1<<60), counted("\x08%08d", 1<<20), many/5), errs.Unavailable, "", ""},
		"List2":      {snapshot("\x01\x01k"+long(1<<60), "\x04abcd", many/5), errs.Unavailable, "", ""},
		"HashValue":  {snapshot("\x04\x01k\x02\x01f"+long(1<<30), "x", much), errs.Unavailable, "", ""},
		"Keys":       {snapshot("", counted("\x00\x08%08d\xc0\x01", 1<<20), many/5), errs.Unavailable, "", ""},
		"DiffKeys":   {snapshot("", counted("\x00\x09%08d:\xc0\x01", 1<<20), many/8), errs.Unavailable, "", "diff"},
	} {
		if i := slices.Index(heavy, name); i >= 0 && !slices.Contains(taken, i) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := snaptest.Attack(t, test.serve, func(port int) *exec.Cmd {
				cmd := command(t, "hostile", fate{Dir: testkit.TempDir(t), DSN: fmt.Sprintf("redis://127.0.0.1:%d", port), Do: test.do})
				cmd.Path = victim
				return cmd
			})
			if s.Kind != test.kind || !strings.Contains(s.Error, test.says) || s.Hint == "" {
				t.Errorf("want %s with %q, have %s: %s (%s)", test.kind, test.says, s.Kind, s.Error, s.Hint)
			}
		})
	}
}

// A server that says nothing is waited for until the context ends, and no longer.
func TestSilentServer(t *testing.T) {
	for _, at := range []string{"INFO server", "INFO replication", "PSYNC ? -1"} {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		go func() {
			c, err := l.Accept()
			for ; err == nil; c, err = l.Accept() {
				go hostile(map[string]func(net.Conn){at: func(c net.Conn) {
					cancel()
					_, _ = io.Copy(io.Discard, c) // until the driver hangs up
				}})(c)
			}
		}()
		dir := testkit.TempDir(t)
		cfg := config(dir)
		cfg.DSN = "redis://" + l.Addr().String()
		cfg.Timeout = 2 * testkit.Patience // the silence itself ends nothing before
		cfg.Store, err = cas.Open(filepath.Join(dir, "store"), cas.Options{})
		check(t, err)
		d, err := New(cfg)
		check(t, err)
		began := time.Now()
		_, err = d.Capture(ctx, snap.CaptureRequest{ID: "db-1"})
		if took := time.Since(began); errs.KindOf(err) != errs.Unavailable || ctx.Err() == nil || took > testkit.Patience {
			t.Errorf("%s: asked %t, after %v: %v", at, ctx.Err() != nil, took, err)
		}
		check(t, l.Close())
		check(t, cfg.Store.Close())
	}
}

// What a server of Valkey's says in its own words: that it is part of a cluster, and a form of snapshots that nobody here reads.
func TestValkeyRefused(t *testing.T) {
	says := func(text string) func(net.Conn) {
		return func(c net.Conn) { _, _ = io.WriteString(c, text) }
	}
	for want, answers := range map[string]map[string]func(net.Conn){
		"is a node of a cluster": {"INFO server": says(bulk("valkey_version:8.1.1\r\nserver_mode:cluster\r\n"))},
		"is a sentinel":          {"INFO server": says(bulk("valkey_version:8.1.1\r\nserver_mode:sentinel\r\n"))},
		`"VALKEY080"`:            {"PSYNC ? -1": says("+FULLRESYNC " + strings.Repeat("a", 40) + " 7\r\n$20\r\nVALKEY080" + strings.Repeat("\x00", 11))},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		go func() {
			c, err := l.Accept()
			for ; err == nil; c, err = l.Accept() {
				go hold(answers)(c)
			}
		}()
		dir := testkit.TempDir(t)
		cfg := config(dir)
		cfg.DSN = "redis://" + l.Addr().String()
		cfg.Store, err = cas.Open(filepath.Join(dir, "store"), cas.Options{})
		check(t, err)
		d, err := New(cfg)
		check(t, err)
		_, err = d.Capture(t.Context(), snap.CaptureRequest{ID: "db-1"})
		refuses(t, err, errs.Unsupported)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, have %v", want, err)
		}
		check(t, l.Close())
		check(t, cfg.Store.Close())
	}
}

// hold is hostile, and goes on after each of the answers.
func hold(answers map[string]func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		again := map[string]func(net.Conn){}
		for line, say := range answers {
			again[line] = func(c net.Conn) {
				say(c)
				hold(answers)(c)
			}
		}
		hostile(again)(c)
	}
}
