package daemon_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// inOwnEtc has the test run in another process, for which /etc is a copy: there
// accounts can be made and changed, and nobody else has processes. It reports whether this is that process.
func inOwnEtc(t *testing.T) bool {
	t.Helper()
	if os.Getenv("MULLIGAN_TEST_ETC") == t.Name() {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec",
		`dir=$1; shift; cp -a /etc "$dir"; mount --bind "$dir/etc" /etc; "$@"`, "sh", t.TempDir(),
		self, "-test.run", "^"+regexp.QuoteMeta(t.Name())+"$", "-test.v")
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_ETC="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// accounts runs a command that changes accounts.
func accounts(t *testing.T, cmd ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// passwd changes the lines of accounts directly, as a directory service would
// that answers something else now.
func passwd(t *testing.T, change func(string) string) {
	t.Helper()
	b, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/passwd", []byte(change(string(b))), 0o644); err != nil {
		t.Fatal(err)
	}
}

// reusedUID is a daemon of the host with an app of alice's, whose uid goes to others.
type reusedUID struct {
	*served
	opt   daemon.Options
	ws    string
	app   ipc.App
	token string
}

const (
	firstUID  = 61001
	secondUID = 61002
)

func user(uid int) ipc.Caller { return ipc.Caller{UID: uid, GID: uid, PID: 1} }

// newReusedUID makes alice with her first uid and an app of hers that runs.
func newReusedUID(t *testing.T) *reusedUID {
	t.Helper()
	accounts(t, "useradd", "-l", "-M", "-u", fmt.Sprint(firstUID), "alice")
	h := &reusedUID{opt: daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), UpkeepEvery: 10 * time.Millisecond}}
	h.served = serveTCP(t, h.opt)
	h.ws = h.folder(firstUID)
	app, err := h.d.AddApp(t.Context(), user(firstUID), ipc.App{
		Slug: "shop", Workspace: h.ws, Run: []string{"sh", "-c", "id -u >>ran; exec sleep 1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if app.Owner != "alice" || app.State != "running" {
		t.Fatalf("%+v", app)
	}
	h.app = app
	h.token = h.served.token(user(firstUID), ipc.TokenRequest{Scopes: ipc.Scopes[:3]}).Secret
	h.visible(user(firstUID), true)
	return h
}

// folder makes a folder of uid's.
func (h *reusedUID) folder(uid int) string {
	h.t.Helper()
	dir := workspace(h.t)
	if err := os.Chown(dir, uid, uid); err != nil {
		h.t.Fatal(err)
	}
	return dir
}

// again ends the daemon and starts another.
func (h *reusedUID) again() {
	h.t.Helper()
	if err := h.d.Close(context.Background()); err != nil {
		h.t.Fatal(err)
	}
	h.d.Gate().Close(context.Background())
	h.served = serveTCP(h.t, h.opt)
}

// visible asks in each way whether the caller sees alice's app.
func (h *reusedUID) visible(who ipc.Caller, want bool) {
	h.t.Helper()
	ctx := h.t.Context()
	listed := false
	for _, a := range h.d.Apps(ctx, who) {
		listed = listed || a.ID == h.app.ID
	}
	_, byID := h.d.App(ctx, who, string(h.app.ID))
	_, cps := h.d.Checkpoints(ctx, who, string(h.app.ID), ipc.CheckpointQuery{})
	counted := h.d.Status(who).Apps > 0
	if listed != want || (byID == nil) != want || (cps == nil) != want || counted != want {
		h.t.Errorf("uid %d: listed %t, counted %t, %v, %v; want %t", who.UID, listed, counted, byID, cps, want)
	}
	if !want && errs.KindOf(byID) != errs.NotFound {
		h.t.Errorf("uid %d learns that it is there: %v", who.UID, byID)
	}
}

// state is what root sees of the app.
func (h *reusedUID) state() ipc.App {
	h.t.Helper()
	a, err := h.d.App(h.t.Context(), root, string(h.app.ID))
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

// until waits for what the daemon does by itself.
func (h *reusedUID) until(what string, ok func() bool) {
	h.t.Helper()
	for over := time.Now().Add(testkit.Patience); !ok(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(over) {
			h.t.Fatalf("in vain: waited until %s; %+v", what, h.state())
		}
	}
}

// disputed makes sure that the app is root's to look at only, that nothing of it
// runs, and that root is told why and what to do.
func (h *reusedUID) disputed(words ...string) {
	h.t.Helper()
	h.until("the command is stopped", func() bool { s := h.state().State; return s != "running" && s != "unknown" })
	// The daemon looks now and then: what it said before may be of the moment between two changes.
	for _, w := range append(words, "app set --app "+string(h.app.ID)+" owner=") {
		h.until("it is said: "+w, func() bool {
			return strings.Contains(strings.Join(append(h.d.Status(root).Problems, h.state().Problems...), "\n"), w)
		})
	}
	for _, uid := range []int{firstUID, secondUID} {
		h.visible(user(uid), false)
		if list, err := h.d.Tokens(h.t.Context(), user(uid)); err != nil || len(list.Tokens) > 0 {
			h.t.Errorf("uid %d sees tokens of alice's: %+v, %v", uid, list, err)
		}
	}
	if got := h.ask("GET", "/api/apps", "", bearer(h.token)...); got.status != 401 {
		h.t.Errorf("alice's token is good for: %d %s", got.status, got.body)
	}
	_, err := h.d.Create(h.t.Context(), root, string(h.app.ID), ipc.CreateRequest{})
	if errs.KindOf(err) != errs.Denied {
		h.t.Errorf("a checkpoint of it: %v", err)
	}
}

// ran is how often the command was started, always with the first uid.
func (h *reusedUID) ran() int {
	h.t.Helper()
	var b []byte
	h.until("the command says who it runs as", func() bool {
		b, _ = os.ReadFile(filepath.Join(h.ws, "ran"))
		return len(b) > 0
	})
	n := strings.Count(string(b), "\n")
	if string(b) != strings.Repeat(fmt.Sprintf("%d\n", firstUID), n) {
		h.t.Errorf("it ran as %q", b)
	}
	return n
}

// TestUIDGoesToAnother takes alice's uid away and gives it to bob, who finds
// nothing of hers and has it run nothing, until she has it back.
func TestUIDGoesToAnother(t *testing.T) {
	if !inOwnEtc(t) {
		return
	}
	h := newReusedUID(t)
	if _, err := h.d.Create(t.Context(), user(firstUID), "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	// usermod refuses as long as a process of hers runs; a directory service does not.
	passwd(t, func(s string) string { return strings.ReplaceAll(s, ":61001:", ":61002:") })
	accounts(t, "useradd", "-l", "-M", "-u", fmt.Sprint(firstUID), "bob")
	h.disputed("owner alice had uid 61001, and now bob has it")
	before := h.ran()
	h.again()
	h.disputed("owner alice had uid 61001, and now bob has it")
	if n := h.ran(); n != before {
		t.Errorf("it was started %d times after bob had the uid", n-before)
	}
	// Both work with apps of their own, which may have the same name.
	for _, uid := range []int{firstUID, secondUID} {
		if _, err := h.d.AddApp(t.Context(), user(uid), ipc.App{Slug: "shop", Workspace: h.folder(uid)}); err != nil {
			t.Errorf("uid %d registers an app: %v", uid, err)
		}
		if list := h.d.Apps(t.Context(), user(uid)); len(list) != 1 || list[0].ID == h.app.ID {
			t.Errorf("uid %d has %+v", uid, list)
		}
		if err := h.d.RemoveApp(t.Context(), user(uid), "shop", true); err != nil {
			t.Error(err)
		}
	}
	accounts(t, "userdel", "-f", "bob")
	passwd(t, func(s string) string { return strings.ReplaceAll(s, ":61002:", ":61001:") })
	h.until("it runs again", func() bool { return h.state().State == "running" })
	h.visible(user(firstUID), true)
	if _, err := h.d.Create(t.Context(), user(firstUID), "shop", ipc.CreateRequest{}); err != nil {
		t.Error(err)
	}
	if got := h.ask("GET", "/api/apps", "", bearer(h.token)...); got.status != 200 {
		t.Errorf("alice's token: %d %s", got.status, got.body)
	}
}

// TestAccountIsMadeAnew removes alice and gives her uid to bob. Root says that
// bob goes on with the app, and then he does; or that nobody does.
func TestAccountIsMadeAnew(t *testing.T) {
	if !inOwnEtc(t) {
		return
	}
	h := newReusedUID(t)
	accounts(t, "userdel", "-f", "alice")
	accounts(t, "useradd", "-l", "-M", "-u", fmt.Sprint(firstUID), "bob")
	accounts(t, "useradd", "-l", "-M", "-u", fmt.Sprint(secondUID), "alice")
	h.disputed("owner alice had uid 61001, and now bob has it")

	owner := func(who ipc.Caller, name string) error {
		_, err := h.d.SetApp(t.Context(), who, string(h.app.ID), ipc.AppChange{Owner: &name})
		return err
	}
	if err := owner(user(firstUID), "bob"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("bob takes it: %v", err)
	}
	if err := owner(root, "alice"); errs.KindOf(err) != errs.Denied {
		t.Errorf("another uid: %v", err)
	}
	if err := owner(root, "nobody-at-all"); errs.KindOf(err) != errs.Invalid {
		t.Errorf("no account: %v", err)
	}
	h.disputed()
	if err := owner(root, "bob"); err != nil {
		t.Fatal(err)
	}
	h.until("it runs again", func() bool { return h.state().State == "running" })
	h.visible(user(firstUID), true)
	h.visible(user(secondUID), false)
	if err := owner(user(firstUID), "bob"); errs.KindOf(err) != errs.Denied {
		t.Errorf("only root says it: %v", err)
	}

	accounts(t, "userdel", "-f", "bob")
	accounts(t, "useradd", "-l", "-M", "-u", fmt.Sprint(firstUID), "carol")
	h.until("it is said", func() bool { return len(h.d.Status(root).Problems) > 0 })
	h.again()
	if err := h.d.RemoveApp(t.Context(), user(firstUID), string(h.app.ID), false); errs.KindOf(err) != errs.NotFound {
		t.Errorf("carol removes it: %v", err)
	}
	if err := h.d.RemoveApp(t.Context(), root, string(h.app.ID), false); err != nil {
		t.Errorf("root removes it: %v", err)
	}
	// What comes back when a folder is registered again was another's.
	app, err := h.d.AddApp(t.Context(), user(firstUID), ipc.App{Slug: "shop", Workspace: h.ws})
	if err != nil || app.ID == h.app.ID {
		t.Errorf("carol gets %+v, %v", app, err)
	}
}

// TestNamesDoNotAnswer has the accounts vanish for a while: nobody sees the app,
// it goes on running, and it is there again with them.
func TestNamesDoNotAnswer(t *testing.T) {
	if !inOwnEtc(t) {
		return
	}
	h := newReusedUID(t)
	var kept string
	passwd(t, func(s string) string {
		kept = s
		return regexp.MustCompile(`(?m)^alice:.*\n`).ReplaceAllString(s, "")
	})
	h.until("it is said", func() bool { return len(h.d.Status(root).Problems) > 0 })
	h.visible(user(firstUID), false)
	if _, err := h.d.Create(t.Context(), root, string(h.app.ID), ipc.CreateRequest{}); errs.KindOf(err) != errs.Unavailable {
		t.Errorf("a checkpoint of it: %v", err)
	}
	if s := h.state().State; s != "running" || h.ran() != 1 {
		t.Errorf("it is %s, started %d times", s, h.ran())
	}
	passwd(t, func(string) string { return kept })
	h.until("it is itself again", func() bool { return len(h.d.Status(root).Problems) == 0 })
	h.visible(user(firstUID), true)
	if s := h.state().State; s != "running" || h.ran() != 1 {
		t.Errorf("it is %s, started %d times", s, h.ran())
	}

	// The same with a daemon that is started meanwhile.
	passwd(t, func(s string) string { return regexp.MustCompile(`(?m)^alice:.*\n`).ReplaceAllString(s, "") })
	h.again()
	h.visible(user(firstUID), false)
	if s := h.state().State; s == "running" {
		t.Error("it runs, and nobody knows for whom")
	}
	passwd(t, func(string) string { return kept })
	h.until("it runs", func() bool { return h.state().State == "running" })
	h.visible(user(firstUID), true)
}

// TestUIDWithoutAccount: what was registered by a uid that no account had is not
// that of an account which is made later.
func TestUIDWithoutAccount(t *testing.T) {
	if !inOwnEtc(t) {
		return
	}
	h := &reusedUID{served: serveTCP(t, daemon.Options{UpkeepEvery: 10 * time.Millisecond})}
	var err error
	if h.app, err = h.d.AddApp(t.Context(), user(firstUID), ipc.App{Slug: "shop", Workspace: h.folder(firstUID)}); err != nil {
		t.Fatal(err)
	}
	h.visible(user(firstUID), true)
	if _, err := h.d.Create(t.Context(), user(firstUID), "shop", ipc.CreateRequest{}); err != nil {
		t.Error(err)
	}
	accounts(t, "useradd", "-l", "-M", "-u", fmt.Sprint(firstUID), "bob")
	h.visible(user(firstUID), false)
	// An account whose name is those digits is somebody else, too.
	accounts(t, "userdel", "-f", "bob")
	h.visible(user(firstUID), true)
	passwd(t, func(s string) string { return s + "61001:x:61002:61002::/:/bin/sh\n" })
	h.visible(user(firstUID), true)
	h.visible(user(secondUID), false)
}

// TestGuestsChangeTheirUser: guests' apps have the rights that they had, or none.
func TestGuestsChangeTheirUser(t *testing.T) {
	for from, to := range map[string]string{"nobody": "games", "games": "nobody"} { // one has a higher uid, and one a lower
		t.Run("from "+from, func(t *testing.T) {
			dir := t.TempDir()
			opt := daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), Guests: &daemon.Guests{User: from, Dir: dir}}
			s := serveTCP(t, opt)
			app, err := s.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Owner: "guest:g1", Workspace: workspace(t)})
			if err != nil {
				t.Fatal(err)
			}
			path := "/api/apps/" + string(app.ID)
			if got := s.ask("GET", path, "", "X-Guest-Id", "g1"); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if err := s.d.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			opt.Guests = &daemon.Guests{User: to, Dir: dir}
			s = serveTCP(t, opt)
			if got := s.ask("GET", path, "", "X-Guest-Id", "g1"); got.status != 404 {
				t.Errorf("with another user's rights: %d %s", got.status, got.body)
			}
			if _, err := s.d.Create(t.Context(), root, string(app.ID), ipc.CreateRequest{}); errs.KindOf(err) != errs.Denied {
				t.Errorf("a checkpoint of it: %v", err)
			}
			if all := strings.Join(s.d.Status(root).Problems, "\n"); !strings.Contains(all, "guests' apps had uid ") {
				t.Errorf("root is told: %s", all)
			}
		})
	}
}

// TestLeftFolder: an app whose folder was removed, and made anew by somebody
// else, stands in nobody's way; one whose folder is there does.
func TestLeftFolder(t *testing.T) {
	s := serveTCP(t, daemon.Options{})
	ctx := t.Context()
	parent := workspace(t)
	if err := os.Chmod(parent, 0o777); err != nil {
		t.Fatal(err)
	}
	folder := func(uid int, name ...string) string {
		t.Helper()
		dir := filepath.Join(append([]string{parent}, name...)...)
		if err := as(uid, `mkdir "$1"`, dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	x := folder(aliceUID, "x")
	first, err := s.d.AddApp(ctx, user(aliceUID), ipc.App{Slug: "shop", Workspace: x})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.d.AddApp(ctx, user(aliceUID), ipc.App{Slug: "other", Workspace: x}); errs.KindOf(err) != errs.Conflict {
		t.Errorf("her own folder twice: %v", err)
	}
	if err := os.RemoveAll(x); err != nil {
		t.Fatal(err)
	}
	folder(bobUID, "x")
	second, err := s.d.AddApp(ctx, user(bobUID), ipc.App{Slug: "shop", Workspace: x})
	if err != nil {
		t.Fatalf("a folder that alice once had: %v", err)
	}
	if _, err := s.d.Create(ctx, user(bobUID), "shop", ipc.CreateRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := s.d.Create(ctx, user(aliceUID), "shop", ipc.CreateRequest{}); errs.KindOf(err) != errs.Denied {
		t.Errorf("alice's app takes bob's folder: %v", err)
	}
	if _, err := s.d.AddApp(ctx, root, ipc.App{Slug: "roots", Workspace: x}); errs.KindOf(err) != errs.Conflict {
		t.Errorf("a folder that bob has: %v", err)
	}
	if err := s.d.RemoveApp(ctx, user(bobUID), "shop", false); err != nil {
		t.Error(err)
	}
	// A removed app comes back to whom it was, and stands in nobody else's way.
	if err := os.RemoveAll(x); err != nil {
		t.Fatal(err)
	}
	folder(aliceUID, "x")
	if err := s.d.RemoveApp(ctx, user(aliceUID), "shop", false); err != nil {
		t.Error(err)
	}
	again, err := s.d.AddApp(ctx, user(aliceUID), ipc.App{Slug: "shop", Workspace: x})
	if err != nil || again.ID != first.ID || again.ID == second.ID {
		t.Errorf("alice's folder again: %+v, %v", again, err)
	}
}
