package files

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// remaking works out what a folder that changes hands takes along: everything in
// it goes, and is made anew in the new folder.
type remaking struct {
	ctx      context.Context
	old, new *manifest
	scoped   bool
	holder   holder
	reader   Reader
	out      []delta
	groups   map[string]bool // hard-link groups of which a name is made anew
}

// withRemade gives deltas, from old to new, with all that is in folders that are made anew.
func (d *Driver) withRemade(ctx context.Context, deltas []delta, old, new *manifest, sc relpath.Scope) ([]delta, error) {
	r := &remaking{ctx: ctx, old: old, new: new, scoped: len(sc) > 0, holder: d.holderOf(old.root.uid), reader: d.cfg.Reader, groups: map[string]bool{}}
	top := "" // the folder made anew that the last delta was
	for i := range deltas {
		switch p := deltas[i].path; {
		case top != "" && relpath.Within(p, top):
		case r.holder.remakes(&deltas[i]):
			top = p
			if err := r.add(p, deltas[i].veil, deltas[i].old, deltas[i].new); err != nil {
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

// add adds what is at path, and below it, on either side.
func (r *remaking) add(path, veil string, old, new *entry) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.out = append(r.out, delta{path: path, veil: veil, old: old, new: new, again: old != nil && new != nil && !old.mount && !new.mount})
	if new != nil && new.group() != "" {
		r.groups[new.group()] = true
	}
	if old != nil && old.mount || new != nil && new.mount {
		return nil
	}
	a, err := entriesOf(r.old, old)
	if err != nil {
		return err
	}
	b, err := entriesOf(r.new, new)
	if err != nil {
		return err
	}
	sees := func(e *entry) bool { return !isFolder(e) || r.reader.seesInto(e) }
	if veil == "" && !(sees(old) && sees(new)) {
		veil = path
	}
	return pairs(a, b, func(name string, x, y *entry) error { return r.add(relpath.Join(path, name), veil, x, y) })
}

// tieOutside has the first name of a file that is made anew linked to a name of that
// file which stays where it is, if there is one.
func (r *remaking) tieOutside() error {
	at := map[string]*delta{}
	for i := range r.out {
		at[r.out[i].path] = &r.out[i]
	}
	var visit func(path string, e *entry) error
	visit = func(path string, e *entry) error {
		if g := e.group(); r.groups[g] && at[path] == nil && at[g] != nil && at[g].again && at[g].twin == "" {
			at[g].twin = path
		}
		kids, err := entriesOf(r.new, e)
		for i := range kids {
			if err == nil {
				err = visit(relpath.Join(path, kids[i].name), &kids[i])
			}
		}
		return err
	}
	return visit(".", &r.new.root)
}

// checkHeld refuses a restore that would give a folder to somebody while it holds what is
// excluded, or mounted: that stays where it is, and is not for the new owner.
func (d *Driver) checkHeld(op string, deltas []delta) error {
	var root *beneath.Root
	top := "" // the folder made anew that was met last
	for i := range deltas {
		if top == "" || !relpath.Within(deltas[i].path, top) {
			if top = ""; deltas[i].again && isFolder(deltas[i].old) {
				top = deltas[i].path
			}
		}
		if top == "" || !isFolder(deltas[i].old) {
			continue
		}
		if root == nil {
			var err error
			if root, err = d.open(); err != nil {
				return err
			}
			defer root.Close()
		}
		held, err := d.held(root, deltas[i].path)
		if err != nil {
			return err
		}
		if held != "" {
			return d.heldError(op, deltas[i].seen())
		}
	}
	return nil
}

func (d *Driver) heldError(op, path string) error {
	return errs.New(errs.Conflict, op, "%s would get another owner or mode, but holds something excluded or mounted", shown(d.cfg.Dir, path)).
		WithHint("move what is excluded out of it, or let an administrator give the folder the owner and mode that it had; then try again")
}

// held names something in the folder path that is excluded or mounted, "" if there is nothing.
func (d *Driver) held(root *beneath.Root, path string) (string, error) {
	dir, err := root.OpenDir(path)
	if err != nil {
		return "", nil // gone, or no folder any more: the restore itself will meet that
	}
	defer dir.Close()
	names, err := inode.List(dir.FD())
	for _, name := range names {
		st, err := inode.StatAt(dir.FD(), name)
		if err == nil && (st.Mount || d.exclude.excludes(relpath.Join(path, name), st.Kind() == dirKind)) {
			return name, nil
		}
	}
	return "", err
}

// checkWays refuses to restore something below a folder that is outside of the scope and
// not the one that the goal has there: what was behind its rights would lie open.
func (d *Driver) checkWays(op string, deltas []delta, holder holder, goal *manifest) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for i := range deltas {
		c := &deltas[i]
		if !c.frame {
			continue
		}
		to, err := goal.find(c.path)
		if err != nil {
			return err
		}
		if isFolder(to) && !holder.keepsFolder(c.old, to) {
			return errs.New(errs.Conflict, op, "%s has another owner, or other rights, than in what is to be restored below it", shown(d.cfg.Dir, c.seen())).
				WithHint("widen the scope to %s", c.seen())
		}
	}
	return nil
}

// aside has do make something in a new folder that only root may enter, and moves it to
// name in dir when it is complete: until then nobody can open it or put something else in
// its place.
func (h *hand) aside(dir *beneath.Root, name string, do func(in *beneath.Root, name string) error) (err error) {
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
	if st, err := inode.StatAt(in.FD(), ""); err != nil || !onlyRoots(st) {
		return errs.Also(h.replaced(), err)
	}
	inner := h.tmpName()
	if err = do(in, inner); err == nil {
		h.mu.Lock() // hooks are called one at a time
		err = h.d.cfg.Failpoint.At("made aside")
		h.mu.Unlock()
	}
	if err == nil {
		err = renameNew(in.FD(), inner, dir.FD(), name)
	}
	if err != nil {
		_ = unix.Unlinkat(in.FD(), inner, 0) // one of them, if it is there: it was never in use
		_ = unix.Unlinkat(in.FD(), inner, unix.AT_REMOVEDIR)
	}
	return err
}

func (a *apply) replaced() error {
	return errs.New(errs.Conflict, a.op, "somebody replaced a file that was being restored")
}

// renameNew renames and replaces nothing.
func renameNew(from int, old string, to int, new string) error {
	err := unix.Renameat2(from, old, to, new, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL { // some filesystems don't know the flag
		return err
	}
	return unix.Renameat(from, old, to, new)
}

// make makes the folder name in dir, with mode 0700, and notes which one it is.
func (h *hand) make(dir *beneath.Root, name, path string) error {
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

// settleFolder gives the open folder the owner, mode, attributes and time of d: all
// of them to a folder of this apply's own making, otherwise what keepsFolder allows.
func (a *apply) settleFolder(dir *beneath.Root, d *delta) error {
	if os.Geteuid() != 0 {
		return setMeta(dir.FD(), d.new)
	}
	have, id, err := readOwn(dir.FD())
	switch {
	case err != nil:
		return err
	case d.frame:
		if d.new.loose || have.mtime == d.new.mtime {
			return nil
		}
		return setTime(dir.FD(), d.new.mtime)
	case d.path == ".", a.made[d.path] == id, a.holder.keepsFolder(have, d.new):
		return setMeta(dir.FD(), d.new)
	}
	return a.changed(d.path)
}

// guard notes the folders on whose way is one that is not the holder's: what
// is put there may be behind that folder's rights.
func (a *apply) guard() {
	for i := range a.deltas {
		d := &a.deltas[i]
		dir, _ := relpath.Split(d.path)
		foreign := func(e *entry) bool { return isFolder(e) && e.uid != uint32(a.holder) }
		if a.guarded[dir] || foreign(d.old) || foreign(d.new) {
			a.guarded[d.path] = true
		}
	}
}

// openFolder opens a folder of the workspace. Where its rights, or those of one on the
// way, may keep somebody out, each is looked at when it is open.
func (a *apply) openFolder(path string) (*beneath.Root, error) {
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

// isKnown makes sure that the open folder is the one that the apply made at path,
// or has the rights of the one that was there when it began.
func (a *apply) isKnown(dir *beneath.Root, path string) error {
	d := a.at[path]
	if d == nil || path == "." {
		return nil
	}
	have, id, err := readOwn(dir.FD())
	if err != nil {
		return err
	}
	was := d.old
	if was == nil {
		was = d.new
	}
	made, ours := a.made[path]
	if ours && made == id || !ours && isFolder(was) && a.holder.keepsFolder(have, was) {
		return nil
	}
	return a.changed(path)
}
