package daemon_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/daemon/gate"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// served is a daemon that serves TCP on a port of loopback.
type served struct {
	t    *testing.T
	d    *daemon.Daemon
	base string
}

func serveTCP(t *testing.T, opt daemon.Options) *served {
	t.Helper()
	if opt.StateDir == "" {
		opt.StateDir = filepath.Join(t.TempDir(), "state")
	}
	d, err := daemon.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := d.Gate().Close(soon); err != nil {
			t.Error(err)
		}
	})
	if err := d.Gate().Listen("127.0.0.1:0", gate.TLS{}); err != nil {
		t.Fatal(err)
	}
	return &served{t, d, "http://" + d.Gate().Addr().String()}
}

// answer is what came back, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// kind is the kind of error in it; "" where it is none.
func (a answer) kind() errs.Kind {
	var e struct{ Error ipc.ErrorBody }
	_ = json.Unmarshal([]byte(a.body), &e)
	return e.Error.Kind
}

// ask makes a request; headers are pairs. "Host" stands for the request's host.
func (s *served) ask(method, path, body string, headers ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (s *served) token(who ipc.Caller, req ipc.TokenRequest) ipc.NewToken {
	s.t.Helper()
	tok, err := s.d.AddToken(s.t.Context(), who, req)
	if err != nil {
		s.t.Fatal(err)
	}
	return tok
}

func bearer(secret string) []string { return []string{"Authorization", "Bearer " + secret} }

// TestTCPCallers: nobody without credentials; with them, what they are good for.
func TestTCPCallers(t *testing.T) {
	s := serveTCP(t, daemon.Options{})
	ws := workspace(t)
	app, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	read := s.token(root, ipc.TokenRequest{Name: "r"}).Secret
	write := s.token(root, ipc.TokenRequest{Scopes: []ipc.Scope{ipc.ScopeRead, ipc.ScopeWrite}}).Secret
	other := s.token(root, ipc.TokenRequest{Scopes: ipc.Scopes, Apps: []string{"shop"}}).Secret
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		kind                     errs.Kind
	}{
		{"nobody", "GET", "/api/apps", "", nil, 401, errs.Unauthenticated},
		{"nobody, health", "GET", "/healthz", "", nil, 200, ""},
		{"nobody, document", "GET", "/openapi.json", "", nil, 200, ""},
		{"nobody, unknown path", "GET", "/api/x", "", nil, 401, errs.Unauthenticated},
		{"nobody, posting", "POST", "/api/apps", "{}", nil, 401, errs.Unauthenticated},
		{"guest where none are allowed", "GET", "/api/apps", "", []string{"X-Guest-Id", "g1"}, 401, errs.Unauthenticated},
		{"password", "GET", "/api/apps", "", []string{"Authorization", "Basic eDp5"}, 401, errs.Unauthenticated},
		{"made up", "GET", "/api/apps", "", bearer("mlg_0123456789ab_xxxxxxxxxxxxxxxxxxxxxxxxxxx"), 401, errs.Unauthenticated},
		{"cut short", "GET", "/api/apps", "", bearer(read[:len(read)-1]), 401, errs.Unauthenticated},
		{"its id alone", "GET", "/api/apps", "", bearer(read[:17]), 401, errs.Unauthenticated},
		{"reader", "GET", "/api/apps", "", bearer(read), 200, ""},
		{"reader, writing", "POST", "/api/apps/shop/checkpoints", "{}", bearer(read), 403, errs.Denied},
		{"writer", "POST", "/api/apps/shop/checkpoints", "{}", bearer(write), 201, ""},
		{"writer, registering", "DELETE", "/api/apps/shop", "", bearer(write), 403, errs.Denied},
		{"token for tokens", "POST", "/api/tokens", "{}", bearer(other), 403, errs.Denied},
		{"token for the page", "POST", "/api/ui", "", bearer(other), 403, errs.Denied},
		{"for one app, registering", "POST", "/api/apps", `{"slug":"x","workspace":"/tmp/x"}`, bearer(other), 403, errs.Denied},
		{"other name (DNS rebinding)", "GET", "/healthz", "", []string{"Host", "evil.example"}, 403, errs.Denied},
		{"other address", "GET", "/healthz", "", []string{"Host", "192.0.2.7:80"}, 403, errs.Denied},
		{"name of loopback", "GET", "/healthz", "", []string{"Host", "localhost:1"}, 200, ""},
		{"foreign page", "GET", "/api/apps", "", append(bearer(read), "Origin", "http://evil.example"), 403, errs.Denied},
		{"sandboxed page", "GET", "/api/apps", "", append(bearer(read), "Origin", "null"), 403, errs.Denied},
		{"page of another port", "GET", "/api/apps", "", append(bearer(read), "Sec-Fetch-Site", "same-site"), 403, errs.Denied},
		{"own page", "GET", "/api/apps", "", append(bearer(read), "Origin", s.base, "Sec-Fetch-Site", "same-origin"), 200, ""},
		{"preflight", "OPTIONS", "/api/apps", "", []string{"Origin", "http://evil.example", "Access-Control-Request-Method", "POST"}, 403, errs.Denied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.ask(tt.method, tt.path, tt.body, tt.headers...)
			if got.status != tt.status || got.kind() != tt.kind {
				t.Errorf("status %d, want %d: %s", got.status, tt.status, got.body)
			}
			if h := got.header.Get("Access-Control-Allow-Origin"); h != "" {
				t.Errorf("it lets %s read it", h)
			}
		})
	}
	if got := s.ask("GET", "/api/apps/"+string(app.ID), "", bearer(other)...); got.status != 200 {
		t.Errorf("token for the app: %d %s", got.status, got.body)
	}
}

// TestTokenEnds: a token that is revoked or expired is not good, and who is
// connected by it is cut off.
func TestTokenEnds(t *testing.T) {
	var skew atomic.Int64 // the daemon asks for the time in the background too
	s := serveTCP(t, daemon.Options{Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }})
	if _, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: workspace(t)}); err != nil {
		t.Fatal(err)
	}
	tok := s.token(root, ipc.TokenRequest{Expires: "1h"})
	req, _ := http.NewRequestWithContext(t.Context(), "GET", s.base+"/api/apps/shop/events", nil)
	req.Header.Set("Authorization", "Bearer "+tok.Secret)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	if err := s.d.RevokeToken(t.Context(), ipc.Caller{UID: 12345}, tok.ID); errs.KindOf(err) != errs.NotFound {
		t.Errorf("revoked by somebody else: %v", err)
	}
	if err := s.d.RevokeToken(t.Context(), root, tok.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the stream ends with %v", err)
	}
	if got := s.ask("GET", "/api/apps", "", bearer(tok.Secret)...); got.status != 401 {
		t.Errorf("revoked: %d", got.status)
	}
	old := s.token(root, ipc.TokenRequest{Expires: "1h"})
	skew.Add(int64(time.Hour))
	if got := s.ask("GET", "/api/apps", "", bearer(old.Secret)...); got.status != 401 {
		t.Errorf("expired: %d", got.status)
	}
	if list, err := s.d.Tokens(t.Context(), root); err != nil || len(list.Tokens) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestTokensAtRest: the secret is nowhere in the state folder.
func TestTokensAtRest(t *testing.T) {
	dir := t.TempDir()
	s := serveTCP(t, daemon.Options{StateDir: dir})
	tok := s.token(root, ipc.TokenRequest{Name: "findme"})
	names := 0
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), tok.Secret) || strings.Contains(string(b), tok.Secret[17:]) {
			t.Errorf("the secret is in %s", path)
		}
		names += strings.Count(string(b), "findme")
		return err
	})
	if err != nil || names == 0 {
		t.Errorf("the token's name was found %d times, %v", names, err)
	}
}

// TestPage follows a one-time link as a browser would.
func TestPage(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") })
	s := serveTCP(t, daemon.Options{Page: page})
	if _, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: workspace(t)}); err != nil {
		t.Fatal(err)
	}
	link, err := s.d.Gate().Invite(root, "")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(link.URL)
	if err != nil || !strings.HasSuffix(u.Hostname(), ".localhost") {
		t.Fatal(link.URL, err)
	}
	if got := s.ask("GET", u.RequestURI(), ""); got.status != 403 {
		t.Errorf("the code under another name: %d %s", got.status, got.body)
	}
	login := s.ask("GET", u.RequestURI(), "", "Host", u.Host, "Sec-Fetch-Site", "cross-site")
	cookie := login.header.Get("Set-Cookie")
	if login.status != 200 || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") {
		t.Fatalf("login: %d, cookie %q", login.status, cookie)
	}
	cookie, _, _ = strings.Cut(cookie, ";")
	if again := s.ask("GET", u.RequestURI(), "", "Host", u.Host); again.status != 403 || again.header.Get("Set-Cookie") != "" {
		t.Errorf("the code again: %d", again.status)
	}
	with := func(headers ...string) []string {
		return append([]string{"Host", u.Host, "Cookie", cookie}, headers...)
	}
	got := s.ask("GET", "/api/session", "", with()...)
	var session ipc.Session
	if err := json.Unmarshal([]byte(got.body), &session); err != nil || session.User != "root" || session.CSRF == "" {
		t.Fatal(got.body, err)
	}
	for _, tt := range []struct {
		name, method, path string
		headers            []string
		status             int
	}{
		{"the page itself", "GET", "/", []string{"Host", u.Host}, 200},
		{"API without a cookie", "GET", "/api/apps", []string{"Host", u.Host}, 401},
		{"API", "GET", "/api/apps", with(), 200},
		{"under the address", "GET", "/api/apps", []string{"Cookie", cookie}, 401},
		{"from a page of another port", "GET", "/api/apps", with("Sec-Fetch-Site", "same-site"), 403},
		{"change without CSRF", "POST", "/api/apps/shop/checkpoints", with(), 403},
		{"change with a wrong one", "POST", "/api/apps/shop/checkpoints", with("X-CSRF-Token", "x"), 403},
		{"change", "POST", "/api/apps/shop/checkpoints", with("X-CSRF-Token", session.CSRF, "Origin", "http://"+u.Host), 201},
		{"registering", "DELETE", "/api/apps/shop", with("X-CSRF-Token", session.CSRF), 403},
		{"no such path", "GET", "/api/x", with(), 404},
		{"log out", "DELETE", "/api/session", with("X-CSRF-Token", session.CSRF), 204},
		{"afterwards", "GET", "/api/apps", with(), 401},
		{"the page afterwards", "GET", "/", with(), 200},
	} {
		if got := s.ask(tt.method, tt.path, "", tt.headers...); got.status != tt.status {
			t.Errorf("%s: %d, want %d: %s", tt.name, got.status, tt.status, got.body)
		}
	}
}

// TestPageAlone: without TCP a link opens a port for the page, and only for it.
func TestPageAlone(t *testing.T) {
	d, err := daemon.Open(t.Context(), daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), Guests: &daemon.Guests{User: "nobody", Dir: "/nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	defer d.Gate().Close(context.Background())
	link, err := d.Gate().Invite(root, "")
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(link.URL)
	tok, err := d.AddToken(t.Context(), root, ipc.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s := &served{t, d, "http://127.0.0.1:" + u.Port()}
	if got := s.ask("GET", "/api/apps", "", bearer(tok.Secret)...); got.status != 401 {
		t.Errorf("a token: %d", got.status)
	}
	if got := s.ask("GET", "/api/apps", "", "X-Guest-Id", "g"); got.status != 401 {
		t.Errorf("a guest: %d", got.status)
	}
	if got := s.ask("GET", u.RequestURI(), "", "Host", u.Host); got.status != 200 {
		t.Errorf("the link: %d %s", got.status, got.body)
	}
}

// portOf returns the port of a link, and its host.
func portOf(t *testing.T, link string) (host, port string) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname(), u.Port()
}

// loopbacks returns the addresses of the loopback that this host has.
func loopbacks() []string {
	if testkit.IPv6() {
		return []string{"127.0.0.1", "::1"}
	}
	return []string{"127.0.0.1"}
}

// TestNobodyPosesAsThePage: browsers look for names below .localhost at both addresses of the loopback, ::1 first, so a link leads to a port
// of which the daemon has both.
func TestNobodyPosesAsThePage(t *testing.T) {
	has := func(t *testing.T, d *daemon.Daemon) {
		t.Helper()
		link, err := d.Gate().Invite(root, "")
		if err != nil {
			t.Fatal(err)
		}
		host, port := portOf(t, link.URL)
		if !strings.HasSuffix(host, ".localhost") {
			t.Fatal(link.URL)
		}
		for _, addr := range loopbacks() {
			addr = net.JoinHostPort(addr, port)
			if l, err := net.Listen("tcp", addr); !errors.Is(err, unix.EADDRINUSE) {
				if err == nil {
					l.Close()
				}
				t.Errorf("another program may listen at %s: %v", addr, err)
			}
			if got := (&served{t, d, "http://" + addr}).ask("GET", "/login?code=none", "", "Host", net.JoinHostPort(host, port)); got.status != 403 {
				t.Errorf("%s answers %d: %s", addr, got.status, got.body)
			}
		}
	}
	open := func(t *testing.T) *daemon.Daemon {
		t.Helper()
		d, err := daemon.Open(t.Context(), daemon.Options{StateDir: filepath.Join(t.TempDir(), "state")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			d.Gate().Close(context.Background())
			d.Close(context.Background())
		})
		return d
	}
	t.Run("alone", func(t *testing.T) { has(t, open(t)) })
	for _, host := range append(loopbacks(), "localhost") {
		t.Run("serves "+host, func(t *testing.T) {
			d := open(t)
			if err := d.Gate().Listen(net.JoinHostPort(host, strconv.Itoa(testkit.Port(t))), gate.TLS{}); err != nil {
				t.Fatal(err)
			}
			has(t, d)
			if link, err := d.Gate().Invite(root, ""); err != nil || !strings.Contains(link.URL, ".localhost:"+strconv.Itoa(d.Gate().Addr().(*net.TCPAddr).Port)+"/") {
				t.Errorf("%v serves, and the link is %s, %v", d.Gate().Addr(), link.URL, err)
			}
		})
	}
	t.Run("another program was there before", func(t *testing.T) {
		if !testkit.IPv6() {
			testkit.Lack(t, "this host has no ::1")
		}
		port := strconv.Itoa(testkit.Port(t))
		other, err := net.Listen("tcp", net.JoinHostPort("::1", port))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		d := open(t)
		if err := d.Gate().Listen("127.0.0.1:"+port, gate.TLS{}); err != nil {
			t.Fatal(err)
		}
		has(t, d)
		link, err := d.Gate().Invite(root, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, at := portOf(t, link.URL); at == port {
			t.Errorf("the link leads to the port at which another program listens: %s", link.URL)
		}
	})
	t.Run("an address that .localhost does not have", func(t *testing.T) {
		d := open(t)
		if err := d.Gate().Listen("127.0.0.2:0", gate.TLS{}); err != nil {
			t.Fatal(err)
		}
		has(t, d)
	})
}

// TestSessionsOfTakenPort: where another program has the daemon's port at the start, the sessions of the last process are over, also once the daemon
// has the port again: that program could have passed the proof of a page on.
func TestSessionsOfTakenPort(t *testing.T) {
	other, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.Port(t))))
	check(t, err)
	defer other.Close()
	state := filepath.Join(t.TempDir(), "state")
	d, err := daemon.Open(t.Context(), daemon.Options{StateDir: state})
	check(t, err)
	defer d.Close(context.Background())
	defer d.Gate().Close(context.Background())
	addr, file := other.Addr().String(), filepath.Join(state, "page.json")
	_, port, _ := net.SplitHostPort(addr)
	check(t, os.WriteFile(file, []byte(`{"port": `+port+`, "sessions": [{"key": "k", "cookie_sha256": "`+strings.Repeat("ab", 32)+`", "expires_at": "2999-01-01T00:00:00Z"}]}`), 0o600))
	d.Gate().Provide(addr, gate.TLS{})
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the sessions are still recorded: %v", err)
	}
	if p := d.Gate().Problem(); !strings.Contains(p, addr) || !strings.Contains(p, "in use") {
		t.Errorf("the problem is %q", p)
	}
	check(t, other.Close())
	testkit.Eventually(t, "the daemon has its port", func() bool { return d.Gate().Addr() != nil && d.Gate().Problem() == "" })
}

// TestSlowClients: clients that say nothing, or half of something, take all the
// connections there are; one that speaks is answered nevertheless.
func TestSlowClients(t *testing.T) {
	s := serveTCP(t, daemon.Options{})
	tok := s.token(root, ipc.TokenRequest{}).Secret
	addr := s.d.Gate().Addr().String()
	for i := range 600 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		text := []string{"", "GET /healthz HTT", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: "}[i%3]
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.ask("GET", "/api/apps", "", bearer(tok)...); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	// Half a body is answered too, since nobody knows who sends it.
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 401 {
		t.Error(resp, err)
	}
}

// testRefusedClientsHoldNothing: clients without credentials that send half a
// request, or do not read their answers, hold more connections than there are.
// Who has a token is answered meanwhile, and so is the socket; nobody who was
// being answered is cut off.
func testRefusedClientsHoldNothing(t *testing.T) {
	guests := &daemon.Guests{User: "nobody", Dir: t.TempDir()}
	for name, text := range map[string]string{
		"bodies that don't come":      "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
		"large bodies that don't":     "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
		"chunks that don't":           "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		"a token that is made up":     "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer mlg_0123456789ab_x\r\nContent-Length: 1000\r\n\r\n{",
		"another host's name":         "POST /api/apps HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000\r\n\r\n{",
		"bodies for what anybody may": "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
		"guests whose bodies don't":   "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nX-Guest-Id: %d\r\nContent-Length: 1000\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTCP(t, daemon.Options{Guests: guests})
			socket := serveSocket(t, s.d)
			if _, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: workspace(t)}); err != nil {
				t.Fatal(err)
			}
			tok := s.token(root, ipc.TokenRequest{Scopes: ipc.Scopes}).Secret
			events := s.follow("/api/apps/shop/events", tok)
			for i := range 320 {
				said := text
				if strings.Contains(text, "%d") {
					said = fmt.Sprintf(text, i)
				}
				s.hang(said)
				if i%64 != 63 {
					continue
				}
				if got := s.ask("POST", "/api/apps/shop/checkpoints", "{}", bearer(tok)...); got.status != 201 {
					t.Fatalf("beside %d others, who has a token: %d %s", i+1, got.status, got.body)
				}
				if _, err := socket.Apps(t.Context()); err != nil {
					t.Fatalf("beside %d others, the socket: %v", i+1, err)
				}
			}
			for range 5 {
				for line := ""; !strings.HasPrefix(line, "event: checkpoint"); {
					var err error
					if line, err = events.ReadString('\n'); err != nil {
						t.Fatalf("who was listening: %v", err)
					}
				}
			}
		})
	}
}

// hang opens a connection, says something on it, reads no answer, and stays
// until the test is over.
func (s *served) hang(text string) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.d.Gate().Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		s.t.Fatal(err)
	}
	_, _ = io.WriteString(conn, text) // it may be cut off already
}

// follow opens a stream of events.
func (s *served) follow(path, token string) *bufio.Reader {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "GET", s.base+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || resp.StatusCode != 200 {
		s.t.Fatal(resp, err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return bufio.NewReader(resp.Body)
}

// serveSocket serves a daemon on a socket, too.
func serveSocket(t *testing.T, d *daemon.Daemon) *ipc.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := ipc.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	srv := ipc.NewHTTPServer(d.Handler(), ipc.NewConns(100, 100))
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return ipc.NewClient(path)
}

// TestRefusedClientIsLetGo: a refusal ends the connection without the body that
// was promised, and a client that sends all of its body reads the refusal.
func TestRefusedClientIsLetGo(t *testing.T) {
	s := serveTCP(t, daemon.Options{})
	for _, sent := range []string{"", "{", strings.Repeat(" ", 100_000)} {
		conn, err := net.Dial("tcp", s.d.Gate().Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /api/apps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n%s", sent)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 401 || !resp.Close {
			t.Fatal(resp, err)
		}
		var e struct{ Error ipc.ErrorBody }
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Error.Kind != errs.Unauthenticated {
			t.Fatal(e, err)
		}
		// The body's own time is 30 s: who waits for that is not let go.
		if err := conn.SetReadDeadline(time.Now().Add(25 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %d bytes the connection is still held", len(sent))
		}
	}
	if got := s.ask("POST", "/api/apps", strings.Repeat(" ", 200_000)); got.status != 401 || got.kind() != errs.Unauthenticated {
		t.Errorf("with its body: %d %s", got.status, got.body)
	}
}

// prove returns the proof that a page has its session's key.
func prove(key, challenge string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(challenge))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// TestSessionsOfTwoPorts: while another program has the daemon's port, the page is at a port of its own. A session from there is not
// continued by the next process at the daemon's port, which is all that this opens: whoever has the page's own port by then could have passed
// the proof on. A session from the daemon's port is.
func TestSessionsOfTwoPorts(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", testkit.Port(t))
	other, err := net.Listen("tcp", addr)
	check(t, err)
	defer other.Close()
	opt := daemon.Options{StateDir: filepath.Join(t.TempDir(), "state")}
	d, err := daemon.Open(t.Context(), opt)
	check(t, err)
	s := &served{t: t, d: d}
	d.Gate().Provide(addr, gate.TLS{})
	type login struct{ base, host, cookie, key string }
	logIn := func() login {
		t.Helper()
		link, err := d.Gate().Invite(root, "")
		check(t, err)
		u, err := url.Parse(link.URL)
		check(t, err)
		s.base = "http://127.0.0.1:" + u.Port()
		cookie, _, _ := strings.Cut(s.ask("GET", u.RequestURI(), "", "Host", u.Host).header.Get("Set-Cookie"), ";")
		var v ipc.Session
		check(t, json.Unmarshal([]byte(s.ask("GET", "/api/session", "", "Host", u.Host, "Cookie", cookie).body), &v))
		return login{s.base, u.Host, cookie, v.Key}
	}
	first := logIn()
	check(t, other.Close())
	testkit.Eventually(t, "the daemon has its port", func() bool { return d.Gate().Addr() != nil && d.Gate().Problem() == "" })
	second := logIn()
	if first.base == "http://"+addr || second.base != "http://"+addr || first.key == "" || second.key == "" {
		t.Fatalf("the sessions are %+v and %+v", first, second)
	}
	check(t, d.Close(context.Background()))
	check(t, d.Gate().Close(context.Background()))

	d, err = daemon.Open(t.Context(), opt)
	check(t, err)
	defer d.Close(context.Background())
	defer d.Gate().Close(context.Background())
	check(t, d.Gate().Listen(addr, gate.TLS{}))
	s.d = d
	for _, c := range []struct {
		login
		status int
	}{{first, 401}, {second, 204}} {
		got := s.ask("POST", "/resume", "", "Host", c.host, "Cookie", c.cookie, "X-Resume-Proof", prove(c.key, s.ask("GET", "/resume", "").body))
		if got.status != c.status {
			t.Errorf("the session from %s: %d, want %d: %s", c.base, got.status, c.status, got.body)
		}
	}
}

// TestPageOverARestart: the next process of the daemon has the page at the same port, and continues a session only for its page.
func TestPageOverARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var now atomic.Int64
	now.Store(time.Now().Unix())
	opt := daemon.Options{StateDir: dir, User: true, Now: func() time.Time { return time.Unix(now.Load(), 0) }}
	var s *served
	stop := func() {
		t.Helper()
		for _, err := range []error{s.d.Close(context.Background()), s.d.Gate().Close(context.Background())} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	start := func() error {
		t.Helper()
		d, err := daemon.Open(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		s = &served{t: t, d: d}
		return d.Gate().Resume()
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	link, err := s.d.Gate().Invite(root, "")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://127.0.0.1:" + u.Port()
	s.base = base
	login := s.ask("GET", u.RequestURI(), "", "Host", u.Host)
	cookie, _, _ := strings.Cut(login.header.Get("Set-Cookie"), ";")
	session := func() (v ipc.Session) {
		t.Helper()
		got := s.ask("GET", "/api/session", "", "Host", u.Host, "Cookie", cookie)
		if err := json.Unmarshal([]byte(got.body), &v); err != nil || got.status != 200 {
			t.Fatalf("%d %s %v", got.status, got.body, err)
		}
		return v
	}
	first := session()
	oldProof := prove(first.Key, s.ask("GET", "/resume", "").body)
	record := filepath.Join(dir, "page.json")
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	_, secret, _ := strings.Cut(cookie, "=")
	if fi, err := os.Stat(record); err != nil || fi.Mode().Perm() != 0o600 || strings.Contains(string(text), secret) {
		t.Errorf("the record has mode %v (%v), and the cookie: %t", fi.Mode(), err, strings.Contains(string(text), secret))
	}

	stop()
	if err := start(); err != nil {
		t.Fatal(err)
	}
	s.base = base
	challenge := s.ask("GET", "/resume", "").body
	refused := func(what string, headers ...string) {
		t.Helper()
		if got := s.ask("POST", "/resume", "", append([]string{"Host", u.Host}, headers...)...); got.status == 204 || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s resumes the session: %d", what, got.status)
		}
	}
	if got := s.ask("GET", "/api/status", "", "Host", u.Host, "Cookie", cookie); got.status != 401 {
		t.Errorf("the cookie alone: %d", got.status)
	}
	refused("the cookie alone", "Cookie", cookie)
	refused("the CSRF token", "Cookie", cookie, "X-Resume-Proof", prove(first.CSRF, challenge))
	refused("a proof for the process before", "Cookie", cookie, "X-Resume-Proof", oldProof)
	refused("a proof without the cookie", "X-Resume-Proof", prove(first.Key, challenge))
	refused("a proof under another name", "Host", "m0.localhost", "Cookie", cookie, "X-Resume-Proof", prove(first.Key, challenge))
	refused("a page of another origin", "Origin", "http://127.0.0.1:1", "Cookie", cookie, "X-Resume-Proof", prove(first.Key, challenge))
	got := s.ask("POST", "/resume", "", "Host", u.Host, "Cookie", cookie, "X-Resume-Proof", prove(first.Key, challenge))
	if got.status != 204 {
		t.Fatalf("the page's proof: %d %s", got.status, got.body)
	}
	seen := cookie
	cookie, _, _ = strings.Cut(got.header.Get("Set-Cookie"), ";")
	if second := session(); second != first {
		t.Errorf("the session was %+v, is %+v", first, second)
	}
	if got := s.ask("GET", "/api/status", "", "Host", u.Host, "Cookie", seen); got.status != 401 {
		t.Errorf("the cookie from before the restart: %d", got.status)
	}

	// It ends when it would have ended.
	stop()
	now.Add(13 * 3600)
	if err := start(); err != nil {
		t.Fatal(err)
	}
	s.base = base
	if got := s.ask("POST", "/resume", "", "Host", u.Host, "Cookie", cookie, "X-Resume-Proof", prove(first.Key, s.ask("GET", "/resume", "").body)); got.status != 401 {
		t.Errorf("after its time: %d", got.status)
	}
	stop()

	// Who takes the port ends the sessions.
	now.Add(-13 * 3600)
	l, err := net.Listen("tcp", "127.0.0.1:"+u.Port())
	if err != nil {
		t.Fatal(err)
	}
	if err := start(); errs.KindOf(err) != errs.Unavailable {
		t.Errorf("with the port taken: %v", err)
	}
	stop()
	l.Close()
	if _, err := os.Stat(record); !os.IsNotExist(err) {
		t.Errorf("the sessions are still recorded: %v", err)
	}
}

// TestLoggedOutOverARestart: a session that a person ended does not come back.
func TestLoggedOutOverARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := serveTCP(t, daemon.Options{StateDir: dir})
	link, err := s.d.Gate().Invite(root, "")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	login := s.ask("GET", u.RequestURI(), "", "Host", u.Host)
	cookie, _, _ := strings.Cut(login.header.Get("Set-Cookie"), ";")
	var session ipc.Session
	if err := json.Unmarshal([]byte(s.ask("GET", "/api/session", "", "Host", u.Host, "Cookie", cookie).body), &session); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "page.json")); err != nil {
		t.Error(err)
	}
	if got := s.ask("DELETE", "/api/session", "", "Host", u.Host, "Cookie", cookie, "X-CSRF-Token", session.CSRF); got.status != 204 {
		t.Fatal(got.status, got.body)
	}
	if _, err := os.Stat(filepath.Join(dir, "page.json")); !os.IsNotExist(err) {
		t.Errorf("the session is still recorded: %v", err)
	}
}
