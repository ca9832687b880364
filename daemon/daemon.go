// Package daemon is mulligand: it owns every app's checkpoints and carries out
// what is asked of them. See DESIGN.md for how an operation survives a crash.
package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/gate"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
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
	opt      *Options
	store    *records
	contents *contents
	started  time.Time
	feed     feed
	gate     *gate.Gate
	callers  accounts.Callers
	files    appFiles
	metrics  *metrics
	apiText  apiText

	domains domains

	mu       sync.Mutex
	apps     map[ipc.AppID]*app
	closed   bool
	disposed []store.Disposal // carried out, to be struck off

	bus     sync.Mutex
	manager *systemd.Manager // nil until a unit is first needed

	ops     sync.WaitGroup // operations under way
	collect chan struct{}  // wakes the garbage collector
	done    chan struct{}  // closed by Close
	bg      sync.WaitGroup
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
	contents, err := openContents(opt.StateDir, cas.Options{Failpoint: opt.Failpoint})
	if err != nil {
		return nil, err
	}
	recs, err := openRecords(ctx, opt, contents.main, false)
	if err != nil {
		return nil, errs.Also(err, contents.close())
	}
	d := &Daemon{
		Owners: accounts.New(&opt), opt: &opt, store: recs, contents: contents, started: opt.Now(),
		apps: map[ipc.AppID]*app{}, collect: make(chan struct{}, 1), done: make(chan struct{}),
	}
	d.metrics = newMetrics(d)
	d.gate = d.newGate()
	if err := d.load(ctx); err != nil {
		return nil, errs.Also(err, d.Close(ctx))
	}
	d.bg.Go(d.tendStore)
	d.bg.Go(d.upkeep)
	if opt.RehearseMax > 0 {
		d.bg.Go(d.rehearseAll)
	}
	d.bg.Go(d.reweigh)
	if !opt.User {
		d.bg.Go(d.watchOwners)
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
	close(d.done)
	d.feed.close()
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
	return errs.Also(err, errs.Also(d.store.Close(), d.contents.close()))
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
		StartedAt: d.started.UTC(), StoreBytes: d.visible(who), Recovered: []string{}, Problems: []string{},
	}
	if addr := d.gate.Addr(); addr != nil {
		s.HTTP = addr.String()
	}
	if d.Administers(who) {
		s.Problems = append(s.Problems, d.files.problems()...)
		s.Problems = append(s.Problems, d.store.problems()...)
		s.Recovered = append(s.Recovered, d.store.repaired...)
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

// wakeCollector asks for a garbage collection, soon and in the background.
func (d *Daemon) wakeCollector() {
	select {
	case d.collect <- struct{}{}:
	default: // one is asked for already
	}
}

// packEvery is how often the store is asked whether there is enough to pack, and
// packAgain how long it is left alone after it failed (the disk is full, say).
const (
	packEvery = time.Minute
	packAgain = time.Hour
)

// tendStore collects garbage when it is asked for, and packs what lies loose.
func (d *Daemon) tendStore() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-d.done; cancel() }()
	pack := time.NewTimer(packEvery)
	defer pack.Stop()
	d.fillBallast()
	for {
		select {
		case <-d.done:
			return
		case <-d.collect:
			d.strikeOff(ctx)
			freed, err := d.contents.each(ctx, (*cas.Store).Collect)
			d.tended(ctx, "garbage collection", freed, err)
		case <-pack.C:
			d.fillBallast()
			saved, err := d.contents.each(ctx, (*cas.Store).Pack)
			d.tended(ctx, "packing", saved, err)
			if err != nil {
				pack.Reset(packAgain)
			} else {
				pack.Reset(packEvery)
			}
		}
	}
}

func (d *Daemon) tended(ctx context.Context, what string, bytes int64, err error) {
	if err != nil && ctx.Err() == nil {
		d.opt.Log.Warn(what+" failed", "err", err)
	} else if bytes > 0 {
		d.opt.Log.Debug(what, "freed_bytes", bytes)
	}
}

// newID makes an id that has not been given before: the prefix and 12 hex digits.
func newID(prefix string) string {
	var b [6]byte
	rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}
