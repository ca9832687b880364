package isolate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/testkit"
)

// asOther holds the JSON of a scenario that this program carries out as the daemon of another user.
const asOther = "MULLIGAN_TEST_SCENARIO"

func TestMain(m *testing.M) {
	privsep.Main()
	Main()
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve-app":
		serveApp()
	case len(os.Args) > 1 && os.Args[1] == "end-all":
		if err := endAll(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(asOther) != "":
		os.Exit(userDaemon())
	}
	os.Exit(m.Run())
}

// serveApp is an app with everything fixed: it listens on port 3000, reads a file by its absolute path, asks its database on
// port 6390, writes to /tmp, and says what it found.
func serveApp() {
	ws := os.Args[2]
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		page, err := os.ReadFile(filepath.Join(ws, "page"))
		fmt.Fprint(w, strings.TrimSpace(string(page)), err, " ")
		c, err := net.Dial("tcp", "127.0.0.1:6390")
		if err != nil {
			fmt.Fprint(w, err)
			return
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		fmt.Fprint(w, string(b), err, " ")
		old, _ := os.ReadFile("/tmp/mulligan-isolate-note")
		fmt.Fprint(w, "note:", string(old), " uid:", os.Getuid())
		if err := os.WriteFile("/tmp/mulligan-isolate-note", page, 0o600); err != nil {
			fmt.Fprint(w, err)
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:3000", nil))
	os.Exit(1)
}

// scenario is a parent's folder and what its forks hold.
type scenario struct {
	Dir   string
	Owner privsep.User
	Forks []string
}

// found is what a scenario's forks said, and what happened to them.
type found struct {
	Pages []string
	Execs []string
}

// userDaemon carries out a scenario with the rights of the user that this process has.
func userDaemon() int {
	var s scenario
	if err := json.Unmarshal([]byte(os.Getenv(asOther)), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	f, err := s.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = json.NewEncoder(os.Stdout).Encode(f)
	return 0
}

// run starts all forks at once, visits each from the host and by a command inside, and ends them.
func (s scenario) run() (f found, err error) {
	var cmds []*exec.Cmd
	defer func() {
		for _, c := range cmds {
			_ = c.Process.Kill() // it may have ended
			_ = c.Wait()         // by that signal
		}
	}()
	for _, name := range s.Forks {
		place, addr, err := s.place(name)
		if err != nil {
			return f, err
		}
		cmd := exec.Command("./app", "serve-app", filepath.Join(s.Dir, "ws"))
		cmd.Dir = filepath.Join(s.Dir, "ws")
		cmd.Stderr = os.Stderr
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := place.Start(cmd, []string{"MULLIGAN_TEST_FORK=" + name}); err != nil {
			return f, err
		}
		cmds = append(cmds, cmd)
		page, err := patientGet("http://" + addr)
		if err != nil {
			return f, err
		}
		f.Pages = append(f.Pages, page)
		out, err := runInside(place.Control, filepath.Join(s.Dir, "ws"))
		if err != nil {
			return f, err
		}
		f.Execs = append(f.Execs, out)
	}
	return f, nil
}

// place makes what a fork lives in: its folder, its own /tmp, its database and the listener of the host.
func (s scenario) place(name string) (p Place, addr string, err error) {
	state := filepath.Join(s.Dir, "state-"+name)
	for _, dir := range []string{state, filepath.Join(state, "tmp")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return p, "", err
		}
		if !s.Owner.IsSelf() {
			if err := os.Chown(dir, s.Owner.UID, s.Owner.GID); err != nil {
				return p, "", err
			}
		}
	}
	db, err := net.Listen("unix", filepath.Join(state, "db.sock"))
	if err != nil {
		return p, "", err
	}
	if err := os.Chmod(filepath.Join(state, "db.sock"), 0o666); err != nil {
		return p, "", err
	}
	go func() {
		for {
			c, err := db.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "data of ", name)
			c.Close()
		}
	}()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return p, "", err
	}
	return Place{
		Owner: s.Owner,
		Binds: []Bind{
			{From: filepath.Join(state, "tmp"), At: "/tmp"},
			{From: filepath.Join(s.Dir, "fork-"+name), At: filepath.Join(s.Dir, "ws")},
			{From: state, At: state},
		},
		Fronts:  []Front{{Port: 3000, Listener: l}},
		Backs:   []Back{{Port: 6390, Socket: filepath.Join(state, "db.sock")}},
		Control: filepath.Join(state, "control.sock"),
	}, l.Addr().String(), nil
}

// patientGet asks until somebody answers.
func patientGet(url string) (page string, err error) {
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(5 * time.Millisecond) { // the front accepts before the app listens
		r, err := http.Get(url)
		if err == nil {
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			return string(b), err
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}

// runInside runs a shell in a fork.
func runInside(control, dir string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", err
	}
	conn, err := Dial(control)
	if err != nil {
		return "", err
	}
	status, err := ipc.RunInside(conn, ipc.Command{Args: []string{"sh", "-c", "cat page; pwd; ls /proc | grep -c '^[0-9]'; grep NoNewPrivs /proc/self/status; grep CapEff /proc/self/status; exit 7"},
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir, Files: [3]*os.File{null, w, w}}, nil)
	w.Close()
	out, _ := io.ReadAll(r)
	return fmt.Sprintf("%s%d", out, status), err
}

// TestForks runs three forks of an app that has port, path and database's address in its code, beside a server that has that port on
// the host: for root, for a user of a root daemon, and for the daemon of a user. Each sees its own, and the host none of it.
func TestForks(t *testing.T) {
	testkit.Need(t, "root")
	if l, err := net.Listen("tcp", "127.0.0.1:3000"); err == nil { // the parent's
		defer l.Close()
	}
	for _, c := range []struct {
		name   string
		daemon uint32
		owner  privsep.User
	}{
		{"root", 0, privsep.Self},
		{"user", 0, privsep.User{UID: 4241, GID: 4241}},
		{"user daemon", 4242, privsep.Self},
	} {
		t.Run(c.name, func(t *testing.T) {
			uid := int(c.daemon)
			if !c.owner.IsSelf() {
				uid = c.owner.UID
			}
			s := newScenario(t, uid, c.owner)
			arg, err := json.Marshal(s)
			check(t, err)
			cmd := exec.Command(filepath.Join(s.Dir, "ws", "app"))
			cmd.Env = append(os.Environ(), asOther+"="+string(arg))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.daemon, Gid: c.daemon}}
			var out, problems bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &problems
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, problems.String())
			}
			var f found
			check(t, json.Unmarshal(out.Bytes(), &f))
			for i, name := range s.Forks {
				if want := fmt.Sprintf("page of %s<nil> data of %s<nil> note: uid:%d", name, name, uid); f.Pages[i] != want {
					t.Errorf("%s answers %q, want %q", name, f.Pages[i], want)
				}
				lines := strings.Split(f.Execs[i], "\n")
				if len(lines) != 6 || lines[0] != "page of "+name || lines[1] != filepath.Join(s.Dir, "ws") || len(lines[2]) != 1 ||
					lines[3] != "NoNewPrivs:\t1" || uid != 0 && strings.Trim(strings.TrimPrefix(lines[4], "CapEff:\t"), "0") != "" || lines[5] != "7" {
					t.Errorf("inside of %s: %q", name, lines)
				}
			}
			if page, err := os.ReadFile(filepath.Join(s.Dir, "ws", "page")); err != nil || string(page) != "the parent's\n" {
				t.Errorf("the parent has %q, %v", page, err)
			}
			if _, err := os.Stat("/tmp/mulligan-isolate-note"); err == nil {
				t.Error("a fork wrote to the host's /tmp")
			}
			if left := processesOf(t, s.Dir); left != "" {
				t.Errorf("processes are left: %s", left)
			}
			if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(s.Dir)) {
				t.Errorf("mounts are left, or %v", err)
			}
		})
	}
}

// newScenario makes the parent's folder and its forks' in a place that the user may enter.
func newScenario(t *testing.T, uid int, owner privsep.User) scenario {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "isolate")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(t, os.Chown(dir, uid, uid))
	check(t, os.Chmod(dir, 0o755))
	s := scenario{Dir: dir, Owner: owner, Forks: []string{"a", "b", "c"}}
	self, err := os.ReadFile("/proc/self/exe")
	check(t, err)
	folder := func(name, page string) {
		ws := filepath.Join(dir, name)
		check(t, os.Mkdir(ws, 0o755))
		check(t, os.WriteFile(filepath.Join(ws, "page"), []byte(page+"\n"), 0o644))
		check(t, testkit.WriteProgram(filepath.Join(ws, "app"), self))
		check(t, os.Chown(ws, uid, uid))
	}
	folder("ws", "the parent's")
	for _, name := range s.Forks {
		folder("fork-"+name, "page of "+name)
	}
	return s
}

// processesOf lists processes whose command names the folder.
func processesOf(t *testing.T, dir string) (list string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(t, err)
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(dir)) {
			list += fmt.Sprintf("%s: %q\n", name, b)
		}
	}
	return list
}

// TestRefusals starts what cannot be started: each is one clear error, and nothing is left.
func TestRefusals(t *testing.T) {
	testkit.Need(t, "root")
	s := newScenario(t, 0, privsep.Self)
	check(t, os.Symlink("/etc", filepath.Join(s.Dir, "link")))
	ws := filepath.Join(s.Dir, "ws")
	for _, c := range []struct {
		name, want string
		change     func(*Place, *exec.Cmd)
	}{
		{"no program", "no such file", func(_ *Place, cmd *exec.Cmd) { cmd.Path = "/nowhere" }},
		{"no folder", "no such file", func(p *Place, _ *exec.Cmd) { p.Binds = []Bind{{From: ws + "2", At: ws}} }},
		{"through a link", "too many levels of symbolic links", func(p *Place, _ *exec.Cmd) { p.Binds = []Bind{{From: ws, At: filepath.Join(s.Dir, "link", "ssl")}} }},
		{"exchanged", "another folder is there now", func(p *Place, _ *exec.Cmd) { p.Binds = []Bind{{From: ws, At: ws, Inode: 1}} }},
		{"port taken", "", func(p *Place, _ *exec.Cmd) { p.Backs = []Back{{Port: 70000}} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("/bin/true")
			p := Place{Owner: privsep.Self, Control: filepath.Join(s.Dir, "c.sock")}
			c.change(&p, cmd)
			err := p.Start(cmd, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
	check(t, Probe(privsep.Self, s.Dir))
	if left := processesOf(t, s.Dir); left != "" {
		t.Errorf("processes are left: %s", left)
	}
}

// TestKilledInit kills a fork's init: everything inside ends with it, a process that went into a session of its own too.
func TestKilledInit(t *testing.T) {
	testkit.Need(t, "root")
	s := newScenario(t, 0, privsep.Self)
	p, _, err := s.place("a")
	check(t, err)
	r, w, err := os.Pipe()
	check(t, err)
	cmd := exec.Command("/bin/sh", "-c", "setsid sh -c 'echo ready; exec sleep 1000' & wait")
	cmd.Stdout = w
	check(t, p.Start(cmd, nil))
	check(t, w.Close())
	line := make([]byte, 6)
	_, err = io.ReadFull(r, line)
	check(t, err)
	check(t, cmd.Process.Signal(unix.SIGKILL))
	_ = cmd.Wait() // by the signal
	// The pipe's last writer was the process in the other session.
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestNothingIsStartedAtTheEnd asks a process that ends all that it started for one more command. Were that started, nobody would end it.
func TestNothingIsStartedAtTheEnd(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	check(t, err)
	if out, err := exec.Command(program, "end-all").CombinedOutput(); err != nil || string(out) != "what runs inside of the fork is being ended" {
		t.Errorf("%s %v", out, err)
	}
}

// endAll starts a command, ends it, and prints the error of starting another one.
func endAll() error {
	in := newInside(plan{})
	sleep := command{Path: "/bin/sleep", Args: []string{"sleep", "100000"}, Dir: "/"}
	if _, err := in.start(sleep, nil, nil); err != nil {
		return err
	}
	if err := in.endAll(); err != nil {
		return err
	}
	pid, err := in.start(sleep, nil, nil)
	if err == nil {
		return errs.New(errs.Internal, "", "process %d was started: %v", pid, unix.Kill(pid, unix.SIGKILL))
	}
	fmt.Print(err)
	return nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
