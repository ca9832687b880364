package daemon

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

// appSet is the registered apps. An operation on one must acquire it first, which excludes all others.
// Safe for concurrent use.
type appSet struct {
	*accounts.Owners
	*layer.Binder
	opt   *settings.Options
	store *records.Records

	// The next two are set before the first app is registered.

	// settle makes an app that the caller holds fit to be worked on.
	settle func(context.Context, *app) error
	// pursue has somebody finish what is unfinished about an app, if anything is.
	pursue func(*app)

	mu     sync.Mutex
	apps   map[ipc.AppID]*app
	closed bool
	ops    sync.WaitGroup // operations under way
	bg     sync.WaitGroup // what idle waits for
}

// newAppSet returns a set without apps.
func newAppSet(opt *settings.Options, owners *accounts.Owners, store *records.Records) *appSet {
	s := &appSet{Owners: owners, opt: opt, store: store, apps: map[ipc.AppID]*app{}}
	s.Binder = layer.NewBinder(opt, owners, store.Contents, s.records)
	return s
}

// shut lets no more operations begin, and reports whether some could until now.
func (s *appSet) shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.closed
	s.closed = true
	return !was
}

// background runs f in a goroutine that idle waits for; after shut, it does not.
func (s *appSet) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.bg.Go(f)
	}
}

// idle waits until no operation is under way, as long as ctx allows, and then for what runs
// in the background.
func (s *appSet) idle(ctx context.Context) error {
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

// put takes an app among the registered ones.
func (s *appSet) put(a *app) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps[a.rec().ID] = a
}

// find finds an app by its id or slug. One that the caller does not own is as
// unknown as one that is not there. A slug names one app of each owner: who sees
// several owners' is told to use the id.
func (s *appSet) find(who ipc.Caller, ref string) (*app, error) {
	const op = "find app"
	sees := s.sight(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.apps[ipc.AppID(ref)]; a != nil && sees(a) {
		return a, nil
	}
	var found *app
	for _, a := range s.apps {
		if a.rec().Slug != ref || !sees(a) {
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

// claim puts an app among the registered ones, where its slug and workspace
// don't clash with another's.
func (s *appSet) claim(a *app) error {
	left := s.left(a.rec())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errs.New(errs.Unavailable, "", "the daemon is stopping")
	}
	for _, other := range s.apps {
		ws := other.rec().Workspace
		switch {
		case other.rec().Slug == a.rec().Slug && other.rec().Owner == a.rec().Owner && other.rec().OwnerUID == a.rec().OwnerUID:
			return errs.New(errs.Conflict, "", "the slug %s is taken", a.rec().Slug).WithHint("choose another with --slug")
		case overlapping(ws, a.rec().Workspace) && !left[other.rec().ID]:
			return errs.New(errs.Conflict, "", "workspace %q overlaps that of another app", a.rec().Workspace).
				WithHint("a folder belongs to one app: mulligan app list")
		}
	}
	a.holder, a.freed = "being registered", make(chan struct{})
	s.apps[a.rec().ID] = a
	return nil
}

func overlapping(x, y string) bool { return x == y || within(x, y) || within(y, x) }

// left are other owners' apps whose workspaces overlap with rec's and are no
// longer theirs: the folder was removed, or is another's now. They stand in
// nobody's way, and can't be worked with until they have a folder again.
func (s *appSet) left(rec store.App) map[ipc.AppID]bool {
	left := map[ipc.AppID]bool{}
	for _, other := range s.all() {
		o := other.rec()
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

// disown takes an app, which the caller holds, from the registered ones. Who waits for it
// is told that it is gone.
func (s *appSet) disown(a *app) {
	a.mu.Lock()
	a.gone = true
	a.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.apps, a.rec().ID)
	s.Domains.Drop(a.rec().ID)
}

// named finds an owner's app; nil where it has none of that slug.
func (s *appSet) named(owner string, uid int, slug string) *app {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.apps {
		if a.rec().Slug == slug && a.rec().Owner == owner && a.rec().OwnerUID == uid {
			return a
		}
	}
	return nil
}

// sight returns what tells which apps the caller may know of. It may have to ask
// the host's user database: it must not be called with s.mu held.
func (s *appSet) sight(who ipc.Caller) func(*app) bool {
	sees := s.Sees(who)
	return func(a *app) bool { return sees(a.rec()) }
}

// registered reports whether the app was not removed meanwhile.
func (s *appSet) registered(a *app) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apps[a.rec().ID] == a
}

// records are those of all registered apps.
func (s *appSet) records() (list []store.App) {
	for _, a := range s.all() {
		list = append(list, a.rec())
	}
	return list
}

// all is every registered app.
func (s *appSet) all() []*app {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.apps))
}
