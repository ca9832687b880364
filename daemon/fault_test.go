package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

// faults are the ways in which a call or a step fails.
var faults = []unix.Errno{unix.EIO, unix.ENOSPC, unix.EACCES, unix.ETIMEDOUT}

// hostage is a daemon in a process of its own, served on a socket, in which
// single things can be made to fail: a step that the code has a name for, or a
// system call that it makes.
type hostage struct {
	*ipc.Client
	p *sysfault.Process
	w world
}

// startHostage starts a daemon on w.
func startHostage(t *testing.T, w world) *hostage {
	t.Helper()
	return watchHostage(t, w, func(*sysfault.Process) {})
}

// watchHostage is startHostage with something done before the daemon opens its state.
func watchHostage(t *testing.T, w world, first func(*sysfault.Process)) *hostage {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_HOSTAGE="+w.dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := sysfault.Start(cmd, sysfault.Options{
		Name:  w.callName,
		Spare: func(args []string) bool { return len(args) > 1 && args[1] == "serve-app" },
	})
	if err != nil {
		t.Fatal(err)
	}
	first(p)
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatalf("%v\n%s", errors.Join(err, cmd.Wait()), stderr.String())
	}
	h := &hostage{Client: ipc.NewClient(filepath.Join(w.dir, "api.sock")), p: p, w: w}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the daemon said:\n%s", stderr.String())
		}
	})
	return h
}

// stop ends the daemon in order.
func (h *hostage) stop(t *testing.T) {
	t.Helper()
	if err := h.p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := h.p.Wait(); err != nil {
		t.Fatal(err)
	}
}

// serveHostage is the hostage's process.
func serveHostage(dir string) {
	var point armed
	opt := world{dir: dir}.options()
	opt.Failpoint, opt.Steady = point.step, 0 // a fault can be why the app ends
	d, err := daemon.Open(context.Background(), opt)
	must(err)
	mux := http.NewServeMux()
	mux.Handle("/", d.Handler())
	mux.HandleFunc("POST /failpoint", point.arm)
	l, err := ipc.Listen(filepath.Join(dir, "api.sock"), 0o600)
	must(err)
	srv := ipc.NewHTTPServer(mux, nil)
	go srv.Serve(l)
	fmt.Println("ready")
	waitForEnd()
	must(d.Close(context.Background()))
	must(srv.Close())
}

// armed is the daemon's failpoint: it fails at one step.
type armed struct {
	mu    sync.Mutex
	names []string
	kind  string
	at    int // counted from 1 among the steps of that kind; 0: none
	n     int // steps of that kind so far
	errno unix.Errno
}

func (s *armed) step(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, name)
	if kind(name) == s.kind {
		s.n++
	}
	if kind(name) == s.kind && s.n == s.at {
		return &os.PathError{Op: name, Path: "failpoint", Err: s.errno}
	}
	return nil
}

// arm begins a new count, and answers with the names of the one before.
func (s *armed) arm(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	must(json.NewEncoder(w).Encode(s.names))
	at, err := strconv.Atoi(r.URL.Query().Get("at"))
	must(err)
	errno, err := strconv.Atoi(r.URL.Query().Get("errno"))
	must(err)
	s.names, s.kind, s.at, s.n, s.errno = nil, r.URL.Query().Get("kind"), at, 0, unix.Errno(errno)
}

// failpoints arms the daemon's failpoint.
func (h *hostage) failpoints(t *testing.T, kind string, at int, errno unix.Errno) (names []string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial(h.Socket())}}
	resp, err := client.Post(fmt.Sprintf("http://daemon/failpoint?kind=%s&at=%d&errno=%d", url.QueryEscape(kind), at, int(errno)), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&names); err != nil {
		t.Fatal(err)
	}
	return names
}

var ids = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

// callName words a path without what is made up each time. What is outside the
// test's folder is let be, but for programs and what they need.
func (w world) callName(path string) string {
	path = strings.TrimSuffix(path, " (deleted)")
	if rel, ok := strings.CutPrefix(path, w.dir+"/"); ok {
		if rel == "app.sock" || rel == "api.sock" || rel == "api.sock.lock" {
			return ""
		}
		return ids.ReplaceAllString(rel, "#")
	}
	if strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") {
		return ids.ReplaceAllString(path, "#")
	}
	return ""
}

// ordeal is an app whose daemon is a hostage.
type ordeal struct {
	*hostage
	t      *testing.T       // the whole of it
	first  ipc.CheckpointID // pinned, of the state zero
	plan   fate
	n      int
	before string
	tally  map[string]int
}

func newOrdeal(t *testing.T) *ordeal {
	t.Helper()
	w := newWorld(t, pgtest.Start(t, pgtest.Options{Dir: quickDir(t)}))
	o := &ordeal{t: t, hostage: startHostage(t, w), tally: map[string]int{}}
	cp, err := o.CreateCheckpoint(t.Context(), "shop", ipc.CreateRequest{Pinned: true})
	if err != nil {
		t.Fatal(err)
	}
	o.first = cp.ID
	return o
}

// prepare brings the app into a new state, with checkpoints for what is to be done.
func (o *ordeal) prepare(t *testing.T, do string) {
	t.Helper()
	o.plan = fate{Do: do, Target: o.first}
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.DailyDays = 3, 0
	o.retain(t, keep)
	if do == "delete" || do == "prune" {
		for range 2 {
			cp, err := o.CreateCheckpoint(t.Context(), "shop", ipc.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			o.plan.Target = cp.ID
		}
		if do == "prune" {
			keep.KeepLast = 1
			o.retain(t, keep)
		}
	}
	o.n++
	o.before = fmt.Sprintf("w%d", o.n)
	o.w.set(t, o.before)
}

func (o *ordeal) retain(t *testing.T, keep ipc.Retention) {
	t.Helper()
	if _, err := o.SetApp(t.Context(), "shop", ipc.AppChange{Retention: &keep}); err != nil {
		t.Fatal(err)
	}
}

// operate does what was prepared. What takes longer than testkit.Patience hangs.
func (o *ordeal) operate(ctx context.Context) (res ipc.RollbackResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	switch o.plan.Do {
	case "create":
		_, err = o.CreateCheckpoint(ctx, "shop", ipc.CreateRequest{})
	case "rollback":
		res, err = o.Rollback(ctx, "shop", o.plan.Target, ipc.RollbackRequest{}, nil)
	case "delete":
		err = o.DeleteCheckpoint(ctx, "shop", o.plan.Target)
	case "prune":
		_, err = o.Prune(ctx, "shop", false)
	}
	return res, err
}

// check says what is wrong after an operation in which one thing failed: it must
// have succeeded all the same, or said one clear thing, with the app running in
// the state that it was in.
func (o *ordeal) check(t *testing.T, what string, res ipc.RollbackResult, err error) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s: %v; %+v", what, err, res.Stages)
		}
	}()
	want := o.before
	switch {
	case err == nil && o.plan.Do == "rollback":
		want = "zero"
		o.tally["done all the same"]++
	case err == nil:
		o.tally["done all the same"]++
	case res.RolledBack && res.Stages[5].Status == ipc.StageFailed:
		want = "zero" // the health check could not be made: what was asked for is kept
		o.tally["kept"]++
	default:
		o.refused(t, res, err)
	}
	if got := o.w.word(t); got != want {
		t.Fatalf("the app is in state %q, want %q", got, want)
	}
	o.up(t, want)
	list, err2 := o.Checkpoints(t.Context(), "shop", ipc.CheckpointQuery{})
	if err2 != nil {
		t.Fatal(err2)
	}
	for _, cp := range list.Checkpoints {
		if v, err := o.Verify(t.Context(), "shop", cp.ID); err != nil || !v.OK {
			t.Fatalf("%s: %v, %+v", cp.ID, err, v)
		}
	}
}

// refused checks how an operation failed.
func (o *ordeal) refused(t *testing.T, res ipc.RollbackResult, err error) {
	t.Helper()
	text := err.Error()
	if !slices.Contains(errs.Kinds, errs.KindOf(err)) || strings.Contains(text, "\n") || len(text) < 10 {
		t.Errorf("no clear error: %s: %q", errs.KindOf(err), text)
	}
	if errs.KindOf(err) == errs.Internal {
		t.Errorf("an internal error: %q", text)
	}
	touched := slices.ContainsFunc(res.Stages, func(s ipc.Stage) bool {
		return (s.Stage == ipc.StageVM || s.Stage == ipc.StageDB) && s.Status != ipc.StageSkipped
	})
	switch {
	case touched && !res.Recovered:
		t.Error("it was not recovered")
	case res.Recovered:
		o.tally["recovered"]++
	default:
		o.tally["nothing changed"]++
	}
}

// up waits until the app answers.
func (o *ordeal) up(t *testing.T, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the app's processes:\n%s", processesOf(o.w.dir))
		}
	}()
	waitFor(t, "the app answers", func() bool { return o.w.visit() != "" })
	if got := o.w.visit(); got != want+"<nil>" {
		t.Fatalf("a visitor of the app sees %q, want %q", got, want)
	}
	a, err := o.App(t.Context(), "shop")
	if err != nil || a.State != "running" {
		t.Fatalf("the app is %q, %v", a.State, err)
	}
}

// try runs one trial; after one that failed a new daemon mends what it can.
func (o *ordeal) try(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, f) {
		o.stop(t)
		o.hostage = startHostage(o.t, o.w)
	}
}

// restart checks that nothing was left behind for a new daemon to see to.
func (o *ordeal) restart(t *testing.T) {
	t.Helper()
	word := o.w.word(t)
	o.stop(t)
	o.hostage = startHostage(o.t, o.w)
	o.up(t, word)
	if s, err := o.Status(t.Context()); err != nil || len(s.Problems) > 0 {
		t.Fatalf("problems: %v, %v", s.Problems, err)
	}
}

// TestFaultAtEveryStep fails the steps that the code has names for, one at a time: a sample of
// them, which rotates, with one of the errors, which is drawn; in a long run all, with two of the errors.
func TestFaultAtEveryStep(t *testing.T) {
	t.Parallel()
	o := newOrdeal(t)
	for _, i := range testkit.Sample(t, "operations", len(operations), 1) {
		do := operations[i]
		t.Run(do, func(t *testing.T) {
			clear(o.tally)
			o.prepare(t, do)
			o.failpoints(t, "", 0, 0)
			res, err := o.operate(t.Context())
			names := o.failpoints(t, "", 0, 0)
			o.check(t, do, res, err)
			steps := pick(t, names)
			each := atLeast(1, 2)
			if testkit.Every() {
				each = len(faults)
			}
			hits, tries, turn := 0, 0, testkit.Rand(t).IntN(len(faults))
			for _, i := range steps {
				for j := range each {
					errno := faults[(turn+i+j)%len(faults)]
					tries++
					o.try(t, fmt.Sprintf("%d %s %v", i+1, names[i], errno), func(t *testing.T) {
						if o.failStep(t, do, names, i, errno) {
							hits++
						}
					})
				}
			}
			testkit.Tally(t, "faults", hits)
			if hits < tries*3/4 {
				t.Errorf("only %d of %d faults happened", hits, tries)
			}
			t.Logf("%d of %d steps, which are of %d kinds: %v", len(steps), len(names), kinds(names), o.tally)
			o.restart(t)
		})
	}
	o.stop(t)
}

// failStep has an operation fail at the step names[i], wherever that is this time, and reports whether it came to it. What the store does beside
// an operation, when a segment is full or to be packed, may not come again. Any other step must.
func (o *ordeal) failStep(t *testing.T, do string, names []string, i int, errno unix.Errno) (hit bool) {
	t.Helper()
	for try := range misses {
		n := max(1, nth(names, i)-try) // the daemon's work in the background may have made some of those before
		o.prepare(t, do)
		o.failpoints(t, kind(names[i]), n, errno)
		res, err := o.operate(t.Context())
		did := o.failpoints(t, "", 0, 0)
		o.check(t, names[i], res, err)
		if slices.Contains(kindsOf(did), fmt.Sprint(kind(names[i]), n)) {
			return true
		}
	}
	if k := kind(names[i]); strings.HasSuffix(k, "-segment") || strings.Contains(k, "pack") {
		t.Logf("%s never came to step %d (%s) again", do, i+1, names[i])
	} else {
		t.Errorf("%s never came to step %d (%s) again", do, i+1, names[i])
	}
	return false
}

// kindsOf gives the kinds of steps, each with its number among those of its kind.
func kindsOf(names []string) (list []string) {
	count := map[string]int{}
	for _, name := range names {
		count[kind(name)]++
		list = append(list, fmt.Sprint(kind(name), count[kind(name)]))
	}
	return list
}

// testFaultOfEverySystemCall fails system calls that an operation makes on
// files, connections and programs, the daemon's own and those of the tools that
// it starts: a sample of their kinds, which rotates, and in a long run all kinds.
func testFaultOfEverySystemCall(t *testing.T) {
	t.Parallel()
	o := newOrdeal(t)
	for _, i := range testkit.Sample(t, "operations", len(operations), 1) {
		do := operations[i]
		t.Run(do, func(t *testing.T) {
			clear(o.tally)
			o.prepare(t, do)
			o.p.Arm(sysfault.Fault{})
			res, err := o.operate(t.Context())
			seen := o.p.Disarm()
			o.check(t, do, res, err)
			hits := 0
			chosen := pickCalls(t, seen.Calls)
			if do == "create" {
				for _, i := range testkit.Sample(t, "calls that once did harm", len(offenders), 1) {
					chosen = append(chosen, offenders[i])
				}
			}
			for i, f := range chosen {
				f.Errno = faults[i%len(faults)]
				o.try(t, fmt.Sprintf("%s %d %v", f.Call, f.Nth, f.Errno), func(t *testing.T) {
					o.failCall(t, do, f)
					hits++
				})
			}
			testkit.Tally(t, "faults", hits)
			t.Logf("%d calls, %d of them failed: %v", len(seen.Calls), hits, o.tally)
			o.restart(t)
		})
	}
	o.stop(t)
}

// failCall has an operation fail at a system call. Some calls are made more often at one time
// than at another: where there is no nth, an earlier one fails, and where there is none in some
// tries, one of those that there are now.
func (o *ordeal) failCall(t *testing.T, do string, f sysfault.Fault) {
	t.Helper()
	for try := range 2 * misses {
		o.prepare(t, do)
		o.p.Arm(f)
		res, err := o.operate(t.Context())
		seen := o.p.Disarm()
		o.check(t, fmt.Sprintf("%v, hit %v", f, seen.Hit), res, err)
		if seen.Hit {
			return
		}
		f.Nth = max(1, f.Nth/2)
		if try >= misses {
			f.Call = other(seen.Calls, f.Call)
		}
	}
	t.Errorf("%s made no call %q again", do, f.Call)
}

// other is one of calls: the first that is the same system call as call, if there is one.
func other(calls []string, call string) string {
	word, _, _ := strings.Cut(call, " ")
	if i := slices.IndexFunc(calls, func(c string) bool { return strings.HasPrefix(c, word+" ") }); i >= 0 {
		return calls[i]
	}
	return calls[len(calls)/2]
}

// offenders are calls whose failing once left a program that was not stopped, or
// not started again.
var offenders = []sysfault.Fault{
	{Call: "read /proc/sys/kernel/random/boot_id", Nth: 1}, {Call: "read /proc/sys/kernel/random/boot_id", Nth: 2},
	{Call: "open /proc/#/stat", Nth: 200},
	{Call: "sync state/apps/app-#/run", Nth: 1},
}

// pickCalls chooses the calls to fail: in a long run the first of each kind and one that is drawn (and with EVERY=1 the last); else one of some kinds.
func pickCalls(t *testing.T, calls []string) (chosen []sysfault.Fault) {
	t.Helper()
	count := map[string]int{}
	var order []string
	for _, c := range calls {
		if count[c] == 0 {
			order = append(order, c)
		}
		count[c]++
	}
	slices.Sort(order) // concurrent calls come in any order
	rnd := testkit.Rand(t)
	for _, i := range testkit.Sample(t, "kinds of calls", len(order), 2) {
		c := order[i]
		nths := []int{1, 1 + rnd.IntN(count[c])}
		if testkit.Every() {
			nths = append(nths, count[c])
		}
		if !long() {
			nths = nths[1:]
		}
		slices.Sort(nths)
		for _, nth := range slices.Compact(nths) {
			chosen = append(chosen, sysfault.Fault{Call: c, Nth: nth})
		}
	}
	return chosen
}

// processesOf describes the processes with dir in their command: how they wait, and for what.
func processesOf(dir string) string {
	var b strings.Builder
	list, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, p := range list {
		command, err := os.ReadFile(p + "/cmdline")
		if err != nil || !strings.Contains(string(command), dir) {
			continue
		}
		status, _ := os.ReadFile(p + "/status") // for the message
		wait, _ := os.ReadFile(p + "/wchan")
		fmt.Fprintf(&b, "%s %q waits in %s\n", p, command, wait)
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "State:") || strings.HasPrefix(line, "TracerPid:") {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}
