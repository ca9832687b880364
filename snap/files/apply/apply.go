// Package apply applies a list of differences to a workspace. Whenever it is interrupted, each path is in its old or its new
// state. It also checks in advance what could prevent the change.
package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// Applier restores one workspace. It is safe for concurrent use, but two jobs at a time would see each other's changes.
type Applier struct {
	Walker    *walk.Walker
	Store     *cas.Store
	Reader    rights.Reader                                   // the user who sees names
	Owner     int                                             // uid that the workspace must belong to; -1: any
	Memory    func(context.Context, []diff.Delta) walk.Memory // cache for examining the paths of deltas
	Failpoint failpoint.Hook                                  // for tests
}

// FileOwner returns the user whose ordinary files are changed in place. uid is the owner of the workspace's folder.
func (p *Applier) FileOwner(uid uint32) rights.FileOwner {
	return rights.FileOwnerOf(p.Reader, p.Owner, uid)
}

// job is the state of a restore, which its workers share. It changes a path only if the path is as in the old or the new state
// of its delta. Otherwise the error is snap.ErrChanged.
type job struct {
	p         *Applier
	op        string
	id        snap.RestoreID
	ctx       context.Context
	root      *beneath.Root
	deltas    []diff.Delta
	at        map[string]*diff.Delta // by path
	fileOwner rights.FileOwner
	made      map[string]inode.ID // folders that this apply made, by path
	guarded   map[string]bool     // folders whose rights, or those of a folder above, may exclude a user
	scan      *walk.Scan          // for examining single paths

	regrouped map[string][]string // hard-link groups whose first name stays as it is, with their other names

	tmp   atomic.Int64    // number of the next temporary name
	stays map[string]bool // folders that could not be removed, because they contain paths that must stay
	whole bool            // sync everything, because an earlier apply was interrupted
	bulk  bool            // the present files are synced with one syncfs

	mu      sync.Mutex
	Notes   []string
	inPlace []*diff.Delta // files whose metadata alone was changed

	ForDatabases [][]byte // folders that could not be removed, because the files of databases are in them

	touched map[string]bool // folders in which a name was added or removed; used by one goroutine
	meter   *snap.Meter
}

// Begin begins a job that restores the deltas within sc. b gets the contents that it reads. whole means that an earlier job of
// the same restore was interrupted, so that everything must be synced. The caller must close the job.
func (p *Applier) Begin(ctx context.Context, op string, id snap.RestoreID, b *cas.Batch, deltas []diff.Delta, sc relpath.Scope, whole bool) (*Job, error) {
	root, err := p.Walker.Workspace.Open()
	if err != nil {
		return nil, err
	}
	a := &job{p: p, op: op, id: id, ctx: ctx, root: root, deltas: deltas,
		at: make(map[string]*diff.Delta, len(deltas)), stays: map[string]bool{}, touched: map[string]bool{},
		made: map[string]inode.ID{}, guarded: map[string]bool{}}
	st, err := inode.StatAt(root.FD(), "")
	if err != nil {
		root.Close()
		return nil, err
	}
	a.fileOwner = p.FileOwner(st.Uid)
	a.scan = p.Walker.NewScan(ctx, op, b, b.Keep)
	a.scan.Memory, a.scan.Scope = p.Memory(ctx, deltas), sc
	a.whole = whole
	for i := range deltas {
		a.at[deltas[i].Path] = &deltas[i]
	}
	a.guard()
	return &Job{job: a}, nil
}

func (h *Job) Close() {
	h.forget()
	h.root.Close()
}

// Run applies all deltas in this order: removals, folders, files, further names of files, and the times of folders. No step
// undoes an earlier one.
func (h *Job) Run() error {
	h.meter = snap.NewMeter(h.ctx, "files put back", snap.UnitFiles, int64(len(h.deltas)))
	steps := []struct {
		name string
		do   func() error
	}{
		{"removed", h.removeAll}, {"folders made", h.makeFolders}, {"files rewritten", h.rewriteFiles},
		{"files placed", h.placeFiles}, {"names linked", h.linkNames}, {"folders finished", h.finishFolders}, {"synced", h.sync},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return h.wrap(err)
		}
		if err := h.p.Failpoint.At(s.name); err != nil {
			return err
		}
	}
	return nil
}

func (a *job) wrap(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return (&errs.Error{Kind: errs.Failed, Op: a.op, Message: "the disk of " + a.p.Walker.Workspace.Dir + " is full", Err: err}).
			WithHint("free some space there and try again")
	}
	return workspace.Wrap(errs.Failed, a.op, err)
}

// failed adds the path to err.
func (a *job) failed(path string, err error) error {
	var e *errs.Error
	if err == nil || errors.As(err, &e) || workspace.Cancelled(err) {
		return err
	}
	if errors.Is(err, unix.EAGAIN) {
		return workspace.Leased(a.op, a.shown(path))
	}
	kind := errs.Failed
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		kind = errs.Denied
	}
	return &errs.Error{Kind: kind, Op: a.op, Message: a.shown(path), Err: workspace.Cause(err)}
}

func (a *job) changed(path string) error {
	return snap.Changed(a.op, a.shown(path))
}

// shown returns the full path in the form that the reader may see.
func (a *job) shown(path string) string {
	if d := a.at[path]; d != nil {
		path = d.Seen()
	}
	return workspace.Shown(a.p.Walker.Workspace.Dir, path)
}

func (a *job) note(format string, args ...any) {
	a.mu.Lock()
	a.Notes = append(a.Notes, fmt.Sprintf(format, args...))
	a.mu.Unlock()
}

// removeAll removes paths that the new state does not have, and those whose type changes, deepest first.
func (h *Job) removeAll() error {
	for i := len(h.deltas) - 1; i >= 0; i-- {
		d := &h.deltas[i]
		if d.Mounted() {
			h.note("%s is or was a mount point, or could not be read, and is left as it is.", h.shown(d.Path))
			continue
		}
		if err := h.ctx.Err(); err != nil {
			return err
		}
		// The live state has nothing here, also where a folder is that is excluded: a pattern may be for folders only.
		if d.Old == nil && h.p.Walker.Workspace.Exclude.Excludes(d.Path, true) {
			if n, _, err := h.look(d.Path); err == nil && n != nil && n.IsDir() {
				h.stays[d.Path] = true
				h.note("%s stays: as a folder it is excluded, and mulligan does not remove it.", h.shown(d.Path))
			}
		}
		if !d.Goes() {
			continue
		}
		if err := h.remove(d); err != nil {
			return h.failed(d.Path, err)
		}
		if d.New == nil {
			h.meter.Add(1)
		}
	}
	return nil
}

func (h *Job) remove(d *diff.Delta) error {
	n, _, err := h.look(d.Path)
	if err != nil || n == nil {
		return err
	}
	if !matches(&n.Entry, d.Old) {
		if d.New != nil && matches(&n.Entry, d.New) {
			return nil
		}
		if n.Mount {
			h.stay(d.Path)
			return nil
		}
		return h.changed(d.Path)
	}
	folder, name := relpath.Split(d.Path)
	dir, err := h.writable(folder)
	if err != nil {
		return err
	}
	h.touched[folder] = true
	if !n.IsDir() {
		return unix.Unlinkat(dir.FD(), name, 0)
	}
	err = unix.Unlinkat(dir.FD(), name, unix.AT_REMOVEDIR)
	if err == unix.ENOTEMPTY || err == unix.EEXIST || err == unix.EBUSY {
		return h.keepFolder(d.Path, err)
	}
	h.forget()
	return err
}

// keepFolder keeps a folder that contains only excluded paths and mount points. If it contains anything else, keepFolder
// returns an error.
func (h *Job) keepFolder(path string, busy error) error {
	d := h.at[path]
	remake := d != nil && d.Remake
	if busy == unix.EBUSY && remake {
		return h.p.heldError(h.op, d.Seen())
	}
	if busy != unix.EBUSY {
		dir, err := h.folder(path)
		if err != nil {
			return err
		}
		names, err := inode.List(dir.FD())
		if err != nil {
			return err
		}
		skips := false
		for _, name := range names {
			p := relpath.Join(path, name)
			skips = skips || h.p.Walker.Workspace.Exclude.Skips(p)
			st, err := inode.StatAt(dir.FD(), name)
			if err != nil {
				return err
			}
			if h.made[p] != st.ID && !h.stays[p] && !st.Mount && !h.p.Walker.Workspace.Exclude.Excludes(p, st.Kind() == manifest.DirKind) {
				return h.changed(p)
			}
			if remake && h.stays[p] {
				return h.p.heldError(h.op, d.Seen())
			}
		}
		if remake {
			return h.keepInPlace(dir, d)
		}
		if skips {
			h.ForDatabases = append(h.ForDatabases, []byte(path))
		}
	}
	h.stay(path)
	return nil
}

// keepInPlace lets the open folder of d stay, because only databases are left in it. It counts as made by this apply, and gets its new owner and
// mode in makeFolders, before anything new is placed in it.
func (h *Job) keepInPlace(dir *beneath.Root, d *diff.Delta) error {
	have, id, err := rights.ReadEntry(dir.FD())
	if err != nil {
		return err
	}
	held, err := h.p.heldIn(dir, d.Path, h.p.open(d, have))
	if err == nil && held != "" {
		err = h.p.heldError(h.op, d.Seen())
	}
	if err == nil {
		h.made[d.Path] = id
	}
	return err
}

// stay records that a folder cannot be removed, because it has excluded or mounted paths.
func (a *job) stay(path string) {
	a.stays[path] = true
	a.note("%s stays: it holds excluded or mounted paths, which mulligan does not remove.", a.shown(path))
}

// makeFolders makes the new folders, outermost first. They get their modes last: until then no other user may enter them.
func (h *Job) makeFolders() error {
	for i := range h.deltas {
		d := &h.deltas[i]
		if d.Path == "." || d.New == nil || !d.New.IsDir() && !(d.Old == nil && d.New.Mount && d.New.Kind() == manifest.DirKind) {
			continue
		}
		if err := h.ctx.Err(); err != nil {
			return err
		}
		if manifest.IsFolder(d.Old) && !d.Remake || d.Old != nil && d.Old.Mount {
			continue
		}
		folder, name := relpath.Split(d.Path)
		dir, err := h.writable(folder)
		if err == nil {
			h.touched[folder], h.touched[d.Path] = true, true
			err = h.make(dir, name, d.Path)
		}
		if err == unix.EEXIST {
			err = h.found(dir, name, d)
		} else if err == nil {
			h.forget()
		}
		if err != nil {
			return h.failed(d.Path, err)
		}
	}
	return nil
}

// found returns an error unless what is in d's place is a folder. If keepInPlace let it stay, it gets its new owner and mode. Any other folder in the place
// of one that changes hands was made by somebody else meanwhile, who would get at what is to be placed in it.
func (h *Job) found(dir *beneath.Root, name string, d *diff.Delta) error {
	st, err := inode.StatAt(dir.FD(), name)
	if err != nil || st.Kind() != manifest.DirKind {
		return h.changed(d.Path)
	}
	if h.made[d.Path] != st.ID {
		if d.Remake {
			return h.changed(d.Path)
		}
		return nil
	}
	kept, err := h.openFolder(d.Path)
	if err != nil {
		return err
	}
	return errors.Join(h.finishFolder(kept, d), kept.Close())
}

// idle reports whether the entry of a folder itself neither was changed nor must be changed.
func (a *job) idle(d *diff.Delta) bool {
	return manifest.IsFolder(d.Old) && d.Old.SameMeta(d.New) && !a.touched[d.Path] && !a.whole
}

// finishFolders sets the modes, owners and times of the folders, deepest first, after all changes in them.
func (a *job) finishFolders() error {
	for i := len(a.deltas) - 1; i >= 0; i-- {
		d := &a.deltas[i]
		if d.New == nil || !d.New.IsDir() || d.Mounted() || a.idle(d) {
			continue
		}
		dir, err := a.openFolder(d.Path)
		if err != nil {
			return a.failed(d.Path, err)
		}
		err = a.finishFolder(dir, d)
		if err := errors.Join(err, dir.Close()); err != nil {
			return a.failed(d.Path, err)
		}
	}
	return nil
}
