// Package daemon is mulligand: it owns the checkpoints of all apps and carries out operations on
// them. DESIGN.md says how an operation survives a crash.
package daemon

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/api"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/fork"
	"mulligan/daemon/offsite"
	"mulligan/daemon/records"
	"mulligan/daemon/registry"
	"mulligan/daemon/rollback"
	"mulligan/daemon/settings"
	"mulligan/daemon/turns"
	"mulligan/daemon/upkeep"
	"mulligan/errs"
)

// What a daemon is opened with.
type (
	Options = settings.Options
	Guests  = settings.Guests
	Limits  = settings.Limits
	Bucket  = settings.Bucket
	Ceph    = settings.Ceph
)

// The services that a daemon consists of. What they can do, it can do.
type (
	checkpointService = checkpoint.Service
	turnService       = turns.Service
	rollbackService   = rollback.Service
	registryService   = registry.Service
	forkService       = fork.Service
	offsiteService    = offsite.Service
	apiService        = api.Service
)

// Daemon is a running daemon. Its methods may be called from many goroutines;
// operations that change one app exclude each other.
type Daemon struct {
	*checkpointService
	*turnService
	*rollbackService
	*registryService
	*forkService
	*offsiteService
	*apiService
	upkeep *upkeep.Service
	events *events.Events
	apps   *app.Set
	opt    *Options
	store  *records.Records

	run  context.Context // ends with Close
	stop context.CancelFunc
}

// Open opens the state folder, finishes or undoes operations that a crash interrupted, and starts
// the apps that the daemon supervises.
func Open(ctx context.Context, opt Options) (*Daemon, error) {
	opt.SetDefaults()
	for _, dir := range []string{opt.StateDir, filepath.Join(opt.StateDir, "apps")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, errs.Wrap(errs.Failed, "open state folder", err)
		}
	}
	recs, err := records.Open(ctx, &opt, false)
	if err != nil {
		return nil, err
	}
	d := &Daemon{events: events.New(&opt, recs), opt: &opt, store: recs}
	d.run, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.apps = app.NewSet(&opt, accounts.New(&opt), recs)
	d.checkpointService = checkpoint.New(&opt, recs, d.events, d.apps)
	d.turnService = turns.New(&opt, recs, d.events, d.apps, d.checkpointService)
	d.rollbackService = rollback.New(&opt, recs, d.events, d.apps, d.checkpointService, d.turnService)
	d.upkeep = upkeep.New(d.run, &opt, recs, d.events, d.apps, d.checkpointService, d.turnService, map[string]upkeep.Recoverer{
		checkpoint.KindCreate: d.RecoverCreate, rollback.KindRollback: d.RecoverRollback, rollback.KindRevert: d.RecoverRevert,
	})
	d.registryService = registry.New(d.run, &opt, recs, d.events, d.apps, d.checkpointService, d.turnService, d.upkeep)
	d.forkService = fork.New(&opt, recs, d.events, d.apps, d.checkpointService, d.rollbackService, d.registryService)
	d.offsiteService = offsite.New(&opt, recs, d.events, d.apps, d.checkpointService, d.rollbackService, d.registryService)
	d.apiService = api.New(api.Parts{
		Options: &opt, Store: recs, Events: d.events, Apps: d.apps,
		Checkpoints: d.checkpointService, Turns: d.turnService, Rollbacks: d.rollbackService, Registry: d.registryService,
		Forks: d.forkService, Remotes: d.offsiteService,
	})
	if err := d.load(ctx); err != nil {
		return nil, errs.Also(err, d.Close(ctx))
	}
	d.apps.Background(func() { d.store.Tend(d.run) })
	d.apps.Background(func() { d.finishPurges(d.run) })
	d.apps.Background(func() { d.upkeep.Maintain(d.run) })
	if opt.RehearseMax > 0 {
		d.apps.Background(func() { d.upkeep.RehearseAll(d.run) })
	}
	d.apps.Background(func() { d.CheckSizes(d.run) })
	d.apps.Background(func() { d.ExpireForks(d.run) })
	d.apps.Background(func() { d.PushAll(d.run) })
	if !opt.User {
		d.apps.Background(func() { d.upkeep.WatchOwners(d.run) })
	}
	return d, nil
}

// load opens and recovers the registered apps. Those that take longer than a start waits are made ready in the background.
func (d *Daemon) load(ctx context.Context) error {
	if err := d.LoadRemotes(ctx); err != nil {
		return err
	}
	recs, err := d.store.Apps(ctx)
	if err != nil {
		return err
	}
	var apps []*app.App
	for _, rec := range recs {
		app.NoteFolder(&rec)
		a := app.New(rec)
		d.apps.Put(a)
		apps = append(apps, a)
	}
	d.apps.AtStart(ctx, func() {
		d.upkeep.WakeAll(d.run, apps, func(theirs []*app.App) { d.FinishForks(d.run, accounts.Self(), theirs) })
		d.SweepPinned(d.run)
		d.FinishClones(d.run)
	})
	if err := d.store.FinishPurges(ctx, d.apps.ClearState); err != nil {
		d.opt.Log.Error("a purge is not finished", "err", err)
	}
	return nil
}

// finishPurges tries again to finish purges until ctx ends, less often the longer that fails.
func (d *Daemon) finishPurges(ctx context.Context) {
	for pause := d.opt.UpkeepEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Hour)
		if err := d.store.FinishPurges(ctx, d.apps.ClearState); err == nil {
			pause = d.opt.UpkeepEvery
		} else if ctx.Err() == nil {
			d.opt.Log.Warn("a purge is not finished, and will be tried again", "err", err)
		}
	}
}

// Close waits until no operation is under way or ctx ends, stops the apps that the daemon
// supervises, and closes the state folder. The next Open finishes what ctx interrupted.
func (d *Daemon) Close(ctx context.Context) error {
	if !d.apps.Shut() {
		return nil
	}
	d.stop()
	d.events.CloseFeed()
	for _, a := range d.apps.All() {
		d.StopTracker(a)
	}

	if err := d.apps.Idle(ctx); err != nil {
		return err
	}
	err := d.apps.StopSupervised(ctx)
	for _, a := range d.apps.All() {
		d.apps.CloseDrivers(a)
	}
	d.apps.Binder.Close()
	return errs.Also(err, d.store.Close())
}
