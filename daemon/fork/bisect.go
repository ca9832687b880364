package fork

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/fork/bisect"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

const (
	maxJobs     = 8
	skipStatus  = 125 // the exit status of a command that cannot tell, as git bisect has it
	busyTimeout = time.Minute
)

// bisection finds the first checkpoint of an app at which a command, or the app's health check, fails, in forks of the app. A fork is taken
// from one checkpoint to the next where a rollback gives back everything that a test can leave behind in it; otherwise each test has a new
// one. The record of such a fork says all its life that it is being made, so a crash of the daemon does not leave it behind.
type bisection struct {
	*Service
	parent   *app.App
	kinds    map[string]string
	points   []store.Checkpoint // oldest first
	command  []string           // nil: the health check
	start    bool               // the forks are started
	offline  bool               // the forks reach nothing outside
	patience time.Duration
	free     chan struct{} // has room for the forks that there may be at a time

	making   sync.Mutex       // forks are made one after the other
	shares   bool             // there will be several forks, which are mounted over one copy of a checkpoint's files
	pinned   string           // that copy; "": none was made
	pinnedOf ipc.CheckpointID // the checkpoint
	unpin    func()
	mu       sync.Mutex
	runs     []ipc.BisectRun
	idle     []*app.App // forks for further tests
}

// Bisect finds the first bad checkpoint of the app called ref. The app itself is not touched.
func (s *Service) Bisect(ctx context.Context, who ipc.Caller, ref string, req ipc.BisectRequest) (res ipc.BisectResult, err error) {
	const op = "bisect"
	parent, err := s.apps.Find(who, ref)
	if err != nil {
		return res, err
	}
	b := &bisection{Service: s, parent: parent, command: req.Command, start: req.Start || len(req.Command) == 0, unpin: func() {}, offline: req.NoNetwork}
	if b.patience, err = patienceOf(req.Timeout); err != nil {
		return res, errs.Wrap(errs.Invalid, op, err)
	}
	if err := b.check(ctx, &req); err != nil {
		return res, errs.Wrap(errs.Invalid, op, err)
	}
	first, last, err := b.ends(ctx, who, req)
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer func() { b.unpin() }()
	search := bisect.Search{Last: last, First: first, Jobs: req.Jobs, Test: b.test}
	found, err := search.Run(ctx)
	if left := b.drop(ctx, b.idle...); left != nil {
		return res, errs.Wrap(errs.Failed, op, errs.Also(err, left))
	}
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, b.withLast(err))
	}
	res, err = b.result(ctx, found, search.Skipped(found))
	return res, errs.Wrap(errs.Failed, op, err)
}

// check refuses what cannot be bisected, before anything is made.
func (b *bisection) check(ctx context.Context, req *ipc.BisectRequest) (err error) {
	if req.Jobs == 0 {
		req.Jobs = 1
	}
	rec := b.parent.Rec()
	switch {
	case req.Jobs < 0 || req.Jobs > maxJobs:
		return errs.New(errs.Invalid, "", "%d tests at a time are not possible", req.Jobs).WithHint("use 1 to %d", maxJobs)
	case b.command == nil && rec.Health == nil:
		return errs.New(errs.Invalid, "", "the app has no health check to find the first bad checkpoint by").
			WithHint("give a command that fails in a bad state: `mulligan bisect -- COMMAND`")
	case req.Start && b.parent.Unit() == nil:
		return errs.New(errs.Invalid, "", "the app has no unit or command to start").WithHint("leave out start")
	}
	b.start = b.start && b.parent.Unit() != nil
	b.free = make(chan struct{}, req.Jobs)
	if err := b.Service.check(ctx, b.parent, &ipc.ForkRequest{NoNetwork: b.offline}); err != nil {
		return err
	}
	if b.kinds, err = serverKinds(ctx, b.parent); err != nil {
		return err
	}
	first, err := b.describe(ctx, b.parent, store.Checkpoint{}, ipc.ForkRequest{NoNetwork: b.offline}, b.kinds)
	if err == nil {
		err = b.registry.CheckOwnServers(first)
	}
	b.shares = err == nil && (req.Jobs > 1 || !layer.RollsBackWhole(first))
	return err
}

// ends lists the checkpoints to search, and finds those that are said to be good and bad among them. Where no bad one is named, it makes
// a checkpoint of the present state.
func (b *bisection) ends(ctx context.Context, who ipc.Caller, req ipc.BisectRequest) (first, last int, err error) {
	for _, id := range []ipc.CheckpointID{req.Good, req.Bad} {
		if id == "" {
			continue
		}
		if _, err := b.store.Checkpoint(ctx, b.parent.Rec().ID, id); err != nil {
			return 0, 0, err
		}
	}
	if req.Bad == "" {
		made, err := b.checkpoints.Create(ctx, who, string(b.parent.Rec().ID), ipc.CreateRequest{Notes: "before a bisect", Quiesce: ipc.QuiesceNone})
		if err != nil {
			return 0, 0, err
		}
		req.Bad = made.ID
	}
	if b.points, err = b.store.Checkpoints(ctx, b.parent.Rec().ID); err != nil {
		return 0, 0, err
	}
	slices.Reverse(b.points)
	at := func(id ipc.CheckpointID) int {
		return slices.IndexFunc(b.points, func(cp store.Checkpoint) bool { return cp.ID == id })
	}
	first, last = at(req.Good), at(req.Bad)
	if req.Good != "" && first >= last {
		return 0, 0, errs.New(errs.Invalid, "", "%s, said to be good, is not older than %s, said to be bad", req.Good, req.Bad).
			WithHint("a bisect looks for the first bad state after a good one")
	}
	return first, last, nil
}

// test tests a checkpoint in a fork.
func (b *bisection) test(ctx context.Context, point int) (v bisect.Verdict, err error) {
	b.free <- struct{}{}
	defer func() { <-b.free }()
	run := ipc.BisectRun{CheckpointID: b.points[point].ID}
	began := time.Now()
	a, err := b.fork(ctx, b.points[point])
	switch errs.KindOf(err) {
	case "":
	case errs.Corrupt, errs.Conflict, errs.NotFound, errs.Expired: // this checkpoint cannot be had
		run.Problem = errs.Words(err)
		return b.note(run, bisect.Skip, began), nil
	default:
		return "", err
	}
	defer func() {
		if err == nil && layer.RollsBackWhole(a.Rec()) {
			b.mu.Lock()
			b.idle = append(b.idle, a)
			b.mu.Unlock()
			return
		}
		err = errs.Also(err, b.drop(ctx, a))
	}()
	v = bisect.Good
	if b.command == nil {
		if bad := b.apps.CheckHealth(ctx, a); bad != nil {
			v, run.Output = bisect.Bad, bad.Error()
		}
	} else {
		c := b.run(ctx, a, b.command, b.patience)
		run.ExitCode, run.TimedOut, run.Output, run.Problem = c.ExitCode, c.TimedOut, c.Output, c.Problem
		switch {
		case run.ExitCode == skipStatus:
			v = bisect.Skip
		case run.ExitCode != 0 || run.TimedOut:
			v = bisect.Bad
		}
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if run.Problem != "" {
		return "", errs.New(errs.Failed, "", "the command could not be run: %s", run.Problem)
	}
	return b.note(run, v, began), nil
}

// note keeps the record of a test.
func (b *bisection) note(run ipc.BisectRun, v bisect.Verdict, began time.Time) bisect.Verdict {
	run.Verdict, run.Seconds = string(v), time.Since(began).Seconds()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs = append(b.runs, run)
	return v
}

// drop removes forks with everything that belongs to them.
func (b *bisection) drop(ctx context.Context, forks ...*app.App) (err error) {
	for _, a := range forks {
		err = errs.Also(err, b.registry.AbandonFork(context.WithoutCancel(ctx), accounts.Self(), a))
	}
	return err
}

// fork returns a fork with the state of a checkpoint, for a test. If it fails, nothing is left of the fork.
func (b *bisection) fork(ctx context.Context, origin store.Checkpoint) (a *app.App, err error) {
	b.making.Lock()
	defer b.making.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // a fork is made to its end
	if a = b.next(); a != nil {
		if err = b.registry.ClearFork(ctx, a); err == nil {
			err = b.bring(ctx, a, origin)
		}
		if err == nil {
			return a, nil
		}
		// A test may have left something that cannot be removed or replaced. That says nothing of the checkpoint.
		if err := b.drop(ctx, a); err != nil {
			return nil, err
		}
	}
	if err = b.pin(ctx, origin); err != nil {
		return nil, err
	}
	if a, err = b.claim(ctx, accounts.Self(), b.parent, origin, ipc.ForkRequest{Name: records.NewID("bisect-"), NoNetwork: b.offline}, b.kinds, b.pinned); err != nil {
		return nil, err
	}
	rec := a.Rec()
	if err = b.registry.OpenFork(ctx, a, func() error { return b.seedLayers(ctx, b.parent, rec, origin) }); err != nil {
		return nil, err
	}
	var there []string
	if b.pinned != "" && b.pinnedOf == origin.ID {
		there = []string{string(snap.Files)}
	}
	if err = b.bring(ctx, a, origin, there...); err != nil {
		return nil, errs.Also(err, b.drop(ctx, a))
	}
	return a, nil
}

// pin makes the copy of a checkpoint's files that all forks are mounted over, whatever checkpoint they test: those differ in little.
func (b *bisection) pin(ctx context.Context, origin store.Checkpoint) (err error) {
	if !b.shares {
		return nil
	}
	dir := forksDir(b.parent.Rec().App)
	if b.pinned, b.unpin, err = b.registry.Pinned(ctx, b.parent, origin, dir, true); err == nil {
		b.shares, b.pinnedOf = false, origin.ID // it is made once
	}
	return err
}

// next returns a fork that an earlier test is done with, or nil.
func (b *bisection) next() (a *app.App) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.idle) > 0 {
		a, b.idle = b.idle[0], b.idle[1:]
	}
	return a
}

// bring takes a fork to a checkpoint of its parent, and starts its app if the tests need that. there has the names of layers that are there already.
func (b *bisection) bring(ctx context.Context, a *app.App, origin store.Checkpoint, there ...string) error {
	err := b.restore(ctx, b.parent, a, origin, ipc.ForkRequest{NoStart: true}, there...)
	for end := time.Now().Add(busyTimeout); errs.KindOf(err) == errs.Busy && time.Now().Before(end); { // the app makes a checkpoint
		time.Sleep(busyPause)
		err = b.restore(ctx, b.parent, a, origin, ipc.ForkRequest{NoStart: true}, there...)
	}
	if err == nil && b.start {
		_ = b.apps.StartUnit(ctx, a) // an app that does not start is for the test to find
	}
	return err
}

// busyPause is the time between two attempts to use an app that is busy.
const busyPause = 50 * time.Millisecond

// withLast adds to the error of a search what the last test that failed said.
func (b *bisection) withLast(err error) error {
	for _, run := range slices.Backward(b.runs) {
		said := strings.TrimSpace(run.Output + run.Problem)
		if errs.KindOf(err) != errs.Conflict || run.Verdict == string(bisect.Good) || said == "" {
			continue
		}
		return &errs.Error{Kind: errs.Conflict, Message: fmt.Sprintf("%v; in %s it says %.500q", err, run.CheckpointID, said), Hint: errs.HintOf(err)}
	}
	return err
}

// result describes what was found.
func (b *bisection) result(ctx context.Context, found bisect.Result, skipped []int) (res ipc.BisectResult, err error) {
	res = ipc.BisectResult{Outcome: ipc.BisectFound, Runs: b.runs, Skipped: []ipc.CheckpointID{}, Changes: []ipc.DiffChange{}, Turns: []ipc.Turn{}}
	if found.Unsure != "" {
		res.Outcome = ipc.BisectUnsure
		return res, nil
	}
	good, bad := b.points[found.Good], b.points[found.Bad]
	res.Good, res.Bad = &good.Checkpoint, &bad.Checkpoint
	for _, i := range skipped {
		res.Outcome = ipc.BisectRange
		res.Skipped = append(res.Skipped, b.points[i].ID)
	}
	d, err := b.checkpoints.Diff(ctx, accounts.Self(), string(b.parent.Rec().ID), good.ID, ipc.DiffQuery{Against: string(bad.ID), Limit: maxCompared})
	if err != nil {
		return res, err
	}
	res.Changes, res.ChangesTotal = d.Changes, d.Total
	turns, err := b.store.Turns(ctx, b.parent.Rec().ID, 0)
	if err != nil {
		return res, err
	}
	for _, t := range slices.Backward(turns) {
		made := t.CheckpointID != nil && slices.ContainsFunc(b.points[found.Good:found.Bad], func(cp store.Checkpoint) bool { return cp.ID == *t.CheckpointID })
		if made {
			res.Turns = append(res.Turns, t.Turn)
		}
	}
	return res, nil
}
