package files

import (
	"context"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// heat says how often a path was taken in lately.
type heat struct {
	until time.Time     // not before then, if there is no hurry
	rest  time.Duration // how long it was to wait the last time
}

// How long a file that keeps changing waits between two readings.
const (
	restFirst = 100 * time.Millisecond
	restMost  = 10 * time.Second
)

// settle takes in what is on the list, and fresh, which is read whatever it
// looks like. Without hurry, paths that were taken in a moment ago stay on it.
// What can't be taken in stays on it too, and is the error.
func (j *journal) settle(ctx context.Context, hurry bool, fresh map[string]bool) error {
	if j.live == nil {
		if err := j.baseline(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	for p := range fresh {
		j.todo.path(p)
		j.todo.seen(now, now)
	}
	if j.todo.empty() {
		j.told = false
		return nil
	}
	work := j.todo
	j.todo = todo{}
	if !hurry && !work.all {
		j.cool(&work)
	}
	failed, err := j.read(ctx, &work, fresh)
	if errors.Is(err, errReplaced) {
		j.live = nil
		return j.settle(ctx, hurry, fresh)
	}
	if err != nil {
		j.todo.add(&work)
		return err
	}
	for p, why := range failed {
		j.todo.path(p)
		err = why
	}
	j.todo.seen(work.first, work.last)
	if j.todo.empty() {
		j.told = false
		j.todo = todo{}
	}
	return err
}

// cool puts back the paths that were read a moment ago.
func (j *journal) cool(work *todo) {
	now := time.Now()
	for p := range work.paths {
		if h, ok := j.held[p]; ok && now.Before(h.until) {
			delete(work.paths, p)
			j.todo.path(p)
		}
	}
	if !j.todo.empty() {
		j.todo.seen(work.first, work.last)
		j.tell(work)
	}
}

// warm notes that a path was taken in now.
func (j *journal) warm(path string) {
	now, h := time.Now(), j.held[path]
	if h.until.IsZero() || now.Sub(h.until) > 2*h.rest {
		h.rest = restFirst / 2
	}
	h.rest = min(2*h.rest, restMost)
	h.until = now.Add(h.rest)
	j.held[path] = h
}

// tell tells of a batch, once, before it is in the journal.
func (j *journal) tell(work *todo) {
	if j.told || j.notify == nil {
		return
	}
	j.told = true
	mark, _, _, err := j.d.history.head()
	if err != nil {
		return // what reads the journal next will say so
	}
	j.notify(snap.Batch{Before: mark, First: work.first, Last: work.last, Paths: work.some()})
}

// read looks at the places in work and at fresh, and puts into tree and journal
// what has changed. failed are the paths that did not hold still.
func (j *journal) read(ctx context.Context, work *todo, fresh map[string]bool) (failed map[string]error, err error) {
	b := j.d.cfg.Store.Begin()
	defer b.Discard()
	root, err := j.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	g := j.looking(ctx, b, root, work, fresh)
	if err := g.collect(work); err != nil {
		return nil, err
	}
	m := &merge{l: j.live, skipped: g.skipped, tied: map[string]bool{}}
	for _, f := range g.finds {
		m.apply(f)
	}
	m.regroup()
	if err := j.commit(b, m, work); err != nil {
		m.revert()
		return nil, err
	}
	if len(m.left) > 0 {
		j.live.left = m.left
	}
	return g.skipped, j.limits()
}

// commit makes the changes durable.
func (j *journal) commit(b *cas.Batch, m *merge, work *todo) error {
	if len(m.records) == 0 {
		return nil
	}
	if err := j.d.cfg.Failpoint.At("journal"); err != nil {
		return err
	}
	if err := j.d.history.add(b, work.first, m.records); err != nil {
		return err
	}
	j.unsaved += len(m.records)
	if len(m.records) <= storm {
		for i := range m.records {
			j.warm(m.records[i].path)
		}
	}
	return j.d.cfg.Failpoint.At("journalled")
}

// open opens the workspace, if it is the one that the journal is of.
func (j *journal) open() (*beneath.Root, error) {
	root, err := j.d.open()
	if err != nil {
		return nil, err
	}
	st, err := inode.StatAt(root.FD(), "")
	switch {
	case err != nil || j.live == nil || st.ID == j.live.root.id:
	case st.ID.Dev != j.live.root.id.Dev: // unmounted, or mounted over: nothing was deleted
		err = errs.New(errs.Unavailable, "follow files", "%s is on another filesystem than before", j.d.cfg.Dir).
			WithHint("mount the workspace again, or unmount what was mounted on it")
	default:
		err = errReplaced
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// errReplaced is the finding that another folder is in the workspace's place.
var errReplaced = errors.New("the workspace was replaced by another folder")

func (j *journal) looking(ctx context.Context, b *cas.Batch, root *beneath.Root, work *todo, fresh map[string]bool) *looking {
	s := j.d.newScan(ctx, "follow files", b, b.Keep)
	s.top = root
	s.mind, s.seen = &remembered{live: j.live, since: work.first}, nil
	s.fresh = func(p string) bool { return fresh[p] }
	g := &looking{l: j.live, s: s, root: root, fresh: fresh, skipped: map[string]error{}, again: map[string]bool{}}
	s.lax = g.skip
	g.dirty = func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		j.tell(work)
	}
	return g
}

// collect looks at everything on the list, then at what that turned up.
func (g *looking) collect(work *todo) error {
	if work.all {
		return g.look([]target{{path: ".", deep: true}})
	}
	list := g.l.targets(work)
	for range 100 { // each round goes up a folder
		if err := g.look(list); err != nil {
			return err
		}
		list = g.more()
		if len(list) == 0 {
			break
		}
	}
	return g.others()
}

// more lists the folders that were not there when something in them was looked at.
func (g *looking) more() (list []target) {
	for _, p := range relpath.SortedKeys(g.again) {
		list = append(list, target{path: p})
	}
	clear(g.again)
	return list
}

// others looks at the other names of files that changed: their folders have no
// event for it.
func (g *looking) others() error {
	seen := map[string]bool{}
	var t todo
	for _, f := range g.finds {
		seen[f.path] = true
	}
	ties := map[string]inode.ID{}
	for _, f := range g.finds {
		if f.shallow() {
			continue
		}
		for _, n := range []*node{f.node, g.l.find(f.path)} {
			if n != nil {
				collectTies(n, ties)
			}
		}
	}
	if len(ties) == 0 {
		return nil
	}
	g.l.untied(ties)
	for tie := range ties {
		for p := range g.l.names[tie] {
			if !seen[p] {
				t.path(p)
			}
		}
	}
	for p := range t.paths {
		g.fresh = with(g.fresh, p)
	}
	return g.look(g.l.targets(&t))
}

func with(m map[string]bool, p string) map[string]bool {
	if m == nil {
		m = map[string]bool{}
	}
	m[p] = true
	return m
}

// collectTies gathers the ties in n and below it.
func collectTies(n *node, out map[string]inode.ID) {
	if n.tie != "" {
		out[n.tie] = n.id
	}
	for _, k := range n.kids {
		collectTies(k, out)
	}
}

// untied finds names in the tree of files that had no other name when they
// were read and have one now.
func (l *live) untied(ties map[string]inode.ID) {
	byInode := map[inode.ID]string{}
	for tie, id := range ties {
		if l.names[tie] == nil {
			byInode[id] = tie
		}
	}
	if len(byInode) == 0 {
		return
	}
	l.each(l.root, ".", func(path string, n *node) {
		if tie, ok := byInode[n.id]; ok && n.tie == "" && !n.isDir() && !n.mount {
			n.tie = tie
			if l.names[tie] == nil {
				l.names[tie] = map[string]bool{}
			}
			l.names[tie][path] = true
		}
	})
}

// limits refuses a tree that is too large.
func (j *journal) limits() error {
	if j.live.files <= j.d.cfg.MaxFiles {
		return nil
	}
	return errs.New(errs.Invalid, "follow files", "%s is too large: %d files of %d allowed", j.d.cfg.Dir, j.live.files, j.d.cfg.MaxFiles).
		WithHint("exclude what need not go back (exclude = [\"node_modules/\"] in the app's file), or raise [limits] in mulligand.toml")
}
