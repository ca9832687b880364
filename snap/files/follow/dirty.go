package follow

import (
	"context"
	"errors"
	"maps"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
)

// debounce limits how often a path is read.
type debounce struct {
	until time.Time     // the path is not read before, unless in a hurry
	rest  time.Duration // the last waiting time
}

// The pauses between two readings of a file that keeps changing.
const (
	restFirst = 100 * time.Millisecond
	restMost  = 10 * time.Second
)

// readDirty reads the paths of the dirty set, and those of fresh even if they look unchanged. Without hurry, a path that was read a
// moment ago stays in the set. A path that cannot be read stays in it too, and is the error: rather one that
// may be readable a moment later. The error is a snap.UnreadableError if there is none of those.
func (j *Session) readDirty(ctx context.Context, hurry bool, fresh map[string]bool) error {
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
		j.notified = false
		return nil
	}
	work := j.todo
	j.todo = todo{}
	if !hurry && !work.all {
		j.postpone(&work)
	}
	failed, err := j.read(ctx, &work, fresh)
	if errors.Is(err, errReplaced) {
		j.live = nil
		return j.readDirty(ctx, hurry, fresh)
	}
	if err != nil {
		j.todo.add(&work)
		return err
	}
	for p, why := range failed {
		j.missed(p)
		if err == nil || walk.Unreadable(err) {
			err = why
		}
	}
	if walk.Unreadable(err) {
		err = snap.UnreadableError{Err: err}
	}
	j.todo.seen(work.first, work.last)
	if j.todo.empty() {
		j.notified = false
		j.todo = todo{}
	}
	return err
}

// missed adds a path that could not be read. A folder is read with everything below it then, as that may have been the task.
func (j *Session) missed(path string) {
	if n := j.live.find(path); n != nil && n.IsDir() {
		j.todo.tree(path)
	} else {
		j.todo.path(path)
	}
}

// postpone moves the paths that were read a moment ago from work back to the dirty set.
func (j *Session) postpone(work *todo) {
	now := time.Now()
	for p := range work.paths {
		if h, ok := j.debounced[p]; ok && now.Before(h.until) {
			delete(work.paths, p)
			j.todo.path(p)
		}
	}
	if !j.todo.empty() {
		j.todo.seen(work.first, work.last)
		j.announce(work)
	}
}

// touched records that a path is read now.
func (j *Session) touched(path string) {
	now, h := time.Now(), j.debounced[path]
	if h.until.IsZero() || now.Sub(h.until) > 2*h.rest {
		h.rest = restFirst / 2
	}
	h.rest = min(2*h.rest, restMost)
	h.until = now.Add(h.rest)
	j.debounced[path] = h
}

// announce reports a batch once, before it is in the journal.
func (j *Session) announce(work *todo) {
	if j.notified || j.notify == nil {
		return
	}
	j.notified = true
	mark, _, _, err := j.f.Journal.Head()
	if err != nil {
		return // the next reader of the journal gets the error
	}
	j.notify(snap.Batch{Before: mark, First: work.first, Last: work.last, Paths: work.some()})
}

// read reads the paths of work and fresh, and records the changes in the tree and the journal. failed has the paths that
// changed while they were read.
func (j *Session) read(ctx context.Context, work *todo, fresh map[string]bool) (failed map[string]error, err error) {
	b := j.f.Store.Begin()
	defer b.Discard()
	root, err := j.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if servedByProgram(root) {
		work.withFolders()
	}
	g := j.looking(ctx, b, root, work, fresh)
	if err := g.collect(work); err != nil {
		return nil, err
	}
	m := &merger{l: j.live, skipped: g.skipped, tied: map[string]bool{}}
	for _, f := range g.finds {
		m.apply(f)
	}
	m.regroup()
	m.doubt(g.finds)
	if err := j.commit(b, m, work); err != nil {
		m.revert()
		return nil, err
	}
	for _, p := range m.unsure {
		j.todo.path(p)
	}
	if len(m.removed) > 0 {
		j.live.removed = m.removed
	}
	return g.skipped, j.limits()
}

// commit makes the changes durable.
func (j *Session) commit(b *cas.Batch, m *merger, work *todo) error {
	if len(m.records) == 0 {
		return nil
	}
	if err := j.f.Failpoint.At("journal"); err != nil {
		return err
	}
	if err := j.f.Journal.Add(b, work.first, m.records); err != nil {
		return err
	}
	j.unsaved += len(m.records)
	if len(m.records) <= storm {
		for i := range m.records {
			j.touched(m.records[i].Path)
		}
	}
	return j.f.Failpoint.At("journalled")
}

// open opens the workspace, and returns an error if it is not that of the journal.
func (j *Session) open() (*beneath.Root, error) {
	root, err := j.f.Walker.Workspace.Open()
	if err != nil {
		return nil, err
	}
	st, err := inode.StatAt(root.FD(), "")
	switch {
	case err != nil || j.live == nil || st.ID == j.live.root.ID:
	case st.ID.Dev != j.live.root.ID.Dev: // the disk was unmounted, or another one mounted: nothing was deleted
		err = errs.New(errs.Unavailable, "follow files", "%s is on another filesystem than before", j.f.Walker.Workspace.Dir).
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

// errReplaced means that another folder is in the workspace's place.
var errReplaced = errors.New("the workspace was replaced by another folder")

func (j *Session) looking(ctx context.Context, b *cas.Batch, root *beneath.Root, work *todo, fresh map[string]bool) *observer {
	s := j.f.Walker.NewScan(ctx, "follow files", b, b.Keep)
	s.Top = root
	s.Memory = &remembered{live: j.live, since: work.first}
	s.Fresh = func(p string) bool { return fresh[p] }
	g := &observer{l: j.live, s: s, root: root, fresh: fresh, skipped: map[string]error{}, again: map[string]bool{}}
	s.Skip = g.skip
	g.dirty = func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		j.announce(work)
	}
	return g
}

// collect examines all paths of the dirty set, and then the further paths that this revealed.
func (g *observer) collect(work *todo) error {
	if work.all {
		if err := g.look([]target{{path: ".", deep: true}}); err != nil {
			return err
		}
		return g.others()
	}
	list := g.l.targets(work)
	for range mostRounds { // each moves to the parent folder
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

// more returns the folders that were found missing when paths in them were read.
func (g *observer) more() (list []target) {
	for _, p := range relpath.SortedKeys(g.again) {
		list = append(list, target{path: p, deep: true}) // there may be another folder, or the same again
	}
	clear(g.again)
	return list
}

// others reads the other names of files that changed, because the folders of these names get no event. A name that was read before its
// file had the second one is read again. What is read then may show further files with several names.
func (g *observer) others() error {
	done, from := map[string]bool{}, 0
	for range mostRounds {
		ties := g.ties(g.finds[from:])
		from = len(g.finds)
		maps.DeleteFunc(ties, func(tie string, _ inode.ID) bool { return done[tie] })
		if len(ties) == 0 {
			return nil
		}
		for tie := range ties {
			done[tie] = true
		}
		if err := g.namesOf(ties); err != nil {
			return err
		}
	}
	return snap.Changed("follow files", g.s.W.Workspace.Dir)
}

// mostRounds bounds the rounds of a batch. Each round reads the paths that the one before revealed.
const mostRounds = 100

// namesOf reads the other names of the files with these ties.
func (g *observer) namesOf(ties map[string]inode.ID) error {
	g.l.untied(ties)
	list := g.untied(ties)
	deep := map[string]bool{} // by path: whether what is below was read, too
	for _, f := range g.finds {
		deep[f.path] = deep[f.path] || f.deep
	}
	seen := func(path string) bool {
		_, ok := deep[path]
		for ; !ok && path != "."; ok = deep[path] {
			path, _ = relpath.Split(path)
		}
		return ok
	}
	var t todo
	for tie := range ties {
		for p := range g.l.names[tie] {
			if !seen(p) {
				t.path(p)
			}
		}
	}
	for p := range t.paths {
		g.fresh = with(g.fresh, p)
	}
	return g.look(append(g.l.targets(&t), list...))
}

// ties returns the files with several names among observations and among what they replace.
func (g *observer) ties(finds []observation) map[string]inode.ID {
	ties := map[string]inode.ID{}
	for _, f := range finds {
		if f.shallow() {
			continue
		}
		for _, n := range []*manifest.Node{f.node, g.l.find(f.path)} {
			if n != nil {
				collectTies(n, ties)
			}
		}
	}
	return ties
}

// untied finds the observations of files that had no second name yet when they were read, and have one now.
func (g *observer) untied(ties map[string]inode.ID) (list []target) {
	tied := map[inode.ID]bool{}
	for _, id := range ties {
		tied[id] = true
	}
	var visit func(path string, n *manifest.Node)
	visit = func(path string, n *manifest.Node) {
		if n.Single() && tied[n.ID] {
			list = append(list, target{path: path})
		}
		for k := range n.All {
			visit(relpath.Join(path, k.Name), k)
		}
	}
	for _, f := range g.finds {
		if f.node != nil && !f.shallow() {
			visit(f.path, f.node)
		}
	}
	return list
}

func with(m map[string]bool, p string) map[string]bool {
	if m == nil {
		m = map[string]bool{}
	}
	m[p] = true
	return m
}

// collectTies adds the ties of n and of everything below it.
func collectTies(n *manifest.Node, out map[string]inode.ID) {
	if n.LinkKey != "" {
		out[n.LinkKey] = n.ID
	}
	for k := range n.All {
		collectTies(k, out)
	}
}

// untied finds the names in the tree of files that have another name now and had none when they were read.
func (l *live) untied(ties map[string]inode.ID) {
	byInode := map[inode.ID]string{}
	for tie, id := range ties {
		if l.names[tie] == nil || l.doubted[id] {
			byInode[id] = tie
			delete(l.doubted, id)
		}
	}
	if len(byInode) == 0 {
		return
	}
	found := map[string]string{}
	l.each(l.root, ".", func(path string, n *manifest.Node) {
		if tie, ok := byInode[n.ID]; ok && n.Single() {
			found[path] = tie
		}
	})
	for path, tie := range found {
		dir, name := relpath.Split(path)
		in := l.find(dir)
		l.unpack(in)
		n := in.Child(name)
		n.LinkKey = tie
		l.addName(path, n)
	}
}

// limits returns an error if the tree is too large.
func (j *Session) limits() error {
	dir := func() string { return j.f.Walker.Workspace.Dir }
	if err := walk.CheckPaths("follow files", dir, j.live.files, j.live.paths); err != nil || j.live.files <= j.f.Walker.MaxFiles {
		return err
	}
	return errs.New(errs.Invalid, "follow files", "%s is too large: %d files of %d allowed", j.f.Walker.Workspace.Dir, j.live.files, j.f.Walker.MaxFiles).
		WithHint("exclude paths that need no restore (exclude = [\"node_modules/\"] in the app's file), or raise [limits] in mulligand.toml")
}
