// Package app holds the registered apps at run time: what each app consists of, which operation
// changes it, what is wrong with it, and what earlier operations left unfinished. An operation
// must acquire an app before it changes it.
package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// App is a registered app at run time.
type App struct {
	Now atomic.Pointer[layer.Setup] // replaced as a whole, never changed in place

	Asleep atomic.Bool // the app does not run because its owner's account changed

	Undropped atomic.Pointer[string] // why a fork that is not whole could not be dropped; nil: nobody failed to

	LastAsked atomic.Int64 // when somebody last asked for the app by its name or ran a command inside, in nanoseconds since 1970; 0: not since the daemon's start

	LastChanged atomic.Int64 // when something in a fork's folder was changed, as was last found, in nanoseconds since 1970; 0: nobody looked

	Adopting sync.Mutex // of an app that is no fork: held while one of its forks, or a fork of these, and its parent adopt snapshots of each other

	mu         sync.Mutex
	recoveries []string      // one sentence for each interrupted operation that was finished or undone
	gone       bool          // the app is no longer registered
	activity   string        // the operation that has acquired the app, and its caller; "" if there is none
	way        Way           // whether that operation and others wait for each other
	released   chan struct{} // closed when the app is released
	Follower   Follower      // nil: its files are not followed
	recovered  bool          // Recover succeeded, and nothing requested it again
	broken     error         // why no operation can work on the app at present
	ownerless  error         // how the owner's account changed
	Sizes      Sizes

	neglected  map[snap.Layer]string // the last error of Maintain, by layer
	behind     []string              // warnings: layers that the last rollback left out
	oversize   []string              // a warning that the checkpoints exceed max_bytes
	remotes    []string              // what is wrong with the app's remotes
	unfinished unfinished

	rehearsals rehearsals
	inside     inside
}

func New(rec store.App) *App {
	a := &App{unfinished: unfinished{poke: make(chan struct{}, 1)}, rehearsals: rehearsals{due: true}}
	a.Now.Store(&layer.Setup{Rec: rec})
	return a
}

func (a *App) Rec() store.App        { return a.Now.Load().Rec }
func (a *App) Unit() systemd.Unit    { return a.Now.Load().Unit }
func (a *App) Layers() []layer.Layer { return a.Now.Load().Layers }

func (a *App) Layer(name snap.Layer) (layer.Layer, bool) { return a.Now.Load().Layer(name) }
func (a *App) HostPart() systemd.Unit                    { return a.Now.Load().HostPart() }

// Problems returns what about the app needs a person's attention, one sentence each.
func (a *App) Problems() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	if a.ownerless != nil {
		list = append(list, errs.Words(a.ownerless))
	}
	if why := a.Undropped.Load(); why != nil {
		list = append(list, "the fork is not whole and could not be dropped yet, which is tried again every minute: "+*why)
	}
	list = append(list, a.unfinishedWords()...)
	for _, name := range slices.Sorted(maps.Keys(a.neglected)) {
		list = append(list, fmt.Sprintf("%s: %s", name, a.neglected[name]))
	}
	list = append(list, a.rehearsalProblems()...)
	list = append(list, a.behind...)
	list = append(list, a.oversize...)
	list = append(list, a.remotes...)
	if a.Follower != nil {
		list = append(list, a.Follower.Problems()...)
	}
	return list
}

// NoteSize sets the warning that the checkpoints exceed max_bytes. Problems reports it.
func (a *App) NoteSize(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.oversize = words
}

// NoteRemotes sets what is wrong with the app's remotes, one sentence each. Problems reports it.
func NoteRemotes(a *App, words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remotes = words
}

// View returns the app as clients see it.
func (a *App) View(ctx context.Context) ipc.App {
	v := WithoutSecrets(a.Rec().App)
	v.Problems = a.Problems()
	a.mu.Lock()
	v.Busy = a.activity
	a.mu.Unlock()
	for _, l := range a.Layers() {
		v.Covers = append(v.Covers, fmt.Sprintf("%s (%s)", l.Name, l.About))
	}
	if f := a.Following(); f != nil {
		v.Following = f.State()
	}
	v.State = "none"
	if a.Unit() != nil {
		v.State = "unknown"
		if s, err := a.Status(ctx); err == nil {
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

// Status returns the state of the app's unit. An app without a unit is down.
func (a *App) Status(ctx context.Context) (systemd.Status, error) {
	return StatusOf(ctx, a.Unit())
}

// statePatience bounds how long what serves a unit may take to tell its state: a container engine is asked for one container after the other.
const statePatience = time.Minute

// StatusOf returns the state of a unit; nil is down.
func StatusOf(ctx context.Context, u systemd.Unit) (systemd.Status, error) {
	if u == nil {
		return systemd.Status{Active: "inactive"}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statePatience)
	defer cancel()
	return u.State(ctx)
}

// NoteUpkeep records the outcome of a layer's Maintain, and reports whether it differs from the
// last one.
func (a *App) NoteUpkeep(name snap.Layer, err error) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.neglected, name)
		return false
	}
	if a.neglected == nil {
		a.neglected = map[snap.Layer]string{}
	}
	news = a.neglected[name] != err.Error()
	a.neglected[name] = err.Error()
	return news
}

// Activity returns the operation under way, or the app's state in one word.
func (a *App) Activity() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.broken != nil:
		return "broken"
	case a.activity != "":
		return "busy"
	}
	return "idle"
}

// RedactPaths returns paths as the app's owner may see them.
func (a *App) RedactPaths(paths []string) ([]string, error) {
	l, _ := a.Layer(snap.Files)
	if v, ok := l.Driver.(snap.PathRedactor); ok {
		return v.RedactPaths(paths)
	}
	return paths, nil
}

// Setup returns what the app consists of at present.
func (a *App) Setup() *layer.Setup { return a.Now.Load() }

// SetSetup replaces the app's setup. The caller must have acquired the app.
func (a *App) SetSetup(s *layer.Setup) { a.Now.Store(s) }

// SetDrivers replaces the drivers of the app's layers; drivers is in the order of the layers.
func (a *App) SetDrivers(drivers []snap.Driver) { a.Now.Store(a.Now.Load().With(drivers)) }

// Follower follows the files of one app. Package turns implements it.
type Follower interface {
	State() string       // in one word
	Problems() []string  // what needs a person's attention
	Driver() snap.Driver // of the files, whose journal it reads
}

// Following returns the app's follower, or nil if its files are not followed.
func (a *App) Following() Follower {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Follower
}

// SetFollower replaces the app's follower and returns the old one. Either may be nil.
func (a *App) SetFollower(f Follower) (old Follower) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, a.Follower = a.Follower, f
	return old
}

// DropFollower removes the app's follower if that is f, and reports whether it was.
func DropFollower(a *App, f Follower) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Follower != f {
		return false
	}
	a.Follower = nil
	return true
}

// Ready reports whether an operation can work on the app without recovering it first.
func (a *App) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.recovered && a.broken == nil
}

// NoteRecoveryResult records the outcome of Recover.
func (a *App) NoteRecoveryResult(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recovered, a.broken = err == nil, err
}

// RequireRecovery has the next operation recover the app before it starts.
func (a *App) RequireRecovery() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recovered = false
}

// AddRecovery records how an interrupted operation ended: finished or undone.
func (a *App) AddRecovery(words string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recoveries = append(a.recoveries, words)
}

// Recoveries returns how interrupted operations ended, one sentence each.
func (a *App) Recoveries() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.recoveries)
}

// NoteBehind sets the warnings about layers that the last rollback left out. Problems reports
// them.
func (a *App) NoteBehind(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behind = words
}

// OwnerTrouble returns how the owner's account changed since the registration; nil if it did not.
func (a *App) OwnerTrouble() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ownerless
}
