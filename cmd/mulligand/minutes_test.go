package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/testkit"
)

// TestLongFirstMinutes does what a new user does, in a home where nothing is: build, protect a small web app with a database, have Claude Code
// break it, see that it is broken, and take it back. It says how long each step takes; docs/tutorial.md has the figures of one run.
func TestLongFirstMinutes(t *testing.T) {
	testkit.NeedLong(t)
	testkit.Need(t, "git", "sqlite3", "python3", "npm")
	claude := filepath.Join(fromNPM(t, "claude", 240), "@anthropic-ai", "claude-code-linux-x64", "claude")
	home := testkit.TempDir(t)
	source, ws := filepath.Join(home, "mulligan"), filepath.Join(home, "shop")
	m := newModel(t, ws, func(string) {})
	m.command = "rm -rf templates; sqlite3 shop.db 'DROP TABLE orders'"
	port := testkit.Port(t)

	modules := strings.TrimSpace(sh(t, ".", os.Environ(), "go env GOMODCACHE")) // what the network brings is not timed
	run := filepath.Join(home, "run")
	env := []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + run, "GOMODCACHE=" + modules, "GOCACHE=" + filepath.Join(home, "go-build"), "NO_COLOR=1",
		"PATH=" + filepath.Join(source, "bin") + ":" + filepath.Dir(claude) + ":" + os.Getenv("PATH"),
		"ANTHROPIC_BASE_URL=" + m.URL, "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_SANDBOX=1",
	}
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	sh(t, ".", os.Environ(), fmt.Sprintf("git -c safe.directory=* clone -q ../.. %s", source))
	t.Cleanup(func() { // the user's daemon, which init starts
		sh(t, home, env, `pid=$(mulligan status --json | grep -o '"pid":[0-9]*' | cut -d: -f2) && kill "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done`)
	})

	var all time.Duration
	step := func(dir, script string, want ...string) {
		t.Helper()
		began := time.Now()
		out := sh(t, dir, env, script)
		took := time.Since(began)
		all += took
		t.Logf("%6.1f s  %s", took.Seconds(), script)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Fatalf("%s: without %q:\n%s\n%s", script, w, out, m.log())
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(ws, "templates"), 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, ws, env, `git init -q; echo "<h1>orders</h1>" >templates/page.html; echo "as it was" >edit.txt
		sqlite3 shop.db "CREATE TABLE orders (item); INSERT INTO orders VALUES ('apple'), ('pear')"
		git add . && git -c user.name=you -c user.email=you@example.org commit -qm "a shop"`)
	if err := os.WriteFile(filepath.Join(ws, "serve.py"), []byte(`import http.server, sqlite3
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            text = open("templates/page.html").read() + "".join(r[0] for r in sqlite3.connect("shop.db").execute("SELECT item FROM orders"))
            self.send_response(200)
        except Exception as e:
            text = str(e)
            self.send_response(500)
        self.end_headers()
        self.wfile.write(text.encode())
http.server.HTTPServer(("127.0.0.1", `+fmt.Sprint(port)+`), Page).serve_forever()
`), 0o644); err != nil {
		t.Fatal(err)
	}

	step(source, `make build`)
	step(ws, fmt.Sprintf(`mulligan init --yes --auto && mulligan app set run='python3 serve.py' health.url=http://127.0.0.1:%d/`, port), "added")
	step(ws, `mulligan install claude-code`)
	step(ws, `mulligan create --notes 'it works'`)
	eventually(t, "the app answers", func() bool { return strings.Contains(respond(t, port), "200") })
	step(ws, `claude -p "tidy up the project" --dangerously-skip-permissions --output-format text`, "all done")
	if got := respond(t, port); !strings.Contains(got, "500") {
		t.Fatalf("the app was not broken: %s", got)
	}
	step(ws, `mulligan turns`, "tidy up the project", "orders")
	step(ws, `mulligan undo --dry-run || [ $? = 3 ]`, "templates/page.html")
	step(ws, `mulligan undo`, "rolled_back\tyes")
	if got := respond(t, port); !strings.Contains(got, "200") || !strings.Contains(got, "applepear") {
		t.Errorf("the app after: %s", got)
	}
	t.Logf("%6.1f s  all of it", all.Seconds())
}

func sh(t *testing.T, dir string, env []string, script string) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// respond is the status and the body of the app's page.
func respond(t *testing.T, port int) string {
	t.Helper()
	resp, err := http.Get("http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(port)) + "/")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		t.Error(err)
	}
	return b.String()
}
