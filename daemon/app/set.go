package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon/accounts"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Set holds the registered apps. An operation must acquire an app before it changes it. Safe for
// concurrent use.
type Set struct {
	*accounts.Owners
	*layer.Binder
	opt   *settings.Options
	store *records.Records

	// Recover and RetryUnfinished are set before the first app is registered.

	// Recover makes an app that the caller has acquired ready for operations.
	Recover func(context.Context, *App) error
	// RetryUnfinished starts the background retries of an app, if anything about it is unfinished.
	RetryUnfinished func(*App)

	mu     sync.Mutex
	apps   map[ipc.AppID]*App
	closed bool
	ops    sync.WaitGroup // operations under way
	bg     sync.WaitGroup // goroutines started by Background
}

// NewSet returns a set without apps.
func NewSet(opt *settings.Options, owners *accounts.Owners, store *records.Records) *Set {
	s := &Set{Owners: owners, opt: opt, store: store, apps: map[ipc.AppID]*App{}}
	s.Binder = layer.NewBinder(opt, owners, store.Contents, s.Records)
	return s
}

// Shut prevents new operations, and reports whether the set was open until now.
func (s *Set) Shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.closed
	s.closed = true
	return !was
}

// Background runs f in a goroutine that Idle waits for. After Shut it does not run f.
func (s *Set) Background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.bg.Go(f)
	}
}

// AtStart runs f like Background when the daemon starts, and waits for it: until it has returned, ctx ends, or the start has waited as long as
// the settings say.
func (s *Set) AtStart(ctx context.Context, f func()) {
	done := make(chan struct{})
	s.Background(func() { defer close(done); f() })
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(s.opt.StartWait):
		s.opt.Log.Warn("the start does not wait any longer for apps that are not ready yet")
	}
}

// Idle blocks until no operation is under way and no Background goroutine runs. It stops waiting
// for operations when ctx ends, and returns an error then.
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

// Put adds an app to the set.
func (s *Set) Put(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps[a.Rec().ID] = a
}

// Find returns the app with this id or slug. An app that the caller does not own is errs.NotFound,
// like one that does not exist. A slug is unique for each owner only: a caller who sees apps of
// several owners may have to use the id.
func (s *Set) Find(who ipc.Caller, ref string) (*App, error) {
	a, err := s.find(who, ref)
	if err == nil && who != accounts.Self() {
		s.Touch(a)
	}
	return a, err
}

// Touch notes that somebody uses the app now.
func (s *Set) Touch(a *App) { a.LastAsked.Store(s.opt.Now().UnixNano()) }

func (s *Set) find(who ipc.Caller, ref string) (*App, error) {
	const op = "find app"
	sees := s.VisibleTo(who)
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
			return nil, errs.New(errs.Conflict, op, "several owners have an app %s", ref).WithHint("use its id: `mulligan app list`")
		}
		found = a
	}
	if found == nil {
		return nil, errs.New(errs.NotFound, op, "no app %.64q", ref).WithHint("`mulligan app list` shows the apps")
	}
	return found, nil
}

// Claim adds an app to the set, unless its slug or workspace conflicts with another app's.
func (s *Set) Claim(a *App) error {
	left := s.abandoned(a.Rec())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conflict(a.Rec(), left); err != nil {
		return err
	}
	a.activity, a.released = "being registered", make(chan struct{})
	s.apps[a.Rec().ID] = a
	return nil
}

// CheckClaim returns the error that Claim would return for an app with that record.
func (s *Set) CheckClaim(rec store.App) error {
	left := s.abandoned(rec)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflict(rec, left)
}

// conflict returns why an app with that record cannot be added; left are apps that do not count. s.mu is held.
func (s *Set) conflict(rec store.App, left map[ipc.AppID]bool) error {
	if s.closed {
		return errs.New(errs.Unavailable, "", "the daemon is stopping")
	}
	for _, other := range s.apps {
		o := other.Rec()
		switch {
		case o.Slug == rec.Slug && o.Owner == rec.Owner && o.OwnerUID == rec.OwnerUID:
			return errs.New(errs.Conflict, "", "the slug %s is taken", rec.Slug).WithHint("choose another with --slug")
		case overlapping(o.Workspace, rec.Workspace) && !left[o.ID]:
			return errs.New(errs.Conflict, "", "workspace %q overlaps that of another app", rec.Workspace).
				WithHint("a folder belongs to one app: `mulligan app list`")
		}
	}
	return nil
}

func overlapping(x, y string) bool { return x == y || Within(x, y) || Within(y, x) }

// abandoned returns other owners' apps whose workspaces overlap with rec's and are no
// longer theirs: the folder was removed, or has another owner now. These apps do not
// conflict with rec. No operation can work on them until they have a folder again.
func (s *Set) abandoned(rec store.App) map[ipc.AppID]bool {
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

// Unregister removes an app, which the caller must have acquired. Operations that wait for the app
// get errs.NotFound.
func (s *Set) Unregister(a *App) {
	a.mu.Lock()
	a.gone = true
	a.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.apps, a.Rec().ID)
	s.Domains.Drop(a.Rec().ID)
}

// Named returns the owner's app with this slug, or nil.
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

// VisibleTo returns a function that reports whether the caller may see an app. VisibleTo may ask
// the host's user database, so the caller must not hold s.mu.
func (s *Set) VisibleTo(who ipc.Caller) func(*App) bool {
	sees := s.Owners.VisibleTo(who)
	return func(a *App) bool { return sees(a.Rec()) }
}

// Registered reports whether the app is still in the set.
func (s *Set) Registered(a *App) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apps[a.Rec().ID] == a
}

// Records returns the records of all registered apps.
func (s *Set) Records() (list []store.App) {
	for _, a := range s.All() {
		list = append(list, a.Rec())
	}
	return list
}

// All returns all registered apps.
func (s *Set) All() []*App {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.apps))
}

// Owner is whose an app is.
type Owner struct {
	Name string
	UID  int
}

// ByOwner returns each owner's apps, in the order in which they are in the list.
func ByOwner(list []*App) map[Owner][]*App {
	apps := map[Owner][]*App{}
	for _, a := range list {
		o := Owner{a.Rec().Owner, a.Rec().OwnerUID}
		apps[o] = append(apps[o], a)
	}
	return apps
}
