package watch

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

// session is a period of watching, from the first watch to the first error. All its fields except over belong to one goroutine.
type session struct {
	w      *Watcher
	queue  *inotify
	mounts *mounts
	root   *beneath.Root
	id     identity      // of root
	over   chan struct{} // closed after its end

	top     *folder
	ids     map[int]*folder      // watched, by the watch's number
	inodes  map[inode.ID]*folder // by inode
	cookies int                  // the watch of the cookies' folder
	buf     []byte               // for lists of names
	todo    []place              // places that may be folders without a watch; the last is probed next
	failed  map[place]bool       // places to be probed again at the next look at the root and the next Barrier
	missing *folder              // a folder for which there was no watch
	ready   bool                 // todo was empty once
	short   bool                 // and there were not enough watches
}

// Errors that end a session, beside those of the system and errAway.
var (
	errOverflow = errors.New("events were lost")
	errEnded    = errors.New("the events ended")
	errCookies  = errors.New("the folder of cookies was taken away")
	errRoom     = errors.New("there may be watches for more folders now")
)

// begin opens the workspace and watches its top folder and the cookies.
func (w *Watcher) begin() (*session, error) {
	root, err := beneath.Open(w.opt.Dir)
	if err != nil {
		return nil, err
	}
	s := &session{w: w, root: root, over: make(chan struct{}),
		ids: map[int]*folder{}, inodes: map[inode.ID]*folder{}, failed: map[place]bool{}, buf: make([]byte, 64<<10)}
	if err = s.open(); err != nil {
		s.close()
		return nil, err
	}
	w.mu.Lock()
	w.home = s.id
	w.state = snap.Following{State: snap.Rescanning, Detail: "setting watches in " + w.opt.Dir}
	w.mu.Unlock()
	return s, nil
}

func (s *session) open() (err error) {
	if s.id, err = statx(s.root.FD(), "", unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	s.w.mu.Lock()
	err = s.w.home.accepts(s.w.opt.Dir, s.id)
	s.w.mu.Unlock()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.w.cookies(), 0o700); err != nil {
		return err
	}
	if s.queue, err = newInotify(); err != nil {
		return err
	}
	if s.mounts, err = openMounts(s.w.opt.Dir); err != nil {
		return err
	}
	if err := s.watchCookies(); err != nil {
		return err
	}
	dir, err := s.root.OpenFile(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	s.top = &folder{}
	if err := s.add(s.top, dir); err != nil {
		return err
	}
	return s.list(s.top, dir)
}

func (s *session) watchCookies() error {
	dir, err := os.Open(s.w.cookies())
	if err != nil {
		return err
	}
	defer dir.Close()
	s.cookies, err = s.queue.add(int(dir.Fd()))
	return err
}

func (s *session) close() {
	s.w.opt.Budget.give(len(s.ids))
	clear(s.ids)
	s.queue.close()
	s.mounts.close()
	_ = s.root.Close()
}

// run handles events, and sets a watch whenever no event is waiting.
func (s *session) run(ctx context.Context) error {
	tick := time.NewTicker(s.w.every)
	defer tick.Stop()
	events, lost := s.events()
	busy := make(chan struct{})
	close(busy)
	for {
		var more <-chan struct{}
		if len(s.todo) > 0 && len(events) == 0 { // events first: it is their queue that overflows
			more = busy
		} else if len(s.todo) == 0 {
			s.reportProbed()
		}
		var err error
		select {
		case e := <-events:
			err = s.handle(e)
		case <-more:
			err = s.next()
		case err = <-s.queue.failed:
			err = cmp.Or(err, errEnded)
		case <-lost:
			err = errOverflow
		case <-tick.C:
			s.retry()
			if err = s.check(); err == nil {
				err = s.remounts()
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// events returns the queue's events. With Options.Queue, some of them are lost.
func (s *session) events() (<-chan event, <-chan struct{}) {
	if s.w.opt.Queue == 0 {
		return s.queue.events, nil
	}
	some, lost := make(chan event, s.w.opt.Queue), make(chan struct{}, 1)
	go func() {
		for {
			select {
			case e := <-s.queue.events:
				select {
				case some <- e:
					continue
				default:
				}
				select {
				case lost <- struct{}{}:
				default:
				}
			case <-s.queue.done:
				return
			}
		}
	}()
	return some, lost
}

// next probes the next place of the list.
func (s *session) next() error {
	p := s.todo[len(s.todo)-1]
	s.todo = s.todo[:len(s.todo)-1]
	if p.in.kids[p.name] != nil {
		return nil // an event has already changed the list
	}
	return s.probe(p.in, p.name)
}

// reportProbed tells the watcher, once every folder was probed, which folders are watched.
func (s *session) reportProbed() {
	switch {
	case s.missing != nil && !s.short:
		s.ready, s.short = true, true
		s.w.whole(s, limited(s.w.opt.Dir))
	case !s.ready:
		s.ready = true
		s.w.whole(s, snap.Following{State: snap.Watching})
	}
}

// check checks that the root is still at its path, and tries to get a watch that was missing.
func (s *session) check() error {
	if now, err := identify(s.w.opt.Dir); err != nil || now != s.id {
		return errAway
	}
	if s.missing == nil {
		return nil
	}
	dir, err := s.root.OpenFile(s.missing.path(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return errRoom // the folder is gone; a new session finds other folders without a watch
	}
	defer dir.Close()
	if !s.w.opt.Budget.take() {
		return nil
	}
	s.w.opt.Budget.give(1)
	if _, err := s.queue.add(int(dir.Fd())); errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return errRoom
}

// handle handles an event. The kernel returns events in order.
func (s *session) handle(e event) error {
	f := s.ids[e.watch]
	switch {
	case e.has(unix.IN_Q_OVERFLOW):
		return errOverflow
	case e.has(unix.IN_IGNORED):
		return nil // the watch has ended, as the previous event said
	case e.watch == s.cookies:
		return s.cookie(e)
	case f == nil:
		return nil // the event is of a folder that was dropped
	case e.name == "":
		return s.self(f, e)
	}
	return s.entry(f, e)
}

// cookie ends the wait of the Barrier that made it, because all earlier events were handled.
func (s *session) cookie(e event) error {
	switch {
	case e.name == "" && e.has(removed|renamed):
		return errCookies
	case !e.has(created):
		return nil
	}
	if err := s.remounts(); err != nil {
		return err
	}
	s.retry()
	for len(s.todo) > 0 {
		if err := s.next(); err != nil {
			return err
		}
	}
	if err := s.check(); err != nil {
		return err
	}
	s.reportProbed() // if a folder has no watch, All is reported first
	s.w.seen(e.name)
	return nil
}

// self handles an event of a watched folder itself.
func (s *session) self(f *folder, e event) error {
	if f == s.top {
		s.report(".", true)
		if e.has(removed | renamed) {
			return errAway
		}
		return nil
	}
	switch {
	case e.has(removed): // an event of its parent follows
		s.drop(f)
	case e.has(renamed):
		in, name := f.parent, f.name
		s.drop(f)
		return s.probe(in, name)
	}
	return nil
}

// entry handles an event of a name in a watched folder.
func (s *session) entry(f *folder, e event) error {
	name := e.name
	path := join(f.path(), name)
	known := f.kids[name] != nil
	s.report(path, known)
	if e.has(created | removed | renamed) {
		s.report(f.path(), true) // the folder's list of names and its time changed
	}
	switch {
	case e.has(created), !known && e.has(chmod), known && e.has(removed|renamed):
		return s.probe(f, name)
	}
	return nil
}

// report adds a path to the set unless the path is excluded.
func (s *session) report(path string, isDir bool) {
	if !s.w.marked(path) && !s.excluded(path, isDir) {
		s.w.mark(path)
	}
}

// excluded asks Options.Exclude. If that excludes the path only as a folder, excluded finds out whether it is one.
func (s *session) excluded(path string, isDir bool) bool {
	exclude := s.w.opt.Exclude
	if path == "." || exclude == nil {
		return false
	}
	return exclude(path, isDir) || !isDir && exclude(path, true) && s.isFolder(path)
}

func (s *session) isFolder(path string) bool {
	dir, err := s.root.OpenDir(path)
	if err == nil {
		dir.Close()
	}
	return err == nil
}
