package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/watch"
)

// journal is the journal while it is being written. The goroutine of Follow
// owns everything above mu, and does what others ask for in calls.
type journal struct {
	d      *Driver
	w      *watch.Watcher
	notify func(snap.Batch)
	calls  chan func()

	live *live // nil until the first reading
	todo todo  // taken from the watcher and not in the tree yet
	held map[string]heat
	told bool // notify knows that there is something in todo
	idle *time.Timer
	next *time.Timer // when todo is looked at
	busy bool        // the last batch was large

	rested bool      // what waits for a rest was done since the last change
	beat   string    // how far the patrol is; "": at the beginning
	home   time.Time // when the patrol came home

	unsaved int // how many entries the stat cache on disk lacks

	restores atomic.Int32 // under way: what they change is looked at when they are done

	ready chan struct{} // closed when there is a baseline
	ended chan struct{} // closed when nobody answers calls any more

	mu      sync.Mutex
	trouble error // why the journal is not current, beside what the watcher says
	pending int
}

// errEnded is what a call comes back with that the journal's end has cut off.
var errEnded = errors.New("the journal is not being written any more")

const cookiesDir = "watch"

// Follow writes the journal until ctx ends. Only one call at a time is possible.
func (d *Driver) Follow(ctx context.Context, notify func(snap.Batch)) error {
	const op = "follow files"
	j := &journal{d: d, notify: notify, calls: make(chan func()), held: map[string]heat{},
		ready: make(chan struct{}), ended: make(chan struct{})}
	opt := watch.Options{Dir: d.cfg.Dir, CookieDir: filepath.Join(d.cfg.StateDir, cookiesDir), Exclude: d.exclude.excludes, Log: d.cfg.Log}
	if d.cfg.Watch != nil {
		d.cfg.Watch(&opt)
	}
	if !d.follow.TryLock() {
		return errs.New(errs.Busy, op, "%s is being followed already", d.cfg.Dir)
	}
	defer d.follow.Unlock()
	// The cookies of an earlier process would pass for new ones.
	err := os.RemoveAll(opt.CookieDir)
	if err == nil {
		j.w, err = watch.New(opt)
	}
	if err != nil {
		return wrapped(errs.Failed, op, err)
	}
	d.publish(j)
	run, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { _ = j.w.Run(run) }) // it fails only when run ends
	j.run(ctx)
	stop()
	watching.Wait()
	err = j.end()
	d.publish(nil)
	close(j.ended)
	if err == nil {
		err = ctx.Err()
	}
	return wrapped(errs.Failed, op, err)
}

func (d *Driver) publish(j *journal) {
	d.mu.Lock()
	d.journal = j
	d.mu.Unlock()
}

// Times of the loop.
const (
	settleSoon  = 5 * time.Millisecond   // from the first event of a small batch to its reading
	settleLater = 300 * time.Millisecond // the same in a storm
	retryAfter  = 200 * time.Millisecond // what did not hold still is looked at again
	idleAfter   = 500 * time.Millisecond // without events: time for what is not urgent
	restWithin  = time.Minute            // what is not urgent waits no longer, even if it is never quiet
	storm       = 256                    // paths in a batch that make it one
)

// run does what comes, one thing at a time.
func (j *journal) run(ctx context.Context) {
	j.next, j.idle = time.NewTimer(time.Hour), time.NewTimer(idleAfter)
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
		case <-j.w.Dirty():
			wait := settleSoon
			if j.busy {
				wait = settleLater
			}
			j.next.Reset(wait)
			if j.rested {
				j.rested, stirred = false, time.Now()
			}
			if time.Since(stirred) < restWithin {
				j.idle.Reset(idleAfter)
			}
		case <-j.next.C:
			j.background(ctx)
		case <-j.idle.C:
			if !j.rested {
				j.rest(ctx)
				j.rested = true
			}
			j.idle.Reset(j.patrol(ctx, time.Now()))
		}
	}
}

// do runs f in the loop.
func (j *journal) do(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	select {
	case j.calls <- func() { done <- f() }:
	case <-j.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-done // f has ctx
}

// background takes in what has changed, but not what keeps changing.
func (j *journal) background(ctx context.Context) {
	if j.restores.Load() > 0 {
		j.next.Reset(retryAfter)
		return
	}
	j.todo.take(j.w.Take())
	j.busy = j.todo.len() > storm
	err := j.settle(ctx, false, nil)
	j.fails(err)
	if !j.todo.empty() {
		j.next.Reset(retryAfter)
	}
	if err == nil && j.long(epochTooLong) {
		j.fails(j.keyframe())
	}
}

// fails notes whether the journal is current.
func (j *journal) fails(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trouble, j.pending = err, j.todo.len()
}

// state is what Following answers.
func (j *journal) state() snap.Following {
	f := j.w.State()
	j.mu.Lock()
	defer j.mu.Unlock()
	f.Pending += j.pending
	if j.trouble != nil && f.State == snap.Watching && !unsettled(j.trouble) {
		f.State, f.Detail, f.Remedy = snap.Degraded, j.trouble.Error()+".", errs.HintOf(j.trouble)
	}
	select {
	case <-j.ready:
	default:
		if f.State == snap.Watching {
			f.State, f.Detail = snap.Rescanning, "reading "+j.d.cfg.Dir+" for the first time"
		}
	}
	return f
}

// flush takes in everything that changed before it was called and gave an event.
func (j *journal) flush(ctx context.Context) error {
	_, err := j.takeIn(ctx, false, func() (map[string]bool, error) { return nil, nil })
	return err
}

// takeIn is flush, and reads what more gives, whatever it looks like. more is
// called in the loop and may put more on the list. What changed in a git repository, or with
// all every repository, is read again until it is of one moment; busy are those that never held still.
func (j *journal) takeIn(ctx context.Context, all bool, more func() (map[string]bool, error)) (busy []string, err error) {
	for until := time.Now().Add(gitPatience); ; {
		began := time.Now()
		touched, err := j.takeInOnce(ctx, more)
		if all = all || touched; err != nil || !all {
			return nil, err
		}
		var moved, held []string
		err = j.do(ctx, func() error {
			moved, held, err = j.moving(ctx, began)
			return err
		})
		if busy = append(moved, held...); err != nil || len(busy) == 0 || time.Now().After(until) {
			return busy, err
		}
		if err := pause(ctx, gitPause); err != nil {
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

// takeInOnce is takeIn, and leaves repositories as they are read. touched says that something may have changed in one.
func (j *journal) takeInOnce(ctx context.Context, more func() (map[string]bool, error)) (touched bool, err error) {
	if err := j.w.Barrier(ctx); err != nil {
		return false, err
	}
	until := time.Now().Add(settleTime)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := j.do(ctx, func() error {
			j.todo.take(j.w.Take())
			fresh, err := more()
			touched = touched || j.todo.touchesRepository()
			if err == nil {
				err = j.settle(ctx, true, fresh)
			}
			j.fails(err)
			return err
		})
		if err == nil || !unsettled(err) || errs.KindOf(err) == errs.Denied || time.Now().After(until) {
			return touched, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return touched, errors.Join(err, ctx.Err())
		}
	}
}

// view seals the tree as it is, also where events did not tell, as far as how says. b, where not nil,
// gets its manifest.
func (j *journal) view(ctx context.Context, b *cas.Batch, how doubt, fresh map[string]bool) (v *view, err error) {
	busy, err := j.takeIn(ctx, b != nil, func() (map[string]bool, error) { return j.unseen(ctx, how, fresh) })
	if err != nil {
		return nil, err
	}
	err = j.do(ctx, func() error {
		if err := j.d.cfg.Failpoint.At("scanned"); err != nil {
			return err
		}
		m := j.live.seal(j.d.cfg.Store)
		if b != nil {
			err := m.save(b)
			if damage(err) { // something is gone from the store: read it again
				if err = j.again(ctx); err == nil {
					m = j.live.seal(j.d.cfg.Store)
					err = m.save(b)
				}
			}
			if err != nil {
				return err
			}
		}
		v = &view{manifest: m, files: j.live.files, warnings: j.d.mounted(relpath.SortedKeys(j.live.warn))}
		for _, p := range busy {
			v.warnings = append(v.warnings, busyRepository(shown(j.d.cfg.Dir, p)))
		}
		v.place, _, _, err = j.d.history.head()
		return err
	})
	return v, err
}

func damage(err error) bool {
	k := errs.KindOf(err)
	return k == errs.Corrupt || k == errs.NotFound
}

// mounted says of mount points that they are not captured.
func (d *Driver) mounted(paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, mountWarning(shown(d.cfg.Dir, p)))
	}
	slices.Sort(out)
	return out
}

// end gives what is known to the walks that come after.
func (j *journal) end() error {
	if j.live == nil {
		return nil
	}
	j.d.cache.fill(j.live)
	return j.d.cache.save(j.d.cfg.StateDir)
}

// save writes down what spares the next process work, if it is killed.
func (j *journal) save() error {
	if int64(j.unsaved) <= j.live.files/100 {
		return nil
	}
	err := saveKnown(j.d.cfg.StateDir, j.live.surely())
	if err == nil {
		j.unsaved = 0
	}
	return err
}
