// Package watch finds out which paths of a workspace have changed. It watches every folder of the workspace and fills a set of
// dirty paths, which the caller takes at any time. The set says only which paths to read, and not what changed.
//
//	w, _ := watch.New(watch.Options{Dir: "/srv/shop", CookieDir: "/var/lib/…/watch"})
//	go w.Run(ctx)
//	for range w.Dirty() {
//		look(w.Take())
//	}
//
// If events are lost (a full queue, a missing root, no watches left), [Set].All makes the caller read everything. DESIGN.md
// lists the changes without an event: stores through a mapping (mmap), and writes through another name of the same file.
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
	// CookieDir is a folder of the daemon for this watcher alone. It is made if it is missing. On a tmpfs, a Barrier does not wait
	// for a disk.
	CookieDir string
	// Exclude, unless nil, reports which paths are neither watched nor reported. isDir is true for an existing folder, and false
	// for a path that does not exist. It is called from one goroutine.
	Exclude func(rel string, isDir bool) bool
	// Queue limits the events that wait between the kernel's queue and the set; further ones are lost. 0 means no limit. For
	// tests.
	Queue  int
	Budget *Budget      // of the folders' watches; nil: none
	Log    *slog.Logger // nil: none
}

// Watcher watches one workspace. Its methods are safe for concurrent use.
type Watcher struct {
	opt   Options
	dirty chan struct{} // a token while the set is not empty
	turn  chan struct{} // held by the Barrier that is under way
	poke  chan struct{} // a token makes the watcher check at once whether the root exists

	every, pause time.Duration // how often the root is checked; the shortest rest after trouble

	mu      sync.Mutex
	set     set
	state   snap.Following // without Pending
	session *session       // the session that watches the whole workspace, or nil
	home    identity       // identity of the root that was watched last; zero before the first one
	cookie  uint64         // the name of the newest cookie
	ack     chan struct{}  // closed when this cookie was seen
}

const cookiesDir = "cookies"

// New returns a watcher, and makes its CookieDir. Errors are of kind errs.Invalid or errs.Failed.
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

// Run watches until ctx ends, and then returns its error. After other errors it tries again; they show in State, and the set
// becomes All.
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

// watch runs a session. After its end the set becomes All.
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

// whole is called by a session when each folder is watched, or when no watches are left.
func (w *Watcher) whole(s *session, f snap.Following) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state, w.session = f, nil
	if f.State == snap.Watching {
		w.session = s
	}
	w.everything()
}

// Dirty returns a channel that gets a token whenever the set becomes non-empty.
func (w *Watcher) Dirty() <-chan struct{} { return w.dirty }

// State returns the state of the watcher. Pending is the size of the set.
func (w *Watcher) State() snap.Following {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.state
	f.Pending = w.set.size()
	return f
}

// Barrier waits until every change before the call is in the set or was taken. If the watcher cannot know, the set becomes All.
// The error is of kind errs.Unavailable if the workspace does not exist, and ctx's error if ctx ends first.
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

// touch renames the cookie. The session sees this event after all earlier ones. It returns nil if there is no session.
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
	if err != nil { // the cookie was removed by somebody
		err = os.WriteFile(w.cookiePath(w.cookie), nil, 0o600)
	}
	return w.session, w.ack, err
}

// seen ends the wait of the Barrier for the cookie with this name.
func (w *Watcher) seen(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ack != nil && name == cookieName(w.cookie) {
		close(w.ack)
		w.ack = nil
	}
}

// blind ends a Barrier without events: the set becomes All.
func (w *Watcher) blind(op string) error {
	now, err := identify(w.opt.Dir)
	if err != nil {
		err = errs.New(errs.Unavailable, op, "%s is not there: %v", w.opt.Dir, err).
			WithHint("`mulligan undo` or a rollback creates it again; or put it back, or remove the app")
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
