// Package follow writes the journal of a workspace. It keeps the state of the workspace in memory, reads the paths that the
// watcher reports, and records the differences. While it is current, no walk is necessary.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/watch"
	"mulligan/snap/files/workspace"
)

// Follower writes the journal of a workspace while Follow runs. Its exported fields are set before it is used. Safe for
// concurrent use.
type Follower struct {
	Walker   *walk.Walker
	Store    *cas.Store
	Journal  *journal.Journal
	StateDir string                      // for the stat cache and the watcher's own folder
	AtRest   func(context.Context) error // called when nothing changes, for work that is not urgent

	Watch     func(*watch.Options) // adjusts how the workspace is watched; nil means the default
	Log       *slog.Logger         // for messages of the watcher; nil: none
	Failpoint failpoint.Hook       // for tests

	walks  atomic.Int32 // walks of everything that are under way (Walking)
	follow sync.Mutex   // held by Follow
	mu     sync.Mutex
	now    *Session // set while Follow runs
}

const cookiesDir = "watch"

// Follow writes the journal until ctx ends. Only one call at a time is possible. If notify is nil, nobody needs what the files were between
// two views: changed paths are noted, nothing is read before a view or a flush, and the journal is deleted at the end.
func (f *Follower) Follow(ctx context.Context, notify func(snap.Batch)) error {
	const op = "follow files"
	dir := f.Walker.Workspace.Dir
	j := newSession(f, notify)
	opt := watch.Options{Dir: dir, CookieDir: filepath.Join(f.StateDir, cookiesDir), Exclude: f.Walker.Workspace.Exclude.Excludes, Log: f.Log}
	if f.Watch != nil {
		f.Watch(&opt)
	}
	if !f.follow.TryLock() {
		return errs.New(errs.Busy, op, "%s is being followed already", dir)
	}
	defer f.follow.Unlock()
	// Cookies of an earlier process could be taken for new ones.
	err := os.RemoveAll(opt.CookieDir)
	if err == nil {
		j.w, err = watch.New(opt)
	}
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	f.publish(j)
	run, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { _ = j.w.Run(run) }) // it returns an error only when run ends
	j.run(ctx)
	stop()
	watching.Wait()
	err = j.end()
	if j.noting() {
		err = errors.Join(err, f.Journal.Drop())
	}
	f.publish(nil)
	close(j.ended)
	if err == nil {
		err = ctx.Err()
	}
	return workspace.Wrap(errs.Failed, op, err)
}

func (f *Follower) publish(j *Session) {
	f.mu.Lock()
	f.now = j
	f.mu.Unlock()
}

// Following returns the state of the journal.
func (f *Follower) Following() snap.Following {
	j := f.Session()
	if j == nil {
		return snap.Following{State: snap.Degraded, Detail: "no watcher follows " + f.Walker.Workspace.Dir + ".",
			Remedy: "set auto=true for the app"}
	}
	return j.state()
}

// Session returns the session that is under way, or nil.
func (f *Follower) Session() *Session {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// current returns the session that is under way, once it has a baseline, or nil.
func (f *Follower) current() *Session {
	j := f.Session()
	if j == nil {
		return nil
	}
	select {
	case <-j.ready:
		return j
	default:
		return nil
	}
}

// Await waits while the workspace is being read for the first time: a second reading at the same time would make both take twice as long.
func (f *Follower) Await(ctx context.Context) {
	j := f.Session()
	if j == nil {
		return
	}
	j.mu.Lock()
	reading := j.reading
	j.mu.Unlock()
	if reading == nil {
		return
	}
	select {
	case <-reading:
	case <-ctx.Done():
	}
}

// Walking says that somebody reads the whole workspace until done is called. Follow's own first reading waits for that, and then
// has the results from the cache.
func (f *Follower) Walking() (done func()) {
	f.walks.Add(1)
	return func() { f.walks.Add(-1) }
}

// Flush waits until every earlier change that caused an event is in the journal. The error is of kind errs.Unavailable if
// Follow is not running.
func (f *Follower) Flush(ctx context.Context, op string) error {
	j := f.Session()
	if j == nil {
		return errs.New(errs.Unavailable, op, "the files of %s are not being followed", f.Walker.Workspace.Dir)
	}
	return j.flush(ctx)
}

// letGoWithin bounds the wait of LetGo: a deletion must not wait for a filesystem that does not answer.
const letGoWithin = 2 * time.Second

// LetGo ends what the journal keeps of states before that of the last view, if nobody needs them, because a snapshot was deleted. If that cannot
// be written, as on a full disk, the journal is deleted, and the next view reads the workspace as the first one did.
func (f *Follower) LetGo(ctx context.Context) error {
	j := f.current()
	if j == nil || !j.noting() {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, letGoWithin)
	defer cancel()
	err := j.Do(short, func() error { return j.letGo(short) })
	if errors.Is(err, ErrEnded) || short.Err() != nil && ctx.Err() == nil { // the end of Follow, or the next epoch, does it
		return nil
	}
	return err
}

// View returns the present state of the workspace. how says how far it looks for changes without an event. The paths of fresh
// are read even if they look unchanged. b, unless nil, gets the manifest. The error is ErrEnded if Follow is not running.
func (f *Follower) View(ctx context.Context, b *cas.Batch, how Depth, fresh map[string]bool) (*View, error) {
	j := f.current()
	if j == nil {
		return nil, ErrEnded
	}
	return j.view(ctx, b, how, fresh)
}

// At returns the manifest of the tree in memory if it is the state at the mark, and otherwise nil.
func (f *Follower) At(ctx context.Context, mark snap.Mark) (m *manifest.Manifest, err error) {
	j := f.current()
	if j == nil {
		return nil, nil
	}
	err = j.Do(ctx, func() error {
		head, _, _, err := f.Journal.Head()
		if err == nil && mark == head && j.live != nil {
			m = j.live.seal(f.Store)
		}
		return err
	})
	if errors.Is(err, ErrEnded) {
		return nil, nil
	}
	return m, err
}

// Restoring marks a restore as under way until done is called. Meanwhile changes are read only for a Flush.
func (f *Follower) Restoring() (done func()) {
	j := f.current()
	if j == nil {
		return func() {}
	}
	j.restores.Add(1)
	return func() { j.restores.Add(-1) }
}

// snapshot has the reliable entries of the tree for some paths. It is the memory of a walk that runs while the tree changes.
type snapshot map[string]*manifest.Node

// Memory returns the memory for a walk of the deltas' paths.
func (f *Follower) Memory(ctx context.Context, deltas []diff.Delta) walk.Memory {
	j := f.current()
	if j == nil {
		return f.Walker.Cache
	}
	s := snapshot{}
	err := j.Do(ctx, func() error {
		if j.live == nil {
			return ErrEnded
		}
		for i := range deltas {
			path := deltas[i].Path
			if n := j.live.find(path); n != nil && n.Sure {
				known := *n
				known.SetChildren(nil)
				s[path] = &known
			}
		}
		return nil
	})
	if err != nil {
		return f.Walker.Cache
	}
	return s
}

// Find implements walk.Memory.
func (s snapshot) Find(path string, st inode.Stat, e *manifest.Entry) bool {
	n := s[path]
	return n != nil && n.Recall(st, e)
}

// Add implements walk.Memory.
func (snapshot) Add(inode.Stat, *manifest.Entry, time.Time) {}

// View is the present state of the workspace: its manifest and warnings.
type View struct {
	*manifest.Manifest
	Mark     snap.Mark // position in the journal; "" if the journal is not written
	Files    int64
	Warnings []string
}
