package daemon_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

// talk is a session with an agent: its conversation, and the turn under way.
type talk struct {
	t    *testing.T
	d    *daemon.Daemon
	w    world
	name string
	turn ipc.TurnID
}

func (c *talk) say(message string) {
	c.t.Helper()
	c.turn = ipc.TurnID(c.name + "-" + message)
	if _, err := c.d.BeginTurn(c.t.Context(), root, "shop", ipc.BeginTurn{
		TurnID: c.turn, ConversationID: c.name, MessageID: message, Agent: "test",
	}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *talk) begin(id ipc.CallID) {
	c.t.Helper()
	if _, err := c.d.BeginCall(c.t.Context(), root, "shop", c.turn, ipc.BeginCall{CallID: id, Tool: "Bash", Before: true, DeadlineMS: 10000}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *talk) end(id ipc.CallID) {
	c.t.Helper()
	if _, err := c.d.EndCall(c.t.Context(), root, "shop", c.turn, id); err != nil {
		c.t.Fatal(err)
	}
}

// call makes a whole call that runs a shell script in the workspace.
func (c *talk) call(id ipc.CallID, script string) {
	c.t.Helper()
	c.begin(id)
	c.shell(script)
	c.end(id)
}

func (c *talk) shell(script string) {
	c.t.Helper()
	sh(c.t, "cd $1\n"+script, c.w.ws())
}

func (c *talk) done() {
	c.t.Helper()
	end(c.t, c.d, c.turn)
}

func revert(t *testing.T, d *daemon.Daemon, req ipc.RevertRequest) ipc.RevertResult {
	t.Helper()
	res, err := d.Revert(t.Context(), root, "shop", req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func refused(t *testing.T, kind errs.Kind, err error) {
	t.Helper()
	if errs.KindOf(err) != kind || err == nil {
		t.Errorf("error %v, want kind %s", err, kind)
	}
}

// says reads a file of the workspace; "" where there is none.
func (w world) says(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.ws(), name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestConversationCheckpoint moves a conversation's pointer about, and reverts from it.
func TestConversationCheckpoint(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	c := &talk{t: t, d: d, w: w, name: "c"}
	for _, m := range []string{"m1", "m2", "m3"} {
		c.say(m)
		c.call(ipc.CallID("call-"+m), "echo "+m+" >"+m+"; echo "+m+" >last")
		c.done()
	}
	listed := len(agentCheckpoints(t, d))
	set := func(m string) ipc.ConversationCheckpoint {
		p, err := d.SetConversationCheckpoint(t.Context(), root, "shop", "c", m)
		if err != nil || p.MessageID != m || p.ConversationID != "c" {
			t.Fatalf("%+v, %v", p, err)
		}
		return p
	}
	if p := set("m2"); len(p.Warnings) > 0 {
		t.Errorf("%v", p.Warnings)
	}
	if n := len(agentCheckpoints(t, d)); n != listed || w.says(t, "last") != "m3" {
		t.Error("setting a pointer did more than that")
	}
	res := revert(t, d, ipc.RevertRequest{ConversationID: "c"})
	if !slices.Equal(res.RestoredPaths, []string{"last", "m3"}) || len(res.Conflicts) > 0 || res.SafetyCheckpoint == nil ||
		!slices.Equal(res.Calls, []ipc.CallID{"call-m3"}) {
		t.Errorf("%+v", res)
	}
	if w.says(t, "last") != "m2" || w.says(t, "m3") != "" {
		t.Errorf("last says %q, m3 %q", w.says(t, "last"), w.says(t, "m3"))
	}
	if w.word(t) != "zero" {
		t.Error("the database is not as it was")
	}
	// Again: nothing is left to do, and no checkpoint is made of nothing.
	if res := revert(t, d, ipc.RevertRequest{ConversationID: "c"}); len(res.RestoredPaths) > 0 || res.SafetyCheckpoint != nil {
		t.Errorf("%+v", res)
	}
	// Back over the revert, and to before the pointer.
	if _, err := d.Rollback(t.Context(), root, "shop", res.SafetyCheckpoint.ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if w.says(t, "last") != "m3" || w.says(t, "m3") != "m3" {
		t.Error("the revert was not undone")
	}
	res = revert(t, d, ipc.RevertRequest{ConversationID: "c", FromMessageID: "m1", ToMessageID: "m2", DryRun: true})
	if !slices.Equal(res.RestoredPaths, []string{"m1", "m2"}) || res.SafetyCheckpoint != nil || w.says(t, "m1") != "m1" {
		t.Errorf("%+v", res)
	}
	if len(res.Conflicts) != 1 || res.Conflicts[0].Path != "last" || res.Conflicts[0].Reason != "edited" ||
		!slices.Equal(res.Conflicts[0].Calls, []ipc.CallID{"call-m3"}) {
		t.Errorf("%+v", res.Conflicts)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "call-m3") {
		t.Errorf("nothing is said of the later call: %q", res.Warnings)
	}
	if p := set("an-assistants"); len(p.Warnings) != 1 {
		t.Errorf("an unknown message: %v", p.Warnings)
	}
	if res := revert(t, d, ipc.RevertRequest{ConversationID: "c"}); len(res.RestoredPaths) > 0 || len(res.Warnings) != 1 {
		t.Errorf("%+v", res)
	}
	c.say("m4")
	c.call("call-m4", "echo 4 >m4")
	if res := revert(t, d, ipc.RevertRequest{ConversationID: "c"}); !slices.Equal(res.RestoredPaths, []string{"m4"}) {
		t.Errorf("%+v", res)
	}
	c.done()
}

// TestRevertRefused asks for what makes no sense.
func TestRevertRefused(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.say("m1")
	c.call("call-1", "echo 1 >one")
	c.done()
	c.say("m2")
	c.done()
	for _, x := range []struct {
		req  ipc.RevertRequest
		kind errs.Kind
	}{
		{ipc.RevertRequest{}, errs.Invalid},
		{ipc.RevertRequest{FromMessageID: "m1"}, errs.Invalid},
		{ipc.RevertRequest{ConversationID: "c", CallID: "call-1", FromMessageID: "m1"}, errs.Invalid},
		{ipc.RevertRequest{ConversationID: "c", FromMessageID: "m2", ToMessageID: "m1"}, errs.Invalid},
		{ipc.RevertRequest{ConversationID: strings.Repeat("c", 1000)}, errs.Invalid},
		{ipc.RevertRequest{ConversationID: "other"}, errs.NotFound},
		{ipc.RevertRequest{ConversationID: "c", FromMessageID: "m9"}, errs.NotFound},
		{ipc.RevertRequest{ConversationID: "c", ToMessageID: "m9"}, errs.NotFound},
		{ipc.RevertRequest{ConversationID: "c", CallID: "call-9"}, errs.NotFound},
		{ipc.RevertRequest{ConversationID: "d", TurnID: "c-m1"}, errs.NotFound},
		{ipc.RevertRequest{CallID: "call-9"}, errs.NotFound},
		{ipc.RevertRequest{TurnID: "nobody's"}, errs.NotFound},
	} {
		_, err := d.Revert(t.Context(), root, "shop", x.req)
		refused(t, x.kind, err)
	}
	_, err := d.SetConversationCheckpoint(t.Context(), root, "shop", "c", "")
	refused(t, errs.Invalid, err)
	if w.says(t, "one") != "1" {
		t.Error("something was done all the same")
	}
	off := false
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Auto: &off}); err != nil {
		t.Fatal(err)
	}
	_, err = d.Revert(t.Context(), root, "shop", ipc.RevertRequest{CallID: "call-1"})
	refused(t, errs.Conflict, err)
}

// TestRevertOfOpenCalls has tools that nobody says the end of, as when one is denied.
func TestRevertOfOpenCalls(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.say("m1")
	c.begin("failed")
	c.shell("echo failed >failed")
	c.call("fine", "echo fine >fine")
	c.begin("denied")
	c.done()
	c.shell("echo mine >mine") // a person, after the turn
	c.say("m2")
	c.call("next", "echo next >next")
	turns, err := d.Turns(t.Context(), root, "shop", "c", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range turns[1].Calls {
		if call.EndedAt == nil || call.EndedAt.After(*turns[1].EndedAt) {
			t.Errorf("%+v did not end with its turn", call)
		}
	}
	if res := revert(t, d, ipc.RevertRequest{CallID: "denied"}); len(res.RestoredPaths)+len(res.Conflicts) > 0 {
		t.Errorf("%+v", res)
	}
	res := revert(t, d, ipc.RevertRequest{CallID: "failed"})
	if !slices.Equal(res.RestoredPaths, []string{"failed"}) || len(res.Warnings) != 1 {
		t.Errorf("%+v", res)
	}
	if res := revert(t, d, ipc.RevertRequest{ConversationID: "c"}); !slices.Equal(res.RestoredPaths, []string{"fine", "next"}) {
		t.Errorf("%+v", res)
	}
	if w.says(t, "mine") != "mine" {
		t.Error("a person's file is gone")
	}
}

// TestRevertWithinACall reverts, and rolls back, from within a call of the agent's own:
// what mulligan writes is not taken for the call's.
func TestRevertWithinACall(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.say("m1")
	c.call("writes", "echo 1 >one; echo one >>file3")
	c.begin("reverts")
	first := revert(t, d, ipc.RevertRequest{CallID: "writes"})
	c.end("reverts")
	c.begin("rolls back")
	if _, err := d.Rollback(t.Context(), root, "shop", first.SafetyCheckpoint.ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	c.end("rolls back")
	c.done()
	for _, id := range []ipc.CallID{"reverts", "rolls back"} {
		if res := revert(t, d, ipc.RevertRequest{CallID: id}); len(res.RestoredPaths)+len(res.Conflicts) > 0 {
			t.Errorf("%s: %+v", id, res)
		}
	}
	if w.says(t, "one") != "1" {
		t.Error("the rollback is not in place")
	}
	if res := revert(t, d, ipc.RevertRequest{CallID: "writes"}); !slices.Equal(res.RestoredPaths, []string{"file3", "one"}) {
		t.Errorf("%+v", res)
	}
}

// TestTwoAgents has turns of two sessions overlap.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	a, b := &talk{t: t, d: d, w: w, name: "a"}, &talk{t: t, d: d, w: w, name: "b"}
	a.say("a1")
	a.call("a-1", "echo a >of-a; seq 1 20 >both")
	b.say("b1")
	b.call("b-1", "echo b >of-b; sed -i s/^18$/b/ both")
	a.call("a-2", "sed -i s/^2$/a/ both")
	a.begin("a-3")
	b.begin("b-2")
	b.shell("echo whose >unsure")
	b.end("b-2")
	a.end("a-3")
	a.done()

	list := func(conversation string) []ipc.Checkpoint {
		l, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{Conversation: conversation})
		if err != nil {
			t.Fatal(err)
		}
		return l.Checkpoints
	}
	if l := list("a"); len(l) != 1 || *l[0].ConversationID != "a" {
		t.Fatalf("a's checkpoints: %+v", l)
	}
	of := list("a")[0].ID
	turns, err := d.Turns(t.Context(), root, "shop", "b", 0)
	if err != nil || len(turns) != 1 || len(turns[0].Calls) != 2 {
		t.Fatalf("b's turns: %+v, %v", turns, err)
	}

	// A rollback for a takes b's turn along.
	_, err = d.Rollback(t.Context(), root, "shop", of, ipc.RollbackRequest{}, nil)
	refused(t, errs.Conflict, err)
	if err == nil || !strings.Contains(err.Error(), "session b") || !strings.Contains(err.Error(), "b-b1") {
		t.Errorf("%v", err)
	}
	if w.says(t, "of-b") != "b" || w.says(t, "of-a") != "a" {
		t.Error("it was refused and done")
	}
	dry, err := d.Rollback(t.Context(), root, "shop", of, ipc.RollbackRequest{DryRun: true}, nil)
	if err != nil || !slices.ContainsFunc(dry.Warnings, func(s string) bool { return strings.Contains(s, "session b") }) {
		t.Errorf("%v, %v", dry.Warnings, err)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", of, ipc.RollbackRequest{Scope: []string{"of-a"}}, nil); err != nil {
		t.Errorf("only a's own path: %v", err)
	}
	if w.says(t, "of-a") != "" || w.says(t, "of-b") != "b" {
		t.Error("a's path is not as it was before a")
	}

	// A revert is each one's own; what either may have written is left alone.
	res := revert(t, d, ipc.RevertRequest{ConversationID: "a"})
	if !slices.Equal(res.RestoredPaths, []string{}) || len(res.Conflicts) != 2 {
		t.Errorf("%+v", res)
	}
	for i, want := range []ipc.RevertConflict{
		{Path: "both", Reason: "edited"}, {Path: "unsure", Reason: ipc.ReasonShared, Calls: []ipc.CallID{"b-2"}},
	} {
		if got := res.Conflicts[i]; got.Path != want.Path || got.Reason != want.Reason || want.Calls != nil && !slices.Equal(got.Calls, want.Calls) {
			t.Errorf("%+v", got)
		}
	}
	res = revert(t, d, ipc.RevertRequest{CallID: "a-2"})
	if !slices.Equal(res.RestoredPaths, []string{"both"}) || strings.Contains(w.says(t, "both"), "a") || !strings.Contains(w.says(t, "both"), "b") {
		t.Errorf("%+v: %q", res, w.says(t, "both"))
	}
	res = revert(t, d, ipc.RevertRequest{CallID: "b-1"})
	if !slices.Equal(res.RestoredPaths, []string{"both", "of-b"}) {
		t.Errorf("%+v", res)
	}

	// Forced, all goes back.
	if _, err := d.Rollback(t.Context(), root, "shop", of, ipc.RollbackRequest{Force: true}, nil); err != nil {
		t.Fatal(err)
	}
	if w.says(t, "both") != "" || w.says(t, "unsure") != "" {
		t.Error("forced, it is not as before a")
	}
	b.done()
}

// TestForcible: what is left alone is said to be forcible exactly where the same revert with force restores it.
func TestForcible(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	sh(t, "cd $1; git init -q; git config user.name me; git config user.email me@example.org; seq 9 >file; git add file; git commit -qm one", w.ws())
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.say("1")
	c.call("c-1", "sed -i s/^2$/c/ file; git commit -qam two")
	c.done()
	c.shell("sed -i s/^c$/others/ file; git commit -qam three")
	says := func(force bool, want map[string]bool) {
		t.Helper()
		res := revert(t, d, ipc.RevertRequest{CallID: "c-1", Force: force})
		got := map[string]bool{}
		for _, l := range res.Conflicts {
			got[l.Path+" "+l.Reason] = l.Forcible
		}
		if !maps.Equal(got, want) {
			t.Errorf("force=%v: forcible %v, want %v", force, got, want)
		}
	}
	says(false, map[string]bool{"file overlaps": true, ".git repository": false})
	says(true, map[string]bool{".git repository": false})
	if now := w.says(t, "file"); !strings.HasPrefix(now, "1\n2\n") {
		t.Errorf("forced, the file is %q", now)
	}
	says(true, map[string]bool{".git repository": false})
}

// TestOneAgentAfterTheOther has sessions that do not overlap: nothing is in a rollback's way.
func TestOneAgentAfterTheOther(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	a, b := &talk{t: t, d: d, w: w, name: "a"}, &talk{t: t, d: d, w: w, name: "b"}
	a.say("a1")
	a.call("a-1", "echo a >of-a")
	a.done()
	b.say("b1")
	b.call("b-1", "echo b >of-b")
	b.done()
	cps := agentCheckpoints(t, d)
	if _, err := d.Rollback(t.Context(), root, "shop", cps[1].ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if w.says(t, "of-a") != "" || w.says(t, "of-b") != "" {
		t.Error("not as before both")
	}
}

// TestRevertOfWhatIsForgotten: what a conversation leaves does not grow for ever.
func TestRevertOfWhatIsForgotten(t *testing.T) {
	t.Parallel()
	d, w := openAuto(t, time.Hour)
	keep := ipc.DefaultRetention()
	keep.KeepTurns, keep.KeepLast, keep.DailyDays = 2, 1, 0
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	if err := followed(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	c := &talk{t: t, d: d, w: w, name: "c"}
	for _, m := range []string{"m1", "m2", "m3", "m4", "m5"} {
		c.say(m)
		c.call(ipc.CallID("call-"+m), "echo "+m+" >"+m)
		c.done()
		revert(t, d, ipc.RevertRequest{CallID: ipc.CallID("call-" + m)})
	}
	if _, err := d.Prune(t.Context(), root, "shop", false); err != nil {
		t.Fatal(err)
	}
	_, err := d.Revert(t.Context(), root, "shop", ipc.RevertRequest{CallID: "call-m1"})
	refused(t, errs.NotFound, err)
	_, err = d.Revert(t.Context(), root, "shop", ipc.RevertRequest{ConversationID: "c", FromMessageID: "m1"})
	refused(t, errs.NotFound, err)
	if res := revert(t, d, ipc.RevertRequest{CallID: "call-m5"}); len(res.RestoredPaths)+len(res.Conflicts) > 0 {
		t.Errorf("undone already: %+v", res)
	}
}

// besideBroken returns a conversation in a workspace whose file "bad" the disk cannot read any more, and a checkpoint of before. Since then, the call
// "call" changed in/good from "one" to "two".
func besideBroken(t *testing.T) (*talk, ipc.CheckpointID, *sysfault.Process) {
	t.Helper()
	testkit.Need(t, "root", "bindfs")
	disk := t.TempDir()
	w := world{dir: worldDir(t), at: t.TempDir()}
	server, err := sysfault.Start(exec.Command("bindfs", "-f", disk, w.ws()), sysfault.Options{})
	check(t, err)
	t.Cleanup(func() {
		_ = unix.Unmount(w.ws(), unix.MNT_DETACH)
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	testkit.Eventually(t, "bindfs serves the workspace", func() bool {
		var st unix.Statfs_t
		return unix.Statfs(w.ws(), &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
	})
	// Go asks a file that it opens whether it can be polled, in a way that keeps the garbage collector waiting, and with it all of this process, which
	// answers system calls of bindfs. The kernel does not ask a FUSE server again that does not know of polling: perl is the first to ask.
	sh(t, `cd "$1" && mkdir in && echo one >in/good && echo one >bad && perl -e 'vec($r, 0, 1) = 1; select($r, undef, undef, 0)' <bad`, w.ws())
	d := w.openWith(t, time.Hour)
	_, err = d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Auto: true})
	check(t, err)
	awaitFollowing(t, d)
	cp := create(t, d)
	c := &talk{t: t, d: d, w: w, name: "c"}
	c.say("m")
	c.call("call", "echo two >in/good")
	c.done()
	server.Arm(sysfault.Fault{Call: "open " + filepath.Join(disk, "bad"), Errno: unix.EIO})
	check(t, os.Chmod(filepath.Join(w.ws(), "bad"), 0o600))
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); !errors.Is(err, unix.EIO) {
		t.Errorf("a checkpoint of everything: %v", err)
	}
	return c, cp, server
}

// TestRevertBesideBrokenFile: a file that the disk cannot read any more keeps a revert from no other file.
func TestRevertBesideBrokenFile(t *testing.T) {
	t.Parallel()
	c, _, server := besideBroken(t)
	res := revert(t, c.d, ipc.RevertRequest{CallID: "call"})
	if got := c.w.says(t, "in/good"); got != "one" || len(res.Conflicts) > 0 {
		t.Errorf("the file says %q; left alone: %v", got, res.Conflicts)
	}
	if seen := server.Disarm(); !seen.Hit {
		t.Error("nothing failed")
	}
}

// TestTurnsBesideBrokenFile: a file that the disk cannot read any more keeps no call and no turn from ending.
func TestTurnsBesideBrokenFile(t *testing.T) {
	t.Parallel()
	c, _, server := besideBroken(t)
	c.say("ended")
	c.call("call-ended", "echo three >in/good")
	if turn := end(t, c.d, c.turn); turn.EndedAt == nil || turn.CheckpointID == nil || turn.Changes.Modified != 1 {
		t.Errorf("%+v", turn)
	}
	c.say("followed")
	c.say("next")
	waitFor(t, "the turn before the open one ends", func() bool {
		turns, err := c.d.Turns(t.Context(), root, "shop", "", 2)
		check(t, err)
		return turns[0].EndedAt == nil && turns[1].EndedAt != nil
	})
	if seen := server.Disarm(); !seen.Hit {
		t.Error("nothing failed")
	}
}

// TestRestartBesideBrokenFile: a daemon that starts beside a file that the disk cannot read any more says so, and takes other files back.
func TestRestartBesideBrokenFile(t *testing.T) {
	t.Parallel()
	c, cp, server := besideBroken(t)
	c.say("open")
	c.w.close(t, c.d)
	c.d = c.w.openWith(t, time.Hour)
	waitFor(t, "the status names the file", func() bool {
		return strings.Contains(problemsOf(t, c.d), "cannot read "+filepath.Join(c.w.ws(), "bad"))
	})
	inTime := func(what string, do func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- do() }()
		select {
		case err := <-done:
			check(t, err)
		case <-time.After(testkit.Patience):
			t.Fatalf("%s does not end", what)
		}
		if got := c.w.says(t, "in/good"); got != "one" {
			t.Errorf("after %s, the file says %q", what, got)
		}
	}
	inTime("a revert", func() error {
		_, err := c.d.Revert(t.Context(), root, "shop", ipc.RevertRequest{CallID: "call"})
		return err
	})
	c.shell("echo three >in/good")
	inTime("a rollback", func() error {
		_, err := c.d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{Scope: []string{"in"}}, nil)
		return err
	})
	if seen := server.Disarm(); !seen.Hit {
		t.Error("nothing failed")
	}
}
