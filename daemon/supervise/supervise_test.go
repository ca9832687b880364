package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/systemd"
	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

const patience = testkit.Patience

// quick are timings for tests.
var quick = timings{
	startup: 50 * time.Millisecond, backoff: 5 * time.Millisecond, burst: 5, window: 30 * time.Second,
	killWait: 10 * time.Second, logLimit: 1 << 20, logRate: 1 << 30,
}

// TestMain makes this binary also a daemon that supervises a command until it is killed.
func TestMain(m *testing.M) {
	privsep.Main()
	dir := os.Getenv("SUPERVISE_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("SUPERVISE_FILL") != "" {
		fill()
	}
	if os.Getenv("SUPERVISE_CHURN") != "" {
		fmt.Println(churn(dir))
		os.Exit(1)
	}
	p, err := open(script(dir, os.Getenv("SUPERVISE_SCRIPT")), quick)
	if err == nil {
		err = p.Start(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	st, _ := p.State(context.Background())
	fmt.Println("pid", st.MainPID)
	if os.Getenv("SUPERVISE_STOP") != "" { // as soon as it is told to
		_, _ = os.Stdin.Read(make([]byte, 1))
		err := p.Stop(context.Background())
		st, _ := p.State(context.Background())
		fmt.Println(st.Active, st.MainPID, err)
	}
	select {}
}

// script is the configuration of a shell script.
func script(dir, text string) Config {
	return Config{
		Name: "shop", Command: []string{"sh", "-c", text}, Dir: "/", Owner: privsep.Self,
		StateDir: dir, StopTimeout: 5 * time.Second,
	}
}

// supervise takes charge of a command; whatever the test leaves of it is ended.
func supervise(t *testing.T, cfg Config) *Process {
	t.Helper()
	p, err := open(cfg, quick)
	must(t, err)
	t.Cleanup(func() {
		must(t, p.Close())
		if left, err := members(p.rec); err != nil || len(left) > 0 && !t.Failed() {
			t.Errorf("left running: %v %v", left, err)
		} else {
			signal(left, unix.SIGKILL)
		}
	})
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func state(t *testing.T, u systemd.Unit) systemd.Status {
	t.Helper()
	st, err := u.State(t.Context())
	must(t, err)
	return st
}

// until calls ok until it says yes.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	over := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatal("not ", what)
		}
	}
}

func wantErr(t *testing.T, err error, kind errs.Kind, words ...string) {
	t.Helper()
	if errs.KindOf(err) != kind {
		t.Fatalf("got %v, of kind %q; want kind %q", err, errs.KindOf(err), kind)
	}
	all := err.Error() + " | " + errs.HintOf(err)
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("%q is missing in: %s", w, all)
		}
	}
	if strings.Contains(all, "\n") {
		t.Errorf("more than one line: %s", all)
	}
}

func alive(pid int) bool {
	p, err := look(pid)
	return err == nil && !p.dead
}

// pidFrom waits for a script to write a pid to a file.
func pidFrom(t *testing.T, file string) (pid int) {
	t.Helper()
	until(t, "written: "+file, func() bool {
		b, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(string(b), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		must(t, err)
		return true
	})
	return pid
}

func TestStartStop(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	p := supervise(t, script(dir, "echo hello; echo oops >&2; exec sleep 1000"))
	if st := state(t, p); st.Active != "inactive" || st.Running() {
		t.Errorf("at first: %+v", st)
	}
	must(t, p.Stop(ctx))
	must(t, p.Start(ctx))
	st := state(t, p)
	if !st.Running() || st.MainPID == 0 || !alive(st.MainPID) || st.Since.IsZero() {
		t.Errorf("after the start: %+v", st)
	}
	must(t, p.Start(ctx))
	if again := state(t, p); again.MainPID != st.MainPID {
		t.Errorf("a second start made another process")
	}
	if sid, err := unix.Getsid(st.MainPID); err != nil || sid != st.MainPID {
		t.Errorf("its session is %d, %v", sid, err)
	}
	if in, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", st.MainPID)); err != nil || in != "/dev/null" {
		t.Errorf("its input is %s, %v", in, err)
	}
	until(t, "written", func() bool { return strings.HasSuffix(logged(t, p), "oops\n") })
	must(t, p.Stop(ctx))
	if alive(st.MainPID) {
		t.Error("it still runs")
	}
	if st := state(t, p); st.Active != "inactive" || st.MainPID != 0 || st.Result != "success" {
		t.Errorf("after the stop: %+v", st)
	}
	must(t, p.Stop(ctx))
	if out, err := os.ReadFile(p.LogPath()); err != nil || string(out) != "hello\noops\n" {
		t.Errorf("its output: %q, %v", out, err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_DAEMON", "1")
	cfg := script(t.TempDir(), "env > new; id -u >> new; id -G >> new; mv new $OUT; exec sleep 1000")
	cfg.Dir = t.TempDir()
	must(t, os.Chmod(cfg.Dir, 0o777))
	must(t, os.Chmod(filepath.Dir(cfg.Dir), 0o755))
	cfg.Env = []string{"OUT=env.txt", "COLOUR=green"}
	root := os.Geteuid() == 0
	if root {
		cfg.Owner = privsep.User{UID: 65534, GID: 65533, Groups: []int{65532}}
	}
	p := supervise(t, cfg)
	must(t, p.Start(t.Context()))
	var out string
	until(t, "written", func() bool {
		b, err := os.ReadFile(cfg.Dir + "/env.txt") // which is there as a whole
		out = string(b)
		return err == nil
	})
	must(t, p.Stop(t.Context()))
	for _, want := range []string{"COLOUR=green\n", "PATH=/usr/local/sbin:", marker + "="} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %q", want, out)
		}
	}
	if strings.Contains(out, "SECRET_OF_THE_DAEMON") {
		t.Error("the daemon's environment leaks")
	}
	if root && !strings.HasSuffix(out, "\n65534\n65533 65532\n") {
		t.Errorf("it runs as %q", out)
	}
}

func TestStartErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		words  []string
	}{
		"unknown command": {func(c *Config) { c.Command = []string{"no-such-program"} }, []string{"start shop", `"no-such-program"`}},
		"missing file":    {func(c *Config) { c.Command = []string{"./serve"} }, []string{`"./serve"`, "no such file"}},
		"missing folder":  {func(c *Config) { c.Dir = "/no/such/folder" }, []string{"/no/such/folder"}},
		"ends at once":    {func(c *Config) { c.Command[2] = "exit 3" }, []string{"exit status 3", "run.log"}},
		"is killed":       {func(c *Config) { c.Command[2] = "kill -9 $$" }, []string{"signal 9"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := script(t.TempDir(), "exec sleep 1000")
			c.change(&cfg)
			patient := quick
			patient.startup = patience
			p, err := open(cfg, patient)
			must(t, err)
			wantErr(t, p.Start(t.Context()), errs.Failed, c.words...)
			if st := state(t, p); st.Active != "failed" || st.Result == "" || st.MainPID != 0 {
				t.Errorf("%+v", st)
			}
			must(t, p.Close())
			again, err := open(cfg, quick)
			must(t, err)
			if st := state(t, again); st.Active != "failed" || st.Result == "" {
				t.Errorf("the next daemon sees %+v", st)
			}
			must(t, again.Close())
		})
	}
	_, err := New(Config{Name: "shop", StateDir: t.TempDir()})
	wantErr(t, err, errs.Invalid)
}

func TestRestart(t *testing.T) {
	p := supervise(t, script(t.TempDir(), "exec sleep 1000"))
	must(t, p.Start(t.Context()))
	for n := 1; n <= quick.burst; n++ {
		must(t, unix.Kill(state(t, p).MainPID, unix.SIGKILL))
		until(t, "restarted", func() bool { st := state(t, p); return st.Restarts == n && st.Running() })
	}
	must(t, unix.Kill(state(t, p).MainPID, unix.SIGKILL))
	until(t, "given up", func() bool { return state(t, p).Active == "failed" })
	if st := state(t, p); !strings.Contains(st.Result, "signal 9") || st.MainPID != 0 {
		t.Errorf("%+v", st)
	}
	must(t, p.Start(t.Context())) // on purpose: a new count
	if st := state(t, p); !st.Running() || st.Restarts != 0 {
		t.Errorf("%+v", st)
	}
	must(t, p.Stop(t.Context()))
}

// TestStopWhileRestarting stops a command that waits for its restart.
func TestStopWhileRestarting(t *testing.T) {
	slow := quick
	slow.backoff = time.Hour
	p, err := open(script(t.TempDir(), "exec sleep 1000"), slow)
	must(t, err)
	must(t, p.Start(t.Context()))
	must(t, unix.Kill(state(t, p).MainPID, unix.SIGKILL))
	until(t, "waiting", func() bool { return state(t, p).Sub == "auto-restart" })
	must(t, p.Stop(t.Context()))
	if st := state(t, p); st.Active != "inactive" {
		t.Errorf("%+v", st)
	}
	must(t, p.Close())
}

func TestStubborn(t *testing.T) {
	dir := t.TempDir()
	cfg := script(dir, "trap '' TERM; echo $$ > "+dir+"/ready; while :; do sleep 1000; done")
	cfg.StopTimeout = 6 * time.Second // all that is looked at while it is stopped is looked at within this time
	p := supervise(t, cfg)
	must(t, p.Start(t.Context()))
	pid := pidFrom(t, dir+"/ready")

	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantErr(t, p.Stop(short), errs.Failed, "stop shop", "still ", fmt.Sprintf("pid %d (sh)", pid))
	until(t, "being stopped", func() bool { return state(t, p).Active == "deactivating" })
	left, leave := context.WithCancel(t.Context())
	leave()
	wantErr(t, p.Stop(left), errs.Unavailable, "stop shop")
	// Whoever finds the record now, after a crash, ends the command and does not start it again.
	if rec, err := (&Process{cfg: cfg}).load(); err != nil || rec.Up || rec.PID != pid {
		t.Errorf("while the command is stopped, the record says %+v, %v", rec, err)
	}
	if !alive(pid) {
		t.Error("it went before SIGKILL")
	}
	must(t, p.Stop(t.Context()))
	if alive(pid) {
		t.Error("it still runs")
	}
}

// TestFamily has children that hide: in a session of their own, without the
// environment, deaf to SIGTERM, with their parent gone.
func TestFamily(t *testing.T) {
	dir := t.TempDir()
	sleeper := func(file, trap string) string {
		return fmt.Sprintf(`sh -c "%s echo \$\$ > %s/%s; while :; do sleep 1000; done"`, trap, dir, file)
	}
	cfg := script(dir, strings.Join([]string{
		sleeper("plain", "") + " &",
		"setsid " + sleeper("session", "") + " &",                // known by its environment and its parent
		"env -i PATH=$PATH " + sleeper("bare", "") + " &",        // known by its session
		"(setsid " + sleeper("orphan", "trap '' TERM;") + " &)",  // known by its environment, its parent is gone
		"setsid env -i PATH=$PATH " + sleeper("both", "") + " &", // known by its parent
		"exec sleep 1000",
	}, "\n"))
	cfg.StopTimeout = 300 * time.Millisecond
	p := supervise(t, cfg)
	must(t, p.Start(t.Context()))
	pids := []int{state(t, p).MainPID}
	for _, f := range []string{"plain", "session", "bare", "orphan", "both"} {
		pids = append(pids, pidFrom(t, dir+"/"+f))
	}
	must(t, p.Stop(t.Context()))
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("pid %d still runs", pid)
		}
	}
}

// TestOrphans: when the command itself ends, its children are ended before the restart.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	p := supervise(t, script(dir, "if [ ! -e "+dir+"/child ]; then sh -c 'echo $$ > "+dir+"/child; exec sleep 1000' & fi; exec sleep 1000"))
	must(t, p.Start(t.Context()))
	child := pidFrom(t, dir+"/child")
	must(t, unix.Kill(state(t, p).MainPID, unix.SIGKILL))
	until(t, "restarted", func() bool { st := state(t, p); return st.Restarts == 1 && st.Running() })
	if alive(child) {
		t.Error("a child of the earlier run still runs")
	}
	must(t, p.Stop(t.Context()))
}

func TestConcurrency(t *testing.T) {
	p := supervise(t, script(t.TempDir(), "exec sleep 1000"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 3 {
				do := p.Start
				if i%2 == 0 {
					do = p.Stop
				}
				if err := do(t.Context()); err != nil {
					t.Error(err)
				}
				p.State(t.Context())
			}
		})
	}
	wg.Wait()
	must(t, p.Start(t.Context()))
	list, err := members(p.rec)
	if err != nil || len(list) != 1 {
		t.Errorf("%v run, %v", list, err)
	}
	must(t, p.Stop(t.Context()))
}

func TestClose(t *testing.T) {
	cfg := script(t.TempDir(), "exec sleep 1000")
	p := supervise(t, cfg)
	must(t, p.Start(t.Context()))
	pid := state(t, p).MainPID
	must(t, p.Close())
	must(t, p.Close())
	wantErr(t, p.Stop(t.Context()), errs.Unavailable, "stop shop")
	if !alive(pid) {
		t.Fatal("Close ended the command")
	}
	next := supervise(t, cfg)
	if st := state(t, next); st.MainPID != pid || !st.Running() {
		t.Errorf("not adopted: %+v", st)
	}
	must(t, next.Stop(t.Context()))
	if alive(pid) {
		t.Error("it still runs")
	}
}

func TestTakeover(t *testing.T) {
	cfg := script(t.TempDir(), "exec sleep 1000")
	p := supervise(t, cfg)
	must(t, p.Start(t.Context()))
	cfg.StopTimeout = time.Second
	next := supervise(t, cfg)
	if a, b := state(t, p), state(t, next); a.MainPID != b.MainPID || !b.Running() {
		t.Errorf("%+v, then %+v", a, b)
	}
	wantErr(t, p.Start(t.Context()), errs.Unavailable)
	must(t, next.Stop(t.Context()))
}

func TestBusy(t *testing.T) {
	cfg := script(t.TempDir(), "exec sleep 1000")
	other, err := takeLock(filepath.Join(cfg.StateDir, "run.lock")) // as another daemon does
	must(t, err)
	_, err = open(cfg, quick)
	wantErr(t, err, errs.Busy, "another daemon")
	must(t, other.Close())
}

// killedDaemon runs a supervising process and kills it once the command runs.
func killedDaemon(t *testing.T, dir, text string) (pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SUPERVISE_DIR="+dir, "SUPERVISE_SCRIPT="+text)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, cmd.Process.Kill())
	cmd.Wait()
	if _, scanErr := fmt.Sscanf(line, "pid %d\n", &pid); scanErr != nil {
		t.Fatalf("the daemon said %q (%v)", line, err)
	}
	return pid
}

func TestAdoption(t *testing.T) {
	dir := t.TempDir()
	text := "exec sleep 1000"
	pid := killedDaemon(t, dir, text)
	if !alive(pid) {
		t.Fatal("the command ended with its daemon")
	}
	p := supervise(t, script(dir, text))
	if st := state(t, p); !st.Running() || st.MainPID != pid {
		t.Fatalf("not adopted: %+v", st)
	}
	must(t, p.Start(t.Context()))
	if st := state(t, p); st.MainPID != pid {
		t.Errorf("started twice: %+v", st)
	}
	must(t, unix.Kill(pid, unix.SIGKILL)) // an adopted one is watched like any other
	until(t, "restarted", func() bool { st := state(t, p); return st.Running() && st.Restarts == 1 && st.MainPID != pid })
	must(t, p.Stop(t.Context()))
}

// TestStopThatIsNotRecorded has a stop fail when the file of its record was replaced and its folder cannot be synced. The command goes
// on then, also beneath the next daemon.
func TestStopThatIsNotRecorded(t *testing.T) {
	dir, text := t.TempDir(), "exec sleep 1000"
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SUPERVISE_DIR="+dir, "SUPERVISE_SCRIPT="+text, "SUPERVISE_STOP=1")
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	out := bufio.NewReader(stdout)
	p, err := sysfault.Start(cmd, sysfault.Options{})
	must(t, err)
	var pid int
	if line, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscanf(line, "pid %d\n", &pid); err != nil {
		t.Fatalf("the daemon said %q", line)
	}
	p.Arm(sysfault.Fault{Call: "sync " + dir, Nth: 1, Errno: unix.EIO})
	_, err = stdin.Write([]byte{0})
	must(t, err)
	line, err := out.ReadString('\n')
	must(t, err)
	if seen := p.Disarm(); !seen.Hit {
		t.Fatalf("no fault happened: %q", seen.Calls)
	}
	if !strings.HasPrefix(line, fmt.Sprintf("active %d ", pid)) || !strings.Contains(line, "record the run") {
		t.Errorf("the daemon says %q, want that %d is active, and an error", line, pid)
	}
	must(t, p.Process.Kill())
	p.Wait()
	next := supervise(t, script(dir, text))
	if st := state(t, next); !st.Running() || st.MainPID != pid {
		t.Errorf("the next daemon says %+v, want that %d runs", st, pid)
	}
	must(t, next.Stop(t.Context()))
}

// TestRefusedStopInTheRecord has a stop fail whose record could neither be written wholly nor taken back: the file says that the command is
// to be stopped, and it is not. The end of the supervision mends the file. Where it cannot, the next Process of the same daemon
// knows better than the file.
func TestRefusedStopInTheRecord(t *testing.T) {
	for _, mended := range []bool{true, false} {
		t.Run(fmt.Sprintf("mended=%t", mended), func(t *testing.T) {
			cfg := script(t.TempDir(), "exec sleep 1000")
			p := supervise(t, cfg)
			must(t, p.Start(t.Context()))
			before := state(t, p)
			file := filepath.Join(cfg.StateDir, "run.json")
			must(t, os.Mkdir(file+".tmp", 0o700)) // where the new record would be written
			wantErr(t, p.Stop(t.Context()), errs.Failed, "record the run")
			rec, err := p.load()
			must(t, err)
			rec.Up = false
			must(t, os.Remove(file+".tmp"))
			must(t, durable.WriteJSON(file, rec))
			if mended {
				must(t, p.Close())
			}
			if !mended {
				must(t, os.Mkdir(file+".tmp", 0o700))
			}
			again := supervise(t, cfg)
			if st := state(t, again); !st.Running() || st.MainPID != before.MainPID {
				t.Errorf("%+v, want that %d runs", st, before.MainPID)
			}
			if !mended {
				must(t, os.Remove(file+".tmp"))
			}
			must(t, again.Stop(t.Context()))
		})
	}
}

// TestCrashBetween rewinds the record to each point of a start and a stop at
// which a daemon may have been killed.
func TestCrashBetween(t *testing.T) {
	text := "exec sleep 1000"
	crash := func(t *testing.T, change func(*record)) (*Process, int) {
		dir := t.TempDir()
		pid := killedDaemon(t, dir, text)
		holder := &Process{cfg: script(dir, text)}
		rec, err := holder.load()
		must(t, err)
		change(&rec)
		must(t, holder.save(rec))
		return supervise(t, script(dir, text)), pid
	}
	t.Run("fork and record", func(t *testing.T) {
		p, pid := crash(t, func(r *record) { r.ident = ident{} })
		if st := state(t, p); st.MainPID != pid || !st.Running() {
			t.Errorf("not found: %+v", st)
		}
		must(t, p.Stop(t.Context()))
		if alive(pid) {
			t.Error("it still runs")
		}
	})
	t.Run("intent and fork", func(t *testing.T) {
		p, pid := crash(t, func(r *record) {
			list, err := members(*r)
			must(t, err)
			must(t, signal(list, unix.SIGKILL))
			until(t, "gone", func() bool { return !list[0].alive() })
			r.ident = ident{}
		})
		until(t, "started", func() bool { st := state(t, p); return st.Running() && st.MainPID != pid })
		must(t, p.Stop(t.Context()))
	})
	t.Run("the word to stop and the signal", func(t *testing.T) {
		p, pid := crash(t, func(r *record) { r.Up = false })
		until(t, "stopped", func() bool { return state(t, p).Active == "inactive" })
		if alive(pid) {
			t.Error("it still runs")
		}
	})
	t.Run("another boot", func(t *testing.T) {
		var real record
		p, pid := crash(t, func(r *record) { real = *r; r.Boot = "another" })
		if st := state(t, p); st.Running() || st.MainPID != 0 {
			t.Errorf("a process of another boot was adopted: %+v", st)
		}
		must(t, p.Stop(t.Context()))
		if !alive(pid) {
			t.Error("a process that only has the same number was ended")
		}
		must(t, real.signal(unix.SIGKILL))
	})
	t.Run("damaged record", func(t *testing.T) {
		dir := t.TempDir()
		pid := killedDaemon(t, dir, text)
		testkit.Damage(t, dir+"/run.json")
		p := supervise(t, script(dir, text))
		if st := state(t, p); st.MainPID != pid || !st.Running() {
			t.Errorf("not found: %+v", st)
		}
		must(t, p.Stop(t.Context()))
		if alive(pid) {
			t.Error("it runs after a stop")
		}
	})
	t.Run("damaged record of nothing that runs", func(t *testing.T) {
		dir := t.TempDir()
		pid := killedDaemon(t, dir, text)
		testkit.Damage(t, dir+"/run.json")
		p := supervise(t, script(dir, text))
		must(t, p.Stop(t.Context()))
		must(t, p.Close())
		testkit.Damage(t, dir+"/run.json")
		testkit.Need(t, "root")
		forged := exec.Command("sleep", "1000")
		forged.Env = []string{marker + "=" + runPrefix(dir) + "forged"}
		forged.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setsid: true}
		must(t, forged.Start())
		t.Cleanup(func() { _ = forged.Process.Kill(); _ = forged.Wait() })
		again := supervise(t, script(dir, text))
		if st := state(t, again); st.Running() {
			t.Errorf("it runs: %+v", st)
		}
		must(t, again.Start(t.Context()))
		if st := state(t, again); !st.Running() || st.MainPID == pid {
			t.Errorf("%+v", st)
		}
		must(t, again.Stop(t.Context()))
	})
}

// churnScript is a command with a child in a session of its own.
func churnScript(dir string) Config {
	cfg := script(dir, "setsid sleep 1000 & exec sleep 1000")
	cfg.Env = []string{"CHURN=" + dir}
	return cfg
}

// churn starts and stops a command for ever, a line for each.
func churn(dir string) error {
	restless := quick
	restless.startup = time.Millisecond
	p, err := open(churnScript(dir), restless)
	for err == nil {
		if err = p.Start(context.Background()); err == nil {
			fmt.Println("started")
			err = p.Stop(context.Background())
			fmt.Println("stopped")
		}
	}
	return err
}

// TestKilledAnywhere kills a daemon at whatever point of its starts and stops:
// the next one finds every process that it left.
func TestKilledAnywhere(t *testing.T) {
	dir := t.TempDir()
	for _, round := range testkit.Sample(t, "moments", 20, 5) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "SUPERVISE_DIR="+dir, "SUPERVISE_CHURN=1")
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 1 + round%2 { // in a stop, or in a start…
			if !lines.Scan() || !strings.HasSuffix(lines.Text(), "ed") {
				t.Fatalf("round %d: the daemon said %q", round, lines.Text())
			}
		}
		<-time.After(time.Duration(round/2) * 400 * time.Microsecond) // …a little further each time
		must(t, cmd.Process.Kill())
		cmd.Wait()

		p, err := open(churnScript(dir), quick)
		must(t, err)
		if round%4 < 2 {
			must(t, p.Start(t.Context()))
			if st := state(t, p); !st.Running() {
				t.Errorf("round %d: %+v", round, st)
			}
		}
		must(t, p.Stop(t.Context()))
		must(t, p.Close())
		if left := withEnv(t, "CHURN="+dir); len(left) > 0 {
			signal(left, unix.SIGKILL)
			t.Fatalf("round %d: left running: %s", round, describe(left))
		}
	}
}

// withEnv lists the processes that have v in their environment.
func withEnv(t *testing.T, v string) []proc {
	t.Helper()
	list, err := all()
	must(t, err)
	return slices.DeleteFunc(list, func(p proc) bool {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		return err != nil || !strings.Contains(string(env), v+"\x00")
	})
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 987654 1 2 3\n"
	got, err := parseStat(line)
	want := proc{ident{42, 987654}, "a) b (c", false, 7, 41}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	own, err := look(os.Getpid())
	if err != nil || own.PID != os.Getpid() || own.parent != os.Getppid() || !own.alive() {
		t.Errorf("%+v, %v", own, err)
	}
	if _, err := look(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (x) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 987654 1 2 3\n")
	f.Add(") (")
	f.Fuzz(func(t *testing.T, line string) {
		if p, err := parseStat(line); err != nil && p != (proc{}) {
			t.Errorf("%+v with %v", p, err)
		}
	})
}
