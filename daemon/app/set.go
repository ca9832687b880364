package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"mulligan/daemon/accounts"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Set is the registered apps. An operation on one must acquire it first, which excludes all others.
// Safe for concurrent use.
type Set struct {
	*accounts.Owners
	*layer.Binder
	opt   *settings.Options
	store *records.Records

	// The next two are set before the first app is registered.

	// Settle makes an app that the caller holds fit to be worked on.
	Settle func(context.Context, *App) error
	// Pursue has somebody finish what is unfinished about an app, if anything is.
	Pursue func(*App)

	mu     sync.Mutex
	apps   map[ipc.AppID]*App
	closed bool
	ops    sync.WaitGroup // operations under way
	bg     sync.WaitGroup // what idle waits for
}

// NewSet returns a set without apps.
func NewSet(opt *settings.Options, owners *accounts.Owners, store *records.Records) *Set {
	s := &Set{Owners: owners, opt: opt, store: store, apps: map[ipc.AppID]*App{}}
	s.Binder = layer.NewBinder(opt, owners, store.Contents, s.Records)
	return s
}

// Shut lets no more operations begin, and reports whether some could until now.
func (s *Set) Shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.closed
	s.closed = true
	return !was
}

// Background runs f in a goroutine that idle waits for; after shut, it does not.
func (s *Set) Background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.bg.Go(f)
	}
}

// Idle waits until no operation is under way, as long as ctx allows, and then for what runs
// in the background.
func (s *Set) Idle(ctx context.Context) error {
	idle := make(chan struct{})
	go func() { s.ops.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-ctx.Done():
		return errs.New(errs.Unavailable, "stop", "an operation is still under way").
			WithHint("the next start finishes or undoes it")
	}
	s.bg.Wait()
	return nil
}

// Put takes an app among the registered ones.
func (s *Set) Put(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps[a.Rec().ID] = a
}

// Find finds an app by its id or slug. One that the caller does not own is as
// unknown as one that is not there. A slug names one app of each owner: who sees
// several owners' is told to use the id.
func (s *Set) Find(who ipc.Caller, ref string) (*App, error) {
	const op = "find app"
	sees := s.Sight(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.apps[ipc.AppID(ref)]; a != nil && sees(a) {
		return a, nil
	}
	var found *App
	for _, a := range s.apps {
		if a.Rec().Slug != ref || !sees(a) {
			continue
		}
		if found != nil {
			return nil, errs.New(errs.Conflict, op, "several owners have an app %s", ref).WithHint("use its id: mulligan app list")
		}
		found = a
	}
	if found == nil {
		return nil, errs.New(errs.NotFound, op, "no app %.64q", ref).WithHint("mulligan app list shows those there are")
	}
	return found, nil
}

// Claim puts an app among the registered ones, where its slug and workspace
// don't clash with another's.
func (s *Set) Claim(a *App) error {
	left := s.left(a.Rec())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errs.New(errs.Unavailable, "", "the daemon is stopping")
	}
	for _, other := range s.apps {
		ws := other.Rec().Workspace
		switch {
		case other.Rec().Slug == a.Rec().Slug && other.Rec().Owner == a.Rec().Owner && other.Rec().OwnerUID == a.Rec().OwnerUID:
			return errs.New(errs.Conflict, "", "the slug %s is taken", a.Rec().Slug).WithHint("choose another with --slug")
		case overlapping(ws, a.Rec().Workspace) && !left[other.Rec().ID]:
			return errs.New(errs.Conflict, "", "workspace %q overlaps that of another app", a.Rec().Workspace).
				WithHint("a folder belongs to one app: mulligan app list")
		}
	}
	a.holder, a.freed = "being registered", make(chan struct{})
	s.apps[a.Rec().ID] = a
	return nil
}

func overlapping(x, y string) bool { return x == y || Within(x, y) || Within(y, x) }

// left are other owners' apps whose workspaces overlap with rec's and are no
// longer theirs: the folder was removed, or is another's now. They stand in
// nobody's way, and can't be worked with until they have a folder again.
func (s *Set) left(rec store.App) map[ipc.AppID]bool {
	left := map[ipc.AppID]bool{}
	for _, other := range s.All() {
		o := other.Rec()
		if o.OwnerUID == rec.OwnerUID && o.Owner == rec.Owner || !overlapping(o.Workspace, rec.Workspace) {
			continue
		}
		var st unix.Stat_t
		err := unix.Lstat(o.Workspace, &st)
		gone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
		left[o.ID] = gone || err == nil && o.FolderUID >= 0 && int(st.Uid) != o.FolderUID
	}
	return left
}

// Disown takes an app, which the caller holds, from the registered ones. Who waits for it
// is told that it is gone.
func (s *Set) Disown(a *App) {
	a.mu.Lock()
	a.gone = true
	a.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.apps, a.Rec().ID)
	s.Domains.Drop(a.Rec().ID)
}

// Named finds an owner's app; nil where it has none of that slug.
func (s *Set) Named(owner string, uid int, slug string) *App {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.apps {
		if a.Rec().Slug == slug && a.Rec().Owner == owner && a.Rec().OwnerUID == uid {
			return a
		}
	}
	return nil
}

// Sight returns what tells which apps the caller may know of. It may have to ask
// the host's user database: it must not be called with s.mu held.
func (s *Set) Sight(who ipc.Caller) func(*App) bool {
	sees := s.Sees(who)
	return func(a *App) bool { return sees(a.Rec()) }
}

// Registered reports whether the app was not removed meanwhile.
func (s *Set) Registered(a *App) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apps[a.Rec().ID] == a
}

// Records are those of all registered apps.
func (s *Set) Records() (list []store.App) {
	for _, a := range s.All() {
		list = append(list, a.Rec())
	}
	return list
}

// All is every registered app.
func (s *Set) All() []*App {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.apps))
}
