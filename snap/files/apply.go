package files

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// apply makes of each delta's old what is its new, in the workspace. It goes
// strictly by the deltas: a path that is neither as old nor as new has it is
// left alone, and the error is snap.ErrChanged.
type apply struct {
	d       *Driver
	op      string
	id      snap.RestoreID
	ctx     context.Context
	root    *beneath.Root
	deltas  []diff.Delta
	at      map[string]*diff.Delta // by path
	holder  rights.Holder
	made    map[string]inode.ID // folders that this apply made, by path
	guarded map[string]bool     // folders that may keep somebody out, or lie behind such a one
	reader  *walk.Scan          // for looking at single paths

	tmp   atomic.Int64    // the next temporary name's number
	stays map[string]bool // folders that could not go, since not all in them is ours to remove
	whole bool            // sync everything: an apply before this one was cut short
	bulk  bool            // the files at hand are synced all at once

	mu      sync.Mutex
	notes   []string
	inPlace []*diff.Delta // files of which the meta data alone was changed

	touched map[string]bool // folders in which a name came or went; one goroutine's
}

// newApply gives the first hand of an apply.
func (d *Driver) newApply(ctx context.Context, op string, id snap.RestoreID, s walk.Sink, keep func(snap.Hash) bool, deltas []diff.Delta) (*hand, error) {
	root, err := d.ws.Open()
	if err != nil {
		return nil, err
	}
	a := &apply{d: d, op: op, id: id, ctx: ctx, root: root, deltas: deltas,
		at: make(map[string]*diff.Delta, len(deltas)), stays: map[string]bool{}, touched: map[string]bool{},
		made: map[string]inode.ID{}, guarded: map[string]bool{}}
	st, err := inode.StatAt(root.FD(), "")
	if err != nil {
		root.Close()
		return nil, err
	}
	a.holder = rights.HolderOf(d.cfg.Reader, d.cfg.Owner, st.Uid)
	a.reader = d.walker.NewScan(ctx, op, s, keep)
	a.reader.Memory, a.reader.Seen = d.follower.Memory(ctx, deltas), nil
	for i := range deltas {
		a.at[deltas[i].Path] = &deltas[i]
	}
	a.guard()
	return &hand{apply: a}, nil
}

func (h *hand) close() {
	h.forget()
	h.root.Close()
}

// run does everything, in the order that never stands in its own way:
// what must go, folders, files, further names of files, folders' own times.
func (h *hand) run() error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"removed", h.removeAll}, {"folders made", h.makeFolders}, {"files rewritten", h.rewriteFiles},
		{"files placed", h.placeFiles}, {"names linked", h.linkNames}, {"folders settled", h.settleFolders}, {"synced", h.sync},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return h.wrap(err)
		}
		if err := h.d.cfg.Failpoint.At(s.name); err != nil {
			return err
		}
	}
	return nil
}

func (a *apply) wrap(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return (&errs.Error{Kind: errs.Failed, Op: a.op, Message: "the disk of " + a.d.cfg.Dir + " is full", Err: err}).
			WithHint("free some space there and try again")
	}
	return workspace.Wrap(errs.Failed, a.op, err)
}

// failed says at which path err happened.
func (a *apply) failed(path string, err error) error {
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

func (a *apply) changed(path string) error {
	return snap.Changed(a.op, a.shown(path))
}

// shown is path in full, as the reader may see it.
func (a *apply) shown(path string) string {
	if d := a.at[path]; d != nil {
		path = d.Seen()
	}
	return workspace.Shown(a.d.cfg.Dir, path)
}

func (a *apply) note(format string, args ...any) {
	a.mu.Lock()
	a.notes = append(a.notes, fmt.Sprintf(format, args...))
	a.mu.Unlock()
}

// removeAll removes what is in the way or only in old, deepest first.
func (h *hand) removeAll() error {
	for i := len(h.deltas) - 1; i >= 0; i-- {
		d := &h.deltas[i]
		if d.Mounted() {
			h.note("%s is or was a mount point and is left as it is.", h.shown(d.Path))
			continue
		}
		if !d.Goes() {
			continue
		}
		if err := h.ctx.Err(); err != nil {
			return err
		}
		if err := h.remove(d); err != nil {
			return h.failed(d.Path, err)
		}
	}
	return nil
}

func (h *hand) remove(d *diff.Delta) error {
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

// keepFolder lets a folder stay for what is excluded or mounted in it, and
// fails if there is anything else.
func (h *hand) keepFolder(path string, busy error) error {
	if busy != unix.EBUSY {
		dir, err := h.folder(path)
		if err != nil {
			return err
		}
		names, err := inode.List(dir.FD())
		if err != nil {
			return err
		}
		for _, name := range names {
			p := relpath.Join(path, name)
			st, err := inode.StatAt(dir.FD(), name)
			if err != nil {
				return err
			}
			if !h.stays[p] && !st.Mount && !h.d.ws.Exclude.Excludes(p, st.Kind() == manifest.DirKind) {
				return h.changed(p)
			}
		}
	}
	if d := h.at[path]; d != nil && d.Remake {
		return h.d.heldError(h.op, d.Seen())
	}
	h.stay(path)
	return nil
}

func (a *apply) stay(path string) {
	a.stays[path] = true
	a.note("%s stays: mulligan does not remove what is excluded or mounted in it.", a.shown(path))
}

// makeFolders makes the folders that are only in new, outermost first. Their
// modes come last: until then nobody else has any business in them.
func (h *hand) makeFolders() error {
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
			if st, e := inode.StatAt(dir.FD(), name); e == nil && st.Kind() == manifest.DirKind {
				continue
			}
			err = h.changed(d.Path)
		}
		if err != nil {
			return h.failed(d.Path, err)
		}
		h.forget()
	}
	return nil
}

// idle reports whether nothing was, or has to be, done to a folder's own entry.
func (a *apply) idle(d *diff.Delta) bool {
	return manifest.IsFolder(d.Old) && d.Old.SameMeta(d.New) && !a.touched[d.Path] && !a.whole
}

// settleFolders gives the folders their modes, owners and times, deepest
// first, when nothing in them will change any more.
func (a *apply) settleFolders() error {
	for i := len(a.deltas) - 1; i >= 0; i-- {
		d := &a.deltas[i]
		if d.New == nil || !d.New.IsDir() || d.Mounted() || a.idle(d) {
			continue
		}
		dir, err := a.openFolder(d.Path)
		if err != nil {
			return a.failed(d.Path, err)
		}
		err = a.settleFolder(dir, d)
		if err := errors.Join(err, dir.Close()); err != nil {
			return a.failed(d.Path, err)
		}
	}
	return nil
}
