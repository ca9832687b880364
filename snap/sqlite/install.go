package sqlite

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
)

// A switch whose target or base is raw bytes replaces the files of the database one by one. At any
// instant, each file name has the base's entry, the target's, or none; new entries are built beside
// the database and renamed.

// builtName and movedName are the names of entries that a switch creates beside the database: the new
// entry for one of its file names, and the old one.
func builtName(id snap.RestoreID, suffix string) string { return tempName(id) + "-new" + suffix }
func movedName(id snap.RestoreID, suffix string) string { return tempName(id) + "-old" + suffix }

// between reports whether each of the database's file names has the entry of one of the states, or
// none.
func (d *Driver) between(ctx context.Context, states ...record) (bool, error) {
	now, _, err := d.readRaw(ctx, sum)
	if err != nil {
		return false, err
	}
	for _, suffix := range suffixes {
		here := at(now.entries(), suffix)
		known := len(here) == 0
		for _, s := range states {
			known = known || sameEntries(here, at(s.entries(), suffix))
		}
		if !known {
			return false, nil
		}
	}
	return true, nil
}

// isLive reports whether the live state is r.
func (d *Driver) isLive(ctx context.Context, r record) (bool, error) {
	if r.Raw != nil {
		now, _, err := d.readRaw(ctx, sum)
		return err == nil && now.hash() == r.hash(), err
	}
	same := false
	err := d.withLive(ctx, false, func(l *live) error {
		s, _, err := l.readState(ctx)
		same = s.hash() == r.hash()
		return err
	})
	if d.unreadable(err) {
		return false, nil
	}
	return same, err
}

// unreadable reports whether err says that the live files are not a readable database.
func (d *Driver) unreadable(err error) bool {
	switch errs.KindOf(d.classify("", err)) {
	case errs.Invalid, errs.Conflict:
		return err != nil && !errors.Is(err, snap.ErrChanged)
	}
	return false
}

// installer replaces the live state by another one.
type installer struct {
	d    *Driver
	ctx  context.Context
	id   snap.RestoreID
	l    *live
	want *stored
}

// install makes want the live state, whatever the live state is now. It may be called again.
func (d *Driver) install(ctx context.Context, id snap.RestoreID, want *stored) (err error) {
	in := &installer{d: d, ctx: ctx, id: id, l: &live{}, want: want}
	defer func() { err = errors.Join(err, in.l.close()) }()
	if err := in.open(); err != nil {
		return err
	}
	if in.l.dir == nil {
		return nil // the live state and want are both absent
	}
	if err := in.unused(); err != nil {
		return err
	}
	differs, err := in.build()
	if err != nil {
		return err
	}
	for _, suffix := range []string{"-shm", "-journal", "-wal"} { // what want does not have goes before the database changes
		if differs[suffix] && len(at(want.entries(), suffix)) == 0 {
			if err := in.swap(suffix); err != nil {
				return err
			}
		}
	}
	if err := unix.Fsync(in.l.dir.FD()); err != nil { // a power cut must not bring a log back beside another database
		return err
	}
	if differs[""] {
		if err := in.swap(""); err != nil {
			return err
		}
	}
	for _, suffix := range suffixes[1:] {
		if differs[suffix] && len(at(want.entries(), suffix)) > 0 {
			if err := in.swap(suffix); err != nil {
				return err
			}
		}
	}
	if err := unix.Fsync(in.l.dir.FD()); err != nil {
		return err
	}
	if want.State.Absent && want.Missing {
		return d.removeFolders(in.l, want.record)
	}
	return nil
}

// open opens the database's folder. It creates the folder if want needs it.
func (in *installer) open() (err error) {
	l := in.l
	if l.root, err = openDir(in.d.cfg); err != nil {
		if len(in.want.entries()) == 0 {
			err = ignoreMissing(err)
		}
		return err
	}
	l.dir, l.name, err = l.root.Parent(in.d.cfg.Path)
	switch {
	case err == nil:
		return nil
	case len(in.want.entries()) == 0 && noFolder(err):
		l.dir = nil
		return nil
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	l.name = in.d.cfg.Path[strings.LastIndexByte(in.d.cfg.Path, '/')+1:]
	return l.makeFolders(in.d.cfg.Path, in.want.Folders)
}

// unused waits until no process has one of the files open: such a process would keep using a removed
// file.
func (in *installer) unused() error {
	return retry(in.ctx, in.d.cfg.BusyTimeout, in.d.cfg.Path, func() error {
		for _, suffix := range suffixes {
			var st unix.Stat_t
			err := unix.Fstatat(in.l.dir.FD(), in.l.name+suffix, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if pid := opener(st); pid != 0 {
				return &lockedError{in.l.name + suffix, pid}
			}
		}
		return nil
	})
}

// build creates, beside the database, the new entries for its file names. It returns the names whose
// entries differ.
func (in *installer) build() (differs map[string]bool, err error) {
	now, _, err := in.d.readRaw(in.ctx, sum)
	if err != nil {
		return nil, err
	}
	chunks, err := in.want.chunks()
	if err != nil {
		return nil, err
	}
	of := map[string][]cas.Hash{} // chunks by the entry's path
	for _, e := range in.want.entries() {
		n := min(e.Chunks, len(chunks))
		of[string(e.Path)], chunks = chunks[:n], chunks[n:]
	}
	differs = map[string]bool{}
	for _, suffix := range suffixes {
		list := at(in.want.entries(), suffix)
		if sameEntries(at(now.entries(), suffix), list) {
			continue
		}
		differs[suffix] = true
		name := builtName(in.id, suffix)
		if err := in.d.removeTree(in.l.dir, name, 0); err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		if err := in.make(in.l.dir, name, list, of); err != nil {
			return nil, err
		}
	}
	if err := unix.Fsync(in.l.dir.FD()); err != nil {
		return nil, err
	}
	return differs, in.d.cfg.Failpoint.At("install: built")
}

// make creates the first entry of list under name, and the others within it.
func (in *installer) make(dir *beneath.Root, name string, list []rawEntry, chunks map[string][]cas.Hash) error {
	if err := in.ctx.Err(); err != nil {
		return err
	}
	e := list[0]
	switch e.Kind {
	case rawFile:
		f, err := dir.OpenFile(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		err = in.want.writeEntry(in.ctx, f, e, chunks[string(e.Path)])
		if err == nil {
			err = errors.Join(e.attributes().apply(f), f.Sync())
		}
		return errors.Join(err, f.Close())
	case rawLink:
		if err := unix.Symlinkat(string(e.Target), dir.FD(), name); err != nil {
			return err
		}
		return in.own(dir, name, e, unix.S_IFLNK)
	case rawFifo:
		if err := unix.Mknodat(dir.FD(), name, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		return in.own(dir, name, e, unix.S_IFIFO)
	case rawFolder:
		return in.makeFolder(dir, name, list, chunks)
	}
	return errs.New(errs.Corrupt, "read a snapshot", "%q is not a known kind of entry", e.Kind)
}

// attributes returns the entry's owner, mode and extended attributes.
func (e rawEntry) attributes() state {
	return state{Mode: e.Mode, UID: e.UID, GID: e.GID, Xattrs: e.Xattrs}
}

// made opens the entry just created under name, without following links. It returns an error if
// another process replaced the entry.
func made(dir *beneath.Root, name string, kind uint32) (*os.File, error) {
	f, err := dir.OpenFile(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != kind || int(st.Uid) != os.Geteuid() || kind != unix.S_IFDIR && st.Nlink != 1) {
		err = snap.Changed("restore database", f.Name())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// own sets the owner and mode of a link or a fifo that was just created.
func (in *installer) own(dir *beneath.Root, name string, e rawEntry, kind uint32) error {
	f, err := made(dir, name, kind)
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	err = unix.Fchownat(fd, "", int(e.UID), int(e.GID), unix.AT_EMPTY_PATH)
	if err == nil && kind == unix.S_IFIFO {
		err = unix.Chmod(procPath(fd), e.Mode) // the file of the descriptor, wherever it was moved
	}
	return errors.Join(err, f.Close())
}

func (in *installer) makeFolder(dir *beneath.Root, name string, list []rawEntry, chunks map[string][]cas.Hash) error {
	if err := unix.Mkdirat(dir.FD(), name, 0o700); err != nil {
		return err
	}
	check, err := made(dir, name, unix.S_IFDIR)
	if err != nil {
		return err
	}
	if err := check.Close(); err != nil {
		return err
	}
	sub, err := dir.OpenDir(name)
	if err != nil {
		return err
	}
	f, err := sub.OpenFile(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return errors.Join(err, sub.Close())
	}
	err = in.fill(sub, list, chunks)
	if err == nil {
		err = errors.Join(list[0].attributes().apply(f), f.Sync())
	}
	return errors.Join(err, f.Close(), sub.Close())
}

// fill creates the entries within a folder, which is the first of list.
func (in *installer) fill(sub *beneath.Root, list []rawEntry, chunks map[string][]cas.Hash) error {
	top := string(list[0].Path) + "/"
	for rest := list[1:]; len(rest) > 0; {
		path := string(rest[0].Path)
		name, ok := strings.CutPrefix(path, top)
		if !ok || name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return errs.New(errs.Corrupt, "read a snapshot", "%q is not below %q", path, top)
		}
		n := 1
		for n < len(rest) && strings.HasPrefix(string(rest[n].Path), path+"/") {
			n++
		}
		if err := in.make(sub, name, rest[:n], chunks); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// swap renames the new entry to one of the database's file names, or removes the old entry if there is no new one.
func (in *installer) swap(suffix string) error {
	dir, name := in.l.dir.FD(), in.l.name+suffix
	list := at(in.want.entries(), suffix)
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	there := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	isFolder := there && st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case isFolder || there && len(list) > 0 && list[0].Kind == rawFolder: // a folder cannot be replaced by a rename
		old := movedName(in.id, suffix)
		if err := in.d.removeTree(in.l.dir, old, 0); err != nil {
			return err
		}
		if err := unix.Renameat(dir, name, dir, old); err != nil {
			return err
		}
		if err := in.d.cfg.Failpoint.At("install: moved " + suffix); err != nil {
			return err
		}
	case there && len(list) == 0:
		if err := in.l.unlink(name, 0); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		if err := unix.Renameat(dir, builtName(in.id, suffix), dir, name); err != nil {
			return err
		}
	}
	return in.d.cfg.Failpoint.At("install: swapped " + suffix)
}

// removeTree removes the entry called name and everything within it. A missing entry is no error.
func (d *Driver) removeTree(dir *beneath.Root, name string, depth int) error {
	err := unix.Unlinkat(dir.FD(), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if depth > 2*mostDepth {
		return errs.New(errs.Unsupported, "", "%s has too many nested folders to be removed", dir.Name()).WithHint("remove it by hand")
	}
	sub, err := dir.OpenDir(name)
	if err != nil {
		return err
	}
	if err := d.emptyFolder(sub, depth); err != nil {
		return errors.Join(err, sub.Close())
	}
	return errors.Join(unix.Unlinkat(dir.FD(), name, unix.AT_REMOVEDIR), sub.Close())
}

func (d *Driver) emptyFolder(sub *beneath.Root, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstat(sub.FD(), &st); err != nil {
		return err
	}
	if !d.cfg.owns(st) && int(st.Uid) != os.Geteuid() {
		return foreign(sub.Name())
	}
	f, err := sub.OpenFile(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		if err := d.removeTree(sub, name, depth+1); err != nil {
			return err
		}
	}
	return nil
}
