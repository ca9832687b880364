package files

import (
	"context"
	"runtime/debug"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// baseline reads the whole workspace, and puts into the journal what changed
// since it was last written.
func (j *journal) baseline(ctx context.Context) error {
	err := j.readAll(ctx)
	debug.FreeOSMemory() // the walk needed several times what is kept
	return err
}

func (j *journal) readAll(ctx context.Context) error {
	const op = "follow files"
	b := j.d.cfg.Store.Begin()
	defer b.Discard()
	s := j.d.newScan(ctx, op, b, b.Keep)
	s.mind, s.seen = onlyFinds{byInode{j.d.cache}}, nil
	skipped := map[string]error{}
	s.lax = func(path string, err error) {
		s.mu.Lock()
		skipped[path] = err
		s.mu.Unlock()
	}
	root, err := s.run()
	if err != nil {
		return wrapped(errs.Failed, op, err)
	}
	m := &merge{skipped: skipped}
	m.pruneAll(".", root)
	l := newLive(root)
	if err := root.seal(b, nil); err != nil {
		return err
	}
	top := newManifest(root.entry, newFolders(j.d.cfg.Store, map[snap.Hash][]entry{}))
	if err := top.save(b); err != nil {
		return err
	}
	if err := j.join(ctx, top); err != nil {
		return err
	}
	l.begun()
	j.live, j.todo = l, todo{}
	for p := range skipped {
		j.todo.path(p)
	}
	j.d.cache.forget()
	j.unsaved = int(l.files)
	j.beat, j.home = "", time.Now() // the patrol has been everywhere
	select {
	case <-j.ready:
	default:
		close(j.ready)
	}
	return nil
}

// pruneAll takes out of a new tree what could not be read.
func (m *merge) pruneAll(path string, n *node) {
	if len(m.skipped) == 0 {
		return
	}
	m.prune(path, n)
	for _, k := range n.kids {
		m.pruneAll(relpath.Join(path, k.name), k)
	}
}

// join continues the stored journal with the state top: by the changes that
// lead there, where it is of the same folder and under the same rules.
func (j *journal) join(ctx context.Context, top *manifest) error {
	h := j.d.history
	_, at, about, err := h.head()
	if err != nil {
		return err
	}
	id, err := j.d.rootID()
	if err != nil {
		return err
	}
	gap := at.IsZero() || about.Rules != j.d.rules() || about.Root != id.Ino
	if !gap {
		old, err := resolve(ctx, j.d.cfg.Store, at)
		if damage(err) {
			gap = true
		} else if err != nil {
			return err
		} else if err := j.catchUp(ctx, old, top); err != nil {
			return err
		}
	}
	fresh := j.d.cfg.Store.Begin()
	defer fresh.Discard()
	if err := keep(fresh, top.hash); err != nil {
		return err
	}
	return h.begin(fresh, top.hash, j.d.rules(), id.Ino, gap && !at.IsZero())
}

// catchUp records what changed while nobody followed.
func (j *journal) catchUp(ctx context.Context, old, now *manifest) error {
	deltas, err := compare(ctx, old, now, nil)
	if err != nil || len(deltas) == 0 {
		return err
	}
	work := todo{first: time.Now()}
	work.last = work.first
	var records []record
	for _, d := range deltas {
		if isFolder(d.old) && isFolder(d.new) && d.old.sameMeta(d.new) {
			continue
		}
		r := record{path: d.path, before: d.old.digest()}
		if d.new != nil {
			r.after = d.new.bare()
		}
		records = append(records, r)
		work.path(d.path)
	}
	j.tell(&work)
	j.told = false
	link := j.d.cfg.Store.Begin()
	defer link.Discard()
	return j.d.history.add(link, work.first, records)
}

// rootID says which folder the workspace is.
func (d *Driver) rootID() (inode.ID, error) {
	root, err := d.open()
	if err != nil {
		return inode.ID{}, err
	}
	defer root.Close()
	st, err := inode.StatAt(root.FD(), "")
	return st.ID, err
}

func keep(b *cas.Batch, h snap.Hash) error {
	if b.Keep(h) {
		return nil
	}
	return damaged(h, errManifest)
}
