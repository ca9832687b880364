package daemon

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// app is a registered app at run time.
type app struct {
	now atomic.Pointer[setup] // replaced as a whole

	asleep    atomic.Bool // it was not started, or stopped, for its owner is not who it was
	recovered []string    // what start-up finished or undid; guarded by Daemon.mu

	mu        sync.Mutex
	gone      bool          // it is no longer registered
	holder    string        // who works on it, "" when nobody does
	brief     bool          // who does will be done in a moment
	freed     chan struct{} // closed when the holder lets go
	tracker   *tracker      // nil: it asks for no automatic checkpoints
	settled   bool          // leftovers of earlier processes are dealt with
	broken    error         // why it cannot be worked with at present
	ownerless error         // why its owner is not who it was
	sizes     map[ipc.CheckpointID]int64
	damage    map[ipc.CheckpointID]string // what is missing of checkpoints whose sizes are known
	total     int64

	neglected map[snap.Layer]string // what went wrong with a layer's upkeep
	behind    []string              // that layers stayed behind at a rollback
	oversize  []string              // that what is kept exceeds max_bytes
	rest      unfinished

	rehearsals rehearsals
}

// setup is what an app consists of. It never changes: a changed app gets another.
type setup struct {
	rec    store.App
	unit   systemd.Unit // nil: it has none
	layers []layer
}

func newApp(rec store.App) *app {
	a := &app{rest: unfinished{poke: make(chan struct{}, 1)}, rehearsals: rehearsals{due: true}}
	a.now.Store(&setup{rec: rec})
	return a
}

func (a *app) rec() store.App     { return a.now.Load().rec }
func (a *app) unit() systemd.Unit { return a.now.Load().unit }
func (a *app) layers() []layer    { return a.now.Load().layers }

// layer is one layer of an app with the driver that is bound to it.
type layer struct {
	name   snap.Layer
	kind   string // "files", "sqlite", …
	prefix string // of its snapshots' ids
	driver snap.Driver
}

// family is the layer's kind in a word.
func (l layer) family() string {
	word, _, _ := strings.Cut(l.kind, ",")
	return word
}

// isDB reports whether the layer is restored in the db-restore stage.
func (l layer) isDB() bool { return l.prefix == "db-" }

func (a *app) layer(name snap.Layer) (layer, bool) {
	i := slices.IndexFunc(a.layers(), func(l layer) bool { return l.name == name })
	if i < 0 {
		return layer{}, false
	}
	return a.layers()[i], true
}

// setUp builds the drivers and the unit of an app.
func (d *Daemon) setUp(ctx context.Context, rec store.App) (*setup, error) {
	g, err := d.guestOf(ctx, rec)
	if err != nil {
		return nil, err
	}
	s, err := d.assemble(ctx, rec, g)
	if err != nil && g != nil {
		err = errs.Also(err, g.driver.Close())
	}
	return s, err
}

func (d *Daemon) assemble(ctx context.Context, rec store.App, g *guest) (*setup, error) {
	unit, err := d.unitOf(ctx, rec)
	if err == nil && g != nil {
		unit, err = d.withDomain(ctx, rec, unit, g.driver)
	}
	if err != nil {
		return nil, err
	}
	layers, err := d.layersOf(ctx, rec, g)
	if err != nil {
		return nil, err
	}
	return &setup{rec, unit, layers}, nil
}

// adopt takes over the drivers of an earlier setup that work in the background
// for databases that are still the same: two at one thing would disturb each other.
func (s *setup) adopt(old *setup) {
	for i, l := range s.layers {
		if _, ok := l.driver.(snap.Maintainer); !ok {
			continue
		}
		same := func(dbs []ipc.Database) int {
			return slices.IndexFunc(dbs, func(db ipc.Database) bool { return dbLayer(db) == l.name })
		}
		was, is := same(old.rec.Databases), same(s.rec.Databases)
		at := slices.IndexFunc(old.layers, func(o layer) bool { return o.name == l.name })
		if at >= 0 && was >= 0 && is >= 0 && old.rec.Databases[was] == s.rec.Databases[is] {
			s.layers[i].driver = old.layers[at].driver
		}
	}
}

// closeDrivers closes what the present drivers hold open, before others take their place.
func (d *Daemon) closeDrivers(a *app) {
	a.awaitRehearsal()
	if err := a.now.Load().close(); err != nil {
		d.opt.Log.Warn("a driver did not close", "app", a.rec().Slug, "err", err)
	}
}

// open sets an app up. What is wrong with it is kept in broken, until settle has
// done all of its work: one app's trouble is not another's.
func (d *Daemon) open(ctx context.Context, a *app) error {
	d.closeDrivers(a)
	next, err := d.setUp(ctx, a.rec())
	if err == nil {
		next.keepHeld(a.now.Load())
		a.now.Store(next)
	}
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.broken = err
	}
	return err
}

// stateDir is the daemon's own folder for an app.
func (d *Daemon) stateDir(id ipc.AppID) string {
	return filepath.Join(d.opt.StateDir, "apps", string(id))
}

// wake makes an app ready at start: leftovers swept, operations that a crash
// cut short finished or undone, a supervised command running.
func (d *Daemon) wake(ctx context.Context, a *app) {
	if err := a.noteOwner(d.CheckOwner(a.rec())); err != nil {
		a.asleep.Store(true)
		d.opt.Log.Error("app is not ready", "app", a.rec().Slug, "err", err)
		return
	}
	a.mu.Lock()
	a.rest.down = true
	a.mu.Unlock()
	if err := d.finishNow(ctx, a); err != nil {
		d.opt.Log.Error("app is not ready", "app", a.rec().Slug, "err", err)
	}
}

// acquire makes the caller the only one who changes the app, having settled
// what an earlier operation left. Somebody else at it is errs.Busy.
func (d *Daemon) acquire(ctx context.Context, a *app, what string, who ipc.Caller) (release func(), err error) {
	return d.take(ctx, a, what, who, false)
}

// acquireBrief is acquire for the daemon's own short work: it waits for others,
// and others wait for it instead of being turned away.
func (d *Daemon) acquireBrief(ctx context.Context, a *app, what string) (release func(), err error) {
	return d.take(ctx, a, what, accounts.Self(), true)
}

func (d *Daemon) take(ctx context.Context, a *app, what string, who ipc.Caller, brief bool) (release func(), err error) {
	if err := a.noteOwner(d.CheckOwner(a.rec())); err != nil {
		return nil, errs.Wrap(errs.Denied, what, err)
	}
	release, err = d.hold(ctx, a, what, who, brief)
	if err != nil {
		return nil, err
	}
	err = d.settle(ctx, a)
	if err == nil {
		err = d.reachAgain(ctx, a)
	}
	if err != nil {
		release()
		return nil, errs.Wrap(errs.Failed, what, err)
	}
	return release, nil
}

// noteOwner notes why the app's owner is not who it was, nil where it is, and returns it.
func (a *app) noteOwner(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ownerless = err
	return err
}

// hold is take for an app that cannot be worked with: what an earlier operation
// left stays, and whose the app is doesn't matter.
func (d *Daemon) hold(ctx context.Context, a *app, what string, who ipc.Caller, brief bool) (release func(), err error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, errs.New(errs.Unavailable, what, "the daemon is stopping").WithHint("try again when it is up")
	}
	d.ops.Add(1)
	d.mu.Unlock()
	if err := a.hold(ctx, what, who, brief, d.opt.Now()); err != nil {
		d.ops.Done()
		return nil, err
	}
	a.cutRehearsal()
	return func() {
		a.letGo()
		d.pursue(a)
		d.ops.Done()
	}, nil
}

// hold waits until the app is free, or says who has it.
func (a *app) hold(ctx context.Context, what string, who ipc.Caller, brief bool, now time.Time) error {
	for {
		a.mu.Lock()
		if a.gone {
			a.mu.Unlock()
			return errs.New(errs.NotFound, what, "%s is no longer registered", a.rec().Slug)
		}
		if a.holder == "" {
			a.holder = fmt.Sprintf("%s by %s since %s", what, accounts.Actor(who), now.UTC().Format(time.RFC3339))
			a.brief, a.freed = brief, make(chan struct{})
			a.mu.Unlock()
			return nil
		}
		holder, wait, freed := a.holder, a.brief || brief, a.freed
		a.mu.Unlock()
		if !wait {
			return errs.New(errs.Busy, what, "%s is busy: %s", a.rec().Slug, holder).WithHint("wait for it to end and try again")
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return errs.Wrap(errs.Unavailable, what, ctx.Err())
		}
	}
}

func (a *app) letGo() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holder, a.sizes = "", nil
	a.rest.unlooked = a.rest.unlooked || !a.brief && a.leaves()
	close(a.freed)
}

// problems says what about the app needs a person's attention.
func (a *app) problems() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	if a.ownerless != nil {
		list = append(list, a.ownerless.Error()+"; "+errs.HintOf(a.ownerless))
	}
	list = append(list, a.unfinishedWords()...)
	for _, name := range slices.Sorted(maps.Keys(a.neglected)) {
		list = append(list, fmt.Sprintf("%s: %s", name, a.neglected[name]))
	}
	list = append(list, a.rehearsalProblems()...)
	list = append(list, a.behind...)
	list = append(list, a.oversize...)
	if a.tracker != nil {
		list = append(list, a.tracker.problems()...)
	}
	return list
}

// noteSize keeps, for problems, that what is kept exceeds max_bytes.
func (a *app) noteSize(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.oversize = words
}

// view is the app as clients see it.
func (a *app) view(ctx context.Context) ipc.App {
	v := withoutSecrets(a.rec().App)
	v.Problems = a.problems()
	a.mu.Lock()
	v.Busy = a.holder
	a.mu.Unlock()
	for _, l := range a.layers() {
		v.Covers = append(v.Covers, fmt.Sprintf("%s (%s)", l.name, l.kind))
	}
	if t := a.tracking(); t != nil {
		v.Following = t.state()
	}
	v.State = "none"
	if a.unit() != nil {
		v.State = "unknown"
		if s, err := a.unit().State(ctx); err == nil {
			v.State = plainState(s)
		}
	}
	return v
}

func plainState(s systemd.Status) string {
	switch {
	case s.Running():
		return "running"
	case s.Active == "failed":
		return "failed"
	}
	return "stopped"
}

// status looks at the app's unit; of an app without one it is down.
func (a *app) status(ctx context.Context) (systemd.Status, error) {
	return statusOf(ctx, a.unit())
}

func statusOf(ctx context.Context, u systemd.Unit) (systemd.Status, error) {
	if u == nil {
		return systemd.Status{Active: "inactive"}, nil
	}
	return u.State(ctx)
}
