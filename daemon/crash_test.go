package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// fate is what a victim does, and the step that it dies at.
type fate struct {
	State   string
	Bus     string
	BusRoot string
	Do      string // create, rollback, delete, prune, revert, fork, keep, drop
	Target  ipc.CheckpointID
	Word    string // the state that a bisect finds
	Name    string // the fork's
	Count   int    // of forks, without a name
	Jobs    int    // of a bisect
	Step    int    // counted from 1; 0: none
	Waits   bool   // it does not die at its step, but says that it is there and waits for a line; then its operation may fail
	Kind    string // count steps of this kind only; "": all
	Clone   ipc.CloneRequest
	Fetch   ipc.FetchRequest
}

// operations are those that are cut short.
var operations = []string{"create", "rollback", "delete", "prune"}

// victim carries out one operation in a daemon of its own and kills itself at
// its step. It says when it begins, and the names of all steps when it is done.
func victim(plan string) {
	var f fate
	must(json.Unmarshal([]byte(plan), &f))
	var mu sync.Mutex // also keeps a victim that is dying from going on
	var names []string
	armed, n := false, 0
	hook := func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if armed {
			names = append(names, step)
			if f.Kind == "" || kind(step) == f.Kind {
				n++
			}
			if n == f.Step && f.Waits {
				n++ // once
				fmt.Print("waits ")
				must(json.NewEncoder(os.Stdout).Encode(names))
				_, err := bufio.NewReader(os.Stdin).ReadString('\n')
				must(err)
			} else if n == f.Step {
				must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
				select {}
			}
		}
		return nil
	}
	ctx := context.Background()
	opt := world{bus: f.Bus, busRoot: f.BusRoot}.options()
	opt.StateDir, opt.Failpoint = f.State, hook
	d, err := daemon.Open(ctx, opt)
	must(err)
	if f.Do == "prune" {
		must(keepLast(ctx, d, 1))
	}
	if f.Do == "revert" {
		must(followed(ctx, d))
	}
	fmt.Println("begins")
	mu.Lock()
	armed = true
	mu.Unlock()
	if err := f.run(ctx, d); f.Waits && err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		must(err)
	}
	mu.Lock()
	armed = false
	must(json.NewEncoder(os.Stdout).Encode(names))
	mu.Unlock()
}

func (f fate) run(ctx context.Context, d *daemon.Daemon) (err error) {
	switch f.Do {
	case "create":
		_, err = d.Create(ctx, root, "shop", ipc.CreateRequest{})
	case "create-live":
		_, err = d.Create(ctx, root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
	case "create-memory":
		_, err = d.Create(ctx, root, "shop", ipc.CreateRequest{WithMemory: true})
	case "rollback":
		_, err = d.Rollback(ctx, root, "shop", f.Target, ipc.RollbackRequest{}, nil)
	case "delete":
		err = d.Delete(ctx, root, "shop", f.Target)
	case "revert":
		_, err = d.Revert(ctx, root, "shop", ipc.RevertRequest{CallID: "call"})
	case "prune":
		_, err = d.Prune(ctx, root, "shop", false)
	case "push":
		_, err = d.Push(ctx, root, "shop", ipc.PushRequest{Wait: true})
	case "prune-remote":
		_, err = d.PruneRemote(ctx, root, "shop", "backup", false)
	case "clone":
		_, err = d.Clone(ctx, root, f.Clone)
	case "fetch":
		_, err = d.Fetch(ctx, root, "shop", f.Fetch)
	case "fork":
		_, err = d.Fork(ctx, root, "shop", ipc.ForkRequest{CheckpointID: f.Target, Name: f.Name, Count: f.Count})
	case "keep":
		_, err = d.KeepFork(ctx, root, "shop", f.Name, ipc.KeepRequest{})
	case "look":
		err = lookAt(ctx, d, "shop-"+f.Name)
	case "drop":
		err = d.DropFork(ctx, root, "shop", f.Name)
	case "bisect":
		_, err = d.Bisect(ctx, root, "shop", ipc.BisectRequest{Good: f.Target, Jobs: f.Jobs, Command: []string{"sh", "-c", `test "$(cat file0)" != "$1"`, "sh", f.Word}})
	}
	return err
}

// lookAt reads the checkpoint that a fork began with.
func lookAt(ctx context.Context, d *daemon.Daemon, fork string) error {
	list, err := d.Checkpoints(ctx, root, fork, ipc.CheckpointQuery{})
	if err != nil {
		return err
	}
	_, err = d.Verify(ctx, root, fork, list.Checkpoints[len(list.Checkpoints)-1].ID, snap.Full)
	return err
}

func keepLast(ctx context.Context, d *daemon.Daemon, n int) error {
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.KeepSafety, keep.DailyDays = n, n-1, 0
	_, err := d.SetApp(ctx, root, "shop", ipc.AppChange{Retention: &keep})
	return err
}

// round is a world in which daemons die one after the other. What one left is
// what the next begins with.
type round struct {
	world
	first  ipc.CheckpointID // pinned
	holds  map[ipc.CheckpointID]string
	n      int
	before string // the app's state when the victim began
	plan   fate
	tally  map[string]int
}

func newRound(t *testing.T, w world) *round {
	t.Helper()
	r := &round{world: w, holds: map[ipc.CheckpointID]string{}, tally: map[string]int{}}
	d := r.open(t)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
	if err != nil {
		t.Fatal(err)
	}
	r.first, r.holds[cp.ID] = cp.ID, "zero"
	r.close(t, d)
	return r
}

// prepare brings the app into a new state, with checkpoints for what is to be done.
func (r *round) prepare(t *testing.T, do string) {
	t.Helper()
	d := r.open(t)
	if err := keepLast(t.Context(), d, 3); err != nil {
		t.Fatal(err)
	}
	r.plan = fate{State: r.state(), Bus: r.bus, BusRoot: r.busRoot, Do: do, Target: r.first}
	if do == "delete" || do == "prune" {
		r.create(t, d)
		r.plan.Target = r.create(t, d)
	}
	r.n++
	r.before = fmt.Sprintf("w%d", r.n)
	r.set(t, r.before)
	r.close(t, d)
}

func (r *round) create(t *testing.T, d *daemon.Daemon) ipc.CheckpointID {
	t.Helper()
	word := r.word(t)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r.holds[cp.ID] = word
	return cp.ID
}

// victim has a daemon do what was prepared and die at a step, or after some
// time where that is not 0; 0 for both lets it live.
func (r *round) victim(t *testing.T, step int, after time.Duration) (names []string, takes time.Duration, killed bool) {
	t.Helper()
	r.plan.Step = step
	plan, err := json.Marshal(r.plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_VICTIM="+string(plan))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	line, _ := out.ReadString('\n')
	began := time.Now()
	if line == "begins\n" && after > 0 {
		timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
		defer timer.Stop()
	}
	last, _ := out.ReadBytes('\n')
	takes = time.Since(began)
	err = cmd.Wait()
	killed = cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed || line != "begins\n" {
		t.Fatalf("%s: %v\n%s", r.plan.Do, err, stderr.String())
	}
	if len(last) > 0 {
		if err := json.Unmarshal(last, &names); err != nil {
			t.Fatal(err)
		}
	}
	return names, takes, killed
}

// check opens what a dead daemon left: every layer is at the same point, before
// or after; the app runs; all that is listed is whole and can be gone back to.
func (r *round) check(t *testing.T, what string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(what)
		}
	}()
	d := r.open(t)
	defer r.close(t, d)
	word := r.word(t)
	switch {
	case word == r.before:
		r.tally["back"]++
	case r.plan.Do == "rollback" && word == r.holds[r.first]:
		r.tally["forward"]++
	default:
		t.Fatalf("the app is in state %q, before it was %q", word, r.before)
	}
	r.runs(t, d, word)
	if s := d.Status(root); len(s.Problems) > 0 {
		t.Fatalf("problems: %v", s.Problems)
	}
	list := listed(t, d)
	if !slices.ContainsFunc(list, func(cp ipc.Checkpoint) bool { return cp.ID == r.first }) {
		t.Fatal("the pinned checkpoint is gone")
	}
	for _, cp := range list {
		if _, known := r.holds[cp.ID]; !known {
			r.holds[cp.ID] = r.before // all that this round made is of the state before
		}
		if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || !res.OK {
			t.Fatalf("%s: %v, %+v", cp.ID, err, res)
		}
	}
	r.restore(t, d, list)
}

// restore goes back to one of the checkpoints, and where there is time now and
// then to each of them.
func (r *round) restore(t *testing.T, d *daemon.Daemon, list []ipc.Checkpoint) {
	t.Helper()
	if rnd := testkit.Rand(t, "restore"); !long() || rnd.IntN(8) > 0 {
		i := rnd.IntN(len(list))
		list = list[i : i+1]
	}
	var pinned []ipc.CheckpointID
	for _, cp := range list { // else the safety checkpoints of the first would push out the others
		if !cp.Pinned {
			if _, err := d.Pin(t.Context(), root, "shop", cp.ID, true); err != nil {
				t.Fatal(err)
			}
			pinned = append(pinned, cp.ID)
		}
	}
	for _, cp := range list {
		was := r.word(t)
		res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		if err != nil {
			t.Fatalf("back to %s: %v", cp.ID, err)
		}
		r.holds[res.SafetyCheckpoint.ID] = was
		if got := r.word(t); got != r.holds[cp.ID] {
			t.Fatalf("back to %s is back to %q, want %q", cp.ID, got, r.holds[cp.ID])
		}
		r.tally["restored"]++
	}
	for _, id := range pinned {
		if _, err := d.Pin(t.Context(), root, "shop", id, false); err != nil {
			t.Fatal(err)
		}
	}
}

// aim is a step that victims are to die at.
type aim struct {
	names  []string // of the steps that a victim came to which was not killed
	i      int      // the step, counted from 0
	tries  int
	fewest int // steps that a victim came to
	hit    bool
}

func aimAt(names []string, i int) *aim { return &aim{names: names, i: i, fewest: len(names)} }

// over reports whether it was tried often enough.
func (a *aim) over() bool { return a.tries >= 2*misses }

// fire has the victim do what was prepared and die at the step, wherever the order of
// concurrent steps puts it this time. Where what runs beside the operation did not lead
// there in some tries, the victim is to die at the step of that number, or one just before.
func (r *round) fire(t *testing.T, a *aim) {
	t.Helper()
	var came []string
	if a.tries < misses {
		r.plan.Kind = kind(a.names[a.i])
		came, _, a.hit = r.victim(t, nth(a.names, a.i), 0)
		r.plan.Kind = ""
	} else {
		came, _, a.hit = r.victim(t, max(1, min(a.i+1, a.fewest-(a.tries-misses))), 0)
	}
	if a.tries++; !a.hit {
		a.fewest = min(a.fewest, len(came))
	}
}

// nth is the how manieth of its kind names[i] is, counted from 1.
func nth(names []string, i int) (n int) {
	for _, name := range names[:i+1] {
		if kind(name) == kind(names[i]) {
			n++
		}
	}
	return n
}

// misses is how often an operation may not come to a step that it came to before: what
// runs beside it decides how often it does some things.
const misses = 5

// TestKillAtEveryStep kills a daemon at the steps that the code itself has in
// each operation: at a sample of them, which rotates, and in a long run at one of each kind.
func TestKillAtEveryStep(t *testing.T) {
	t.Parallel()
	r := newRound(t, newWorld(t, pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})))
	r.killAtEveryStep(t, operations, pick)
}

// testKillAtEveryStepWithCluster is the same where the Postgres is handled as files.
// A short run does a rollback only, where a daemon dies between the cluster's two
// folders changing places.
func testKillAtEveryStepWithCluster(t *testing.T) {
	t.Parallel()
	r := newRound(t, newWorldOfCluster(t))
	if long() {
		r.killAtEveryStep(t, operations, pick)
		return
	}
	r.killAtEveryStep(t, []string{"rollback"}, func(t *testing.T, names []string) []int {
		return []int{slices.Index(names, "commit: start")}
	})
}

// killAtEveryStep kills daemons in each of the operations, at the steps that are picked.
func (r *round) killAtEveryStep(t *testing.T, operations []string, pick func(t *testing.T, names []string) []int) {
	for _, i := range testkit.Sample(t, "operations", len(operations), (len(operations)+1)/2) {
		do := operations[i]
		t.Run(do, func(t *testing.T) {
			clear(r.tally)
			r.prepare(t, do)
			names, _, killed := r.victim(t, 0, 0)
			if killed || len(names) < 2 {
				t.Fatalf("steps %q, killed %v", names, killed)
			}
			r.check(t, do)
			steps := pick(t, names)
			for _, i := range steps {
				where := fmt.Sprintf("step %d of %d (%s)", i+1, len(names), names[i])
				a := aimAt(names, i)
				for !a.hit && !a.over() {
					r.prepare(t, do)
					r.fire(t, a)
					r.check(t, fmt.Sprintf("%s killed at %s: %v", do, where, a.hit))
				}
				if !a.hit {
					t.Errorf("%s never came to %s again", do, where)
				}
				progress(t, "%s: %s: %v", do, where, r.tally)
			}
			testkit.Tally(t, "kills", len(steps))
			t.Logf("%d of %d steps, which are of %d kinds: %v", len(steps), len(names), kinds(names), r.tally)
		})
	}
}

// testKillAtAnyMoment kills daemons at random moments of each operation.
func testKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	moments := 1
	if long() {
		moments = 50
	}
	r := newRound(t, newWorld(t, pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})))
	for _, i := range testkit.Sample(t, "operations", len(operations), 1) {
		do := operations[i]
		r.prepare(t, do)
		_, takes, _ := r.victim(t, 0, 0)
		r.check(t, do)
		m := testkit.NewMoments(t, takes, moments)
		for m.Next() {
			after := m.After()
			r.prepare(t, do)
			_, _, killed := r.victim(t, 0, after)
			m.Hit(killed)
			r.check(t, fmt.Sprintf("%s, killed %v after %v", do, killed, after))
			progress(t, "%s, killed %v after %v: %v", do, killed, after, r.tally)
		}
	}
	t.Logf("%v", r.tally)
}

func kinds(names []string) int {
	seen := map[string]bool{}
	for _, n := range names {
		seen[kind(n)] = true
	}
	return len(seen)
}

// kind is a step's name without the ids in it.
func kind(name string) string { return ids.ReplaceAllString(name, "#") }

// pick chooses the steps to die at, counted from 0: one for 24 kinds of steps, and in a long run as pickOf does.
func pick(t *testing.T, names []string) []int {
	t.Helper()
	return pickOf(t, names, (kinds(names)+23)/24)
}

// pickOf chooses about few of the steps, which rotate. In a long run it chooses one of each kind, drawn from those of that kind: an operation comes to some steps again and
// again, as for each file or fork, and a death there leaves the same. A long run that takes every step (EVERY=1) takes them all.
func pickOf(t *testing.T, names []string, few int) (taken []int) {
	t.Helper()
	if !long() || testkit.Every() {
		return testkit.Sample(t, "steps", len(names), few)
	}
	of, order := map[string][]int{}, []string{}
	for i, name := range names {
		k := kind(name)
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], i)
	}
	random := testkit.Rand(t, "steps")
	for _, i := range testkit.Sample(t, "kinds of steps", len(order), 1) {
		taken = append(taken, of[order[i]][random.IntN(len(of[order[i]]))])
	}
	return taken
}
