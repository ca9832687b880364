// Package daemon is mulligand: it owns every app's checkpoints and carries out
// what is asked of them. See DESIGN.md for how an operation survives a crash.
package daemon

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/gate"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd"
)

// What a daemon is opened with.
type (
	Options = settings.Options
	Guests  = settings.Guests
	Limits  = settings.Limits
)

// Daemon is a running daemon. Its methods may be called from many goroutines;
// operations that change one app exclude each other.
type Daemon struct {
	*accounts.Owners
	opt     *Options
	store   *records.Records
	started time.Time
	*Events
	gate    *gate.Gate
	callers accounts.Callers
	files   appFiles
	apiText apiText

	domains domains

	mu     sync.Mutex
	apps   map[ipc.AppID]*app
	closed bool

	bus     sync.Mutex
	manager *systemd.Manager // nil until a unit is first needed

	ops  sync.WaitGroup  // operations under way
	done chan struct{}   // closed by Close
	run  context.Context // ends with Close
	stop context.CancelFunc
	bg   sync.WaitGroup
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
		Owners: accounts.New(&opt), opt: &opt, store: recs, started: opt.Now(),
		apps: map[ipc.AppID]*app{},
	}
	d.run, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.Events = newEvents(&opt, recs)
	d.registry.MustRegister(present{d})
	d.gate = d.newGate()
	if err := d.load(ctx); err != nil {
		return nil, errs.Also(err, d.Close(ctx))
	}
	d.bg.Go(func() { d.store.Tend(d.run) })
	d.bg.Go(func() { d.upkeep(d.run) })
	if opt.RehearseMax > 0 {
		d.bg.Go(func() { d.rehearseAll(d.run) })
	}
	d.bg.Go(func() { d.reweigh(d.run) })
	if !opt.User {
		d.bg.Go(func() { d.watchOwners(d.run) })
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

// Gate is the listener on TCP, closed until it is told to listen. Whoever
// closes the daemon closes it.
func (d *Daemon) Gate() *gate.Gate { return d.gate }

// all is every registered app.
func (d *Daemon) all() []*app {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.apps))
}

// load brings the registered apps to life and recovers each.
func (d *Daemon) load(ctx context.Context) error {
	recs, err := d.store.Apps(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		noteFolder(&rec)
		a := newApp(rec)
		d.mu.Lock()
		d.apps[rec.ID] = a
		d.mu.Unlock()
		d.wake(ctx, a)
	}
	return nil
}

// Close waits for the operations under way as long as ctx allows, stops the
// apps that only this daemon keeps running, and closes the state folder. What
// ctx cut short is finished by the next Open.
func (d *Daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.stop()
	d.closeFeed()
	for _, a := range d.all() {
		d.stopTracker(a)
	}

	idle := make(chan struct{})
	go func() { d.ops.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-ctx.Done():
		return errs.New(errs.Unavailable, "stop", "an operation is still under way").
			WithHint("the next start finishes or undoes it")
	}
	d.bg.Wait()
	err := d.stopSupervised(ctx)
	for _, a := range d.all() {
		d.closeDrivers(a)
	}
	if d.manager != nil {
		d.manager.Close()
	}
	return errs.Also(err, d.store.Close())
}

// Status tells how the daemon is: of apps, only what the caller may see.
func (d *Daemon) Status(who ipc.Caller) ipc.Status {
	mode := "host"
	if d.opt.User {
		mode = "user"
	}
	sees := d.sight(who)
	d.mu.Lock()
	defer d.mu.Unlock()
	s := ipc.Status{
		Version: d.opt.Version, PID: os.Getpid(), Mode: mode, Socket: d.opt.Socket, StateDir: d.opt.StateDir,
		StartedAt: d.started.UTC(), StoreBytes: d.store.Contents.Visible(who), Recovered: []string{}, Problems: []string{},
	}
	if addr := d.gate.Addr(); addr != nil {
		s.HTTP = addr.String()
	}
	if d.Administers(who) {
		s.Problems = append(s.Problems, d.files.problems()...)
		s.Problems = append(s.Problems, d.store.Problems()...)
		s.Recovered = append(s.Recovered, d.store.Repaired...)
	}
	for _, a := range d.apps {
		if !sees(a) {
			continue
		}
		s.Apps++
		for _, p := range a.problems() {
			s.Problems = append(s.Problems, a.rec().Slug+": "+p)
		}
		for _, word := range a.recovered {
			s.Recovered = append(s.Recovered, a.rec().Slug+": "+word)
		}
	}
	return s
}
