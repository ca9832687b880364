// Package daemon is mulligand: it owns every app's checkpoints and carries out
// what is asked of them. See DESIGN.md for how an operation survives a crash.
package daemon

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/gate"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/registry"
	"mulligan/daemon/rollback"
	"mulligan/daemon/settings"
	"mulligan/daemon/turns"
	"mulligan/daemon/upkeep"
	"mulligan/errs"
	"mulligan/ipc"
)

// What a daemon is opened with.
type (
	Options = settings.Options
	Guests  = settings.Guests
	Limits  = settings.Limits
)

// The services that a daemon consists of. What they can do, it can do.
type (
	checkpointService = checkpoint.Service
	turnService       = turns.Service
	rollbackService   = rollback.Service
	upkeepService     = upkeep.Service
	registryService   = registry.Service
)

// Daemon is a running daemon. Its methods may be called from many goroutines;
// operations that change one app exclude each other.
type Daemon struct {
	*accounts.Owners
	*layer.Binder
	*events.Events
	*app.Set
	*checkpointService
	*turnService
	*rollbackService
	*upkeepService
	*registryService
	opt     *Options
	store   *records.Records
	started time.Time
	gate    *gate.Gate
	callers accounts.Callers
	apiText apiText

	run  context.Context // ends with Close
	stop context.CancelFunc
}

// Open opens the state folder, finishes or undoes what a crash cut short, and
// starts the apps that it supervises itself.
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
	d := &Daemon{
		Owners: accounts.New(&opt), Events: events.New(&opt, recs), opt: &opt, store: recs, started: opt.Now(),
	}
	d.run, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.Set = app.NewSet(&opt, d.Owners, recs)
	d.Binder = d.Set.Binder
	d.checkpointService = checkpoint.New(&opt, recs, d.Events, d.Set)
	d.turnService = turns.New(&opt, recs, d.Events, d.Set, d.checkpointService)
	d.rollbackService = rollback.New(&opt, recs, d.Events, d.Set, d.checkpointService, d.turnService)
	d.upkeepService = upkeep.New(d.run, &opt, recs, d.Events, d.Set, d.checkpointService, d.turnService, map[string]upkeep.Recoverer{
		checkpoint.KindCreate: d.RecoverCreate, rollback.KindRollback: d.RecoverRollback, rollback.KindRevert: d.RecoverRollback,
	})
	d.registryService = registry.New(d.run, &opt, recs, d.Events, d.Set, d.checkpointService, d.turnService, d.upkeepService)
	d.Registry.MustRegister(present{d})
	d.gate = d.newGate()
	if err := d.load(ctx); err != nil {
		return nil, errs.Also(err, d.Close(ctx))
	}
	d.Background(func() { d.store.Tend(d.run) })
	d.Background(func() { d.Maintain(d.run) })
	if opt.RehearseMax > 0 {
		d.Background(func() { d.RehearseAll(d.run) })
	}
	d.Background(func() { d.Reweigh(d.run) })
	if !opt.User {
		d.Background(func() { d.WatchOwners(d.run) })
	}
	return d, nil
}

func (d *Daemon) newGate() *gate.Gate {
	cfg := gate.Config{Tokens: d.bearer, Hosts: d.opt.Hosts, Log: d.opt.Log, Now: d.opt.Now}
	if d.opt.Guests != nil {
		cfg.Guests = d.Guest
	}
	return gate.New(cfg, d.Handler())
}

// Gate is the daemon's door on TCP, closed until it is told to listen. Whoever
// closes the daemon closes it.
func (d *Daemon) Gate() *gate.Gate { return d.gate }

// load brings the registered apps to life and recovers each.
func (d *Daemon) load(ctx context.Context) error {
	recs, err := d.store.Apps(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		app.NoteFolder(&rec)
		a := app.New(rec)
		d.Put(a)
		d.Wake(ctx, a)
	}
	return nil
}

// Close waits for the operations under way as long as ctx allows, stops the
// apps that only this daemon keeps running, and closes the state folder. What
// ctx cut short is finished by the next Open.
func (d *Daemon) Close(ctx context.Context) error {
	if !d.Shut() {
		return nil
	}
	d.stop()
	d.CloseFeed()
	for _, a := range d.All() {
		d.StopTracker(a)
	}

	if err := d.Idle(ctx); err != nil {
		return err
	}
	err := d.StopSupervised(ctx)
	for _, a := range d.All() {
		d.CloseDrivers(a)
	}
	d.Binder.Close()
	return errs.Also(err, d.store.Close())
}

// Status tells how the daemon is: of apps, only what the caller may see.
func (d *Daemon) Status(who ipc.Caller) ipc.Status {
	mode := "host"
	if d.opt.User {
		mode = "user"
	}
	sees := d.Sight(who)
	s := ipc.Status{
		Version: d.opt.Version, PID: os.Getpid(), Mode: mode, Socket: d.opt.Socket, StateDir: d.opt.StateDir,
		StartedAt: d.started.UTC(), StoreBytes: d.store.Contents.Visible(who), Recovered: []string{}, Problems: []string{},
	}
	if addr := d.gate.Addr(); addr != nil {
		s.HTTP = addr.String()
	}
	if d.Administers(who) {
		s.Problems = append(s.Problems, d.FileProblems()...)
		s.Problems = append(s.Problems, d.store.Problems()...)
		s.Recovered = append(s.Recovered, d.store.Repaired...)
	}
	for _, a := range d.All() {
		if !sees(a) {
			continue
		}
		s.Apps++
		for _, p := range a.Problems() {
			s.Problems = append(s.Problems, a.Rec().Slug+": "+p)
		}
		for _, word := range a.Recoveries() {
			s.Recovered = append(s.Recovered, a.Rec().Slug+": "+word)
		}
	}
	return s
}
