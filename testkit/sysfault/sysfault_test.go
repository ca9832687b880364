package sysfault

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	programs := map[string]func(string){"write": write, "ask": ask}
	if len(os.Args) == 3 && programs[os.Args[1]] != nil {
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // it begins when its fault is armed
			panic(err)
		}
		programs[os.Args[1]](os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// write is the program under watch: it writes a file durably, and another one
// through a program of its own.
func write(path string) {
	f, err := os.Create(path + ".tmp")
	if err == nil {
		_, err = f.WriteString("hello")
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err == nil {
		err = exec.Command("/bin/sh", "-c", `echo hello >"$0"`, path+".sh").Run()
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		fmt.Print(errno.Error())
	} else if err != nil {
		fmt.Print(err)
	}
}

// run runs the program with a fault, and gives what it says.
func run(t *testing.T, f Fault) (string, Report) {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "write", filepath.Join(dir, "f"))
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else it dawdles
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(cmd, Options{Name: func(path string) string {
		rel, err := filepath.Rel(dir, path)
		if err != nil || !filepath.IsLocal(rel) || rel == "out" {
			if path == "/bin/sh" {
				return "sh"
			}
			return ""
		}
		return rel
	}})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, p, stdin, f)
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	word, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(word), p.Disarm()
}

// begin arms a program's fault, and lets it begin.
func begin(t *testing.T, p *Process, stdin io.Closer, f Fault) {
	t.Helper()
	p.Arm(f)
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryCall(t *testing.T) {
	word, seen := run(t, Fault{})
	want := []string{"open f.tmp", "write f.tmp", "sync f.tmp", "rename f", "exec sh", "open f.sh"}
	for _, call := range want {
		if !slices.Contains(seen.Calls, call) {
			t.Errorf("%q was not seen in %q", call, seen.Calls)
		}
	}
	if word != "" || seen.Hit {
		t.Errorf("without a fault: %q, %+v", word, seen)
	}
	for _, call := range want[:5] {
		for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
			if word, seen := run(t, Fault{Call: call, Nth: 1, Errno: errno}); word != errno.Error() || !seen.Hit {
				t.Errorf("%s fails with %v: it says %q, hit %v", call, errno, word, seen.Hit)
			}
		}
	}
	if word, seen := run(t, Fault{Call: "open f.sh", Nth: 1, Errno: unix.EACCES}); word == "" || !seen.Hit {
		t.Errorf("a fault of what it started: %q", word)
	}
	if word, seen := run(t, Fault{Call: "sync f.tmp", Nth: 2, Errno: unix.EIO}); word != "" || seen.Hit {
		t.Errorf("a second sync, which there is not: %q", word)
	}
}

// ask is a program that does not look whether it could write to a connection, and reads until its end.
func ask(socket string) {
	c, err := net.Dial("unix", socket)
	if err == nil {
		_, failed := c.Write([]byte("question"))
		_, err = io.ReadAll(c)
		fmt.Print(failed)
	}
	if err != nil {
		fmt.Print(err)
	}
}

// A write to a socket fails, and its connection ends: who reads from it does not wait for ever.
func TestConnectionEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		got <- fmt.Sprint(string(b), err)
	}()
	cmd := exec.Command(os.Args[0], "ask", path)
	var out strings.Builder
	cmd.Stdout = &out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(cmd, Options{})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, p, stdin, Fault{Call: "write socket", Nth: 1, Errno: unix.EIO})
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if said := out.String(); !strings.HasSuffix(said, unix.EIO.Error()) || !p.Disarm().Hit {
		t.Errorf("the program says %q", said)
	}
	if got := <-got; got != "<nil>" {
		t.Errorf("the other side read %q", got)
	}
}

// TestTrace: what is done durably is, and what is not is named.
func TestTrace(t *testing.T) {
	calls := Trace(t, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}, func(dir string) error {
		write(filepath.Join(dir, "f"))
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		return errors.Join(os.Rename(filepath.Join(dir, "there"), filepath.Join(dir, "here")), d.Sync())
	})
	for _, call := range []string{"write f.tmp", "sync f.tmp", "rename f", "rename here", "sync ."} {
		if !slices.Contains(calls, call) {
			t.Errorf("%q was not seen in %q", call, calls)
		}
	}
	for name, c := range map[string]struct{ calls, want string }{
		"a file":                       {"write f, sync f", ""},
		"nothing":                      {"open f, read f", ""},
		"a file, not":                  {"sync f, write f", `After "write f", f is not synced in time.`},
		"a file, too early":            {"write f, sync f, truncate f", `After "truncate f", f is not synced in time.`},
		"another file":                 {"write f, sync g", `After "write f", f is not synced in time.`},
		"all":                          {"write f, link g, syncfs .", ""},
		"a name":                       {"rename d/f, sync d", ""},
		"a name, not":                  {"rename d/f, sync d/f", `After "rename d/f", d is not synced in time.`},
		"a link, before":               {"sync ., link f", `After "link f", . is not synced in time.`},
		"a temporary file":             {"write .f, sync .f, rename f, sync .", ""},
		"a temporary file, too late":   {"write .f, rename f, sync .f, sync .", `After "write .f", .f is not synced in time.`},
		"a file beside one renamed":    {"write f, rename g, sync f, sync .", ""},
		"a temporary file of a folder": {"write d/.f, rename g, sync d/.f, sync .", ""},
	} {
		if got := strings.Join(Unsynced(strings.Split(c.calls, ", ")), " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
