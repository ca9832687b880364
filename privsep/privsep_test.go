package privsep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep/privseptest"
	"mulligan/testkit"
)

// somebody is a user without an account, so that nothing else on the host is his.
var somebody = User{UID: 54321, GID: 54322, Groups: []int{54323, 54324}}

func TestMain(m *testing.M) {
	Main()
	if len(os.Args) > 1 && os.Args[1] == "signal-daemon" {
		pid, _ := strconv.Atoi(os.Args[2])
		tries, err := privseptest.SignalThreads(pid, os.Stdin)
		fmt.Printf("%d tries at threads: %v", tries, err)
		if err != nil || tries == 0 {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "daemon-that-ends" {
		os.Exit(endWithCommand())
	}
	if len(os.Args) > 1 && os.Args[1] == "become" {
		fmt.Print(Become(somebody))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// folder makes a folder that somebody reaches; its entries are root's.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mulligan-privsep-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, content string, owner User, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode), os.Chown(path, owner.UID, owner.GID)); err != nil {
		t.Fatal(err)
	}
}

var (
	root = User{UID: 0, GID: 0}

	status = Define("test.status", func(context.Context, struct{}) (string, error) {
		all, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil {
			return "", err
		}
		var out strings.Builder
		for _, name := range all {
			b, err := os.ReadFile(name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // the thread ended meanwhile
			}
			if err != nil {
				return "", err
			}
			out.Write(b)
		}
		return out.String(), nil
	})
	never = Define("test.never", func(_ context.Context, fifo string) (int, error) {
		f, err := os.OpenFile(fifo, os.O_RDONLY, 0) // nobody opens it for writing
		if err != nil {
			return 0, err
		}
		return 0, f.Close()
	})
	pid     = Define("test.pid", func(context.Context, struct{}) (int, error) { return os.Getpid(), nil })
	panics  = Define("test.panics", func(context.Context, struct{}) (int, error) { panic("as it is told") })
	unlinks = Define("test.unlinks", func(_ context.Context, path string) (bool, error) { return true, os.Remove(path) })
	hoards  = Define("test.hoards", func(context.Context, struct{}) (int, error) {
		var all [][]byte
		for range 2 * maxMemory >> 20 {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
		}
		return len(all), nil
	})
)

func TestWorkerIsTheUser(t *testing.T) {
	testkit.Need(t, "root")
	said, err := status.Call(t.Context(), somebody, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"Uid": "54321 54321 54321 54321", "Gid": "54322 54322 54322 54322", "Groups": "54323 54324",
		"CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1",
	}
	seen := map[string]int{}
	for line := range strings.Lines(said) {
		name, value, _ := strings.Cut(line, ":")
		if w, ok := want[name]; ok {
			seen[name]++
			if got := strings.Join(strings.Fields(value), " "); got != w {
				t.Errorf("a thread of the worker has %s %q, want %q", name, got, w)
			}
		}
	}
	if len(seen) != len(want) || seen["Uid"] < 2 {
		t.Errorf("looked at %v, want every line of several threads", seen)
	}
}

// TestCapabilitiesThatStay: where the kernel is told to leave the capabilities of a process that becomes a user (securebits in capabilities(7), which
// a unit of systemd can set), the process has the user's ids and root's powers, and that is refused.
func TestCapabilitiesThatStay(t *testing.T) {
	testkit.Need(t, "root")
	said := make(chan string)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with its goroutine
		const noSetuidFixup = 1 << 2
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
			said <- err.Error()
			return
		}
		out, err := exec.Command(os.Args[0], "become").CombinedOutput() // by this thread, whose bits it inherits
		if err != nil {
			out = fmt.Appendf(out, " (%v)", err)
		}
		said <- string(out)
	}()
	if got := <-said; !strings.Contains(got, "the process kept capabilities") {
		t.Errorf("a process that becomes a user and keeps its capabilities says %q", got)
	}
}

func TestWorkersAreUsedAgain(t *testing.T) {
	testkit.Need(t, "root")
	first, err := pid.Call(t.Context(), somebody, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		again, err := pid.Call(t.Context(), somebody, struct{}{})
		if err != nil || again != first {
			t.Fatalf("call in process %d, the one before in %d: %v", again, first, err)
		}
	}
	other := somebody
	other.Groups = nil
	if p, err := pid.Call(t.Context(), other, struct{}{}); err != nil || p == first {
		t.Fatalf("a user with other groups was served by process %d too: %v", p, err)
	}
	if p, err := pid.Call(t.Context(), Self, struct{}{}); err != nil || p != os.Getpid() {
		t.Fatalf("the daemon's own work was done by process %d: %v", p, err)
	}
}

// A worker that its user ends spoils one call at most.
func TestEndedWorker(t *testing.T) {
	testkit.Need(t, "root")
	ctx := t.Context()
	p, err := pid.Call(ctx, somebody, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (User{UID: somebody.UID, GID: somebody.GID, Groups: somebody.Groups}).ReadFile(ctx, "/etc/hostname"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := pid.Call(ctx, somebody, struct{}{}); err != nil && errs.KindOf(err) != errs.Unavailable {
		t.Fatalf("after the worker was killed: %v", err)
	}
	if again, err := pid.Call(ctx, somebody, struct{}{}); err != nil || again == p {
		t.Fatalf("the next call, in process %d after %d: %v", again, p, err)
	}
}

func TestPanicInWorker(t *testing.T) {
	testkit.Need(t, "root")
	if _, err := panics.Call(t.Context(), somebody, struct{}{}); errs.KindOf(err) != errs.Internal || !strings.Contains(err.Error(), "as it is told") {
		t.Fatalf("got %v", err)
	}
	if _, err := pid.Call(t.Context(), somebody, struct{}{}); err != nil {
		t.Fatal(err)
	}
}

// What never comes to an end is ended with the caller's context, and its process too.
func TestCancelledCall(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	fifo := filepath.Join(dir, "fifo")
	if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.Chmod(fifo, 0o666)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := never.Call(ctx, somebody, fifo)
		done <- err
	}()
	var waiting []string
	until(t, func() bool { waiting = processesOf(t, somebody.UID, "wait_for_partner"); return len(waiting) > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat("/proc/" + waiting[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the call has returned, and its process is there: %v", err)
	}
	if _, err := never.Within(time.Millisecond).Call(t.Context(), somebody, fifo); errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), "took longer than 1ms") {
		t.Errorf("a call with a limit: %v", err)
	}
}

// A worker in the middle of a call ends with the daemon, whatever it waits for.
func TestWorkerEndsWithTheDaemon(t *testing.T) {
	testkit.Need(t, "root")
	other := User{UID: somebody.UID + 10, GID: somebody.GID} // nobody else's calls are waited for here
	fifo := filepath.Join(folder(t), "fifo")
	if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.Chmod(fifo, 0o666)); err != nil {
		t.Fatal(err)
	}
	w, err := start(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer w.kill()
	if err := send(w.conn, request{Func: never.name, Arg: []byte(strconv.Quote(fifo))}); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return len(processesOf(t, other.UID, "wait_for_partner")) > 0 })
	w.conn.Close() // as the kernel does when the daemon is killed
	until(t, func() bool { return !w.alive() })
}

// processesOf lists the processes of a user in which a thread waits in a function of the kernel's.
func processesOf(t *testing.T, uid int, channel string) (pids []string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/task/*/wchan")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		b, err := os.ReadFile(name)
		p := strings.Split(name, "/")[2]
		status, e := os.ReadFile("/proc/" + p + "/status")
		if err == nil && e == nil && strings.Contains(string(b), channel) && strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t", uid)) {
			pids = append(pids, p)
		}
	}
	return pids
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to pass in ", testkit.Patience)
		}
	}
}

func TestMemoryOfWorker(t *testing.T) {
	testkit.Need(t, "root")
	if raceDetector {
		t.Log("the race detector maps too much memory for a limit: nothing is shown here")
		return
	}
	if n, err := hoards.Call(t.Context(), somebody, struct{}{}); err == nil {
		t.Fatalf("a worker held %d MiB", n)
	}
	if _, err := pid.Call(t.Context(), somebody, struct{}{}); err != nil {
		t.Fatal(err)
	}
}

func TestReadFile(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	write(t, dir+"/own", "mine", somebody, 0o600)
	write(t, dir+"/secret", "root's", root, 0o600)
	write(t, dir+"/group", "ours", User{UID: 0, GID: 54324}, 0o640)
	write(t, dir+"/large", "", somebody, 0o600)
	write(t, dir+"/full", strings.Repeat("x", MaxFile), somebody, 0o600)
	if err := errors.Join(os.Truncate(dir+"/large", 1<<40), unix.Mkfifo(dir+"/fifo", 0o666), os.Chmod(dir+"/fifo", 0o666), os.Symlink("own", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, want string
		is         error
		kind       errs.Kind
	}{
		{name: "own", want: "mine"}, {name: "link", want: "mine"}, {name: "group", want: "ours"}, {name: "full", want: strings.Repeat("x", MaxFile)},
		{name: "secret", is: fs.ErrPermission}, {name: "none", is: fs.ErrNotExist},
		{name: "large", kind: errs.Invalid}, {name: "fifo", kind: errs.Invalid}, {name: ".", kind: errs.Invalid}, {name: "../../dev/zero", kind: errs.Invalid},
	} {
		b, err := somebody.ReadFile(t.Context(), dir+"/"+tt.name)
		switch {
		case tt.is != nil:
			if !errors.Is(err, tt.is) {
				t.Errorf("%s: got %v, want %v", tt.name, err, tt.is)
			}
		case tt.kind != "":
			if errs.KindOf(err) != tt.kind || errs.HintOf(err) == "" {
				t.Errorf("%s: got %v, want one of kind %s with a hint", tt.name, err, tt.kind)
			}
		case err != nil || string(b) != tt.want:
			t.Errorf("%s: %.20q, %v", tt.name, b, err)
		}
	}
}

func TestCreate(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	own := dir + "/own"
	if err := errors.Join(os.Mkdir(own, 0o700), os.Chown(own, somebody.UID, somebody.GID), unix.Mkfifo(own+"/fifo", 0o666), os.Symlink(dir+"/target", own+"/link")); err != nil {
		t.Fatal(err)
	}
	f, err := somebody.Create(t.Context(), own+"/log", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("said"); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(own+"/log", &st); err != nil || st.Uid != uint32(somebody.UID) || st.Size != 4 {
		t.Fatalf("the file belongs to %d and has %d bytes: %v", st.Uid, st.Size, err)
	}
	for _, name := range []string{"/own/fifo", "/own/link", "/log"} {
		if f, err := somebody.Create(t.Context(), dir+name, 0o600); err == nil {
			f.Close()
			t.Errorf("%s was opened", name)
		}
	}
}

func TestDial(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	if err := os.Mkdir(dir+"/closed", 0o700); err != nil {
		t.Fatal(err)
	}
	caller := make(chan uint32, 1)
	serve := func(network, addr string) net.Listener {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if u, ok := c.(*net.UnixConn); ok {
					raw, _ := u.SyscallConn()
					_ = raw.Control(func(fd uintptr) {
						if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
							caller <- cred.Uid
						}
					})
				}
				_, _ = c.Write([]byte("hello"))
				c.Close()
			}
		}()
		return l
	}
	serve("unix", dir+"/open.sock")
	serve("unix", dir+"/closed/x.sock")
	if err := os.Chmod(dir+"/open.sock", 0o666); err != nil {
		t.Fatal(err)
	}
	tcp := serve("tcp", "127.0.0.1:0").Addr().String()
	for network, addr := range map[string]string{"unix": dir + "/open.sock", "tcp": tcp} {
		c, err := somebody.Dial(t.Context(), network, addr)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(b); err != nil || string(b[:n]) != "hello" {
			t.Errorf("%s: %q, %v", network, b[:n], err)
		}
		c.Close()
	}
	if got := <-caller; got != uint32(somebody.UID) {
		t.Errorf("the server saw user %d", got)
	}
	if _, err := somebody.Dial(t.Context(), "unix", dir+"/closed/x.sock"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a socket in root's folder: %v", err)
	}
	var op *net.OpError
	if _, err := somebody.Dial(t.Context(), "unix", dir+"/none.sock"); !errors.Is(err, unix.ENOENT) || !errors.As(err, &op) {
		t.Errorf("no socket: %v", err)
	}
	if _, err := somebody.Dial(t.Context(), "tcp", "127.0.0.1:1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port that nobody listens on: %v", err)
	}
}

func TestErrorsCross(t *testing.T) {
	testkit.Need(t, "root")
	_, err := unlinks.Call(t.Context(), somebody, folder(t)+"/none")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	in := errs.Wrap(errs.Failed, "copy", errs.New(errs.Conflict, "look", "two %s", "things").WithHint("choose"))
	out := encodeError(in).decode()
	if out.Error() != in.Error() || errs.KindOf(out) != errs.Conflict || errs.HintOf(out) != "choose" {
		t.Errorf("got %v", out)
	}
	in = fmt.Errorf("about it: %w", in)
	if out = encodeError(in).decode(); out.Error() != in.Error() || errs.KindOf(out) != errs.Conflict || errs.HintOf(out) != "choose" {
		t.Errorf("got %v", out)
	}
	in = &errs.Error{Kind: errs.Failed, Message: "no room", Err: unix.ENOSPC}
	if out = encodeError(in).decode(); out.Error() != in.Error() || !errors.Is(out, unix.ENOSPC) {
		t.Errorf("got %v", out)
	}
}

func TestStart(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	if err := errors.Join(os.Mkdir(dir+"/own", 0o700), os.Chown(dir+"/own", somebody.UID, somebody.GID)); err != nil {
		t.Fatal(err)
	}
	extra, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	if _, err := w.WriteString("a descriptor\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	cmd := exec.Command("/bin/sh", "-c", `id -u; id -g; id -G; pwd; echo "$LD_DEBUG"; cat <&3; grep -E "^(CapEff|NoNewPrivs)" /proc/self/status; cd /proc/$$/fd; echo *`)
	// The dynamic linker would obey these for any process that has them in its environment.
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_DEBUG=statistics", "LD_DEBUG_OUTPUT=" + dir + "/own/ld"}
	cmd.Dir, cmd.ExtraFiles = dir+"/own", []*os.File{extra}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := somebody.Run(cmd, Options{}); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	want := []string{"54321", "54322", "54322 54323 54324", dir + "/own", "statistics", "a descriptor"}
	got := strings.Split(out.String(), "\n")
	if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("got %q, want %q first", got, want)
	}
	for _, line := range []string{"CapEff:\t0000000000000000", "NoNewPrivs:\t0"} {
		if !slices.Contains(got, line) && !strings.Contains(out.String(), line) {
			t.Errorf("no line %q in %q", line, got)
		}
	}
	// What the test itself was started with, every child has.
	plain := exec.Command("/bin/sh", "-c", `cd /proc/$$/fd; echo *`)
	plain.ExtraFiles, plain.Env = []*os.File{extra}, []string{"PATH=/usr/bin:/bin", "LD_DEBUG=statistics", "LD_DEBUG_OUTPUT=" + dir + "/ld"}
	if same, err := plain.Output(); err != nil || got[len(got)-2] != strings.TrimSpace(string(same)) {
		t.Errorf("the command has the descriptors %s, others have %s: %v", got[len(got)-2], same, err)
	}
	logs, err := filepath.Glob(dir + "/own/ld.*")
	if err != nil || len(logs) == 0 {
		t.Fatalf("the command did not obey its own environment: %v %v", logs, err)
	}
	for _, name := range logs {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil || st.Uid != uint32(somebody.UID) {
			t.Errorf("a process of user %d obeyed the user's environment: %v", st.Uid, err)
		}
	}
}

func TestStartFails(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	if err := os.Mkdir(dir+"/closed", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/text", "no program", somebody, 0o644)
	for _, tt := range []struct {
		path, dir string
		want      error
	}{
		{"/no/such/program", "/", fs.ErrNotExist}, {dir + "/text", "/", fs.ErrPermission}, {"/bin/true", dir + "/closed", fs.ErrPermission}, {"/bin/true", dir + "/none", fs.ErrNotExist},
	} {
		cmd := exec.Command(tt.path)
		cmd.Dir = tt.dir
		if err := somebody.Start(cmd, Options{}); !errors.Is(err, tt.want) {
			t.Errorf("%s in %s: %v, want %v", tt.path, tt.dir, err, tt.want)
		}
	}
}

// A command that ends with the daemon does so as another user's, too.
func TestSignalAtTheDaemonsEnd(t *testing.T) {
	testkit.Need(t, "root")
	daemon := exec.Command(program, "daemon-that-ends")
	out, err := daemon.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	command := strings.TrimSpace(string(out))
	until(t, func() bool {
		status, err := os.ReadFile("/proc/" + command + "/status")
		return err != nil || strings.Contains(string(status), "State:\tZ") // nobody may be there to reap it
	})
}

// endWithCommand starts a command that lasts, says its process id, and ends.
func endWithCommand() int {
	runtime.LockOSThread() // the thread that starts it lasts as long as the process
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := somebody.Start(cmd, Options{NoNewPrivs: true}); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(cmd.Process.Pid)
	return 0
}

// While workers and commands of a user start and end, the user may signal no
// thread of the daemon.
func TestUserCannotSignalTheDaemon(t *testing.T) {
	testkit.Need(t, "root")
	attack := exec.Command(program, "signal-daemon", strconv.Itoa(os.Getpid()))
	stop, err := attack.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	attack.Stdout = &said
	if err := somebody.Start(attack, Options{}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 15 {
				w, err := start(t.Context(), somebody)
				if err != nil {
					t.Error(err)
					return
				}
				w.end()
				if err := somebody.Run(exec.Command("/bin/true"), Options{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	stop.Close()
	if err := attack.Wait(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	t.Log(said.String())
}

var (
	linkAndList = Define("test.linkAndList", func(_ context.Context, dir string) ([]string, error) {
		if err := os.WriteFile(filepath.Join(dir, "made"), nil, 0o600); err != nil {
			return nil, err
		}
		var all []string
		err := filepath.WalkDir("/", func(path string, _ fs.DirEntry, err error) error {
			all = append(all, path)
			return err
		})
		return all, err
	})
	readThrough = Define("test.readThrough", func(_ context.Context, path string) (string, error) {
		data, err := os.ReadFile(path)
		return string(data), err
	})
)

// TestFolders calls for a user who sees two folders of root's alone, and follows no link out of them.
func TestFolders(t *testing.T) {
	testkit.Need(t, "root")
	dir := folder(t)
	closed := filepath.Join(dir, "closed")
	u := User{UID: somebody.UID, GID: somebody.GID, Folders: []string{closed + "/a", closed + "/b/c", closed + "/none"}}
	for _, d := range u.Folders[:2] {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chown(d, u.UID, u.GID)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/outside", "outside", root, 0o644)
	if err := errors.Join(os.Chmod(closed, 0o700), os.Symlink(dir+"/outside", u.Folders[0]+"/way"), os.Symlink("../../outside", u.Folders[0]+"/back")); err != nil {
		t.Fatal(err)
	}
	seen, err := linkAndList.Call(t.Context(), u, u.Folders[1])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/"}
	for at := closed; at != "/"; at = filepath.Dir(at) {
		want = append(want, at)
	}
	for _, more := range []string{"/a", "/a/way", "/a/back", "/b", "/b/c", "/b/c/made"} {
		want = append(want, closed+more)
	}
	slices.Sort(want)
	slices.Sort(seen)
	if !slices.Equal(seen, want) {
		t.Errorf("the user sees\n%q, want\n%q", seen, want)
	}
	for _, name := range []string{"/way", "/back"} {
		if text, err := readThrough.Call(t.Context(), u, u.Folders[0]+name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if err := errors.Join(os.Rename(u.Folders[0], closed+"/old"), os.Mkdir(u.Folders[0], 0o755)); err != nil {
		t.Fatal(err)
	}
	write(t, u.Folders[0]+"/new", "new", u, 0o600)
	if text, err := readThrough.Call(t.Context(), u, u.Folders[0]+"/new"); err != nil || text != "new" {
		t.Errorf("in a folder that took the place of another one: %q, %v", text, err)
	}
	if err := u.Run(exec.Command("/bin/true"), Options{}); errs.KindOf(err) != errs.Internal {
		t.Errorf("a command: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(enclosure, &st); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(enclosure+closed, &fs); err == nil {
		t.Error("the worker's root is seen outside")
	}
}
