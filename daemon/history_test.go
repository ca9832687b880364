package daemon_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// history is an app to which things happen, and a model of where undo and redo go and
// of which checkpoints that people made are kept.
type history struct {
	t    *testing.T
	w    world
	d    *daemon.Daemon
	rnd  *rand.Rand
	fail failpoint
	n    int

	now    string   // what the app is
	acts   []act    // those that are in it, oldest first
	others bool     // somebody wrote, at some time, what is no act: an undo may ask for it
	fresh  bool     // somebody did so since the last act or rollback: an undo must ask
	back   *moment  // where redo goes
	asked  []string // the ids of what people made, newest first
	points map[ipc.CheckpointID]moment
	said   []string // what happened, for whoever has to find out
}

// act is a turn that is in the app, and what the app was before it.
type act struct {
	before ipc.CheckpointID
	was    string
}

// moment is a state with the acts that are in it.
type moment struct {
	now  string
	acts []act
}

const keepAsked, keepSafety = 4, 3

func newHistory(t *testing.T) *history {
	h := &history{t: t, rnd: testkit.Rand(t), points: map[ipc.CheckpointID]moment{}, w: world{dir: t.TempDir()}}
	if err := os.Mkdir(h.w.ws(), 0o755); err != nil {
		t.Fatal(err)
	}
	h.write("zero")
	h.open()
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.KeepSafety, keep.DailyDays = keepAsked, keepSafety, 0
	if _, err := h.d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: h.w.ws(), Auto: true, Retention: keep}); err != nil {
		t.Fatal(err)
	}
	if err := followed(t.Context(), h.d); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *history) open() {
	h.d = h.w.openAs(h.t, daemon.Options{StateDir: h.w.state(), User: true, QuietGap: time.Hour, AgentWait: testkit.Patience, Steady: steady, Failpoint: h.fail.step})
}

func (h *history) write(word string) {
	h.now = word
	if err := os.WriteFile(filepath.Join(h.w.ws(), "state"), []byte(word), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) word() string {
	h.n++
	return fmt.Sprint("w", h.n)
}

func (h *history) moment() moment { return moment{h.now, slices.Clone(h.acts)} }

func (h *history) say(format string, args ...any) {
	h.said = append(h.said, fmt.Sprintf(format, args...))
}

// check compares the app, and what of people's checkpoints is kept, with the model.
func (h *history) check() {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.w.ws(), "state"))
	if err != nil || string(b) != h.now {
		h.t.Fatalf("the app is %q, %v; want %q, after\n%s", b, err, h.now, strings.Join(h.said, "\n"))
	}
	var got []string
	safety, off := 0, 0
	for _, cp := range listed(h.t, h.d) {
		switch cp.Trigger {
		case ipc.TriggerManual:
			got = append(got, string(cp.ID))
		case ipc.TriggerPreRollback:
			safety++
			if cp.CalledOff {
				off++
			}
		}
	}
	if !slices.Equal(got, h.asked) || safety-off > keepSafety+1 || off > keepSafety+1 { // the target and the newest may be beyond the allowance
		h.t.Fatalf("kept are %v and %d safety checkpoints, want %v, after\n%s", got, safety, h.asked, strings.Join(h.said, "\n"))
	}
}

// create makes a person's checkpoint: the only thing that another of them goes for.
func (h *history) create() {
	cp, err := h.d.Create(h.t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.say("%s is made of %s", cp.ID, h.now)
	h.points[cp.ID] = h.moment()
	h.asked = append([]string{string(cp.ID)}, h.asked...)
	h.asked = h.asked[:min(len(h.asked), keepAsked)]
}

// turn is an agent's; within some, it rolls back, or is refused.
func (h *history) turn() {
	h.n++
	id := ipc.TurnID(fmt.Sprint("turn", h.n))
	was := h.now
	begin(h.t, h.d, id)
	h.write(h.word())
	waitFor(h.t, "the turn has its checkpoint", func() bool { return mustTurn(h.t, h.d, id).CheckpointID != nil })
	before := *mustTurn(h.t, h.d, id).CheckpointID
	h.acts, h.fresh = append(h.acts, act{before, was}), false
	h.say("%s goes from %s to %s, with %s", id, was, h.now, before)
	if to, ok := h.pick(); ok && h.rnd.IntN(3) == 0 {
		here := h.moment()
		goBack(h.t, h.d, to, ipc.RollbackRequest{ConversationID: "c"})
		h.now, h.back = h.points[to].now, &here
		h.say("… and goes to %s: %s", to, h.now)
		h.write(h.word())
	}
	end(h.t, h.d, id)
}

// pick draws one of people's checkpoints.
func (h *history) pick() (ipc.CheckpointID, bool) {
	if len(h.asked) == 0 {
		return "", false
	}
	return ipc.CheckpointID(h.asked[h.rnd.IntN(len(h.asked))]), true
}

// person writes outside of all turns.
func (h *history) person() {
	h.write(h.word())
	h.others, h.fresh = true, true
	h.say("somebody makes it %s", h.now)
}

// goTo rolls back by hand.
func (h *history) goTo() {
	to, ok := h.pick()
	if !ok {
		return
	}
	here := h.moment()
	goBack(h.t, h.d, to, ipc.RollbackRequest{})
	h.arrive(h.points[to], here)
	h.say("rolled back to %s: %s", to, h.now)
}

func (h *history) arrive(there, here moment) {
	h.now, h.acts, h.fresh, h.back = there.now, slices.Clone(there.acts), false, &here
}

// undo takes back some of the acts, if nobody else's work goes along or it may.
func (h *history) undo() {
	n := 1 + h.rnd.IntN(2)
	here, include := h.moment(), h.rnd.IntN(2) == 0
	_, err := h.d.Rollback(h.t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{Turns: n, IncludeOthers: include}, nil)
	h.say("undo %d, with others %v: %v", n, include, err)
	switch kind := errs.KindOf(err); {
	case n > len(h.acts):
		if err == nil || kind != errs.NotFound {
			h.t.Fatalf("undo %d of %d acts: %v, after\n%s", n, len(h.acts), err, strings.Join(h.said, "\n"))
		}
	case err == nil && (include || !h.fresh):
		to := h.acts[len(h.acts)-n]
		h.arrive(moment{now: to.was, acts: h.acts[:len(h.acts)-n]}, here)
	case kind == errs.Conflict && !include && h.others:
	default:
		h.t.Fatalf("undo %d: %v, after\n%s", n, err, strings.Join(h.said, "\n"))
	}
}

// redo goes back over the last rollback that was done.
func (h *history) redo() {
	here := h.moment()
	_, err := h.d.Rollback(h.t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{}, nil)
	h.say("redo: %v", err)
	switch {
	case h.back == nil:
		if err == nil || errs.KindOf(err) != errs.NotFound {
			h.t.Fatalf("redo of nothing: %v, after\n%s", err, strings.Join(h.said, "\n"))
		}
	case err != nil:
		h.t.Fatalf("redo: %v, after\n%s", err, strings.Join(h.said, "\n"))
	default:
		h.arrive(*h.back, here)
	}
}

// refused asks for what cannot be.
func (h *history) refused() {
	to, ok := h.pick()
	if !ok {
		return
	}
	scope := [][]string{{"../x"}, {"nothing"}, {"layer:nosuch"}}[h.rnd.IntN(3)]
	if _, err := h.d.Rollback(h.t.Context(), root, "shop", to, ipc.RollbackRequest{Scope: scope}, nil); err == nil {
		h.t.Fatalf("%q was not refused", scope)
	}
	h.say("refused: %q", scope)
}

// fails has a rollback, an undo or a redo fail, before or after it changed something.
func (h *history) fails() {
	to, ok := h.pick()
	if !ok {
		return
	}
	if h.rnd.IntN(3) == 0 {
		to = []ipc.CheckpointID{ipc.Undo, ipc.Redo}[h.rnd.IntN(2)]
	}
	step := []string{"prepare files", "plan switching", "commit files", "plan switched"}[h.rnd.IntN(4)]
	h.fail.set(step)
	res, err := h.d.Rollback(h.t.Context(), root, "shop", to, ipc.RollbackRequest{IncludeOthers: true}, nil)
	h.say("to %s, with %q failing: %v", to, step, err)
	h.fail.set("")
	if err == nil || res.RolledBack {
		h.t.Fatalf("it did not fail: %+v, after\n%s", res, strings.Join(h.said, "\n"))
	}
}

func (h *history) restart() {
	h.w.close(h.t, h.d)
	h.open()
	if err := followed(h.t.Context(), h.d); err != nil {
		h.t.Fatal(err)
	}
	h.say("restarted")
}

// TestHistories has things happen at random: undo and redo go where the model says, and
// what people made goes for nothing but more of it.
func TestHistories(t *testing.T) {
	histories, steps := 3, 25
	if long() {
		histories, steps = 200, 40
	}
	for i := range histories {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			defer func() { must(h.d.Close(context.Background())) }()
			things := []func(){h.create, h.turn, h.turn, h.turn, h.person, h.goTo, h.undo, h.undo, h.undo, h.redo, h.redo, h.refused, h.fails, h.fails, h.restart}
			for range steps {
				things[h.rnd.IntN(len(things))]()
				h.check()
			}
		})
	}
}
