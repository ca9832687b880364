// Package watch tells which paths of a workspace have changed. It watches
// every folder of it and fills a deduplicated set of dirty paths, which
// somebody else takes, and reads, in their own time: the set says where to
// look, never what is there.
//
//	w, _ := watch.New(watch.Options{Dir: "/srv/shop", CookieDir: "/var/lib/…/watch"})
//	go w.Run(ctx)
//	for range w.Dirty() {
//		look(w.Take())
//	}
//
// Whatever is lost (a full queue, a root that was away, no watches left) is
// made good by [Set].All: everything is to be looked at. What no event exists
// for at all is listed in DESIGN.md: stores through a mapping (mmap), writes
// through another name of the same file, and mounts.
package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap"
)

// Options say what to watch.
type Options struct {
	Dir string // the workspace: absolute, no symbolic links in it
	// CookieDir is a folder of the daemon's own, for this watcher alone. It is
	// made where it is missing. On a tmpfs a Barrier waits for no disk.
	CookieDir string
	// Exclude, where set, says what is neither watched nor reported. isDir is
	// known of folders that are there; of what is gone it is false. It is
	// called from one goroutine.
	Exclude func(rel string, isDir bool) bool
	// Queue limits how many events wait between the kernel's queue and the set,
	// and loses those that are too many. 0 loses none here. For tests.
	Queue int
	Log   *slog.Logger // nil: none
}

// Watcher watches one workspace. Its methods are safe for concurrent use.
type Watcher struct {
	opt   Options
	dirty chan struct{} // a token while the set is not empty
	turn  chan struct{} // held by the one Barrier that is under way
	poke  chan struct{} // a token: look at once whether the root is there

	every, pause time.Duration // how often the root is checked; the shortest rest after trouble

	mu      sync.Mutex
	set     set
	state   snap.Following // without Pending
	session *session       // that is watching the whole workspace, or nil
	home    identity       // of the root that was watched last; zero: none yet
	cookie  uint64         // the name of the newest cookie
	ack     chan struct{}  // closed when that one was seen
}

const cookiesDir = "cookies"

// New makes a watcher and its CookieDir. Kinds: errs.Invalid, errs.Failed.
func New(o Options) (*Watcher, error) {
	const op = "watch files"
	for _, p := range []string{o.Dir, o.CookieDir} {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p {
			return nil, errs.New(errs.Invalid, op, "%q is not an absolute, clean path", p)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	err := os.RemoveAll(filepath.Join(o.CookieDir, cookiesDir)) // an earlier process's
	if err == nil {
		err = os.MkdirAll(filepath.Join(o.CookieDir, cookiesDir), 0o700)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return &Watcher{
		opt:   o,
		dirty: make(chan struct{}, 1), turn: make(chan struct{}, 1), poke: make(chan struct{}, 1),
		every: time.Second, pause: 50 * time.Millisecond,
		state: snap.Following{State: snap.Rescanning, Detail: o.Dir + " is not watched yet"},
	}, nil
}

// Run watches until ctx ends, and then returns its error. Whatever goes wrong
// meanwhile is mended as soon as it can be, shows in State, and leaves All in the set.
func (w *Watcher) Run(ctx context.Context) error {
	rest := w.pause
	for {
		began := time.Now()
		w.watch(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > 10*time.Second {
			rest = w.pause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.poke:
		case <-time.After(rest):
		}
		rest = min(2*rest, max(w.every, w.pause))
	}
}

// watch runs one session. Whyever it ends, all is to be looked at.
func (w *Watcher) watch(ctx context.Context) {
	s, err := w.begin()
	if err == nil {
		err = s.run(ctx)
		s.close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session = nil
	f := trouble(w.opt.Dir, err)
	if f != w.state && ctx.Err() == nil {
		w.opt.Log.Warn("files: watching starts again", "dir", w.opt.Dir, "why", err)
	}
	w.state = f
	if s != nil {
		close(s.over)
		w.everything()
	}
}

// whole is called by a session when each folder has its watch, or none can be had.
func (w *Watcher) whole(s *session, f snap.Following) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state, w.session = f, nil
	if f.State == snap.Watching {
		w.session = s
	}
	w.everything()
}

// Dirty gives a token whenever the set became non-empty.
func (w *Watcher) Dirty() <-chan struct{} { return w.dirty }

// State says how well the watcher keeps up. Pending is the size of the set.
func (w *Watcher) State() snap.Following {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.state
	f.Pending = w.set.size()
	return f
}

// Barrier returns nil when every change that was made before the call is in
// the set, or was taken already. While the watcher cannot know, that is All.
// It fails with errs.Unavailable when the workspace is not there, and with
// ctx's error when that ends first.
func (w *Watcher) Barrier(ctx context.Context) error {
	const op = "wait for changes"
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return errs.Wrap(errs.Unavailable, op, ctx.Err())
	}
	s, ack, err := w.touch()
	if s == nil || err != nil {
		return w.blind(op)
	}
	select {
	case <-ack:
		return nil
	case <-s.over:
		return w.blind(op)
	case <-ctx.Done():
		return errs.Wrap(errs.Unavailable, op, ctx.Err())
	}
}

// touch gives the cookie a new name, which the session that watches will see
// after everything that happened before. No session: there is none that could.
func (w *Watcher) touch() (*session, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session == nil {
		return nil, nil, nil
	}
	old := w.cookiePath(w.cookie)
	w.cookie++
	w.ack = make(chan struct{})
	err := os.Rename(old, w.cookiePath(w.cookie))
	if err != nil { // somebody tidied up
		err = os.WriteFile(w.cookiePath(w.cookie), nil, 0o600)
	}
	return w.session, w.ack, err
}

// seen closes the Barrier that waits for the cookie of that name.
func (w *Watcher) seen(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ack != nil && name == cookieName(w.cookie) {
		close(w.ack)
		w.ack = nil
	}
}

// blind is a Barrier without events: everything may have changed.
func (w *Watcher) blind(op string) error {
	now, err := identify(w.opt.Dir)
	if err != nil {
		err = errs.New(errs.Unavailable, op, "%s is not there: %v", w.opt.Dir, err).
			WithHint("an undo or a rollback makes it anew; else put it back, or remove the app")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.everything()
	select {
	case w.poke <- struct{}{}:
	default:
	}
	if err == nil {
		err = w.home.accepts(w.opt.Dir, now)
	}
	return errs.Wrap(errs.Unavailable, op, err)
}

func cookieName(n uint64) string              { return strconv.FormatUint(n, 10) }
func (w *Watcher) cookiePath(n uint64) string { return filepath.Join(w.cookies(), cookieName(n)) }
func (w *Watcher) cookies() string            { return filepath.Join(w.opt.CookieDir, cookiesDir) }
