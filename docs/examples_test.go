package docs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"mulligan/ipc"
	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// TestExamples runs every console block of the README and of some of the other pages that teach by example, in
// one shell per page with a home of its own, and compares what a terminal shows
// with what the page says. In the page, … stands for anything in a line, and a
// line of … for any lines. A comment <!-- before … --> holds commands that set
// the stage, and a command that ends in "# exit N" ends so.
func TestExamples(t *testing.T) {
	if _, err := ipc.NewClient(ipc.HostSocket).Status(t.Context()); err == nil {
		testkit.Lack(t, "mulligand runs on this host, and would get the apps of this test: stop it first (systemctl stop mulligand.socket mulligand)")
	}
	testkit.Need(t, "git", "sqlite3")
	others := []string{"tutorial.md", "how-to/agents.md", "how-to/dev-container.md", "how-to/rescue.md", "how-to/remote.md"}
	pages := []string{"../README.md"}
	for _, i := range testkit.Sample(t, "pages besides the README", len(others), 2) {
		pages = append(pages, others[i])
	}
	for _, page := range pages {
		t.Run(filepath.Base(page), func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			steps := parse(string(text))
			if len(steps) == 0 {
				t.Fatal("there is no example on it")
			}
			if strings.Contains(string(text), "s3://"+s3test.Bucket) { // the page is about a bucket
				server := s3test.Start(t)
				t.Setenv("AWS_ENDPOINT_URL_S3", server.Endpoint)
				t.Setenv("AWS_REGION", "us-east-1")
				t.Setenv("AWS_ACCESS_KEY_ID", s3test.Key)
				t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.Secret)
			}
			sh := newShell(t)
			for _, s := range steps {
				sh.run(s)
			}
		})
	}
}

// step is one command of a page, and what the page says it prints.
type step struct {
	line    int
	command string
	want    []string
	exit    int
	hidden  bool // it sets the stage: what it prints does not matter
}

var exits = regexp.MustCompile(`# exit (\d+)$`)

// parse finds the steps of a page.
func parse(text string) []step {
	var steps []step
	const (
		prose = iota
		console
		before
	)
	in := prose
	for i, line := range strings.Split(text, "\n") {
		last := len(steps) - 1
		switch {
		case in == prose && line == "```console":
			in = console
		case in == prose && line == "<!-- before":
			in = before
			steps = append(steps, step{line: i + 1, hidden: true})
		case in == console && line == "```", in == before && line == "-->":
			in = prose
		case in == before:
			steps[last].command += line + "\n"
		case in == console && strings.HasPrefix(line, "$ "):
			s := step{line: i + 1, command: line[2:] + "\n"}
			if m := exits.FindStringSubmatch(line); m != nil {
				fmt.Sscan(m[1], &s.exit)
			}
			steps = append(steps, s)
		case in == console && strings.HasPrefix(line, "> "):
			steps[last].command += line[2:] + "\n"
		case in == console:
			steps[last].want = append(steps[last].want, line)
		}
	}
	return steps
}

// shell is a bash whose output is a terminal, at the root of the repository.
type shell struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

const marker = "\x01end of step "

func newShell(t *testing.T) *shell {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "mg") // short: a socket is in it
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TERM=xterm", "NO_COLOR=1", "LANG=C.UTF-8", "XDG_RUNTIME_DIR=" + home,
		// git knows no name of the user's, and does not make one up of the host's.
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=user.useConfigOnly", "GIT_CONFIG_VALUE_0=true"}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOFLAGS", "GOPROXY"} { // the home of those is elsewhere
		if v, err := exec.Command("go", "env", name).Output(); err == nil {
			env = append(env, name+"="+strings.TrimSpace(string(v)))
		}
	}
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 50, Cols: 130}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "..", env, tty, tty
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the shell ended with %v", err)
		}
		terminal.Close()
		stopDaemon(t, home)
		os.RemoveAll(home)
	})
	return &shell{t: t, in: in, out: bufio.NewReader(terminal)}
}

// stopDaemon ends the daemon that `mulligan init` started for the home.
func stopDaemon(t *testing.T, home string) {
	cmd := exec.Command("bin/mulligan", "status", "--json", "--socket", filepath.Join(home, "mulligan", "mulligan.sock"))
	cmd.Dir = ".."
	out, err := cmd.Output()
	var st struct{ PID int }
	if err != nil || json.Unmarshal(out, &st) != nil || st.PID == 0 {
		return // none was started
	}
	_ = syscall.Kill(st.PID, syscall.SIGTERM)
	for deadline := time.Now().Add(testkit.Patience); syscall.Kill(st.PID, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("the daemon, pid %d, does not end", st.PID)
			return
		}
	}
}

func (sh *shell) run(s step) {
	sh.t.Helper()
	command := s.command
	if strings.HasPrefix(command, "make test") { // this is it
		command = "make -n test >/dev/null\n"
	}
	if _, err := fmt.Fprintf(sh.in, "{ %s} </dev/null; echo $'\\x01end of step '$?\n", command); err != nil {
		sh.t.Fatal(err)
	}
	var out []string
	for {
		line, err := sh.out.ReadString('\n')
		if err != nil {
			sh.t.Fatalf("line %d: %s: the shell ended: %v", s.line, s.command, err)
		}
		text, end, found := strings.Cut(shown(line), marker)
		if text != "" || !found {
			out = append(out, text)
		}
		if !found {
			continue
		}
		if end != fmt.Sprint(s.exit) {
			sh.t.Fatalf("line %d: %sended with %s, not %d:\n%s", s.line, s.command, end, s.exit, strings.Join(out, "\n"))
		}
		break
	}
	if err := compare(out, s.want); err != nil && !s.hidden && !strings.HasPrefix(s.command, "make ") {
		sh.t.Errorf("line %d: %s%v; it prints\n%s", s.line, s.command, err, strings.Join(out, "\n"))
	}
}

// shown is what a terminal shows of a line: a carriage return writes over it, and the progress of what takes long is erased so.
func shown(line string) string {
	line = strings.TrimRight(line, "\r\n")
	return strings.TrimRight(strings.TrimPrefix(line[strings.LastIndexByte(line, '\r')+1:], "\x1b[K"), " ")
}

func TestShown(t *testing.T) {
	for line, want := range map[string]string{
		"cp-1\r\n": "cp-1", "stop\rstop done \r\n": "stop done", "\r\x1b[K  sent: 1\r\x1b[Kcp-1\r\n": "cp-1", "\r\x1b[K  sent: 1\r\x1b[K\r\n": "",
	} {
		if got := shown(line); got != want {
			t.Errorf("%q is shown as %q, want %q", line, got, want)
		}
	}
}

// compare tells where the output is other than the page says. A page that says
// nothing of it leaves it open.
func compare(got, want []string) error {
	if len(want) == 0 {
		return nil
	}
	for i, w := range want {
		if w == "…" {
			if rest := want[i+1:]; len(rest) > 0 {
				for j := i; j < len(got); j++ {
					if compare(got[j:], rest) == nil {
						return nil
					}
				}
				return fmt.Errorf("%q is nowhere after line %d", rest[0], i)
			}
			return nil
		}
		var re bytes.Buffer
		for k, part := range strings.Split(w, "…") {
			if k > 0 {
				re.WriteString(".*")
			}
			re.WriteString(regexp.QuoteMeta(part))
		}
		if i >= len(got) {
			return fmt.Errorf("there is no %q", w)
		}
		if !regexp.MustCompile("^" + re.String() + "$").MatchString(got[i]) {
			return fmt.Errorf("%q is no %q", got[i], w)
		}
	}
	if len(got) > len(want) {
		return errors.New("it prints more than that")
	}
	return nil
}
