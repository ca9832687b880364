package follow

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/watch"
)

// Session is the state of one call of Follow. The goroutine of Follow owns all fields above mu; others give it functions to run
// (Do).
type Session struct {
	f      *Follower
	w      *watch.Watcher
	notify func(snap.Batch) // nil: changed paths are only noted, and read when somebody asks for the state
	calls  chan func()

	live      *live // the tree; nil before the baseline
	todo      todo  // the dirty set: taken from the watcher and not read yet
	debounced map[string]debounce
	notified  bool // notify was called for the present todo
	idle      *time.Timer
	next      *time.Timer // fires when todo is to be read
	busy      bool        // the last batch was large

	rested     bool      // Rest was called since the last change
	patrolAt   string    // position of the patrol; "" at the beginning
	patrolDone time.Time // when the patrol completed a round

	unsaved int // number of entries that the stat cache on disk lacks

	restores atomic.Int32 // number of restores under way; their changes are read when they are done

	ready chan struct{} // closed after the baseline
	ended chan struct{} // closed when calls are not answered any more

	mu      sync.Mutex
	trouble error // why the journal is not current, apart from the watcher's state
	pending int
	reading chan struct{} // closed at the end of the baseline that is under way; nil: none is
}

func newSession(f *Follower, notify func(snap.Batch)) *Session {
	return &Session{f: f, notify: notify, calls: make(chan func()), debounced: map[string]debounce{},
		ready: make(chan struct{}), ended: make(chan struct{})}
}

// ErrEnded is returned if Follow is not running, or ends during a call.
var ErrEnded = errors.New("the journal is not being written any more")

// Times of the loop.
const (
	readSoon    = 5 * time.Millisecond   // from the first event of a small batch to its reading
	readInStorm = 300 * time.Millisecond // the same in a storm
	retryAfter  = 200 * time.Millisecond // pause before a file that kept changing is read again
	IdleAfter   = 500 * time.Millisecond // time without events before work that is not urgent
	restWithin  = time.Minute            // maximal delay of work that is not urgent, even if there are always events
	storm       = 256                    // number of paths in a batch that makes it a storm
)

// run is the loop: it handles one event at a time.
func (j *Session) run(ctx context.Context) {
	j.next, j.idle = time.NewTimer(time.Hour), time.NewTimer(IdleAfter)
	j.next.Stop()
	defer j.next.Stop()
	defer j.idle.Stop()
	stirred := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case do := <-j.calls:
			do()
			switch {
			case j.noting():
				j.rested = false
				j.idle.Reset(IdleAfter)
			case !j.todo.empty():
				j.next.Reset(retryAfter)
			}
		case <-j.w.Dirty():
			wait := readSoon
			if j.busy {
				wait = readInStorm
			}
			if !j.noting() || j.live == nil {
				j.next.Reset(wait)
			}
			if j.rested {
				j.rested, stirred = false, time.Now()
			}
			if time.Since(stirred) < restWithin {
				j.idle.Reset(IdleAfter)
			}
		case <-j.next.C:
			j.background(ctx)
		case <-j.idle.C:
			if !j.rested {
				j.Rest(ctx)
				j.rested = true
			}
			j.idle.Reset(j.Patrol(ctx, time.Now()))
		}
	}
}

// noting reports whether changed paths are read only when somebody asks for the state.
func (j *Session) noting() bool { return j.notify == nil }

// Do runs f in the loop.
func (j *Session) Do(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	select {
	case j.calls <- func() { done <- f() }:
	case <-j.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-done // f has ctx
}

// background reads changed paths, except those that keep changing.
func (j *Session) background(ctx context.Context) {
	if j.restores.Load() > 0 || j.live == nil && j.f.walks.Load() > 0 {
		j.next.Reset(retryAfter)
		return
	}
	j.todo.take(j.w.Take())
	j.busy = j.todo.len() > storm
	err := j.readDirty(ctx, false, nil)
	j.fails(err)
	if !j.todo.empty() && !j.noting() {
		j.next.Reset(retryAfter)
	}
	if err == nil && j.long(epochTooLong) {
		j.fails(j.NewEpoch(ctx))
	}
}

// fails records err, which says whether the journal is current.
func (j *Session) fails(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trouble, j.pending = err, j.todo.len()
}

// state returns the answer of Following.
func (j *Session) state() snap.Following {
	f := j.w.State()
	j.mu.Lock()
	defer j.mu.Unlock()
	f.Pending += j.pending
	if j.trouble != nil && f.State == snap.Watching && !walk.Transient(j.trouble) {
		f.State, f.Detail, f.Remedy = snap.Degraded, j.trouble.Error()+".", errs.HintOf(j.trouble)
	}
	select {
	case <-j.ready:
	default:
		if f.State == snap.Watching {
			f.State, f.Detail = snap.Rescanning, "reading "+j.f.Walker.Workspace.Dir+" for the first time"
		}
	}
	return f
}

// flush reads everything that changed before the call and caused an event.
func (j *Session) flush(ctx context.Context) error {
	_, err := j.takeIn(ctx, false, func() (map[string]bool, error) { return nil, nil })
	return err
}

// takeIn does the same as flush, and always reads the paths that more returns. more is called in the loop and may add to the
// dirty set. Repositories with changes, or with all every repository, are read again until their state is that of one moment;
// busy has those that kept changing.
func (j *Session) takeIn(ctx context.Context, all bool, more func() (map[string]bool, error)) (busy []string, err error) {
	for until := time.Now().Add(walk.GitPatience); ; {
		began := time.Now()
		touched, err := j.takeInOnce(ctx, more)
		if all = all || touched; err != nil || !all {
			return nil, err
		}
		var moved, held []string
		err = j.Do(ctx, func() error {
			moved, held, err = j.moving(ctx, began)
			return err
		})
		if busy = append(moved, held...); err != nil || len(busy) == 0 || time.Now().After(until) {
			return busy, err
		}
		if err := walk.Wait(ctx, walk.GitPause); err != nil {
			return nil, err
		}
		more = func() (map[string]bool, error) {
			for _, p := range moved {
				j.todo.tree(p)
			}
			j.todo.seen(began, time.Now())
			return nil, nil
		}
	}
}

// takeInOnce does the work of takeIn once, without the repetition for repositories. touched reports whether a repository may
// have changed.
func (j *Session) takeInOnce(ctx context.Context, more func() (map[string]bool, error)) (touched bool, err error) {
	if err := j.untilFirst(ctx); err != nil {
		return false, err
	}
	if err := j.w.Barrier(ctx); err != nil {
		return false, err
	}
	until := time.Now().Add(flushPatience)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := j.Do(ctx, func() error {
			j.todo.take(j.w.Take())
			fresh, err := more()
			touched = touched || j.todo.touchesRepository()
			if err == nil {
				err = j.readDirty(ctx, true, fresh)
			}
			j.fails(err)
			return err
		})
		if err == nil || !walk.Transient(err) || walk.Unreadable(err) || time.Now().After(until) {
			return touched, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return touched, errors.Join(err, ctx.Err())
		}
	}
}

// untilFirst waits, if nothing was read yet, until somebody else's walk has ended and the folders are watched: what is read before that is
// read once more.
func (j *Session) untilFirst(ctx context.Context) error {
	for until := time.Now().Add(firstPatience); time.Now().Before(until); {
		select {
		case <-j.ready:
			return nil
		case <-j.ended:
			return ErrEnded
		default:
		}
		if j.f.walks.Load() == 0 && j.w.State().State != snap.Rescanning {
			return nil
		}
		if err := walk.Wait(ctx, firstPause); err != nil {
			return err
		}
	}
	return nil
}

// view reads changes, also those without an event as far as how says, and seals the tree. b, unless nil, gets the manifest.
func (j *Session) view(ctx context.Context, b *cas.Batch, how Depth, fresh map[string]bool) (v *View, err error) {
	busy, err := j.takeIn(ctx, b != nil, func() (map[string]bool, error) { return j.unseen(ctx, how, fresh) })
	if err != nil {
		return nil, err
	}
	err = j.Do(ctx, func() error {
		if j.live == nil { // a deletion came between
			return ErrEnded
		}
		if err := j.f.Failpoint.At("scanned"); err != nil {
			return err
		}
		var m *manifest.Manifest
		if b == nil {
			m = j.live.seal(j.f.Store)
		} else if m, err = j.saved(ctx, b); err != nil {
			return err
		}
		v = &View{Manifest: m, Files: j.live.files, Warnings: mountWarnings(j.f.Walker.Shown, relpath.SortedKeys(j.live.warn))}
		for _, p := range busy {
			v.Warnings = append(v.Warnings, walk.BusyWarning(j.f.Walker.Shown(p)))
		}
		v.Mark, _, _, err = j.f.Journal.Head()
		return err
	})
	return v, err
}

func damage(err error) bool {
	k := errs.KindOf(err)
	return k == errs.Corrupt || k == errs.NotFound
}

// end passes the tree to the walks that follow.
func (j *Session) end() error {
	if j.live == nil {
		return nil
	}
	j.f.Walker.Cache.Fill(j.live.root)
	return j.f.Walker.Cache.Save(j.f.StateDir)
}

// save stores the stat cache, which saves the next process work if this one is killed.
func (j *Session) save() error {
	if int64(j.unsaved) <= j.live.files/100 {
		return nil
	}
	err := walk.SaveCache(j.f.StateDir, walk.Known(j.live.root))
	if err == nil {
		j.unsaved = 0
	}
	return err
}

// flushPatience bounds how long a Flush waits for a file that
// is written to all the time.
const flushPatience = 5 * time.Second

// firstPatience bounds how long the first reading waits for the watches, which may never be complete where folders are made all the
// time; firstPause is the time between two looks.
const (
	firstPatience = 10 * time.Second
	firstPause    = 2 * time.Millisecond
)

// moving returns the repositories in the tree that changed since began, when their reading began, and those that are locked.
func (j *Session) moving(ctx context.Context, began time.Time) (moved, held []string, err error) {
	if j.live == nil { // a deletion came between
		return nil, nil, nil
	}
	root, err := j.open()
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	return j.f.Walker.NewScan(ctx, "look at files", nil, nil).Moving(root, j.live.root, began)
}

// Each calls do for every node of the tree, parents first. A node is valid until do returns. Each must be called in the loop (Do).
func (j *Session) Each(do func(path string, n *manifest.Node)) { j.live.each(j.live.root, ".", do) }

// MayHave reports whether a file of the tree may have that inode. It must be called in the loop (Do).
func (j *Session) MayHave(ino uint64) bool { return j.live.mayHave(ino) }
