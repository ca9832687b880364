package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/snap/disk/cephtest"
	"mulligan/testkit"
)

// The tests here use mulligan as its users do: the real programs, built for the
// occasion, a real app that a daemon keeps running, and nothing from within.

var bin string // the folder of the built programs

func TestMain(m *testing.M) {
	if len(os.Args) > 4 && os.Args[1] == "serve-shop" {
		serveShop(os.Args[2], os.Args[3], os.Args[4])
	}
	if len(os.Args) > 1 && os.Args[1] == "signal-threads" {
		signalThreads(os.Args[2:])
	}
	os.Unsetenv("GOGC") // for the daemons that tests start: they shall keep their memory small as users' do
	code := testMain(m)
	if err := cephtest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "close Ceph:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mulligan-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // tests run programs as other users
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bin = dir
	for name, build := range map[string]struct{ cgo, pkg string }{
		"mulligan": {"0", "mulligan/cmd/mulligan"}, "mulligand": {"1", "mulligan/cmd/mulligand"}, "app": {"0", "mulligan/cmd/mulligand/testapp"},
	} {
		if err := testkit.Build(filepath.Join(bin, name), build.pkg, build.cgo); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	self, err := os.Executable()
	if err == nil {
		err = copyProgram(self, filepath.Join(bin, "self"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// copyProgram puts a copy of a program where every user may run it.
func copyProgram(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return testkit.WriteProgram(to, b)
}

// copyApp puts the app's program (testapp) into a workspace.
func copyApp(to string) error { return copyProgram(filepath.Join(bin, "app"), to) }

// daemonProcess is a user daemon of the test's own.
type daemonProcess struct {
	t      testing.TB
	dir    string // short: it holds the socket
	cwd    string // the folder in which mulligan runs; "" is dir
	socket string
	cred   *syscall.Credential
	env    []string
	args   []string // besides the folder and the socket; "--user" if nil
	wrap   []string // a command that starts the daemon in another way
	cmd    *exec.Cmd
	log    *syncBuffer
	client *ipc.Client
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newDaemon prepares a daemon that is not started yet.
func newDaemon(t testing.TB) *daemonProcess {
	t.Helper()
	return newDaemonIn(t, os.TempDir())
}

// newDaemonIn is newDaemon whose folder is in another one, whose path is short enough for sockets below it.
func newDaemonIn(t testing.TB, parent string) *daemonProcess {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "mg")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &daemonProcess{t: t, dir: dir, socket: filepath.Join(dir, "run", "s.sock"), log: &syncBuffer{}}
	d.client = ipc.NewClient(d.socket)
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.log)
		}
		os.RemoveAll(dir)
	})
	return d
}

func startDaemon(t testing.TB) *daemonProcess {
	t.Helper()
	d := newDaemon(t)
	d.start()
	return d
}

// start starts the daemon and waits until it answers.
func (d *daemonProcess) start() {
	d.t.Helper()
	args := d.args
	if args == nil {
		args = []string{"--user"}
	}
	command := append(append(slices.Clone(d.wrap), filepath.Join(bin, "mulligand")), append(args, "--log-level", "debug",
		"--state-dir", filepath.Join(d.dir, "state"), "--socket", d.socket)...)
	if !slices.Contains(args, "--user") { // a host's daemon must work whatever its umask was
		command = append([]string{"/bin/sh", "-c", `umask 077; exec "$@"`, "sh"}, command...)
	}
	d.cmd = exec.Command(command[0], command[1:]...)
	d.cmd.Env = append(append(os.Environ(), "HOME="+d.dir), d.env...)
	d.cmd.Stderr = d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.cred}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	deadline := time.Now().Add(testkit.Patience)
	for {
		_, err := d.client.Status(d.t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the daemon does not answer: %v\n%s", err, d.log)
		}
		var st syscall.WaitStatus
		if pid, _ := syscall.Wait4(d.cmd.Process.Pid, &st, syscall.WNOHANG, nil); pid != 0 {
			d.t.Fatalf("the daemon ended with status %d\n%s", st.ExitStatus(), d.log)
		}
		time.Sleep(5 * time.Millisecond) // there is no event to wait for before the socket is there
	}
}

// kill is kill -9.
func (d *daemonProcess) kill() {
	d.cmd.Process.Kill()
	d.cmd.Wait()
	d.cmd = nil
}

func (d *daemonProcess) stop() {
	if d.cmd == nil {
		return
	}
	d.cmd.Process.Signal(unix.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("the daemon ended with %v\n%s", err, d.log)
	}
	d.cmd = nil
}

// mulligan runs the client and gives its output and exit code.
func (d *daemonProcess) mulligan(args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "mulligan"), append(args, "--socket", d.socket)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &errOut, cmp.Or(d.cwd, d.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.cred}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// in returns the daemon with a client that runs in another folder.
func (d *daemonProcess) in(dir string) *daemonProcess {
	there := *d
	there.cwd = dir
	return &there
}

// must runs the client, which must succeed, and gives its output.
func (d *daemonProcess) must(args ...string) string {
	d.t.Helper()
	out, errOut, code := d.mulligan(args...)
	if code != 0 {
		d.t.Fatalf("mulligan %s: exit %d: %s%s", strings.Join(args, " "), code, out, errOut)
	}
	return out
}

// ask runs the client with --json and decodes what it prints.
func ask[T any](d *daemonProcess, args ...string) (v T) {
	d.t.Helper()
	out := d.must(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		d.t.Fatalf("mulligan %s: %v in %s", strings.Join(args, " "), err, out)
	}
	return v
}

// freeAddr is a loopback address that nothing listens on.
func freeAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))
}

// visit gets the app's page; "" when nobody answers.
func visit(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/", nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// eventually waits for something that no call reports.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	testkit.Eventually(t, what, f)
}

// listing describes everything below dir, a line each: type, mode, owner,
// size, mtime, link target, content hash, and which names are one file.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel := strings.TrimPrefix(path, dir)
		line := fmt.Sprintf("%q %o %d:%d %d.%09d", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			sum, err := hashFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %s", st.Size, sum)
			if st.Nlink > 1 {
				if first[st.Ino] == "" {
					first[st.Ino] = rel
				}
				line += fmt.Sprintf(" =%q", first[st.Ino])
			}
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" -> %q", target)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sameListing fails the test with the lines that differ.
func sameListing(t testing.TB, what string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	have := map[string]bool{}
	for _, l := range got {
		have[l] = true
	}
	n := 0
	for _, l := range want {
		if !have[l] && n < 20 {
			t.Errorf("%s: missing %s", what, l)
			n++
		}
		delete(have, l)
	}
	for l := range have {
		if n++; n < 40 {
			t.Errorf("%s: unexpected %s", what, l)
		}
	}
	t.Fatalf("%s: %d lines, want %d", what, len(got), len(want))
}

func shell(t testing.TB, dir, script string, args ...string) string {
	t.Helper()
	cmd := exec.Command("bash", append([]string{"-euc", script, "bash"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("shell: %v\n%s", err, out)
	}
	return string(out)
}
