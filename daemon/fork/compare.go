package fork

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/errs"
	"mulligan/ipc"
)

const (
	maxCompared = 20        // changes of a fork in one answer
	maxOutput   = 4 << 10   // bytes of a command's output
	maxPatience = time.Hour // for a command
)

// Enter connects to a process that runs commands inside of a fork. leave must be called: until then, the fork is in use.
func (s *Service) Enter(ctx context.Context, who ipc.Caller, ref, name string) (conn *net.UnixConn, leave func(), err error) {
	_, a, err := s.find(who, ref, name)
	if err != nil {
		return nil, nil, err
	}
	return s.apps.Enter(ctx, a)
}

// Compare says what each fork changed since its origin, whether it is healthy, and how a command ends inside of it. The forks are
// compared at the same time.
func (s *Service) Compare(ctx context.Context, who ipc.Caller, ref string, req ipc.CompareRequest) (res ipc.Comparison, err error) {
	const op = "compare forks"
	patience, err := patienceOf(req.Timeout)
	if err != nil {
		return res, errs.Wrap(errs.Invalid, op, err)
	}
	forks, err := s.named(ctx, who, ref, req.Names)
	if err != nil {
		return res, err
	}
	res.Forks = make([]ipc.ComparedFork, len(forks))
	problems := make([]error, len(forks))
	var all sync.WaitGroup
	for i, a := range forks {
		all.Go(func() { res.Forks[i], problems[i] = s.compare(ctx, a, req.Command, patience) })
	}
	all.Wait()
	for _, err := range problems {
		if err != nil {
			return ipc.Comparison{}, errs.Wrap(errs.Failed, op, err)
		}
	}
	return res, nil
}

// patienceOf reads a command's timeout.
func patienceOf(text string) (time.Duration, error) {
	if text == "" {
		return 10 * time.Minute, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxPatience {
		return 0, errs.New(errs.Invalid, "", "timeout %.64q is not a duration of more than 0 and at most %s", text, maxPatience).
			WithHint(`write a duration like "30s"`)
	}
	return d, nil
}

// named returns the forks of the app called ref that have the names, or all.
func (s *Service) named(ctx context.Context, who ipc.Caller, ref string, names []string) (forks []*app.App, err error) {
	if len(names) == 0 {
		list, err := s.Forks(ctx, who, ref)
		if err != nil {
			return nil, err
		}
		for _, f := range list.Forks {
			names = append(names, f.Fork.Name)
		}
	}
	for _, name := range names {
		_, a, err := s.find(who, ref, name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(forks, a) {
			forks = append(forks, a)
		}
	}
	return forks, nil
}

func (s *Service) compare(ctx context.Context, a *app.App, command []string, patience time.Duration) (res ipc.ComparedFork, err error) {
	rec := a.Rec()
	res = ipc.ComparedFork{Name: rec.Fork.Name, AppID: rec.ID, State: a.View(ctx).State, Changes: []ipc.DiffChange{}}
	if _, res.Healthy, err = s.apps.PresentCondition(ctx, a); err != nil {
		return res, err
	}
	if err := s.changes(ctx, a, &res); err != nil {
		return res, err
	}
	if len(command) > 0 {
		res.Command = s.run(ctx, a, command, patience)
	}
	return res, nil
}

// changes sets what a fork changed since its first checkpoint.
func (s *Service) changes(ctx context.Context, a *app.App, res *ipc.ComparedFork) error {
	all, err := s.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return err
	}
	if len(all) == 0 { // somebody deleted it
		for _, l := range a.Layers() {
			res.Unknown = append(res.Unknown, string(l.Name))
		}
		return nil
	}
	first := all[len(all)-1]
	for offset := 0; ; {
		d, err := s.checkpoints.Diff(ctx, accounts.Self(), string(a.Rec().ID), first.ID, ipc.DiffQuery{Offset: offset})
		if err != nil {
			return err
		}
		for _, c := range d.Changes {
			switch c.Operation {
			case "create":
				res.Created++
			case "delete":
				res.Deleted++
			default:
				res.Modified++
			}
			if len(res.Changes) < maxCompared {
				res.Changes = append(res.Changes, c)
			}
		}
		res.Unknown, res.Unreadable = d.Unknown, d.Unreadable
		if offset += len(d.Changes); offset >= d.Total || len(d.Changes) == 0 {
			return nil
		}
	}
}

// run runs a command inside of a fork.
func (s *Service) run(ctx context.Context, a *app.App, command []string, patience time.Duration) *ipc.CommandRun {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	ran, err := s.apps.RunInside(ctx, a, command, maxOutput)
	return commandRun(ran, err, time.Since(began))
}

func commandRun(ran layer.Ran, err error, took time.Duration) *ipc.CommandRun {
	c := &ipc.CommandRun{ExitCode: ran.Status, TimedOut: ran.Late, Seconds: took.Seconds(), Output: ran.Output}
	if err != nil {
		c.Problem = errs.Words(err)
	}
	return c
}
