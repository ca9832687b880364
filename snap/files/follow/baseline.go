package follow

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// baseline reads the whole workspace, and records in the journal what changed since the journal was last written.
func (j *Session) baseline(ctx context.Context) error {
	reading := make(chan struct{})
	j.setReading(reading)
	defer close(reading)
	defer j.setReading(nil)
	err := j.readAll(ctx)
	debug.FreeOSMemory() // the walk used several times the memory that is kept
	return err
}

func (j *Session) setReading(c chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.reading = c
}

func (j *Session) readAll(ctx context.Context) error {
	const op = "follow files"
	b := j.f.Store.Begin()
	defer b.Discard()
	s := j.f.Walker.NewScan(ctx, op, b, b.Keep)
	s.Memory, s.Pack = walk.ReadOnly{Cache: j.f.Walker.Cache}, true
	var mu sync.Mutex
	skipped := map[string]error{}
	s.Skip = func(path string, err error) {
		mu.Lock()
		skipped[path] = err
		mu.Unlock()
	}
	root, err := s.Run()
	if err == nil {
		err = j.f.Failpoint.At("read first")
	}
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	m := &merger{skipped: skipped}
	m.pruneAll(".", root)
	l := newLive(root)
	if err := root.Seal(b, nil); err != nil {
		return err
	}
	top := manifest.New(root.Entry, manifest.NewFolders(j.f.Store, map[snap.Hash][]manifest.Entry{}))
	if err := top.Save(b); err != nil {
		return err
	}
	if err := j.join(ctx, top); err != nil {
		return err
	}
	l.begun()
	l.pack()
	j.live, j.todo = l, todo{}
	for p := range skipped {
		j.todo.path(p)
	}
	for _, p := range l.doubtful() {
		j.todo.path(p)
	}
	j.f.Walker.Cache.Forget()
	j.unsaved = int(l.files)
	j.patrolAt, j.patrolDone = "", time.Now() // the patrol need not examine anything now
	select {
	case <-j.ready:
	default:
		close(j.ready)
	}
	return nil
}

// pruneAll removes the nodes of a new tree that could not be read.
func (m *merger) pruneAll(path string, n *manifest.Node) {
	if len(m.skipped) == 0 {
		return
	}
	m.prune(path, n)
	for k := range n.Folders {
		m.pruneAll(relpath.Join(path, k.Name), k)
	}
}

// join continues the stored journal with the state top. If the journal is of the same folder and has the same rules, join
// records the changes from its end to top.
func (j *Session) join(ctx context.Context, top *manifest.Manifest) error {
	h := j.f.Journal
	if j.noting() { // what is there is of a process that was killed, or of a folder that was replaced
		if err := h.Drop(); err != nil {
			return err
		}
	}
	_, at, about, err := h.Head()
	if err != nil {
		return err
	}
	id, err := j.f.Walker.Workspace.RootID()
	if err != nil {
		return err
	}
	gap := at.IsZero() || about.Rules != j.f.Walker.Workspace.Exclude.Hash() || about.Root != id.Ino
	if !gap {
		old, err := journal.Resolve(ctx, j.f.Store, at)
		if damage(err) {
			gap = true
		} else if err != nil {
			return err
		} else if err := j.catchUp(ctx, old, top); err != nil {
			return err
		}
	}
	fresh := j.f.Store.Begin()
	defer fresh.Discard()
	if err := keep(fresh, top.Hash); err != nil {
		return err
	}
	return h.Begin(fresh, top.Hash, j.f.Walker.Workspace.Exclude.Hash(), id.Ino, gap && !at.IsZero())
}

// catchUp records the changes that were made while the journal was not written.
func (j *Session) catchUp(ctx context.Context, old, now *manifest.Manifest) error {
	deltas, err := diff.Compare(ctx, rights.Reader{}, old, now, nil)
	if err != nil || len(deltas) == 0 {
		return err
	}
	work := todo{first: time.Now()}
	work.last = work.first
	var records []journal.Record
	for _, d := range deltas {
		if manifest.IsFolder(d.Old) && manifest.IsFolder(d.New) && d.Old.SameMeta(d.New) {
			continue
		}
		r := journal.Record{Path: d.Path, Before: d.Old.Digest()}
		if d.New != nil {
			r.After = d.New.Bare()
		}
		records = append(records, r)
		work.path(d.Path)
	}
	j.announce(&work)
	j.notified = false
	link := j.f.Store.Begin()
	defer link.Discard()
	return j.f.Journal.Add(link, work.first, records)
}

func keep(b *cas.Batch, h snap.Hash) error {
	if b.Keep(h) {
		return nil
	}
	return manifest.Damaged(h, manifest.ErrFormat)
}
