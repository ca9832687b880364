package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/privsep/privseptest"
	"mulligan/testkit"
)

// stranger is a user without an account: nothing on the host is theirs but what a test makes.
const stranger = 54321

// signalThreads is what the test's program does as "signal-threads PID": see
// [privseptest.SignalThreads].
func signalThreads(args []string) {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	tries, err := privseptest.SignalThreads(pid, os.Stdin)
	fmt.Println(tries, "tries")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hostDaemon starts a daemon of root's.
func hostDaemon(t *testing.T) *daemonProcess {
	t.Helper()
	testkit.Need(t, "root")
	d := newDaemon(t)
	d.args = []string{}
	d.start()
	return d
}

// trap has what a stranger would have the daemon open: a fifo that nobody
// writes to, a file without end, and one of a terabyte.
type trap struct{ dir, fifo, endless, huge string }

func setTraps(t *testing.T, dir string) trap {
	t.Helper()
	w := trap{dir: dir, fifo: dir + "/fifo", endless: "/dev/zero", huge: dir + "/huge"}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755), unix.Mkfifo(w.fifo, 0o644), os.WriteFile(w.huge, nil, 0o644), os.Truncate(w.huge, 1<<40)); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, stranger, stranger))
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

// dsns are addresses of every kind that name the traps.
func (w trap) dsns() (all []string) {
	for _, file := range []string{w.fifo, w.endless, w.huge, w.dir, "/nonexistent"} {
		for _, key := range []string{"passfile", "sslrootcert", "sslcert", "sslkey"} {
			all = append(all, "postgres://u@127.0.0.1:1/db?sslmode=require&"+key+"="+file)
		}
		all = append(all, "redis:///?socket="+file, "mysql://u@/db?socket="+file, "postgres:///db?user=u&host="+file)
	}
	all = append(all, "redis://127.0.0.1:1", "mysql://u:p@127.0.0.1:1/db", "rediss://127.0.0.1:1", "sqlite:"+filepath.Base(w.fifo), "sqlite:none.db")
	return all
}

// asStranger runs the client as the stranger; it does not matter how it ends.
func (d *daemonProcess) asStranger(args ...string) (said string, code int) {
	cmd := exec.Command(filepath.Join(bin, "mulligan"), append(args, "--socket", d.socket)...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return err.Error(), -1
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestStrangerCannotSignalTheDaemon has a user register 200 apps with addresses
// of every kind, and check out each, while the same user tries to signal the
// daemon and each of its threads. None of the files that the addresses name may
// keep the daemon, or fill its memory.
func TestStrangerCannotSignalTheDaemon(t *testing.T) {
	t.Parallel()
	d := hostDaemon(t)
	dsns := setTraps(t, filepath.Join(d.dir, "traps")).dsns()
	attack := exec.Command(filepath.Join(bin, "self"), "signal-threads", strconv.Itoa(d.cmd.Process.Pid))
	attack.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	end, err := attack.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	attack.Stdout, attack.Stderr = &said, &said
	if err := attack.Start(); err != nil {
		t.Fatal(err)
	}
	const apps, atOnce = 100, 8
	var all sync.WaitGroup
	next, registered := make(chan int), make(chan bool, apps)
	for range atOnce {
		all.Go(func() {
			for i := range next {
				registered <- d.tryDatabase(t, i, dsns[i%len(dsns)])
			}
		})
	}
	for i := range apps {
		next <- i
	}
	close(next)
	all.Wait()
	close(registered)
	end.Close()
	if err := attack.Wait(); err != nil {
		t.Errorf("%v: %s", err, &said)
	}
	n := 0
	for ok := range registered {
		if ok {
			n++
		}
	}
	t.Logf("%d of %d apps were registered; %s", n, apps, &said)
	if n < apps/2 {
		t.Errorf("only %d of %d apps were registered: little was shown", n, apps)
	}
	if peak := peakMemory(t, d.cmd.Process.Pid); peak > 256<<20 {
		t.Errorf("the daemon took %d MiB", peak>>20)
	}
}

// tryDatabase registers an app with a database, has a checkpoint made of it,
// which may fail, and removes it.
func (d *daemonProcess) tryDatabase(t *testing.T, i int, dsn string) (registered bool) {
	ws, slug := filepath.Join(d.dir, fmt.Sprint("ws", i)), fmt.Sprint("app", i)
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Chown(ws, stranger, stranger)); err != nil {
		t.Error(err)
		return false
	}
	if said, code := d.asStranger("app", "add", "--slug", slug, "--dir", ws, "--db", dsn); code != 0 {
		if !strings.HasPrefix(said, "mulligan: ") || strings.Count(said, "\n") != 1 {
			t.Errorf("%s: exit %d, %q is not one line that says why", dsn, code, said)
		}
		return false
	}
	// Without the SQLite file there is nothing to fail at.
	if said, code := d.asStranger("create", "--app", slug); code == 0 != strings.HasPrefix(dsn, "sqlite:") || strings.Count(said, "\n") != 1 {
		t.Errorf("%s: exit %d, %q", dsn, code, said)
	}
	if said, code := d.asStranger("app", "remove", slug, "--purge"); code != 0 {
		t.Errorf("remove %s with %s: %s", slug, dsn, said)
	}
	return true
}

// TestMaskOfCommands: the files that a user's command makes have the modes that they would have had without mulligan, however the daemon was started.
func TestMaskOfCommands(t *testing.T) {
	t.Parallel()
	d := hostDaemon(t) // with a mask that is closed to others
	ws := filepath.Join(d.dir, "ws")
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Chown(ws, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	if said, code := d.asStranger("app", "add", "--slug", "shop", "--dir", ws, "--run", "sh -c 'mkdir made && exec sleep 1000'"); code != 0 {
		t.Fatal(said)
	}
	var made os.FileInfo
	testkit.Eventually(t, "the command has made a folder", func() bool {
		var err error
		made, err = os.Stat(filepath.Join(ws, "made"))
		return err == nil
	})
	if mode := made.Mode().Perm(); mode != 0o755 {
		t.Errorf("the mode is %o", mode)
	}
}

// TestStartsWithoutTCP: neither a TCP address that another program has nor a folder of app files that cannot be watched keeps the daemon from
// serving its socket. Both are tried again until they are there, and status shows them meanwhile.
func TestStartsWithoutTCP(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	d := newDaemon(t)
	etc, ws := filepath.Join(d.dir, "etc"), filepath.Join(d.dir, "ws")
	apps := filepath.Join(etc, "apps.d")
	if err := errors.Join(os.Mkdir(etc, 0o755), os.Mkdir(ws, 0o755), os.WriteFile(filepath.Join(etc, "mulligand.toml"), nil, 0o644), os.Symlink("apps.d", apps)); err != nil {
		t.Fatal(err)
	}
	d.args = []string{"--config", filepath.Join(etc, "mulligand.toml"), "--http", other.Addr().String()}
	d.start()
	var st ipc.Status
	testkit.Eventually(t, "both are noticed", func() bool {
		st = ask[ipc.Status](d, "status")
		return len(st.Problems) > 1
	})
	if all := strings.Join(st.Problems, "\n"); len(st.Problems) != 2 || !strings.Contains(all, apps+" is not watched") || !strings.Contains(all, "address already in use") || st.HTTP != "" {
		t.Errorf("%+v", st)
	}
	if err := errors.Join(other.Close(), os.Remove(apps), os.Mkdir(apps, 0o755), os.WriteFile(filepath.Join(apps, "shop.toml"), []byte("slug = 'shop'\nworkspace = '"+ws+"'\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all is served", func() bool {
		st = ask[ipc.Status](d, "status")
		return st.HTTP == other.Addr().String() && st.Apps == 1 && len(st.Problems) == 0
	})
}

// TestEndOfDaemonWithFifos ends the daemon while checkpoints are made of apps
// that name a fifo in every option that takes a file.
func TestEndOfDaemonWithFifos(t *testing.T) {
	t.Parallel()
	d := hostDaemon(t)
	w := setTraps(t, filepath.Join(d.dir, "traps"))
	var all sync.WaitGroup
	for i, option := range []string{"passfile", "sslrootcert", "sslcert", "sslkey"} {
		ws, slug := filepath.Join(d.dir, fmt.Sprint("ws", i)), fmt.Sprint("app", i)
		if err := errors.Join(os.Mkdir(ws, 0o755), os.Chown(ws, stranger, stranger)); err != nil {
			t.Fatal(err)
		}
		dsn := "postgres://u@127.0.0.1:1/db?sslmode=require&" + option + "=" + w.fifo
		if said, code := d.asStranger("app", "add", "--slug", slug, "--dir", ws, "--db", dsn); code != 0 {
			t.Fatalf("%s: %s", dsn, said)
		}
		all.Go(func() {
			for range 10 {
				d.asStranger("create", "--app", slug)
			}
		})
	}
	eventually(t, "operations under way", func() bool { return strings.Contains(d.log.String(), "create") })
	ended := make(chan struct{})
	go func() {
		d.stop() // the test fails if it does not end with status 0
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(90 * time.Second): // TimeoutStopSec of the unit
		_ = d.cmd.Process.Signal(unix.SIGQUIT) // it says where it is
		<-ended
		t.Error("the daemon did not end within its stop time")
	}
	all.Wait()
}

var peakSyntax = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory is the most that a process has had in memory, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := peakSyntax.FindSubmatch(b)
	if m == nil {
		t.Fatal("the kernel does not say how much memory was used")
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
