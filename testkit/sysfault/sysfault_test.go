package sysfault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Launch()
	if len(os.Args) == 3 && os.Args[1] == "write" {
		write(os.Args[2])
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
	p.Arm(f)
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
