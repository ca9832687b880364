// Package app has the registered apps at run time: what each consists of at present, who works on
// it, what is wrong with it, and what earlier operations left to be finished. Whoever changes an
// app acquires it first.
package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// App is a registered app at run time.
type App struct {
	Now atomic.Pointer[layer.Setup] // replaced as a whole

	Asleep atomic.Bool // it was not started, or stopped, for its owner is not who it was

	mu        sync.Mutex
	recovered []string      // what was finished or undone of earlier operations
	gone      bool          // it is no longer registered
	holder    string        // who works on it, "" when nobody does
	brief     bool          // who does will be done in a moment
	freed     chan struct{} // closed when the holder lets go
	Follower  Follower      // nil: the app asks for no automatic checkpoints
	settled   bool          // leftovers of earlier processes are dealt with
	broken    error         // why it cannot be worked with at present
	ownerless error         // why its owner is not who it was
	Sizes     Sizes

	neglected map[snap.Layer]string // what went wrong with a layer's upkeep
	behind    []string              // that layers stayed behind at a rollback
	oversize  []string              // that what is kept exceeds max_bytes
	rest      unfinished

	rehearsals rehearsals
}

func New(rec store.App) *App {
	a := &App{rest: unfinished{poke: make(chan struct{}, 1)}, rehearsals: rehearsals{due: true}}
	a.Now.Store(&layer.Setup{Rec: rec})
	return a
}

func (a *App) Rec() store.App        { return a.Now.Load().Rec }
func (a *App) Unit() systemd.Unit    { return a.Now.Load().Unit }
func (a *App) Layers() []layer.Layer { return a.Now.Load().Layers }

func (a *App) Layer(name snap.Layer) (layer.Layer, bool) { return a.Now.Load().Layer(name) }
func (a *App) HostPart() systemd.Unit                    { return a.Now.Load().HostPart() }

// Problems says what about the app needs a person's attention.
func (a *App) Problems() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	if a.ownerless != nil {
		list = append(list, errs.Words(a.ownerless))
	}
	list = append(list, a.unfinishedWords()...)
	for _, name := range slices.Sorted(maps.Keys(a.neglected)) {
		list = append(list, fmt.Sprintf("%s: %s", name, a.neglected[name]))
	}
	list = append(list, a.rehearsalProblems()...)
	list = append(list, a.behind...)
	list = append(list, a.oversize...)
	if a.Follower != nil {
		list = append(list, a.Follower.Problems()...)
	}
	return list
}

// NoteSize keeps, for problems, that what is kept exceeds max_bytes.
func (a *App) NoteSize(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.oversize = words
}

// View is the app as clients see it.
func (a *App) View(ctx context.Context) ipc.App {
	v := WithoutSecrets(a.Rec().App)
	v.Problems = a.Problems()
	a.mu.Lock()
	v.Busy = a.holder
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
		if s, err := a.Unit().State(ctx); err == nil {
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

// Status looks at the app's unit; of an app without one it is down.
func (a *App) Status(ctx context.Context) (systemd.Status, error) {
	return StatusOf(ctx, a.Unit())
}

func StatusOf(ctx context.Context, u systemd.Unit) (systemd.Status, error) {
	if u == nil {
		return systemd.Status{Active: "inactive"}, nil
	}
	return u.State(ctx)
}

// NoteUpkeep keeps what went wrong with a layer's upkeep, and says whether that is news.
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

// Doing says what an app is at.
func (a *App) Doing() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.broken != nil:
		return "broken"
	case a.holder != "":
		return "busy"
	}
	return "idle"
}

// RedactPaths gives paths as the app's owner may see them.
func (a *App) RedactPaths(paths []string) ([]string, error) {
	l, _ := a.Layer(snap.Files)
	if v, ok := l.Driver.(snap.PathRedactor); ok {
		return v.RedactPaths(paths)
	}
	return paths, nil
}

// Setup is what the app consists of at present.
func (a *App) Setup() *layer.Setup { return a.Now.Load() }

// SetSetup gives the app another setup. The caller holds the app.
func (a *App) SetSetup(s *layer.Setup) { a.Now.Store(s) }

// SetDrivers has the app's layers use these drivers, in the order of the layers.
func (a *App) SetDrivers(drivers []snap.Driver) { a.Now.Store(a.Now.Load().With(drivers)) }

// Follower follows the files of an app. Package turns has it.
type Follower interface {
	State() string       // in a word
	Problems() []string  // what a person should know of it
	Driver() snap.Driver // that it follows by
}

// Following is the app's follower, or nil when it does not ask for one.
func (a *App) Following() Follower {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Follower
}

// SetFollower replaces the app's follower, and returns the one before. nil is none.
func (a *App) SetFollower(f Follower) (old Follower) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, a.Follower = a.Follower, f
	return old
}

// Ready reports whether the app can be worked on.
func (a *App) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settled && a.broken == nil
}

// NoteSettled notes whether the app can be worked on: err is why not.
func (a *App) NoteSettled(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled, a.broken = err == nil, err
}

// MustSettle has the app settled before it is worked on again.
func (a *App) MustSettle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled = false
}

// NoteRecovered keeps what was finished or undone of an earlier operation.
func (a *App) NoteRecovered(words string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recovered = append(a.recovered, words)
}

// Recoveries says what was finished or undone of earlier operations.
func (a *App) Recoveries() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.recovered)
}

// NoteBehind keeps, for problems, which layers stayed behind at a rollback.
func (a *App) NoteBehind(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behind = words
}

// OwnerTrouble is why the app's owner is not who it was; nil where it is.
func (a *App) OwnerTrouble() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ownerless
}
