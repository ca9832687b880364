package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	privsep.Main()
	os.Exit(m.Run())
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func check(t *testing.T, h ipc.Health) error {
	t.Helper()
	return Check(t.Context(), h, me(t))
}

func me(t *testing.T) Options {
	return Options{Owner: privsep.Self, Dir: t.TempDir()}
}

func wantFailed(t *testing.T, err error, text string) {
	t.Helper()
	if errs.KindOf(err) != errs.Failed || !strings.Contains(err.Error(), text) || errs.HintOf(err) == "" || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v (%s), want %q", err, errs.KindOf(err), text)
	}
}

// wantFails checks that the check fails, saying text. Its timeout is short; where the machine is so
// busy that nothing was seen until then, it is made longer.
func wantFails(t *testing.T, h ipc.Health, text string) error {
	t.Helper()
	for timeout := 50 * time.Millisecond; ; timeout *= 3 {
		h.Timeout = timeout.String()
		err := check(t, h)
		if timeout > testkit.Patience || err == nil || strings.Contains(err.Error(), text) {
			wantFailed(t, err, text)
			wantFailed(t, err, " still fails after "+h.Timeout+": ")
			return err
		}
	}
}

func TestURL(t *testing.T) {
	var asked atomic.Int32
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 4 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	if err := check(t, ipc.Health{URL: slow}); err != nil || asked.Load() != 4 {
		t.Errorf("well at the fourth time: %v after %d", err, asked.Load())
	}
	for _, code := range []int{200, 204, 302, 399} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) })
		if err := check(t, ipc.Health{URL: u}); err != nil {
			t.Errorf("%d: %v", code, err)
		}
	}
	for _, code := range []int{404, 500} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) })
		err := wantFails(t, ipc.Health{URL: u + "/h?key=s3cret"}, fmt.Sprintf("it answered %d", code))
		wantFailed(t, err, "/h still fails after ")
	}
}

func TestURLOfNobody(t *testing.T) {
	u := fmt.Sprintf("http://u:s3cret@127.0.0.1:%d/", testkit.Port(t))
	err := wantFails(t, ipc.Health{URL: u}, "nothing listens there")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("shows a password: %v", err)
	}
}

func TestURLThatHangs(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	wantFails(t, ipc.Health{URL: u}, "no answer in time")
}

// An app that said what is wrong, and then hangs: what it said is told, and not that the time ran out.
func TestURLThatHangsLater(t *testing.T) {
	var asked atomic.Int32
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		<-r.Context().Done()
	})
	wantFails(t, ipc.Health{URL: u}, "503")
}

func TestURLThatBreaksOff(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	wantFails(t, ipc.Health{URL: u}, "closed the connection")
}

func TestURLWithEndlessBody(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	if err := check(t, ipc.Health{URL: u}); err != nil {
		t.Error(err)
	}
}

func TestRedirects(t *testing.T) {
	var reached atomic.Bool
	other := serve(t, func(w http.ResponseWriter, r *http.Request) { reached.Store(true) })
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/bad", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	})
	if err := check(t, ipc.Health{URL: u + "/away"}); err != nil || reached.Load() {
		t.Errorf("%v; followed to another host: %v", err, reached.Load())
	}
	wantFails(t, ipc.Health{URL: u + "/here"}, "it answered 418")
	wantFails(t, ipc.Health{URL: u + "/loop"}, "redirects too often")
}

func script(t *testing.T, text string) string {
	t.Helper()
	// A folder that other users may reach, unlike t.TempDir's.
	dir, err := os.MkdirTemp("", "health")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "check")
	if err := testkit.WriteProgram(file, []byte("#!/bin/sh\n"+text)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCommand(t *testing.T) {
	t.Setenv("SECRET_OF_THE_DAEMON", "x")
	var count = script(t, `test -z "$SECRET_OF_THE_DAEMON" || exit 9
echo x >>tries
test "$(wc -l <tries)" -ge 3`)
	o := me(t)
	o.Dir = filepath.Dir(count)
	if err := Check(t.Context(), ipc.Health{Command: []string{"./check"}, Timeout: "20s"}, o); err != nil {
		t.Error(err)
	}
	tries, err := os.ReadFile(filepath.Join(o.Dir, "tries"))
	if err != nil || len(tries) != 6 {
		t.Errorf("%q, %v", tries, err)
	}
	if err := check(t, ipc.Health{Command: []string{"true"}}); err != nil {
		t.Error(err)
	}
}

func TestCommandFails(t *testing.T) {
	tests := []struct {
		argv []string
		want string
	}{
		{[]string{script(t, "echo starting\nprintf 'no \\033[31mdatabase\\n' >&2\nexit 7")}, `exit status 7, saying "no  [31mdatabase"`},
		{[]string{script(t, "head -c 100000 /dev/zero | tr '\\0' x; exit 1")}, "exit status 1, saying \"xxx"},
		{[]string{"no-such-program-here"}, `there is no program "no-such-program-here"`},
		{[]string{"/nowhere/at/all"}, "no such file"},
		{[]string{"test", "1 = 1; true", "=", "$HOME"}, "exit status 1"}, // no shell reads it
		{[]string{script(t, "kill -9 $$")}, "signal: killed"},
	}
	for _, tt := range tests {
		wantFails(t, ipc.Health{Command: tt.argv}, tt.want)
	}
}

// A command that hangs is ended with everything that it started.
func TestCommandThatHangs(t *testing.T) {
	file := script(t, "sleep 1000 & echo $! >pid.new; mv pid.new pid; wait")
	o := me(t)
	o.Dir = filepath.Dir(file)
	pid := filepath.Join(o.Dir, "pid")
	for timeout := 50 * time.Millisecond; ; timeout *= 3 { // until it has come so far as to hang
		wantFailed(t, Check(t.Context(), ipc.Health{Command: []string{file}, Timeout: timeout.String()}, o), "did not end in time")
		if _, err := os.Stat(pid); err == nil || timeout > testkit.Patience {
			break
		}
	}
	wantGone(t, pid)
}

// A command that ends well but leaves something running is well, and what it left is ended.
func TestCommandThatLeavesSomething(t *testing.T) {
	file := script(t, "sleep 1000 & echo $! >pid")
	o := me(t)
	o.Dir = filepath.Dir(file)
	if err := Check(t.Context(), ipc.Health{Command: []string{file}}, o); err != nil {
		t.Fatal(err)
	}
	wantGone(t, filepath.Join(o.Dir, "pid"))
}

// wantGone waits until the process whose id the file holds is dead (a zombie, until init reaps it).
func wantGone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(string(text))
	for deadline := time.Now().Add(testkit.Patience); ; <-time.After(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s still runs", pid)
		}
	}
}

func TestCommandRunsAsOwner(t *testing.T) {
	testkit.Need(t, "root")
	file := script(t, `echo "$(id -u) $(id -g) $(id -G) $(env | cut -d= -f1 | grep -v '^_$\|^SHLVL$\|^OLDPWD$' | sort | tr '\n' ' ')" >who`)
	o := Options{Owner: privsep.User{UID: 65534, GID: 65533}, Dir: filepath.Dir(file)}
	if err := Check(t.Context(), ipc.Health{Command: []string{file}}, o); err != nil {
		t.Fatal(err)
	}
	who, err := os.ReadFile(filepath.Join(o.Dir, "who"))
	if got := strings.TrimSpace(string(who)); err != nil || got != "65534 65533 65533 LANG PATH PWD" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNonsense(t *testing.T) {
	for _, h := range []ipc.Health{
		{}, {URL: "http://h", Command: []string{"x"}}, {URL: "ftp://h"}, {URL: "http://"}, {URL: "::"},
		{URL: "http://h", Timeout: "soon"}, {URL: "http://h", Timeout: "-1s"},
	} {
		if err := check(t, h); errs.KindOf(err) != errs.Invalid || errs.HintOf(err) == "" {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	err := Check(ctx, ipc.Health{URL: u}, me(t))
	if errs.KindOf(err) != errs.Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
