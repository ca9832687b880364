package ipc

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/testkit"
)

func TestListenModes(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, mode := range []os.FileMode{0o600, 0o666} {
		sock := filepath.Join(shortDir(t), "made", "s")
		l, err := Listen(sock, mode)
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(sock)
		if err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%v, %v, want mode %v", fi.Mode(), err, mode)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(sock); !os.IsNotExist(err) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	dir := shortDir(t)
	expect := func(path string, kind errs.Kind, text string) {
		t.Helper()
		l, err := Listen(path, 0o600)
		if errs.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v (%s), want %s", path, err, errs.KindOf(err), kind)
		}
		if err == nil {
			l.Close()
		}
	}
	expect("/tmp/"+strings.Repeat("x", 110), errs.Invalid, "longer than 107 bytes")

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(file, errs.Conflict, "is not a socket")
	if b, err := os.ReadFile(file); string(b) != "precious" || err != nil {
		t.Errorf("the file was touched: %q, %v", b, err)
	}

	// A daemon that systemd listens for has a socket and no lock.
	bare := filepath.Join(dir, "bare")
	l, err := net.Listen("unix", bare)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	expect(bare, errs.Busy, fmt.Sprintf("(pid %d)", os.Getpid()))
	if conn, err := net.Dial("unix", bare); err != nil {
		t.Errorf("the other daemon lost its socket: %v", err)
	} else {
		conn.Close()
	}
}

func TestListenChecksTheUsersFolder(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	l, err := Listen(UserSocket(), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(UserSocket())
	if fi, err := os.Lstat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(UserSocket(), 0o600); errs.KindOf(err) != errs.Denied || !strings.Contains(errs.HintOf(err), "chmod 700") {
		t.Errorf("open to others: %v", err)
	}
	if os.Getuid() == 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(UserSocket(), 0o600); errs.KindOf(err) != errs.Denied {
			t.Errorf("somebody else's: %v", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(shortDir(t), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(UserSocket(), 0o600); errs.KindOf(err) != errs.Denied {
		t.Errorf("a link: %v", err)
	}
}

// TestSecondDaemon starts another process that listens, is found to be busy,
// dies by SIGKILL, and leaves nothing in the way.
func TestSecondDaemon(t *testing.T) {
	sock := filepath.Join(shortDir(t), "s")
	cmd := reexec("listen", sock)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	defer kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_, err = Listen(sock, 0o600)
	if errs.KindOf(err) != errs.Busy || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", cmd.Process.Pid)) {
		t.Errorf("while it lives: %v", err)
	}
	kill()
	if _, err := os.Lstat(sock); err != nil {
		t.Fatalf("the test needs the socket to be left: %v", err)
	}
	l, err := Listen(sock, 0o600)
	if err != nil {
		t.Fatalf("after its death: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestListenAfterKill has a child that still holds the lock of a killed daemon, as one does that has not come to its exec yet: the next daemon
// waits for it.
// TestListenAfterClose: who gets the lock of a socket whose daemon ends finds no socket any more.
func TestListenAfterClose(t *testing.T) {
	sock := filepath.Join(shortDir(t), "s")
	for range 300 {
		l, err := Listen(sock, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := os.OpenFile(sock+".lock", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		for unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		}
		if _, err := os.Lstat(sock); !os.IsNotExist(err) {
			t.Fatalf("the lock is free, and the socket is there: %v", err)
		}
		if err := errors.Join(<-closed, lock.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListenAfterKill(t *testing.T) {
	sock := filepath.Join(shortDir(t), "s")
	lock, err := os.Create(sock + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{lock}
	stdin, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	time.AfterFunc(100*time.Millisecond, func() { stdin.Close() }) // by then, Listen has met the lock
	l, err := Listen(sock, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

func TestCallerIsTheKernelsWord(t *testing.T) {
	d := newDaemon()
	d.on("GET /api/status", func(w http.ResponseWriter, r *http.Request) error {
		c, ok := CallerFrom(r.Context())
		if !ok {
			return errs.New(errs.Unauthenticated, "status", "who is asking?")
		}
		WriteJSON(w, 200, Status{PID: c.PID, Version: fmt.Sprintf("%d:%d", c.UID, c.GID), StateDir: c.Exe})
		return nil
	})
	c := serve(t, d)
	st, err := c.Status(bg)
	exe, _ := os.Executable()
	if want := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()); err != nil || st.Version != want || st.PID != os.Getpid() || st.StateDir != exe {
		t.Errorf("%+v, %v", st, err)
	}

	testkit.Need(t, "root")
	// The test binary lies in a folder of root's: nobody runs it by descriptor.
	if err := os.Chmod(filepath.Dir(c.Socket()), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(c.Socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	bin, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	cmd := reexec("whoami", c.Socket())
	cmd.Path = "/proc/self/fd/3"
	cmd.ExtraFiles = []*os.File{bin}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if want := fmt.Sprintf("65534:65534 pid %d\n", cmd.Process.Pid); err != nil || string(out) != want {
		t.Errorf("as nobody: %q, %v, want %q", out, err, want)
	}
}

// reexec runs this test binary as one of the helpers in TestMain.
func reexec(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "IPC_TEST_HELPER=1")
	return cmd
}

func TestMain(m *testing.M) {
	if os.Getenv("IPC_TEST_HELPER") == "" {
		os.Exit(m.Run())
	}
	if err := helper(os.Args[1], os.Args[2]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func helper(what, sock string) error {
	switch what {
	case "listen":
		l, err := Listen(sock, 0o600)
		if err != nil {
			return err
		}
		fmt.Println("listening")
		_, err = l.Accept()
		return err
	case "whoami":
		st, err := NewClient(sock).Status(bg)
		if err != nil {
			return err
		}
		fmt.Printf("%s pid %d\n", st.Version, st.PID)
	}
	return nil
}
