package apply

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

// remaker computes what must be made anew because the owner of a folder changes: everything in the folder is removed and made
// again in the new one.
type remaker struct {
	ctx       context.Context
	old, new  *manifest.Manifest
	scoped    bool
	fileOwner rights.FileOwner
	reader    rights.Reader
	out       []diff.Delta
	groups    map[string]bool // hard-link groups with a name that is made anew
}

// WithRemade returns the deltas from old to new, with everything in folders that are made anew.
func (p *Applier) WithRemade(ctx context.Context, deltas []diff.Delta, old, new *manifest.Manifest, sc relpath.Scope) ([]diff.Delta, error) {
	r := &remaker{ctx: ctx, old: old, new: new, scoped: len(sc) > 0, fileOwner: p.FileOwner(old.Root.Uid), reader: p.Reader, groups: map[string]bool{}}
	top := "" // the folder made anew that the last delta was
	for i := range deltas {
		switch p := deltas[i].Path; {
		case top != "" && relpath.Within(p, top):
		case remakes(r.fileOwner, &deltas[i]):
			top = p
			if err := r.add(p, deltas[i].HiddenBy, deltas[i].Old, deltas[i].New); err != nil {
				return nil, err
			}
		default:
			top = ""
			r.out = append(r.out, deltas[i])
		}
	}
	if r.scoped || len(r.groups) == 0 {
		return r.out, nil
	}
	return r.out, r.tieOutside()
}

// add adds the deltas of path and everything below it.
func (r *remaker) add(path, hiddenBy string, old, new *manifest.Entry) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.out = append(r.out, diff.Delta{Path: path, HiddenBy: hiddenBy, Old: old, New: new, Remake: old != nil && new != nil && !old.Mount && !new.Mount})
	if new != nil && new.Group() != "" {
		r.groups[new.Group()] = true
	}
	if old != nil && old.Mount || new != nil && new.Mount {
		return nil
	}
	a, err := manifest.EntriesOf(r.old, old)
	if err != nil {
		return err
	}
	b, err := manifest.EntriesOf(r.new, new)
	if err != nil {
		return err
	}
	sees := func(e *manifest.Entry) bool { return !manifest.IsFolder(e) || r.reader.SeesInto(e) }
	if hiddenBy == "" && !(sees(old) && sees(new)) {
		hiddenBy = path
	}
	return manifest.Pairs(a, b, func(name string, x, y *manifest.Entry) error { return r.add(relpath.Join(path, name), hiddenBy, x, y) })
}

// tieOutside links the first name of a remade file to another name of the same file that stays, if there is one.
func (r *remaker) tieOutside() error {
	at := map[string]*diff.Delta{}
	for i := range r.out {
		at[r.out[i].Path] = &r.out[i]
	}
	var visit func(path string, e *manifest.Entry) error
	visit = func(path string, e *manifest.Entry) error {
		if g := e.Group(); r.groups[g] && at[path] == nil && at[g] != nil && at[g].Remake && at[g].LinkTo == "" {
			at[g].LinkTo = path
		}
		kids, err := manifest.EntriesOf(r.new, e)
		for i := range kids {
			if err == nil {
				err = visit(relpath.Join(path, kids[i].Name), &kids[i])
			}
		}
		return err
	}
	return visit(".", &r.new.Root)
}

// checkHeld refuses to change the owner of a folder that contains excluded paths or mount points. These would stay, and the new
// owner must not get them. A registered database may stay where the folder's rights do not hide it from the reader.
func (p *Applier) checkHeld(op string, deltas []diff.Delta) error {
	var root *beneath.Root
	top := "" // the last remade folder
	for i := range deltas {
		if top == "" || !relpath.Within(deltas[i].Path, top) {
			if top = ""; deltas[i].Remake && manifest.IsFolder(deltas[i].Old) {
				top = deltas[i].Path
			}
		}
		if top == "" || !manifest.IsFolder(deltas[i].Old) {
			continue
		}
		if root == nil {
			var err error
			if root, err = p.Walker.Workspace.Open(); err != nil {
				return err
			}
			defer root.Close()
		}
		held, err := p.Held(root, deltas[i].Path, p.open(&deltas[i], deltas[i].Old))
		if err != nil {
			return err
		}
		if held != "" {
			return p.heldError(op, deltas[i].Seen())
		}
	}
	return nil
}

func (p *Applier) heldError(op, path string) error {
	return errs.New(errs.Conflict, op, "%s would get another owner or mode, but holds something excluded or mounted", workspace.Shown(p.Walker.Workspace.Dir, path)).
		WithHint("move the excluded paths out of the folder, or ask an administrator to restore its owner and mode; then try again")
}

// open reports whether the reader may look into the folder of d, whose entry is have, before and after the change: then its
// rights hide nothing that is in it.
func (p *Applier) open(d *diff.Delta, have *manifest.Entry) bool {
	return d.HiddenBy == "" && manifest.IsFolder(d.New) && p.Reader.SeesInto(have) && p.Reader.SeesInto(d.New)
}

// Held returns an excluded path or mount point in the folder path, "" if there is none. If open is true, the databases that other drivers restore
// do not count.
func (p *Applier) Held(root *beneath.Root, path string, open bool) (string, error) {
	dir, err := root.OpenDir(path)
	if err != nil {
		return "", nil // the path is no folder any more, which the restore itself will notice
	}
	defer dir.Close()
	return p.heldIn(dir, path, open)
}

// heldIn does the same as Held for an open folder.
func (p *Applier) heldIn(dir *beneath.Root, path string, open bool) (string, error) {
	names, err := inode.List(dir.FD())
	for _, name := range names {
		at := relpath.Join(path, name)
		st, err := inode.StatAt(dir.FD(), name)
		if err != nil || open && !st.Mount && p.Walker.Workspace.Exclude.Skips(at) {
			continue
		}
		if st.Mount || p.Walker.Workspace.Exclude.Excludes(at, st.Kind() == manifest.DirKind) {
			return name, nil
		}
	}
	return "", err
}

// CheckWays refuses to restore paths below a folder that is outside of the scope and has other rights than in the goal, because
// this could make protected files accessible.
func (p *Applier) CheckWays(op string, deltas []diff.Delta, fileOwner rights.FileOwner, goal *manifest.Manifest) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for i := range deltas {
		c := &deltas[i]
		if !c.Outside {
			continue
		}
		to, err := goal.Find(c.Path)
		if err != nil {
			return err
		}
		if manifest.IsFolder(to) && !fileOwner.KeepsFolder(c.Old, to) {
			return errs.New(errs.Conflict, op, "the folder %s has another owner or mode than in the checkpoint, and paths below it are to be restored", workspace.Shown(p.Walker.Workspace.Dir, c.Seen())).
				WithHint("widen the scope to %s", c.Seen())
		}
	}
	return nil
}

// aside calls do with a new folder that only root may enter, and then moves the complete result to name in dir. Until then, no
// other process can open or replace it.
func (h *Job) aside(dir *beneath.Root, name string, do func(in *beneath.Root, name string) error) (err error) {
	bench := h.tmpName()
	if err := unix.Mkdirat(dir.FD(), bench, 0o700); err != nil {
		return err
	}
	defer func() {
		if e := unix.Unlinkat(dir.FD(), bench, unix.AT_REMOVEDIR); e != unix.ENOENT {
			err = errs.Also(err, e)
		}
	}()
	in, err := dir.OpenDir(bench)
	if err != nil {
		return err
	}
	defer in.Close()
	if st, err := inode.StatAt(in.FD(), ""); err != nil || !rights.RootOnly(st) {
		return errs.Also(h.replaced(), err)
	}
	inner := h.tmpName()
	if err = do(in, inner); err == nil {
		h.mu.Lock() // hooks are called one at a time
		err = h.p.Failpoint.At("made aside")
		h.mu.Unlock()
	}
	if err == nil {
		err = renameNew(in.FD(), inner, dir.FD(), name)
	}
	if err != nil {
		_ = unix.Unlinkat(in.FD(), inner, 0) // removes a file or a folder; it was never in use
		_ = unix.Unlinkat(in.FD(), inner, unix.AT_REMOVEDIR)
	}
	return err
}

func (a *job) replaced() error {
	return errs.New(errs.Conflict, a.op, "another process replaced a file during the restore")
}

// renameNew renames, and fails if the new name exists.
func renameNew(from int, old string, to int, new string) error {
	err := unix.Renameat2(from, old, to, new, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL { // some filesystems do not support the flag
		return err
	}
	return unix.Renameat(from, old, to, new)
}

// make makes the folder name in dir with mode 0700, and records its identity.
func (h *Job) make(dir *beneath.Root, name, path string) error {
	if os.Geteuid() != 0 {
		return unix.Mkdirat(dir.FD(), name, 0o700)
	}
	if _, err := inode.StatAt(dir.FD(), name); err == nil {
		return unix.EEXIST
	}
	return h.aside(dir, name, func(in *beneath.Root, inner string) error {
		if err := unix.Mkdirat(in.FD(), inner, 0o700); err != nil {
			return err
		}
		st, err := inode.StatAt(in.FD(), inner)
		h.made[path] = st.ID
		return err
	})
}

// finishFolder gives the open folder the owner, mode, attributes and time of d: all
// of them to a folder of this apply's own making, otherwise what keepsFolder allows.
func (a *job) finishFolder(dir *beneath.Root, d *diff.Delta) error {
	if os.Geteuid() != 0 {
		return setMeta(dir.FD(), d.New)
	}
	have, id, err := rights.ReadEntry(dir.FD())
	switch {
	case err != nil:
		return err
	case d.Outside:
		if d.New.Loose || have.Mtime == d.New.Mtime {
			return nil
		}
		return setTime(dir.FD(), d.New.Mtime)
	case d.Path == ".", a.made[d.Path] == id, a.fileOwner.KeepsFolder(have, d.New):
		return setMeta(dir.FD(), d.New)
	}
	return a.changed(d.Path)
}

// guard records the folders below a folder that does not belong to the file owner, because that folder's rights may protect
// their files.
func (a *job) guard() {
	for i := range a.deltas {
		d := &a.deltas[i]
		dir, _ := relpath.Split(d.Path)
		foreign := func(e *manifest.Entry) bool { return manifest.IsFolder(e) && e.Uid != uint32(a.fileOwner) }
		if a.guarded[dir] || foreign(d.Old) || foreign(d.New) {
			a.guarded[d.Path] = true
		}
	}
}

// openFolder opens a folder of the workspace. If the rights of a folder on the way may exclude a user, it checks each folder
// after opening it.
func (a *job) openFolder(path string) (*beneath.Root, error) {
	if !a.guarded[path] || os.Geteuid() != 0 {
		return a.root.OpenDir(path)
	}
	dir, err := a.root.OpenDir(".")
	at := "."
	for rest := path; err == nil; {
		if err = a.isKnown(dir, at); err != nil || rest == "." || rest == "" {
			break
		}
		var name string
		name, rest = relpath.Cut(rest)
		at = relpath.Join(at, name)
		var next *beneath.Root
		next, err = dir.OpenDir(name)
		dir.Close()
		dir = next
	}
	if err != nil && dir != nil {
		dir.Close()
		dir = nil
	}
	return dir, err
}

// isKnown returns an error unless the open folder is the one that this apply made at path, or has the rights that the folder
// had at the beginning.
func (a *job) isKnown(dir *beneath.Root, path string) error {
	d := a.at[path]
	if d == nil || path == "." {
		return nil
	}
	have, id, err := rights.ReadEntry(dir.FD())
	if err != nil {
		return err
	}
	was := d.Old
	if was == nil {
		was = d.New
	}
	made, ours := a.made[path]
	if ours && made == id || !ours && manifest.IsFolder(was) && a.fileOwner.KeepsFolder(have, was) {
		return nil
	}
	return a.changed(path)
}

// remakes reports whether the owner of d's folder changes, so that the folder is made anew with everything in it. The workspace
// folder itself is never made anew; opening it checks its owner.
func remakes(o rights.FileOwner, d *diff.Delta) bool {
	return os.Geteuid() == 0 && !d.Outside && d.Path != "." && manifest.IsFolder(d.Old) && manifest.IsFolder(d.New) && !o.KeepsFolder(d.Old, d.New)
}
