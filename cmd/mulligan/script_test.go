package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"

	"mulligan/ipc"
	"mulligan/testkit"
)

// realDaemon is the path of a mulligand to run the scripts against. If it is "", they run against a fake.
var realDaemon = os.Getenv("MULLIGAN_TEST_DAEMON")

func TestMain(m *testing.M) {
	programs := map[string]func(){"mulligan": main}
	if realDaemon == "" {
		programs["mulligand"] = fakeMain
	}
	testscript.Main(m, programs)
}

// fakeMain runs a fake as a program, which init starts.
func fakeMain() {
	socket := ipc.UserSocket()
	if len(os.Args) == 4 && os.Args[2] == "--socket" {
		socket = os.Args[3]
	}
	if os.Getenv("FAKE_REFUSES") != "" {
		fmt.Fprintln(os.Stderr, "mulligand: the configuration is bad")
		os.Exit(2)
	}
	l, err := ipc.Listen(socket, 0o600)
	if err == nil { // what shows that there is a daemon
		err = os.WriteFile(filepath.Join(os.Getenv("XDG_STATE_HOME"), "mulligan", "mulligan.db"), nil, 0o600)
	}
	if err == nil {
		err = ipc.NewHTTPServer(newFake().handler(), nil).Serve(l)
	}
	fmt.Fprintln(os.Stderr, "mulligand:", err)
	os.Exit(1)
}

// TestScripts runs the scripts in testdata/script, and those that need a fake, in testdata/fake, or a real daemon, in testdata/real. Besides testscript's own commands there are
//
//	start             a daemon on the user's socket, and wait until it answers
//	code N CMD ARG…   run CMD, which must exit with N
//	keep VAR          set VAR to the first field of the last standard output
//	lines N           the last standard output has N lines
//	call TOOL FLAG…   start mulligan mcp FLAG… and call its tool, without arguments;
//	                  the result is the standard output
//	outlive TOOL      call a tool of one mulligan mcp, end the daemon that init started, and call
//	                  it again; the second result is the standard output
//	fake FAULT        let the fake daemon fail: a kind of error, "hold", "damage",
//	                  "rollback recovered", "rollback broken", "unrecorded", "warn", "none"
//	turns FILE        let the first app of the fake daemon have the turns in FILE, which are JSON
//	end               end the daemon that init started
//	terminal CMD…     run CMD in a terminal that nobody types at, and which is its standard output;
//	                  what the terminal shows is the standard output
//	answer FILE CMD…  the same with FILE typed, and the terminal as standard input too
//	interrupt CMD…    run CMD, interrupt it when the fake daemon holds its
//	                  rollback; it must exit with 130; its errors go to the file stderr.txt
func TestScripts(t *testing.T) {
	if _, err := ipc.NewClient(ipc.HostSocket).Status(t.Context()); err == nil {
		testkit.Lack(t, "mulligand runs on this host, and would get the apps of this test: stop it first (systemctl stop mulligand.socket mulligand)")
	}
	scripts := [2]string{"script", "fake"}
	if realDaemon != "" {
		scripts[1] = "real"
	}
	var files []string
	for _, dir := range scripts {
		list, err := filepath.Glob("testdata/" + dir + "/*.txtar")
		if err != nil || len(list) == 0 {
			t.Fatalf("no scripts in testdata/%s (%v)", dir, err)
		}
		files = append(files, list...)
	}
	short, err := os.MkdirTemp("/tmp", "mg") // sockets are in the scripts' folders
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	t.Setenv("GOTMPDIR", short)
	testscript.Run(t, testscript.Params{
		Files:               files,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Condition: func(cond string) (bool, error) {
			if cond == "fake" {
				return realDaemon == "", nil
			}
			return false, fmt.Errorf("there is no condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": start, "code": code, "keep": keep, "lines": lines, "call": call, "fake": setFault, "interrupt": interrupt,
			"terminal": terminal, "answer": answer, "end": end, "outlive": outlive, "turns": setTurns,
		},
	})
}

type fakeKey struct{}

func setup(env *testscript.Env) error {
	for _, dir := range []string{"run", "run/mulligan", "home"} {
		if err := os.MkdirAll(filepath.Join(env.WorkDir, dir), 0o700); err != nil {
			return err
		}
	}
	env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
	env.Setenv("XDG_RUNTIME_DIR", filepath.Join(env.WorkDir, "run"))
	env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
	env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
	env.Setenv("NO_COLOR", "1")
	env.Setenv("GORACE", "atexit_sleep_ms=0") // else each command waits a second at its end
	env.Setenv("JUNK", "x\ty\nz \\ \x1b[2J \u202e é 日本")
	if realDaemon != "" {
		env.Setenv("PATH", env.Getenv("PATH")+":"+filepath.Dir(realDaemon))
	}
	env.Values[fakeKey{}] = newFake()
	env.Defer(func() { endDaemon(userSocket(env.WorkDir)) })
	return nil
}

func userSocket(work string) string { return filepath.Join(work, "run/mulligan/mulligan.sock") }

// endDaemon ends the daemon at socket, if init started one.
func endDaemon(socket string) {
	st, err := ipc.NewClient(socket).Status(context.Background())
	if err == nil && st.PID != os.Getpid() {
		_ = syscall.Kill(st.PID, syscall.SIGTERM) // it may have ended already
	}
}

func start(ts *testscript.TestScript, _ bool, _ []string) {
	socket := userSocket(ts.Getenv("WORK"))
	if realDaemon != "" {
		startReal(ts, socket)
		return
	}
	l, err := ipc.Listen(socket, 0o600)
	ts.Check(err)
	srv := ipc.NewHTTPServer(ts.Value(fakeKey{}).(*fake).handler(), nil)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) }) // ends with ErrServerClosed
	ts.Defer(func() { _ = srv.Close(); wg.Wait() })
}

func startReal(ts *testscript.TestScript, socket string) {
	cmd := exec.Command(realDaemon, "--user")
	cmd.Env = os.Environ()
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ts.Check(cmd.Start())
	ts.Defer(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for tick := time.Tick(20 * time.Millisecond); ; <-tick {
		if _, err := ipc.NewClient(socket).Status(ctx); err == nil {
			return
		}
		ts.Check(ctx.Err())
	}
}

func code(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%s exited with %d, not %d", args[1], got, want)
	}
}

func keep(ts *testscript.TestScript, _ bool, args []string) {
	fields := strings.Fields(ts.ReadFile("stdout"))
	if len(fields) == 0 {
		ts.Fatalf("there is no output to keep")
	}
	ts.Setenv(args[0], fields[0])
}

func lines(ts *testscript.TestScript, _ bool, args []string) {
	if got := strings.Count(ts.ReadFile("stdout"), "\n"); strconv.Itoa(got) != args[0] {
		ts.Fatalf("there are %d lines, not %s", got, args[0])
	}
}

func setFault(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value(fakeKey{}).(*fake)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = strings.Join(args, " ")
}

func setTurns(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value(fakeKey{}).(*fake)
	f.mu.Lock()
	defer f.mu.Unlock()
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &f.apps[0].turns))
}

// end ends the daemon that init started.
func end(ts *testscript.TestScript, _ bool, _ []string) {
	socket := userSocket(ts.Getenv("WORK"))
	endDaemon(socket)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for tick := time.Tick(20 * time.Millisecond); ; <-tick {
		if _, err := ipc.NewClient(socket).Status(ctx); errors.Is(err, ipc.ErrNoDaemon) {
			return
		}
		ts.Check(ctx.Err())
	}
}

func terminal(ts *testscript.TestScript, neg bool, args []string) {
	runInTerminal(ts, neg, exec.Command(args[0], args[1:]...))
}

func answer(ts *testscript.TestScript, neg bool, args []string) {
	cmd := exec.Command(args[1], args[2:]...)
	typed := ts.ReadFile(args[0])
	f := runningIn(ts, cmd, true)
	_, err := f.WriteString(typed + "\x04") // the end of what is typed
	ts.Check(err)
	endTerminal(ts, neg, cmd, f)
}

func runInTerminal(ts *testscript.TestScript, neg bool, cmd *exec.Cmd) {
	endTerminal(ts, neg, cmd, runningIn(ts, cmd, false))
}

// runningIn starts cmd in a new terminal and returns the person's end of the terminal.
// testscript's ttyin closes that end before all output is read.
func runningIn(ts *testscript.TestScript, cmd *exec.Cmd, typing bool) *os.File {
	here, there, err := pty.Open()
	ts.Check(err)
	defer there.Close() // the program has its own copy
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = os.Environ()
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "GORACE", "NO_COLOR"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stdout, cmd.Stderr = there, ts.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if typing {
		cmd.Stdin = there
	}
	ts.Check(cmd.Start())
	return here
}

// endTerminal reads what the terminal shows until no program has the terminal open.
func endTerminal(ts *testscript.TestScript, neg bool, cmd *exec.Cmd, here *os.File) {
	defer here.Close()
	if _, err := io.Copy(ts.Stdout(), here); err != nil && !errors.Is(err, syscall.EIO) { // EIO is the end of a terminal's output
		ts.Check(err)
	}
	if err := cmd.Wait(); (err == nil) == neg {
		ts.Fatalf("%s: %v", cmd, err)
	}
}

func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value(fakeKey{}).(*fake)
	errFile, err := os.Create(ts.MkAbs("stderr.txt"))
	ts.Check(err)
	defer errFile.Close()
	bin, err := exec.LookPath(args[0])
	ts.Check(err)
	cmd := exec.Command(bin, args[1:]...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+ts.Getenv("XDG_RUNTIME_DIR"))
	cmd.Stderr = errFile
	ts.Check(cmd.Start())
	select {
	case <-f.rolling:
	case <-time.After(testkit.Patience):
		ts.Fatalf("no rollback has begun")
	}
	ts.Check(cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait() // the exit code is checked below
	close(f.release)
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		ts.Fatalf("it exited with %d", got)
	}
}
