package turns

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/snap"
)

// notes follows the files of an app without automatic checkpoints: which paths change is noted, and a checkpoint or a rollback looks at those
// instead of all. It is a help and no more: where it cannot be had, everything is looked at.
type notes struct {
	driver snap.Driver
	j      snap.Journal
	asked  bool // the app's settings ask for it

	run    context.Context // ends with stop
	cancel context.CancelFunc
	mu     sync.Mutex // held while done is begun
	done   sync.WaitGroup
}

// unnoted says that an app gave its watches to others, and when, and when it had last been asked for.
type unnoted struct {
	asked int64 // as in App.LastAsked
	at    time.Time
}

// restLooks is the number of looks for which such an app waits: to begin again costs as much as to look at all of its files, and two apps
// that are both in use must not take the watches from each other all the time.
const restLooks = 120

// follow notes changes until stop is called, where the kernel tells of all of them.
func (n *notes) follow(workspace string) error {
	if !n.asked && !layer.Tells(workspace) { // which can take as long as a file server likes: stop does not wait for it
		return nil
	}
	n.mu.Lock()
	if n.run.Err() != nil {
		n.mu.Unlock()
		return nil
	}
	n.done.Add(1)
	n.mu.Unlock()
	defer n.done.Done()
	return n.j.Follow(n.run, nil)
}

func (n *notes) stop() {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.done.Wait()
}

// State returns "noting", or "" while everything is looked at.
func (n *notes) State() string {
	if n.j.Following().State == snap.Watching {
		return "noting"
	}
	return ""
}

// Driver returns the files driver.
func (n *notes) Driver() snap.Driver { return n.driver }

// Problems says why changes are not noted, if the app's settings ask for it.
func (n *notes) Problems() []string {
	if f := n.j.Following(); n.asked && f.State == snap.Degraded {
		return []string{"files are not watched: " + f.Detail + " " + f.Remedy}
	}
	return nil
}

// ShareWatches begins to note the changes of each app that has a checkpoint, unless its settings say no; without a word of them, not of forks,
// which are not there for long. Each takes an inotify instance of the daemon's user, and a watch for each folder. If
// there would be more than Options.Notes of them, or there are not enough watches for all, those apps that somebody asked for last have them: the
// changes of the app that nobody asked for the longest are noted no more, until somebody asks for it. Apps whose settings ask for it stay.
func (svc *Service) ShareWatches(ctx context.Context) {
	if svc.opt.Watches < 0 {
		return
	}
	var noted, others []*app.App
	short := false
	for _, a := range svc.apps.All() {
		switch n := a.Following().(type) {
		case nil:
			others = append(others, a)
		case *notes:
			short = short || n.j.Following().Short
			if !n.asked {
				noted = append(noted, a)
			}
		}
	}
	slices.SortStableFunc(others, func(x, y *app.App) int { return earlier(y, x) })
	for _, a := range others {
		switch {
		case a.Rec().Follow != nil:
			if svc.noteworthy(ctx, a) {
				svc.note(ctx, a)
			}
		case len(noted) < svc.opt.Notes:
			if svc.noteworthy(ctx, a) && svc.note(ctx, a) {
				noted = append(noted, a)
			}
		case earlier(slices.MinFunc(noted, earlier), a) < 0 && svc.noteworthy(ctx, a):
			short = true
		}
	}
	if len(noted) == 0 || !short {
		return
	}
	last := slices.MinFunc(noted, earlier)
	n, ok := last.Following().(*notes)
	if !ok || !app.DropFollower(last, n) { // it is being changed
		return
	}
	n.stop()
	svc.unnoted.Store(last.Rec().ID, unnoted{last.LastAsked.Load(), time.Now()})
	svc.opt.Log.Info("files: what changes is not noted any more, because there are not enough watches for all apps, or too many apps", "app", last.Rec().Slug)
}

// earlier compares when somebody last asked for two apps.
func earlier(x, y *app.App) int { return cmp.Compare(x.LastAsked.Load(), y.LastAsked.Load()) }

// noteworthy reports whether the changes of an app that nobody follows are to be noted now.
func (svc *Service) noteworthy(ctx context.Context, a *app.App) bool {
	rec := a.Rec()
	asked := rec.Follow != nil
	if rec.Auto || asked && !*rec.Follow || !asked && rec.Fork != nil || !a.Ready() {
		return false
	}
	if was, ok := svc.unnoted.Load(rec.ID); ok {
		if u := was.(unnoted); u.asked == a.LastAsked.Load() || time.Since(u.at) < restLooks*svc.opt.UpkeepEvery {
			return false
		}
	}
	if cps, err := svc.store.Checkpoints(ctx, rec.ID); err != nil || len(cps) == 0 {
		return false // the first one reads all files, and what it found is remembered
	}
	recs, err := svc.store.Turns(ctx, rec.ID, 0)
	// Turns need the journal of the time when the app asked for automatic checkpoints.
	return err == nil && !slices.ContainsFunc(recs, func(t store.Turn) bool { return t.Start != "" })
}

// note begins to note the changes of an app that nobody follows, and reports whether it did. It does not wait for an app that is busy.
func (svc *Service) note(ctx context.Context, a *app.App) bool {
	rec := a.Rec()
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	release, err := svc.apps.AcquireBrief(short, a, "follow the files")
	if err != nil {
		return false // the next look tries again
	}
	defer release()
	l, ok := a.Layer(snap.Files)
	j, can := l.Driver.(snap.Journal)
	if !ok || !can || a.Following() != nil {
		return false
	}
	svc.unnoted.Delete(rec.ID)
	n := &notes{driver: l.Driver, j: j, asked: rec.Follow != nil}
	n.run, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.SetFollower(n)
	go func() {
		if err := n.follow(rec.Workspace); err != nil && n.run.Err() == nil {
			svc.opt.Log.Warn("files: what changes is not noted", "app", rec.Slug, "err", err)
		}
	}()
	return true
}
