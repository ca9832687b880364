package daemon_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/testkit"
)

// The two users are accounts that every Debian has and nobody uses.
const (
	aliceUID = 5 // games
	bobUID   = 9 // news
)

func account(uid int) privsep.User { return privsep.User{UID: uid, GID: uid} }

// as runs a shell's command as a user; "$1" and so on are args.
func as(uid int, command string, args ...string) error {
	cmd := exec.Command("/bin/sh", append([]string{"-euc", "umask 022; " + command, "sh"}, args...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := account(uid).Run(cmd, privsep.Options{}); err != nil {
		return fmt.Errorf("%w: %s", err, &said)
	}
	return nil
}

// person asks the daemon as somebody.
type person struct {
	t       *testing.T
	name    string
	base    string
	headers []string
	client  *http.Client
	slug    string
	ws      string
	app     ipc.App
	cp      ipc.Checkpoint
}

func (p *person) ask(method, path string, body any, headers ...string) answer {
	p.t.Helper()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			p.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), testkit.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	for h := append(slices.Clone(p.headers), headers...); len(h) > 1; h = h[2:] {
		req.Header.Set(h[0], h[1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		p.t.Fatalf("%s: %s %s: %v", p.name, method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// must asks for what is the person's own to ask for.
func (p *person) must(method, path string, body, into any) {
	p.t.Helper()
	a := p.ask(method, path, body)
	if a.status >= 300 {
		p.t.Fatalf("%s: %s %s: %d %s", p.name, method, path, a.status, a.body)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(a.body), into); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *person) own(rest string) string { return "/api/apps/" + p.slug + rest }

// town is a host's daemon with its people.
type town struct {
	*served
	dir, socket string
	people      map[string]*person
	tried       int
}

func newTown(t *testing.T) *town { return newTownWith(t) }

// newTownWith is newTown, whose daemon has credentials for buckets.
func newTownWith(t *testing.T, buckets ...daemon.Bucket) *town {
	testkit.Need(t, "root")
	dir, err := os.MkdirTemp("/var/tmp", "town")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []struct {
		name string
		mode os.FileMode
		uid  int
	}{{"", 0o755, 0}, {"alice", 0o700, aliceUID}, {"bob", 0o755, bobUID}, {"guests", 0o755, 0}, {"shared", 0o777, 0}} {
		path := filepath.Join(dir, d.name)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, d.mode), os.Chown(path, d.uid, d.uid)); err != nil {
			t.Fatal(err)
		}
	}
	s := serveTCP(t, daemon.Options{Buckets: buckets, UpkeepEvery: 50 * time.Millisecond, Guests: &daemon.Guests{User: "nobody", Dir: filepath.Join(dir, "guests")}})
	tw := &town{served: s, dir: dir, socket: filepath.Join(dir, "s"), people: map[string]*person{}}
	l, err := ipc.Listen(tw.socket, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	conns := ipc.NewConns(1000, 100)
	srv := ipc.NewHTTPServer(s.d.Handler(), conns)
	go srv.Serve(conns.Listen(l))
	t.Cleanup(func() { srv.Close() })
	return tw
}

// onSocket is a user on the socket.
func (tw *town) onSocket(name string, uid int) *person {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return account(uid).Dial(ctx, "unix", tw.socket)
	}
	p := &person{t: tw.t, name: name, base: "http://x", slug: "app-of-" + name, client: &http.Client{Transport: &http.Transport{DialContext: dial}}}
	tw.people[name] = p
	return p
}

func (tw *town) onTCP(name string, headers ...string) *person {
	p := &person{t: tw.t, name: name, base: tw.base, slug: "app-of-" + name, headers: headers, client: http.DefaultClient}
	tw.people[name] = p
	return p
}

// settle registers an app for a person, with secrets in it, and a checkpoint.
func (tw *town) settle(p *person, uid int, ws string) {
	tw.t.Helper()
	p.ws = ws
	secret := "secret-of-" + p.name + "\n"
	err := errors.Join(os.MkdirAll(filepath.Join(ws, "sub"), 0o755), os.WriteFile(filepath.Join(ws, "private"), []byte(secret), 0o600),
		os.WriteFile(filepath.Join(ws, "sub", "private"), []byte(secret), 0o600))
	if err != nil {
		tw.t.Fatal(err)
	}
	makeDB(tw.t, filepath.Join(ws, "data.db"), secret)
	chownAll(tw.t, ws, uid)
	p.must("POST", "/api/apps", ipc.App{Slug: p.slug, Workspace: ws, Databases: []ipc.Database{{Name: "main", Driver: "sqlite", DSN: "data.db"}}}, &p.app)
	p.must("POST", p.own("/checkpoints"), ipc.CreateRequest{Notes: "note-of-" + p.name}, &p.cp)
	p.must("POST", p.own("/turns"), ipc.BeginTurn{TurnID: "turn-of-" + ipc.TurnID(p.name)}, nil)
}

func makeDB(t *testing.T, path, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE t (x); INSERT INTO t VALUES (?)`, text); err != nil {
		t.Fatal(err)
	}
}

func chownAll(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// refused counts an attempt and makes sure that it came to nothing: the answer
// is one of those statuses, and holds nothing of the victim's.
func (tw *town) refused(who *person, what string, victim *person, got answer, statuses ...int) {
	tw.t.Helper()
	tw.tried++
	if !slices.Contains(statuses, got.status) {
		tw.t.Errorf("%s tried %s: status %d, want %v: %.300s", who.name, what, got.status, statuses, got.body)
	}
	if victim != nil {
		secrets := []string{"secret-of-" + victim.name, "note-of-" + victim.name, "turn-of-" + victim.name}
		if !strings.Contains(got.body, `workspace \"`) { // else it repeats what was asked for
			secrets = append(secrets, victim.ws)
		}
		for _, secret := range secrets {
			if !strings.Contains(what, secret) && strings.Contains(got.body, secret) {
				tw.t.Errorf("%s tried %s and was told %q: %.300s", who.name, what, secret, got.body)
			}
		}
	}
	var e struct{ Error ipc.ErrorBody }
	_ = json.Unmarshal([]byte(got.body), &e)
	tw.t.Logf("%3d. %s tried %s: %d %s", tw.tried, who.name, what, got.status, e.Error.Message)
}

// TestOwners has two users and two guests on one daemon, over its socket and
// TCP, each trying to get at what is another's.
func TestOwners(t *testing.T) {
	tw := newTown(t)
	alice, bob := tw.onSocket("alice", aliceUID), tw.onSocket("bob", bobUID)
	gina, gus := tw.onTCP("gina", "X-Guest-Id", "gina"), tw.onTCP("gus", "X-Guest-Id", "gus")
	tw.settle(alice, aliceUID, filepath.Join(tw.dir, "alice", "ws"))
	tw.settle(bob, bobUID, filepath.Join(tw.dir, "bob", "ws"))
	tw.settle(gina, 65534, filepath.Join(tw.dir, "guests", "gina", "ws"))
	tw.settle(gus, 65534, filepath.Join(tw.dir, "guests", "gus", "ws"))
	var tok ipc.NewToken
	bob.must("POST", "/api/tokens", ipc.TokenRequest{Scopes: []ipc.Scope{ipc.ScopeRead, ipc.ScopeWrite, ipc.ScopeManage}}, &tok)
	token := tw.onTCP("bob's token", bearer(tok.Secret)...)
	token.slug, token.cp, token.ws = bob.slug, bob.cp, bob.ws

	for _, pair := range [][2]*person{{bob, alice}, {token, alice}, {gina, alice}, {gus, gina}, {alice, gina}} {
		tw.reach(pair[0], pair[1])
	}
	tw.crossing(bob, alice)
	tw.tokens(bob, alice)
	tw.registering(bob, alice)
	tw.guestRegistering(gus, gina, alice)
	tw.measuring(bob, alice)
	for _, p := range []*person{alice, bob, gina, gus} {
		tw.intact(p)
	}
	t.Logf("%d attempts, none succeeded", tw.tried)
	if tw.tried < 60 {
		t.Errorf("only %d attempts were made", tw.tried)
	}
}

// intact makes sure that nothing of a person's was changed.
func (tw *town) intact(p *person) {
	tw.t.Helper()
	for _, name := range []string{"private", "sub/private"} {
		if b, err := os.ReadFile(filepath.Join(p.ws, name)); err != nil || string(b) != "secret-of-"+p.name+"\n" {
			tw.t.Errorf("%s's %s is %q, %v", p.name, name, b, err)
		}
	}
	var list ipc.CheckpointList
	p.must("GET", p.own("/checkpoints"), nil, &list)
	if len(list.Checkpoints) != 1 || list.Checkpoints[0].ID != p.cp.ID || list.Checkpoints[0].Pinned {
		tw.t.Errorf("%s's checkpoints: %+v", p.name, list.Checkpoints)
	}
	var audit ipc.AuditList
	p.must("GET", p.own("/audit"), nil, &audit)
	first, _, _ := strings.Cut(audit.Entries[len(audit.Entries)-1].Actor, " (")
	for _, e := range audit.Entries {
		if actor, _, _ := strings.Cut(e.Actor, " ("); actor != first {
			tw.t.Errorf("%s's audit trail tells of %s by %s", p.name, e.Action, e.Actor)
		}
	}
}

// reach tries every path of the API on an app that is another's, by its id and
// its slug, and compares with an app that is nowhere.
func (tw *town) reach(who, victim *person) {
	tw.t.Helper()
	cp := "/checkpoints/" + string(victim.cp.ID)
	for _, try := range []struct {
		method, rest string
		body         any
		headers      []string
	}{
		{"GET", "", nil, nil}, {"PATCH", "", ipc.AppChange{Run: &[]string{"id"}}, nil}, {"DELETE", "?purge=1", nil, nil},
		{"GET", "/checkpoints", nil, nil}, {"POST", "/checkpoints", ipc.CreateRequest{}, nil}, {"POST", "/checkpoints/prune", nil, nil},
		{"GET", cp, nil, nil}, {"DELETE", cp, nil, nil}, {"POST", cp + "/pin", nil, nil}, {"POST", cp + "/unpin", nil, nil},
		{"POST", cp + "/verify", nil, nil}, {"GET", cp + "/diff?patch=1", nil, nil},
		{"POST", cp + "/rollback", ipc.RollbackRequest{}, nil}, {"POST", cp + "/rollback", ipc.RollbackRequest{DryRun: true}, nil},
		{"POST", cp + "/rollback", ipc.RollbackRequest{}, []string{"Accept", "text/event-stream"}},
		{"GET", "/turns", nil, nil}, {"POST", "/turns", ipc.BeginTurn{}, nil}, {"POST", "/turns/turn-of-" + victim.name + "/end", nil, nil},
		{"GET", "/audit?verify=1", nil, nil}, {"GET", "/events", nil, nil},
	} {
		for _, ref := range []string{string(victim.app.ID), victim.slug} {
			got := who.ask(try.method, "/api/apps/"+ref+try.rest, try.body, try.headers...)
			tw.refused(who, fmt.Sprintf("%s %s's %s%s", try.method, victim.name, ref, try.rest), victim, got, 404)
			nowhere := "app-ffffffffffff"
			none := who.ask(try.method, "/api/apps/"+nowhere+try.rest, try.body, try.headers...)
			if a, b := strings.ReplaceAll(got.body, ref, "X"), strings.ReplaceAll(none.body, nowhere, "X"); a != b || got.status != none.status {
				tw.t.Errorf("%s learns that %s is there: %q and not %q", who.name, ref, a, b)
			}
		}
	}
	var apps ipc.AppList
	who.must("GET", "/api/apps", nil, &apps)
	for _, a := range apps.Apps {
		if a.ID == victim.app.ID {
			tw.t.Errorf("%s's list shows %s", who.name, victim.slug)
		}
	}
	var status ipc.Status
	who.must("GET", "/api/status", nil, &status)
	if status.Apps != 1 {
		tw.t.Errorf("%s's status counts %d apps", who.name, status.Apps)
	}
}

// crossing uses an app of one's own to reach another's checkpoint.
func (tw *town) crossing(who, victim *person) {
	theirs, ours := string(victim.cp.ID), string(who.cp.ID)
	for _, try := range [][2]string{
		{"GET", "/checkpoints/" + theirs}, {"DELETE", "/checkpoints/" + theirs}, {"POST", "/checkpoints/" + theirs + "/pin"},
		{"POST", "/checkpoints/" + theirs + "/verify"}, {"POST", "/checkpoints/" + theirs + "/rollback"},
		{"GET", "/checkpoints/" + theirs + "/diff?patch=1"}, {"GET", "/checkpoints/" + ours + "/diff?patch=1&against=" + theirs},
		{"GET", "/checkpoints?before=" + theirs}, {"POST", "/turns/turn-of-" + victim.name + "/end"},
		{"GET", "/checkpoints/" + ours + "/..%2f..%2f" + victim.slug},
	} {
		tw.refused(who, try[0]+" own app"+try[1], victim, who.ask(try[0], who.own(try[1]), nil), 404)
	}
}

// tokens tries to see, to end and to forge another's tokens.
func (tw *town) tokens(who, victim *person) {
	var tok ipc.NewToken
	victim.must("POST", "/api/tokens", ipc.TokenRequest{Name: "note-of-" + victim.name}, &tok)
	tw.refused(who, "to revoke "+victim.name+"'s token", victim, who.ask("DELETE", "/api/tokens/"+string(tok.ID), nil), 404)
	list := who.ask("GET", "/api/tokens", nil)
	tw.refused(who, "to list tokens", victim, list, 200)
	forged := tw.onTCP("forger", bearer("mlg_"+strings.TrimPrefix(string(tok.ID), "tk-")+"_"+strings.Repeat("A", 43))...)
	tw.refused(forged, "a secret made up for "+victim.name+"'s token", victim, forged.ask("GET", "/api/apps", nil), 401)
	tw.refused(who, "a token of the scope metrics", nil, who.ask("POST", "/api/tokens", ipc.TokenRequest{Scopes: []ipc.Scope{ipc.ScopeMetrics}}), 403)
	tw.refused(who, "a token for "+victim.name+"'s app", victim, who.ask("POST", "/api/tokens", ipc.TokenRequest{Apps: []string{string(victim.app.ID)}}), 404)
	tw.refused(who, "metrics of all", nil, who.ask("GET", "/metrics", nil), 403, 404)
}

// registering tries to have the daemon reach what the user could not.
func (tw *town) registering(who, victim *person) {
	t := tw.t
	home := filepath.Join(tw.dir, "bob")
	folder := func(name string) string {
		path := filepath.Join(home, name)
		if err := as(bobUID, `mkdir "$1"`, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(name, to string) string {
		path := filepath.Join(home, name)
		if err := as(bobUID, `ln -s "$1" "$2"`, to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine := folder("mine")
	link("mine/db", filepath.Join(victim.ws, "data.db"))
	if err := as(bobUID, `ln "$1" "$2"`, filepath.Join(victim.ws, "private"), filepath.Join(mine, "hard")); err == nil {
		t.Error("the kernel lets anybody link anything")
	}
	open := filepath.Join(tw.dir, "open") // the victim's, but everybody may look into it
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chown(open, aliceUID, aliceUID)); err != nil {
		t.Fatal(err)
	}
	sqlite := func(dsn string) []ipc.Database { return []ipc.Database{{Name: "x", Driver: "sqlite", DSN: dsn}} }
	for _, try := range []struct {
		what string
		app  ipc.App
	}{
		{"to register the victim's folder", ipc.App{Workspace: victim.ws}},
		{"to register a folder in it", ipc.App{Workspace: filepath.Join(victim.ws, "sub")}},
		{"to register a folder above it", ipc.App{Workspace: filepath.Join(tw.dir, "alice")}},
		{"to learn whether a folder of the victim's exists", ipc.App{Workspace: filepath.Join(tw.dir, "alice", "nothing")}},
		{"to register it through a link", ipc.App{Workspace: link("to-alice", victim.ws)}},
		{"to register it through a link on the way", ipc.App{Workspace: filepath.Join(link("to-home", filepath.Join(tw.dir, "alice")), "ws")}},
		{"to register an open folder of the victim's", ipc.App{Workspace: open}},
		{"a database in it", ipc.App{Workspace: mine, Databases: sqlite(filepath.Join(open, "data.db"))}},
		{"to register the shared folder", ipc.App{Workspace: filepath.Join(tw.dir, "shared")}},
		{"to register /etc", ipc.App{Workspace: "/etc/cron.d"}},
		{"to register for the victim", ipc.App{Workspace: mine, Owner: "games"}},
		{"to register for root", ipc.App{Workspace: mine, Owner: "root"}},
		{"to register for a guest", ipc.App{Workspace: mine, Owner: "guest:gina"}},
		{"a unit", ipc.App{Workspace: mine, Unit: "ssh.service"}},
		{"a domain", ipc.App{Workspace: mine, Domain: "vm"}},
		{"the victim's database by its path", ipc.App{Workspace: mine, Databases: sqlite(filepath.Join(victim.ws, "data.db"))}},
		{"the victim's database through a linked folder", ipc.App{Workspace: mine, Databases: sqlite(filepath.Join(home, "to-alice", "data.db"))}},
		{"a cluster's files", ipc.App{Workspace: mine, Databases: []ipc.Database{{Name: "x", Driver: "postgres", DSN: "postgres:///x", Mode: "physical"}}}},
		{"a cluster's unit", ipc.App{Workspace: mine, Databases: []ipc.Database{{Name: "x", Driver: "postgres", DSN: "postgres:///x", DataDir: "/var/lib/postgresql", Unit: "ssh.service"}}}},
		{"a health url of another host", ipc.App{Workspace: mine, Health: &ipc.Health{URL: "http://169.254.169.254/latest/"}}},
		{"a health url of a name", ipc.App{Workspace: mine, Health: &ipc.Health{URL: "http://localhost.evil.example/"}}},
		{"mulligan's own state", ipc.App{Workspace: "/var/lib/mulligan"}},
	} {
		try.app.Slug = "grab"
		tw.refused(who, try.what, victim, who.ask("POST", "/api/apps", try.app), 400, 403, 404)
	}
	tw.refused(who, "another's database, once registered", victim, who.ask("PATCH", who.own(""),
		ipc.AppChange{Databases: ptr(sqlite(filepath.Join(victim.ws, "data.db")))}), 403)
	tw.refused(who, "a unit, once registered", victim, who.ask("PATCH", who.own(""), ipc.AppChange{Unit: ptr("ssh.service")}), 403)
	// The slug that the victim has is free to everybody else.
	who.must("POST", "/api/apps", ipc.App{Slug: victim.slug, Workspace: mine, Databases: sqlite("db")}, nil)
	tw.refused(who, "a checkpoint of a database that is a link to the victim's", victim, who.ask("POST", "/api/apps/"+victim.slug+"/checkpoints", nil), 403, 400, 409, 500)
	who.must("DELETE", "/api/apps/"+victim.slug+"?purge=1", nil, nil)
}

func ptr[T any](v T) *T { return &v }

// guestRegistering is the same for a guest, who may do still less.
func (tw *town) guestRegistering(who, neighbour, user *person) {
	base := filepath.Join(tw.dir, "guests", who.name)
	mine := filepath.Join(base, "other")
	if err := errors.Join(os.Mkdir(mine, 0o755), os.Chown(mine, 65534, 65534), os.Symlink(neighbour.ws, filepath.Join(base, "link"))); err != nil {
		tw.t.Fatal(err)
	}
	for _, try := range []struct {
		what string
		app  ipc.App
	}{
		{"the neighbour's folder", ipc.App{Workspace: neighbour.ws}},
		{"the neighbour's folder through a link", ipc.App{Workspace: filepath.Join(base, "link")}},
		{"all guests' folder", ipc.App{Workspace: filepath.Join(tw.dir, "guests")}},
		{"a user's folder", ipc.App{Workspace: user.ws}},
		{"for the neighbour", ipc.App{Workspace: mine, Owner: "guest:" + neighbour.name}},
		{"for the user of all guests", ipc.App{Workspace: mine, Owner: "nobody"}},
		{"a command", ipc.App{Workspace: mine, Run: []string{"/bin/sh"}}},
		{"a health command", ipc.App{Workspace: mine, Health: &ipc.Health{Command: []string{"/bin/true"}}}},
		{"a port of this host", ipc.App{Workspace: mine, Health: &ipc.Health{URL: "http://127.0.0.1:1/"}}},
		{"a server's database", ipc.App{Workspace: mine, Databases: []ipc.Database{{Name: "x", Driver: "postgres", DSN: "postgres:///x"}}}},
		{"a database elsewhere", ipc.App{Workspace: mine, Databases: []ipc.Database{{Name: "x", Driver: "sqlite", DSN: filepath.Join(neighbour.ws, "data.db")}}}},
	} {
		try.app.Slug = "grab"
		tw.refused(who, try.what, neighbour, who.ask("POST", "/api/apps", try.app), 403)
	}
	tw.refused(who, "a token", nil, who.ask("POST", "/api/tokens", nil), 403)
	tw.refused(who, "a link to the page", nil, who.ask("POST", "/api/ui", nil), 403)
}

// measuring guesses a content of the victim's and looks whether keeping it
// costs less than it would if nobody had it.
func (tw *town) measuring(who, victim *person) {
	content := base64.StdEncoding.EncodeToString(testkit.Bytes(tw.t, 1<<20))
	sizes := map[string]int64{}
	for _, p := range []*person{victim, who} {
		path := filepath.Join(p.ws, "guess")
		st, err := os.Stat(p.ws)
		if err != nil {
			tw.t.Fatal(err)
		}
		uid := int(st.Sys().(*syscall.Stat_t).Uid)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chown(path, uid, uid)); err != nil {
			tw.t.Fatal(err)
		}
		var cp ipc.Checkpoint
		p.must("POST", p.own("/checkpoints"), nil, &cp)
		sizes[p.name] = cp.SizeBytes
		p.must("DELETE", p.own("/checkpoints/"+string(cp.ID)), nil, nil)
		if err := os.Remove(path); err != nil {
			tw.t.Fatal(err)
		}
	}
	tw.tried++
	if got, want := sizes[who.name], sizes[victim.name]; got < want-want/10 {
		tw.t.Errorf("%s learns from %d bytes instead of %d that somebody has the content", who.name, got, want)
	}
	tw.t.Logf("%3d. %s tried to learn by its size whether %s has a content: %v", tw.tried, who.name, victim.name, sizes)
}

// testRaces has a user swap things of a registered app for links and for other
// people's things, while the daemon captures, compares and restores.
func testRaces(t *testing.T) {
	tw := newTown(t)
	alice, bob := tw.onSocket("alice", aliceUID), tw.onSocket("bob", bobUID)
	tw.settle(alice, aliceUID, filepath.Join(tw.dir, "alice", "ws"))
	tw.settle(bob, bobUID, filepath.Join(tw.dir, "bob", "ws"))
	for _, race := range []struct {
		what string
		swap swap
	}{
		{"the workspace for a link to alice's", swapping(bob.ws, bob.ws+".aside", alice.ws)},
		{"a folder for a link to alice's", swapping(bob.ws+"/sub", bob.ws+"/aside", alice.ws+"/sub")},
		{"a file for a link to alice's", swapping(bob.ws+"/private", bob.ws+"/aside2", alice.ws+"/private")},
		{"the database for a link to alice's", swapping(bob.ws+"/data.db", bob.ws+"/aside.db", alice.ws+"/data.db")},
	} {
		tw.race(bob, alice, race.what, race.swap)
	}
	tw.foreignThings(bob, alice)
	tw.intactFiles(alice)
	t.Logf("%d attempts", tw.tried)
}

// swap is what a user swaps: path, kept aside meanwhile, for a link to another
// thing, and back, until there is something at Stop.
type swap struct{ Path, Aside, To, Stop string }

func swapping(path, aside, to string) swap { return swap{Path: path, Aside: aside, To: to} }

// keepSwapping swaps, and says how often it could: a rollback puts things back meanwhile.
var keepSwapping = privsep.Define("daemon_test.swap", func(_ context.Context, s swap) (times int, err error) {
	for {
		if _, err := os.Lstat(s.Stop); err == nil {
			return times, nil
		}
		if s.once() == nil {
			times++
		}
	}
})

func (s swap) once() error {
	err := errors.Join(os.Rename(s.Path, s.Aside), os.Symlink(s.To, s.Path))
	if err == nil {
		err = os.Remove(s.Path)
	}
	if os.Rename(s.Aside, s.Path) != nil {
		err = errors.Join(err, os.RemoveAll(s.Aside))
	}
	return err
}

// race swaps for as long as three rounds of create, diff and rollback take.
func (tw *town) race(who, victim *person, what string, s swap) {
	tw.t.Helper()
	s.Stop = filepath.Join(tw.dir, "stop")
	var wg sync.WaitGroup
	swaps := 0
	wg.Go(func() {
		n, err := keepSwapping.Call(tw.t.Context(), account(bobUID), s)
		if swaps = n; err != nil {
			tw.t.Error(err)
		}
	})
	for range 3 {
		for _, try := range [][2]string{
			{"POST", "/checkpoints"}, {"GET", "/checkpoints/" + string(who.cp.ID) + "/diff?patch=1"},
			{"POST", "/checkpoints/" + string(who.cp.ID) + "/rollback"},
		} {
			got := who.ask(try[0], who.own(try[1]), nil)
			tw.tried++
			if strings.Contains(got.body, "secret-of-"+victim.name) {
				tw.t.Errorf("%s swapped %s and read: %.300s", who.name, what, got.body)
			}
			tw.t.Logf("%3d. %s swapped %s and tried %s %s: %d", tw.tried, who.name, what, try[0], try[1], got.status)
		}
	}
	if err := os.WriteFile(s.Stop, nil, 0o600); err != nil {
		tw.t.Fatal(err)
	}
	wg.Wait()
	if err := os.Remove(s.Stop); err != nil {
		tw.t.Fatal(err)
	}
	tw.t.Logf("     that is, %d times", swaps)
	if swaps == 0 {
		tw.t.Errorf("%s could not swap %s", who.name, what)
	}
	tw.mend(who)
	tw.clean(who, victim, what)
	tw.intactFiles(victim)
}

// mend takes away what the swapping left, and goes back to how the workspace began.
func (tw *town) mend(p *person) {
	for to, aside := range map[string]string{
		p.ws: p.ws + ".aside", p.ws + "/sub": p.ws + "/aside", p.ws + "/private": p.ws + "/aside2", p.ws + "/data.db": p.ws + "/aside.db",
	} {
		if info, err := os.Lstat(to); err == nil && info.Mode()&os.ModeSymlink != 0 {
			if err := os.Remove(to); err != nil {
				tw.t.Fatal(err)
			}
		}
		if _, err := os.Lstat(aside); err == nil {
			if err := errors.Join(os.RemoveAll(to), os.Rename(aside, to)); err != nil {
				tw.t.Fatal(err)
			}
		}
	}
	// The first time may find that a rollback which the swapping broke cannot be undone to the letter.
	p.ask("POST", p.own("/checkpoints/"+string(p.cp.ID)+"/rollback"), nil)
	a := p.ask("POST", p.own("/checkpoints/"+string(p.cp.ID)+"/rollback"), nil)
	if a.status != 200 {
		tw.t.Fatalf("afterwards %s cannot go back: %d %s", p.name, a.status, a.body)
	}
}

// clean makes sure that no checkpoint holds anything of the victim's, and that
// every file is its owner's and has no setuid bit.
func (tw *town) clean(p, victim *person, what string) {
	var list ipc.CheckpointList
	p.must("GET", p.own("/checkpoints"), nil, &list)
	for _, cp := range list.Checkpoints {
		got := p.ask("GET", p.own("/checkpoints/"+string(cp.ID)+"/diff?patch=1"), nil)
		if strings.Contains(got.body, "secret-of-"+victim.name) {
			tw.t.Errorf("after %s, %s holds: %.300s", what, cp.ID, got.body)
		}
	}
	err := filepath.WalkDir(p.ws, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != bobUID || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			tw.t.Errorf("after %s, %s belongs to %d and has mode %o", what, path, st.Uid, st.Mode)
		}
		return nil
	})
	if err != nil {
		tw.t.Error(err)
	}
}

func (tw *town) intactFiles(p *person) {
	tw.t.Helper()
	for _, name := range []string{"private", "sub/private"} {
		if b, err := os.ReadFile(filepath.Join(p.ws, name)); err != nil || string(b) != "secret-of-"+p.name+"\n" {
			tw.t.Errorf("%s's %s is %q, %v", p.name, name, b, err)
		}
	}
}

// foreignThings puts things into a workspace that its owner could not have put
// there but on a host that lets anybody link anything, or that root left there.
func (tw *town) foreignThings(who, victim *person) {
	t := tw.t
	diff := func(what string) {
		t.Helper()
		tw.tried++
		got := who.ask("GET", who.own("/checkpoints/"+string(who.cp.ID)+"/diff?patch=1"), nil)
		if got.status == 200 && strings.Contains(got.body, "secret-of-"+victim.name) {
			t.Errorf("%s read %s: %.400s", who.name, what, got.body)
		}
		t.Logf("%3d. %s tried to read %s: %d", tw.tried, who.name, what, got.status)
	}
	create := func(what string, statuses ...int) {
		t.Helper()
		tw.refused(who, "a checkpoint with "+what, victim, who.ask("POST", who.own("/checkpoints"), nil), statuses...)
	}
	// A hard link to a file that is another's.
	if err := os.Link(filepath.Join(victim.ws, "private"), filepath.Join(who.ws, "hard")); err != nil {
		t.Fatal(err)
	}
	diff("a hard link to the victim's file")
	create("a hard link to the victim's file", 201)
	diff("a hard link to the victim's file, captured")
	if err := os.Remove(filepath.Join(who.ws, "hard")); err != nil {
		t.Fatal(err)
	}
	diff("a hard link to the victim's file, removed")
	tw.intactFiles(victim)

	// A folder of somebody else's, closed to everybody, in it.
	closed := filepath.Join(who.ws, "closed")
	if err := errors.Join(os.Mkdir(closed, 0o700), os.WriteFile(filepath.Join(closed, "open"), []byte("secret-of-"+victim.name), 0o644)); err != nil {
		t.Fatal(err)
	}
	diff("a file in a folder that is closed")
	create("a folder that is closed", 201)
	diff("a file in a folder that is closed, captured")
	if err := os.RemoveAll(closed); err != nil {
		t.Fatal(err)
	}
	diff("a file in a folder that is closed, removed")

	// Another's database in the place of one's own.
	db := filepath.Join(who.ws, "data.db")
	if err := errors.Join(os.Rename(db, db+".aside"), os.Link(filepath.Join(victim.ws, "data.db"), db)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(victim.ws, "data.db"))
	if err != nil {
		t.Fatal(err)
	}
	create("the victim's database linked in", 403)
	tw.refused(who, "a rollback over the victim's database", victim, who.ask("POST", who.own("/checkpoints/"+string(who.cp.ID)+"/rollback"), nil), 403, 409, 500)
	if after, err := os.ReadFile(filepath.Join(victim.ws, "data.db")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the victim's database was changed, %v", err)
	}
	if err := errors.Join(os.Remove(db), os.Rename(db+".aside", db)); err != nil {
		t.Fatal(err)
	}

	// The workspace itself exchanged for a folder of another's in a place where both may rename.
	shared := filepath.Join(tw.dir, "shared")
	mine, theirs := filepath.Join(shared, "mine"), filepath.Join(shared, "theirs")
	for path, uid := range map[string]int{mine: bobUID, theirs: aliceUID} {
		if err := as(uid, `umask 077; mkdir "$1"; printf secret-of-alice >"$1/file"`, path); err != nil {
			t.Fatal(err)
		}
	}
	var cp ipc.Checkpoint
	who.must("POST", "/api/apps", ipc.App{Slug: "shared", Workspace: mine}, nil)
	who.must("POST", "/api/apps/shared/checkpoints", nil, &cp)
	if err := as(bobUID, `mv -T "$1" "$1.aside"; mv -T "$2" "$1"`, mine, theirs); err != nil {
		t.Fatal(err)
	}
	for _, try := range [][2]string{
		{"POST", "/checkpoints"}, {"GET", "/checkpoints/" + string(cp.ID) + "/diff?patch=1"}, {"POST", "/checkpoints/" + string(cp.ID) + "/rollback"},
	} {
		tw.refused(who, try[0]+" "+try[1]+" of a workspace exchanged for the victim's", victim, who.ask(try[0], "/api/apps/shared"+try[1], nil), 403)
	}
	if b, err := os.ReadFile(filepath.Join(mine, "file")); err != nil || string(b) != "secret-of-alice" {
		t.Errorf("the victim's file is %q, %v", b, err)
	}
}

// TestRunsAsOwner: what a user has the daemon run has that user's rights.
func TestRunsAsOwner(t *testing.T) {
	tw := newTown(t)
	bob := tw.onSocket("bob", bobUID)
	tw.settle(bob, bobUID, filepath.Join(tw.dir, "bob", "ws"))
	bob.must("PATCH", bob.own(""), ipc.AppChange{
		Run:    &[]string{"/bin/sh", "-c", "id -u > who-ran; exec sleep 1000"},
		Health: &ipc.Health{Command: []string{"/bin/sh", "-c", "id -u > who-asked; id -G > groups; test ! -r " + tw.dir + "/alice"}},
	}, nil)
	var res ipc.RollbackResult
	bob.must("POST", bob.own("/checkpoints/"+string(bob.cp.ID)+"/rollback"), nil, &res)
	for _, s := range res.Stages {
		if s.Stage == ipc.StageHealthy && s.Status != ipc.StageOK {
			t.Errorf("%+v", s)
		}
	}
	testkit.Eventually(t, "the app says who runs it", func() bool {
		b, err := os.ReadFile(filepath.Join(bob.ws, "who-ran"))
		return err == nil && len(b) > 0
	})
	for name, want := range map[string]string{"who-ran": "9\n", "who-asked": "9\n", "groups": "9\n"} {
		if b, err := os.ReadFile(filepath.Join(bob.ws, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestRootNames: what root names for a user is not the user's to name, and goes
// on working when the user changes something else.
func TestRootNames(t *testing.T) {
	tw := newTown(t)
	bob := tw.onSocket("bob", bobUID)
	ws := filepath.Join(tw.dir, "bob", "ws")
	elsewhere := filepath.Join(tw.dir, "roots.db")
	makeDB(t, elsewhere, "x")
	if err := errors.Join(os.MkdirAll(ws, 0o755), os.Chown(ws, bobUID, bobUID)); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Owner: "news", Workspace: ws, Health: &ipc.Health{URL: "http://192.0.2.1/"},
		Databases: []ipc.Database{{Name: "main", Driver: "sqlite", DSN: elsewhere}},
	}); err != nil {
		t.Fatal(err)
	}
	bob.must("PATCH", "/api/apps/shop", ipc.AppChange{Exclude: &[]string{"*.log"}}, nil)
	var cp ipc.Checkpoint
	bob.must("POST", "/api/apps/shop/checkpoints", nil, &cp)
	if len(cp.DBSnapshots) != 1 {
		t.Errorf("%+v", cp)
	}
	if _, err := tw.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: workspace(t)}); err != nil {
		t.Errorf("root's own of that name: %v", err)
	}
	if _, err := tw.d.App(t.Context(), root, "shop"); errs.KindOf(err) != errs.Conflict {
		t.Errorf("which of the two is meant? %v", err)
	}
}
