package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// A conversation of twelve messages, thirty calls of it writing by edits and by shell
// commands, with a person at work in the same folder. "user" is that person, between
// calls; all else is what the call before the colon does.
const conversation = `
m1
c1: sed -i 's/^line 2$/line two/' app.py
c2: printf 'new\n' >new.txt
c3: chmod 755 script.sh
user: sed -i 's/^line 18$/line eighteen/' app.py
m2
c4: sed -i 's/^line 10$/line ten/' app.py
c5: rm docs/b.md
user: printf 'mine now\n' >docs/b.md
c6: mv config.json settings.json
m3
c7: printf 'XX' | dd of=data.bin conv=notrunc bs=1 seek=10 status=none
user: printf '\0\1\2' >>data.bin
c8: sed -i 's/^line 3$/line three, by the agent/' README
m4
user: sed -i 's/^line three.*$/line three, by me/' README
c9: mkdir -p lib/deep && echo x >lib/x && echo y >lib/deep/y
c10: ln -sfn app.py link
m5
user: echo z >lib/z
c11: rm -rf assets
c12: sed -i '1s/$/ edited/' notes.txt
m6
user: rm notes.txt
c13: mkdir tmp && printf 'generated\n' >tmp/gen.py
c14: rm docs/a.md && mkdir docs/a.md && echo inner >docs/a.md/inner
user: printf 'by hand\n' >>tmp/gen.py
m7
c15: rm -rf folder && echo 'a file' >folder
c16: sed -i 's/^line 5$/line five/' plain.txt
user: rm plain.txt && ln -s README plain.txt
c17: sed -i 's/^line ten$/line ten, again/' app.py
m8
c18: sed -i '1s/.*/first/' big.log
user: sed -i '$s/.*/last/' big.log
c19: chmod 700 script.sh
user: sed -i 's/^line 7$/seven/' script.sh
m9
c20: mv lib/x lib/x2
c21: echo more >>lib/x2
user: printf 'line 0\n' | cat - settings.json >s && mv s settings.json
m10
c22: rm -rf tree
user: echo 'in the way' >tree
c23: mkfifo pipe && ln -s nowhere dangling
m11
c24: touch -d 2001-01-01 touched
c25: mkdir pkg && for i in $(seq 20); do echo $i >pkg/$i; done
c26: sed -i 's/^line 14$/line fourteen/' app.py && sed -i 's/^line 15$/line fifteen/' README
user: sed -i 's/^line 6$/six/' README && chmod 640 README
m12
c27: chmod 600 README
c28: git init -q repo && echo tracked >repo/f && git -C repo add f && git -C repo commit -qm one
c29: printf 'emptied' >emptied && : >emptied
c30: rm -rf pkg/1 pkg/2 && echo changed >pkg/3 && cp -r assets2 assets3
`

// lay makes the workspace that the conversation begins in.
const lay = `
lines() { seq -f 'line %g' "$1"; }
lines 20 >app.py; lines 20 >README; lines 8 >config.json; lines 8 >script.sh; lines 3 >notes.txt; lines 9 >plain.txt
head -c 5000 /dev/zero >data.bin
lines 100000 >big.log
mkdir -p docs assets/sub assets2 folder/in tree/sub
echo a >docs/a.md; echo b >docs/b.md; echo l >assets/logo; echo s >assets/sub/s; echo 2 >assets2/2; echo w >folder/in/was
echo t >tree/t; echo u >tree/sub/u; ln -s README link; echo full >emptied; echo t >touched`

// thing is what is at a path, as far as lstat and reading tell.
type thing struct {
	mode fs.FileMode
	body string // content, or target
}

type things map[string]thing

func look(t *testing.T, dir string) things {
	t.Helper()
	all := things{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir || strings.HasPrefix(e.Name(), "shop.db") {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		x := thing{mode: fi.Mode()}
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			x.body = string(b)
		case fi.Mode()&fs.ModeSymlink != 0:
			if x.body, err = os.Readlink(p); err != nil {
				return err
			}
		}
		all[strings.TrimPrefix(p, dir+"/")] = x
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// step is something that was done, by a call or by the person, and the workspace
// before and after it, recorded by this test.
type step struct {
	message, call string
	before, after things
}

// oracle says what a revert must lead to, from the test's own record.
type oracle struct {
	t     *testing.T
	dir   string // for git's work
	steps []step
}

// after gives the state after a revert of the chosen calls, the paths that it merges and
// those that conflict.
func (o *oracle) after(now things, chosen func(step) bool) (to things, left map[string]string) {
	to, left = things{}, map[string]string{}
	for p, x := range now {
		to[p] = x
	}
	written := map[string]bool{}
	for _, s := range o.steps {
		if chosen(s) {
			for _, p := range s.changed() {
				written[p] = true
			}
		}
	}
	for p := range written {
		x, why := o.path(p, now, chosen)
		switch {
		case why != "":
			left[p] = why
		case x == nil:
			delete(to, p)
		default:
			to[p] = *x
		}
	}
	o.fit(now, to, left)
	return to, left
}

func (s step) changed() (paths []string) {
	for p, x := range s.after {
		if s.before[p] != x {
			paths = append(paths, p)
		}
	}
	for p := range s.before {
		if _, ok := s.after[p]; !ok {
			paths = append(paths, p)
		}
	}
	return paths
}

func (m things) at(p string) *thing {
	if x, ok := m[p]; ok {
		return &x
	}
	return nil
}

func same(a, b *thing) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

// path takes the chosen calls' writes to one path back, newest first; those that follow
// one another, with nobody else between, as one.
func (o *oracle) path(p string, now things, chosen func(step) bool) (*thing, string) {
	cur, others := now.at(p), false
	var later *thing // what a row of chosen writes left
	for i := len(o.steps) - 1; i >= 0; i-- {
		s := o.steps[i]
		before, after := s.before.at(p), s.after.at(p)
		if same(before, after) {
			continue
		}
		if !chosen(s) {
			others = true
			continue
		}
		if others || later == nil {
			later = after
		}
		others = false
		if o.followed(i, p, chosen) {
			continue
		}
		x, why := o.unite(later, cur, before)
		if why != "" {
			return nil, why
		}
		cur, later = x, nil
	}
	return cur, ""
}

// followed reports whether the write to p before step i is a chosen one too.
func (o *oracle) followed(i int, p string, chosen func(step) bool) bool {
	for i--; i >= 0; i-- {
		if s := o.steps[i]; !same(s.before.at(p), s.after.at(p)) {
			return chosen(s)
		}
	}
	return false
}

// unite makes the change from left to before in now, with git for texts.
func (o *oracle) unite(left, now, before *thing) (*thing, string) {
	switch {
	case same(now, left):
		return before, ""
	case same(now, before):
		return now, ""
	case now == nil:
		return nil, "removed"
	case left == nil && now.mode.IsDir() && before.mode.IsDir():
		return now, ""
	case left == nil:
		return nil, "replaced"
	case before == nil:
		return nil, "edited"
	case now.mode.Type() != left.mode.Type() || now.mode.Type() != before.mode.Type():
		return nil, "retyped"
	}
	x := *now
	if now.mode == left.mode {
		x.mode = before.mode
	} else if left.mode != before.mode && now.mode != before.mode {
		return nil, "overlaps"
	}
	switch {
	case now.body == left.body:
		x.body = before.body
	case left.body == before.body || now.body == before.body:
	default:
		text, why := o.merge(left.body, now.body, before.body)
		if why != "" {
			return nil, why
		}
		x.body = text
	}
	return &x, ""
}

func (o *oracle) merge(base, ours, theirs string) (string, string) {
	for i, s := range []string{base, ours, theirs} {
		if len(s) > 1<<20 {
			return "", "too_large"
		}
		if strings.Contains(s, "\x00") || !utf8.ValidString(s) {
			return "", "binary"
		}
		if err := os.WriteFile(filepath.Join(o.dir, strconv.Itoa(i)), []byte(s), 0o600); err != nil {
			o.t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "merge-file", "-p", "-q", "1", "0", "2")
	cmd.Dir = o.dir
	var out bytes.Buffer
	cmd.Stdout = &out
	if cmd.Run() != nil {
		return "", "overlaps"
	}
	return out.String(), ""
}

// fit lets stay what has no folder to be in, and folders that must go and are not empty.
func (o *oracle) fit(now, to things, left map[string]string) {
	for again := true; again; {
		again = false
		for p, x := range to {
			if dir := filepath.Dir(p); dir != "." && !to[dir].mode.IsDir() && now[p] != x {
				left[p], again = "no_parent", true
			} else if dir != "." && !to[dir].mode.IsDir() && now[dir].mode.IsDir() {
				left[dir], again = "not_empty", true
				to[dir] = now[dir]
			}
		}
		for p, why := range left {
			if why != "no_parent" {
				continue
			}
			if x, ok := now[p]; ok {
				to[p] = x
			} else {
				delete(to, p)
			}
		}
	}
}

// testRevertInAConversation reverts each single call of the conversation, and six of
// the 78 ranges of its messages, others in the next run, and compares all that is
// in the workspace with the test's own record.
func testRevertInAConversation(t *testing.T) {
	t.Parallel()
	a, h := newHooked(t, "claude-code")
	shell(t, a.ws, lay)
	o := &oracle{t: t, dir: t.TempDir()}
	messages, turns := o.talk(a, h)
	if len(messages) != 12 || len(turns) != 12 {
		t.Fatalf("%d messages, %d turns", len(messages), len(turns))
	}
	end := look(t, a.ws)
	tally := map[string]int{}
	calls := 0
	for _, s := range o.steps {
		if s.call != "" {
			calls++
			o.try(a, end, tally, ipc.RevertRequest{CallID: ipc.CallID(s.call)}, func(x step) bool { return x.call == s.call })
		}
	}
	var all [][2]int
	for i := range messages {
		for j := i; j < len(messages); j++ {
			all = append(all, [2]int{i, j})
		}
	}
	ranges := testkit.Sample(t, "ranges", len(all), len(all)/13)
	for _, k := range ranges {
		from, to := all[k][0], all[k][1]
		in := messages[from : to+1]
		o.try(a, end, tally, ipc.RevertRequest{ConversationID: "s1", FromMessageID: turns[messages[from]], ToMessageID: turns[messages[to]]},
			func(x step) bool { return x.call != "" && slices.Contains(in, x.message) })
	}
	t.Logf("%d calls and %d ranges: %v", calls, len(ranges), tally)
	if calls != 30 {
		t.Errorf("%d calls", calls)
	}
	for _, why := range []string{"overlaps", "binary", "too_large", "retyped", "removed", "replaced", "edited", "not_empty", "no_parent", "merged"} {
		if tally[why] == 0 {
			t.Errorf("nothing was %s", why)
		}
	}
	o.commandLine(a, end, turns)
}

// talk plays the conversation, telling the hooks of the agent's part.
func (o *oracle) talk(a *testApp, h hooks) (messages []string, turns map[string]string) {
	o.t.Helper()
	turns = map[string]string{}
	state := look(o.t, a.ws)
	message := ""
	for _, line := range strings.Split(strings.TrimSpace(conversation), "\n") {
		who, script, does := strings.Cut(line, ": ")
		switch {
		case !does:
			if message != "" {
				h.run(h.claude("Stop", ""))
			}
			message = who
			messages = append(messages, message)
			h.run(h.claude("UserPromptSubmit", fmt.Sprintf(`,"prompt":%q`, who)))
			turns[message] = string(h.turns()[0].ID)
			continue
		case who == "user":
			shell(o.t, a.ws, script)
			h.seen(turns[message])
		default:
			id := "toolu_" + who
			h.run(h.claude("PreToolUse", fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":%q,"tool_input":{"command":%q}`, id, script)))
			shell(o.t, a.ws, script)
			h.run(h.claude("PostToolUse", fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":%q,"tool_input":{},"tool_response":{}`, id)))
			h.ended(id)
			who = id
		}
		s := step{message: message, before: state, after: look(o.t, a.ws)}
		if who != "user" {
			s.call = who
		}
		o.steps, state = append(o.steps, s), s.after
	}
	h.run(h.claude("Stop", ""))
	return messages, turns
}

// seen waits until what was written is in the journal: on a busy machine a hook does not
// wait for that as long as it may take.
func (h hooks) seen(turn string) {
	h.t.Helper()
	if _, err := h.d.client.Revert(context.Background(), "shop", ipc.RevertRequest{TurnID: ipc.TurnID(turn), DryRun: true}); err != nil {
		h.t.Fatal(err)
	}
}

// ended waits until a call's end is recorded.
func (h hooks) ended(call string) {
	h.t.Helper()
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, turn := range h.turns() {
			if slices.ContainsFunc(turn.Calls, func(c ipc.Call) bool { return string(c.ID) == call && c.EndedAt != nil }) {
				return
			}
		}
	}
	h.t.Fatalf("call %s has no end: %s", call, h.log())
}

// over waits until the newest turn has ended: the daemon may be at it still when the hook that told it gives up.
func (h hooks) over() {
	h.t.Helper()
	eventually(h.t, "the turn has ended", func() bool {
		turns := h.turns()
		return len(turns) > 0 && turns[0].EndedAt != nil
	})
}

// try reverts, compares with what must be, and goes back over it.
func (o *oracle) try(a *testApp, now things, tally map[string]int, req ipc.RevertRequest, chosen func(step) bool) {
	o.t.Helper()
	want, left := o.after(now, chosen)
	res, err := a.d.client.Revert(o.t.Context(), "shop", req)
	if err != nil {
		o.t.Fatalf("%+v: %v", req, err)
	}
	got := look(o.t, a.ws)
	what := fmt.Sprintf("%s%s…%s", req.CallID, req.FromMessageID, req.ToMessageID)
	o.compare(what, got, want)
	conflicts := map[string]string{}
	for _, c := range res.Conflicts {
		conflicts[c.Path] = c.Reason
		tally[c.Reason]++
	}
	if fmt.Sprint(conflicts) != fmt.Sprint(left) {
		o.t.Errorf("%s: conflicts %v, want %v", what, conflicts, left)
	}
	changed := step{before: now, after: got}.changed()
	slices.Sort(changed)
	if !slices.Equal(changed, res.RestoredPaths) && len(changed)+len(res.RestoredPaths) > 0 {
		// A file whose time alone went back looks the same here.
		if rest := slices.DeleteFunc(slices.Clone(res.RestoredPaths), func(p string) bool { return slices.Contains(changed, p) }); len(rest) > 0 || len(changed) > len(res.RestoredPaths) {
			o.t.Errorf("%s: told of %q, changed %q", what, res.RestoredPaths, changed)
		}
	}
	tally["merged"] += len(res.MergedPaths)
	tally["restored"] += len(res.RestoredPaths)
	if res.SafetyCheckpoint == nil {
		if len(changed) > 0 {
			o.t.Errorf("%s: no safety checkpoint", what)
		}
		return
	}
	back, err := a.d.client.Rollback(o.t.Context(), "shop", res.SafetyCheckpoint.ID, ipc.RollbackRequest{Scope: []string{"layer:files"}}, nil)
	if err != nil || !back.RolledBack {
		o.t.Fatalf("%s: back over the revert: %v", what, err)
	}
	o.compare(what+" reverted", look(o.t, a.ws), now)
}

func (o *oracle) compare(what string, got, want things) {
	o.t.Helper()
	s := step{before: want, after: got}
	bad := s.changed()
	slices.Sort(bad)
	for i, p := range bad {
		if i < 5 {
			g, w := got.at(p), want.at(p)
			o.t.Errorf("%s: %s is %s, want %s", what, p, g, w)
		}
	}
	if len(bad) > 0 {
		o.t.FailNow()
	}
}

func (x *thing) String() string {
	if x == nil {
		return "(nothing)"
	}
	return fmt.Sprintf("%v %.200q", x.mode, x.body)
}

// commandLine reverts as people do.
func (o *oracle) commandLine(a *testApp, now things, turns map[string]string) {
	t, d := o.t, a.d
	// A call whose one path somebody wrote the same line of: left alone, and then forced.
	out, stderr, code := d.mulligan("revert", "--app", "shop", "--call", "toolu_c8")
	if code != 4 || !strings.Contains(out, "conflict\tREADME\toverlaps\t") || !strings.Contains(stderr, "1 path was left alone") || !strings.Contains(stderr, "--force") {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
	o.compare("a conflict", look(t, a.ws), now)
	out, _, code = d.mulligan("revert", "--app", "shop", "--call", "toolu_c8", "--force", "--dry-run")
	if code != 0 || !strings.Contains(out, "restored\tREADME\n") {
		t.Errorf("exit %d: %s", code, out)
	}
	d.must("revert", "--app", "shop", "--call", "toolu_c8", "--force", "--reason", "never mind")
	if got := look(t, a.ws)["README"].body; !strings.Contains(got, "line 3\n") {
		t.Errorf("forced: %q", got)
	}
	// undo goes back over it, redo forward again, undo back.
	d.must("undo", "--app", "shop")
	o.compare("undone", look(t, a.ws), now)
	d.must("redo", "--app", "shop")
	if got := look(t, a.ws)["README"].body; !strings.Contains(got, "line 3\n") {
		t.Errorf("redone: %q", got)
	}
	d.must("undo", "--app", "shop")
	o.compare("undone again", look(t, a.ws), now)

	// A turn by its id, and all after the conversation's checkpoint: the same.
	want, _ := o.after(now, func(s step) bool { return s.call != "" && s.message == "m12" })
	d.must("revert", "--app", "shop", "--turn", turns["m12"])
	o.compare("one turn", look(t, a.ws), want)
	d.must("undo", "--app", "shop")
	d.must("revert", "--app", "shop", "--conversation", "s1", "--set-checkpoint", turns["m11"])
	if out, _, code := d.mulligan("revert", "--app", "shop", "--conversation", "s1"); code != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
	o.compare("from the checkpoint on", look(t, a.ws), want)
	for _, c := range []struct {
		args string
		code int
	}{
		{"", 2}, {"--call nothing", 3}, {"--turn nothing", 3}, {"--conversation s1 --from nothing", 3}, {"--call x --from y", 2},
		{"--set-checkpoint m1", 2}, {"--conversation s1 --from " + turns["m3"] + " --to " + turns["m2"], 2},
	} {
		if _, stderr, code := d.mulligan(append([]string{"revert", "--app", "shop"}, strings.Fields(c.args)...)...); code != c.code || strings.Count(stderr, "\n") != 1 {
			t.Errorf("revert %s: exit %d, %s", c.args, code, stderr)
		}
	}
	if log := d.must("log", "--app", "shop"); !strings.Contains(log, "call toolu_c8") || !strings.Contains(log, "never mind") {
		t.Errorf("the audit trail lacks it: %s", log)
	}
}

// testKillInRevert kills the daemon at random moments of a revert.
func testKillInRevert(t *testing.T) {
	t.Parallel()
	a, h := newHooked(t, "claude-code")
	shell(t, a.ws, lay)
	h.run(h.claude("UserPromptSubmit", `,"prompt":"go"`))
	h.run(h.claude("PreToolUse", `,"tool_name":"Bash","tool_use_id":"toolu_1","tool_input":{}`))
	shell(t, a.ws, `for i in $(seq 300); do echo $i >made$i; done; rm -rf assets; sed -i 's/line 2$/two/' app.py; for f in src/d0/*; do echo x >$f; done`)
	h.run(h.claude("PostToolUse", `,"tool_name":"Bash","tool_use_id":"toolu_1","tool_input":{},"tool_response":{}`))
	h.ended("toolu_1")
	h.run(h.claude("Stop", ""))
	shell(t, a.ws, `sed -i 's/line 18$/eighteen/' app.py`)
	before := look(t, a.ws)
	undo := func(what string) {
		t.Helper()
		a.d.must("undo", "--app", "shop")
		(&oracle{t: t}).compare(what+", undone", look(t, a.ws), before)
	}
	began := time.Now()
	a.d.must("revert", "--app", "shop", "--call", "toolu_1")
	takes := time.Since(began)
	after := look(t, a.ws)
	undo("undisturbed")
	forward := 0
	m := testkit.NewMoments(t, takes, kills())
	for m.Next() {
		at := m.After()
		m.Hit(killDuring(a.d, at, func() error {
			_, err := a.d.client.Revert(t.Context(), "shop", ipc.RevertRequest{CallID: "toolu_1"})
			return err
		}))
		eventually(t, "the files are followed", func() bool {
			app, err := a.d.client.App(t.Context(), "shop")
			return err == nil && app.Following == "watching"
		})
		got := look(t, a.ws)
		if len(step{before: before, after: got}.changed()) == 0 {
			continue
		}
		forward++
		(&oracle{t: t}).compare(fmt.Sprintf("killed after %v", at), got, after)
		undo(fmt.Sprintf("killed after %v", at))
	}
	t.Logf("%d went forward; it takes %v", forward, takes)
	if s := ask[ipc.Status](a.d, "status"); len(s.Problems) > 0 {
		t.Errorf("the daemon has problems: %v", s.Problems)
	}
}

// TestSessionsSideBySide has two sessions of an agent work at once: a rollback for one
// of them says that it would take the other's work along, and does it when told to.
func TestSessionsSideBySide(t *testing.T) {
	t.Parallel()
	a, h := newHooked(t, "claude-code")
	tell := func(session, event, more string) {
		h.run(strings.Replace(h.claude(event, more), `"session_id":"s1"`, fmt.Sprintf(`"session_id":%q`, session), 1))
	}
	call := func(session, id, script string) {
		tell(session, "PreToolUse", fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":%q,"tool_input":{}`, id))
		shell(t, a.ws, script)
		tell(session, "PostToolUse", fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":%q,"tool_input":{},"tool_response":{}`, id))
		h.ended(id)
	}
	tell("one", "UserPromptSubmit", `,"prompt":"go"`)
	tell("two", "UserPromptSubmit", `,"prompt":"go"`)
	call("one", "toolu_1", "echo 1 >one.txt")
	call("two", "toolu_2", "echo 2 >two.txt")
	call("one", "toolu_3", "echo 3 >>one.txt")
	list := func(session string) []ipc.Checkpoint {
		return ask[ipc.CheckpointList](a.d, "list", "--app", "shop", "--conversation", session).Checkpoints
	}
	eventually(t, "both turns have their checkpoints", func() bool { return len(list("one")) > 0 && len(list("two")) > 0 })
	if len(list("one")) != 1 || len(list("two")) != 1 || list("one")[0].ID == list("two")[0].ID {
		t.Fatalf("%v, %v", list("one"), list("two"))
	}
	if turns := ask[ipc.TurnList](a.d, "turns", "--app", "shop", "--conversation", "two").Turns; len(turns) != 1 || len(turns[0].Calls) != 1 {
		t.Errorf("%+v", turns)
	}
	cp := string(list("one")[0].ID)
	before := look(t, a.ws)
	_, stderr, code := a.d.mulligan("rollback", cp, "--app", "shop")
	if code != 4 || !strings.Contains(stderr, "session two") || !strings.Contains(stderr, "two.txt") || !strings.Contains(stderr, "--force") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	(&oracle{t: t}).compare("refused", look(t, a.ws), before)
	a.d.must("revert", "--app", "shop", "--conversation", "one")
	if got := look(t, a.ws); got.at("one.txt") != nil || got.at("two.txt") == nil {
		t.Error("the revert is not of one session's writes only")
	}
	a.write(t, "mine.txt", "made after the revert\n")
	a.d.must("undo", "--app", "shop")
	if got := look(t, a.ws); got.at("mine.txt") == nil {
		t.Error("undo took more than the revert back")
	}
	shell(t, a.ws, "rm mine.txt")
	(&oracle{t: t}).compare("the revert undone", look(t, a.ws), before)
	a.d.must("rollback", cp, "--app", "shop", "--force", "--scope", "layer:files")
	if got := look(t, a.ws); got.at("one.txt") != nil || got.at("two.txt") != nil {
		t.Error("forced, it is not as before both")
	}
}

// TestSessionsAsk has one of two sessions side by side ask for rollbacks by mulligan's own tools, as Claude Code does: the daemon knows from the call
// which session asks.
func TestSessionsAsk(t *testing.T) {
	t.Parallel()
	a, h := newHooked(t, "claude-code")
	tell := func(session, event, more string) {
		h.run(strings.Replace(h.claude(event, more), `"session_id":"s1"`, fmt.Sprintf(`"session_id":%q`, session), 1))
	}
	before := func(session, tool, id string) {
		tell(session, "PreToolUse", fmt.Sprintf(`,"tool_name":%q,"tool_use_id":%q,"tool_input":{}`, tool, id))
	}
	after := func(session, tool, id string) {
		tell(session, "PostToolUse", fmt.Sprintf(`,"tool_name":%q,"tool_use_id":%q,"tool_input":{},"tool_response":{}`, tool, id))
		h.ended(id)
	}
	rollback := func(session, id string, cp ipc.CheckpointID) (ipc.RollbackResult, error) {
		before(session, "mcp__mulligan__rollback_app", id)
		res, err := a.d.client.Rollback(t.Context(), "shop", cp, ipc.RollbackRequest{Scope: []string{"layer:files"}, CallID: ipc.CallID(id)}, nil)
		after(session, "mcp__mulligan__rollback_app", id)
		return res, err
	}

	// To a checkpoint that the session made itself, while another one does nothing.
	tell("one", "UserPromptSubmit", `,"prompt":"go"`)
	tell("two", "UserPromptSubmit", `,"prompt":"go"`)
	before("one", "mcp__mulligan__create_checkpoint", "toolu_1")
	cp := ask[ipc.Checkpoint](a.d, "create", "--app", "shop")
	after("one", "mcp__mulligan__create_checkpoint", "toolu_1")
	made := look(t, a.ws)
	before("one", "Write", "toolu_2")
	a.write(t, "one.txt", "1\n")
	after("one", "Write", "toolu_2")
	if _, err := rollback("one", "toolu_3", cp.ID); err != nil {
		t.Errorf("its own work: %v", err)
	}
	(&oracle{t: t}).compare("its own work rolled back", look(t, a.ws), made)
	tell("one", "Stop", "")

	// To before what another session writes in a call that still runs.
	tell("three", "UserPromptSubmit", `,"prompt":"go"`)
	before("two", "Bash", "toolu_4")
	a.write(t, "two.txt", "2\n")
	theirs := look(t, a.ws)
	_, err := rollback("three", "toolu_5", cp.ID)
	if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "session two") || !strings.Contains(err.Error(), "two.txt") {
		t.Errorf("another's work: %v", err)
	}
	(&oracle{t: t}).compare("another's work", look(t, a.ws), theirs)
	after("two", "Bash", "toolu_4")
	tell("two", "Stop", "")
	tell("three", "Stop", "")

	// With it a turn begins: its safety checkpoint is the turn's, and not that of a newer turn in which a call runs.
	tell("four", "UserPromptSubmit", `,"prompt":"go"`)
	tell("five", "UserPromptSubmit", `,"prompt":"go"`)
	before("five", "Bash", "toolu_6")
	res, err := rollback("four", "toolu_7", cp.ID)
	if err != nil {
		t.Fatal(err)
	}
	turns := ask[ipc.TurnList](a.d, "turns", "--app", "shop", "--conversation", "four").Turns
	if len(turns) != 1 || turns[0].CheckpointID == nil || *turns[0].CheckpointID != res.SafetyCheckpoint.ID {
		t.Errorf("the safety checkpoint is %s, and the turn %+v", res.SafetyCheckpoint.ID, turns)
	}
}
