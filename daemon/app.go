package daemon

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

// app is a registered app at run time.
type app struct {
	now atomic.Pointer[layer.Setup] // replaced as a whole

	asleep atomic.Bool // it was not started, or stopped, for its owner is not who it was

	mu        sync.Mutex
	recovered []string      // what was finished or undone of earlier operations
	gone      bool          // it is no longer registered
	holder    string        // who works on it, "" when nobody does
	brief     bool          // who does will be done in a moment
	freed     chan struct{} // closed when the holder lets go
	follower  follower      // nil: the app asks for no automatic checkpoints
	settled   bool          // leftovers of earlier processes are dealt with
	broken    error         // why it cannot be worked with at present
	ownerless error         // why its owner is not who it was
	sizes     sizes

	neglected map[snap.Layer]string // what went wrong with a layer's upkeep
	behind    []string              // that layers stayed behind at a rollback
	oversize  []string              // that what is kept exceeds max_bytes
	rest      unfinished

	rehearsals rehearsals
}

func newApp(rec store.App) *app {
	a := &app{rest: unfinished{poke: make(chan struct{}, 1)}, rehearsals: rehearsals{due: true}}
	a.now.Store(&layer.Setup{Rec: rec})
	return a
}

func (a *app) rec() store.App        { return a.now.Load().Rec }
func (a *app) unit() systemd.Unit    { return a.now.Load().Unit }
func (a *app) layers() []layer.Layer { return a.now.Load().Layers }

func (a *app) layer(name snap.Layer) (layer.Layer, bool) { return a.now.Load().Layer(name) }
func (a *app) hostPart() systemd.Unit                    { return a.now.Load().HostPart() }

// problems says what about the app needs a person's attention.
func (a *app) problems() []string {
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
	if a.follower != nil {
		list = append(list, a.follower.Problems()...)
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
		v.Covers = append(v.Covers, fmt.Sprintf("%s (%s)", l.Name, l.About))
	}
	if f := a.following(); f != nil {
		v.Following = f.State()
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

// noteUpkeep keeps what went wrong with a layer's upkeep, and says whether that is news.
func (a *app) noteUpkeep(name snap.Layer, err error) (news bool) {
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

// doing says what an app is at.
func (a *app) doing() string {
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

// seen gives paths as the app's owner may see them.
func (a *app) seen(paths []string) ([]string, error) {
	l, _ := a.layer(snap.Files)
	if v, ok := l.Driver.(snap.Veiler); ok {
		return v.Seen(paths)
	}
	return paths, nil
}

// setup is what the app consists of at present.
func (a *app) setup() *layer.Setup { return a.now.Load() }

// setSetup gives the app another setup. The caller holds the app.
func (a *app) setSetup(s *layer.Setup) { a.now.Store(s) }

// setDrivers has the app's layers use these drivers, in the order of the layers.
func (a *app) setDrivers(drivers []snap.Driver) { a.now.Store(a.now.Load().With(drivers)) }

// follower follows the files of an app. Package turns has it.
type follower interface {
	State() string       // in a word
	Problems() []string  // what a person should know of it
	Driver() snap.Driver // that it follows by
}

// following is the app's follower, or nil when it does not ask for one.
func (a *app) following() follower {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.follower
}

// setFollower replaces the app's follower, and returns the one before. nil is none.
func (a *app) setFollower(f follower) (old follower) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, a.follower = a.follower, f
	return old
}

// ready reports whether the app can be worked on.
func (a *app) ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settled && a.broken == nil
}

// noteSettled notes whether the app can be worked on: err is why not.
func (a *app) noteSettled(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled, a.broken = err == nil, err
}

// mustSettle has the app settled before it is worked on again.
func (a *app) mustSettle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled = false
}

// noteRecovered keeps what was finished or undone of an earlier operation.
func (a *app) noteRecovered(words string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recovered = append(a.recovered, words)
}

// recoveries says what was finished or undone of earlier operations.
func (a *app) recoveries() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.recovered)
}

// noteBehind keeps, for problems, which layers stayed behind at a rollback.
func (a *app) noteBehind(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behind = words
}

// ownerTrouble is why the app's owner is not who it was; nil where it is.
func (a *app) ownerTrouble() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ownerless
}
