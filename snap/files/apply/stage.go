package apply

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// A batch of files is written under temporary names, made durable, and only
// then renamed into place, so that a crash leaves either the old file or the
// whole new one.
const (
	batchFiles = 1000
	batchBytes = 256 << 20
)

// staged is a new thing under its temporary name.
type staged struct {
	d   *diff.Delta
	tmp string
	was inode.Stat // what is at the path, to be replaced; zero: nothing
	f   *os.File   // a file that is still to be synced
}

func (a *job) tmpName() string { return fmt.Sprint(TempPrefix(string(a.id)), a.tmp.Add(1)) }

// placeFiles brings everything that is no folder and no further name of a file.
func (h *Job) placeFiles() error {
	h.regrouped = diff.Regrouped(h.deltas, h.stays, func(d *diff.Delta) *manifest.Entry { return d.New })
	var batch []*diff.Delta
	var bytes int64
	for i := range h.deltas {
		d := &h.deltas[i]
		if d.New == nil || d.Rewritten || manifest.IsFolder(d.New) || d.Mounted() || h.follows(d) {
			continue
		}
		batch, bytes = append(batch, d), bytes+d.New.Size
		if len(batch) >= batchFiles || bytes >= batchBytes {
			if err := h.placeBatch(batch); err != nil {
				return err
			}
			batch, bytes = nil, 0
		}
	}
	return h.placeBatch(batch)
}

func (h *Job) placeBatch(batch []*diff.Delta) error {
	list, err := h.stageAll(batch)
	if err != nil {
		return err
	}
	return h.placeStaged(list)
}

// stageAll stages a batch, with several workers.
func (h *Job) stageAll(batch []*diff.Delta) ([]*staged, error) {
	out := make([]*staged, len(batch))
	h.expect(len(batch))
	err := h.sideBySide(len(batch), func(w *Job, i int) (err error) {
		out[i], err = w.stage(batch[i])
		w.meter.Add(1)
		return w.failed(batch[i].Path, err)
	})
	out = slices.DeleteFunc(out, func(s *staged) bool { return s == nil })
	if err != nil {
		return nil, errors.Join(err, h.unstage(out))
	}
	return out, nil
}

// stage writes d's new thing beside the old one. nil: there is nothing to do.
func (h *Job) stage(d *diff.Delta) (*staged, error) {
	if err := h.ctx.Err(); err != nil {
		return nil, err
	}
	if h.stays[d.Path] {
		return nil, nil // removeAll said so
	}
	v, st, err := h.judge(d)
	if err != nil || v == isNew && (st.Nlink == 1 || d.SameGroup()) {
		return nil, err
	}
	if done, err := h.metaOnly(d, st); done || err != nil {
		return nil, err
	}
	folder, _ := relpath.Split(d.Path)
	dir, err := h.writable(folder)
	if err != nil {
		return nil, err
	}
	s := &staged{d: d, tmp: h.tmpName(), was: st}
	err = h.create(dir, s)
	if err == nil {
		return s, nil
	}
	if e := unix.Unlinkat(dir.FD(), s.tmp, 0); e != unix.ENOENT {
		err = errors.Join(err, e)
	}
	if errors.Is(err, unix.EPERM) && d.New.Device() {
		h.note("%s is a device and cannot be made here: %v.", h.shown(d.Path), workspace.Cause(err))
		return nil, nil
	}
	return nil, err
}

// follows reports whether d's new thing is a further name of a file whose
// first name this restore deals with, or leaves as it is.
func (a *job) follows(d *diff.Delta) bool {
	if d.LinkTo != "" {
		return true
	}
	name := a.first(d)
	if name == "" || name == d.Path {
		return false
	}
	first := a.at[name]
	if first == nil {
		return !a.scoped() // unchanged, hence there
	}
	return first.New != nil && first.New.Group() == d.New.Group()
}

// first returns the name to which the further names of d's new file are linked, "" if it has no other name.
func (a *job) first(d *diff.Delta) string {
	group := d.New.Group()
	switch names := a.regrouped[group]; {
	case d.LinkTo != "":
		return d.LinkTo
	case len(names) > 0:
		return names[0]
	}
	return group
}

func (a *job) scoped() bool { return len(a.scan.Scope) > 0 }

// metaOnly changes mode, attributes and times in place where that is all, where the
// file is and stays an ordinary one of the file owner's, and has no other name that would change with it.
func (h *Job) metaOnly(d *diff.Delta, st inode.Stat) (bool, error) {
	if d.Remake || !h.fileOwner.Keeps(d.Old, d.New) || !d.Old.IsFile() || !d.Old.SameBody(d.New) || st.Nlink != 1 {
		return false, nil
	}
	folder, name := relpath.Split(d.Path)
	dir, err := h.folder(folder)
	if err != nil {
		return false, err
	}
	f, err := inode.OpenPath(dir, name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	now, err := inode.StatAt(int(f.Fd()), "")
	if err == nil && (!now.Same(st) || now.Nlink != 1) {
		err = h.changed(d.Path)
	}
	if err != nil {
		return false, err
	}
	h.mu.Lock()
	h.inPlace = append(h.inPlace, d)
	h.mu.Unlock()
	return true, setMeta(int(f.Fd()), d.New)
}

// create makes the thing under its temporary name, complete.
func (h *Job) create(dir *beneath.Root, s *staged) error {
	e := s.d.New
	do := h.createNode
	if e.IsFile() {
		do = h.createFile
	}
	if os.Geteuid() != 0 || e.Symlink() || e.IsFile() && h.fileOwner.Plain(e) {
		return do(dir, s, s.tmp)
	}
	return h.aside(dir, s.tmp, func(in *beneath.Root, name string) error { return do(in, s, name) })
}

// createNode makes a link, fifo, socket or device.
func (h *Job) createNode(dir *beneath.Root, s *staged, name string) error {
	e := s.d.New
	var err error
	if e.Symlink() {
		err = unix.Symlinkat(e.Link(), dir.FD(), name)
	} else {
		err = unix.Mknodat(dir.FD(), name, e.Kind()|0o600, int(e.Rdev()))
	}
	if err != nil {
		return err
	}
	f, err := inode.OpenPath(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := h.isOurs(f, e); err != nil {
		return err
	}
	return setMeta(int(f.Fd()), e)
}

// isOurs makes sure that f is the link, fifo, socket or device just made, and
// nothing that the workspace's owner has put in its place.
func (a *job) isOurs(f *os.File, e *manifest.Entry) error {
	fd := int(f.Fd())
	st, err := inode.StatAt(fd, "")
	if err != nil {
		return err
	}
	if st.Kind() != e.Kind() || st.Nlink != 1 || st.Rdev != e.Rdev() || int(st.Uid) != os.Geteuid() {
		return a.replaced()
	}
	return nil
}

func (h *Job) createFile(dir *beneath.Root, s *staged, name string) error {
	e := s.d.New
	f, err := dir.OpenFile(name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = h.fill(f, s)
	if err == nil {
		err = setMeta(int(f.Fd()), e)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	h.startWriting(f)
	s.f = f
	return nil
}

// placeStaged renames a batch into place, after what it holds is durable.
func (h *Job) placeStaged(batch []*staged) error {
	if len(batch) == 0 {
		return nil
	}
	err := h.p.Failpoint.At("files staged")
	if err == nil {
		err = h.makeDurable(batch)
	}
	if err != nil {
		return errors.Join(err, h.unstage(batch))
	}
	for i := range batch {
		if err = h.ctx.Err(); err == nil {
			err = h.failed(batch[i].d.Path, h.rename(batch[i]))
		}
		if err == nil {
			err = h.p.Failpoint.At("file placed")
		}
		if err != nil {
			return errors.Join(err, h.unstage(batch[i:]))
		}
	}
	return nil
}

// rename puts one staged thing in place, if what it replaces is still there as
// it was judged.
func (h *Job) rename(s *staged) error {
	folder, name := relpath.Split(s.d.Path)
	dir, err := h.writable(folder)
	if err != nil {
		return err
	}
	h.touched[folder] = true
	fd := dir.FD()
	st, err := inode.StatAt(fd, name)
	if s.was == (inode.Stat{}) {
		if err != unix.ENOENT {
			return errors.Join(h.changed(s.d.Path), err)
		}
		return renameNew(fd, s.tmp, fd, name)
	}
	if err != nil || !s.was.Still(st) {
		return errors.Join(h.changed(s.d.Path), err)
	}
	return unix.Renameat(fd, s.tmp, fd, name)
}

// unstage removes what was staged and will not be placed.
func (h *Job) unstage(batch []*staged) error {
	var all error
	for _, s := range batch {
		if s.f != nil {
			s.f.Close() // it goes
		}
		folder, _ := relpath.Split(s.d.Path)
		dir, err := h.folder(folder)
		if err == nil {
			err = unix.Unlinkat(dir.FD(), s.tmp, 0)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			all = errors.Join(all, h.failed(s.d.Path, err))
		}
	}
	return all
}

// linkNames gives files their further names.
func (h *Job) linkNames() error {
	for i := range h.deltas {
		d := &h.deltas[i]
		if d.New == nil || manifest.IsFolder(d.New) || d.Mounted() || h.stays[d.Path] || !h.follows(d) {
			continue
		}
		if err := h.ctx.Err(); err != nil {
			return err
		}
		if err := h.link(d); err != nil {
			return h.failed(d.Path, err)
		}
	}
	return nil
}

func (h *Job) link(d *diff.Delta) error {
	_, was, err := h.judge(d)
	if err != nil {
		return err
	}
	group := h.first(d)
	folder, name := relpath.Split(group)
	from, err := h.root.OpenDir(folder)
	if err != nil {
		return err
	}
	defer from.Close()
	first, err := inode.StatAt(from.FD(), name)
	if err != nil {
		return err
	}
	if first.ID == was.ID {
		return nil
	}
	if e := manifest.NewEntry(name, first); e.Mode != d.New.Mode || e.Uid != d.New.Uid || e.Gid != d.New.Gid || e.Size != d.New.Size || e.Mtime != d.New.Mtime {
		return h.changed(group)
	}
	folder, _ = relpath.Split(d.Path)
	dir, err := h.writable(folder)
	if err != nil {
		return err
	}
	s := &staged{d: d, tmp: h.tmpName(), was: was}
	if err := unix.Linkat(from.FD(), name, dir.FD(), s.tmp, 0); err != nil {
		return err
	}
	if err := h.rename(s); err != nil {
		return errors.Join(err, h.unstage([]*staged{s}))
	}
	return nil
}
