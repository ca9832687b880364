package sqlite

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
)

// tempName returns the name of the file that a restore writes beside the database.
func tempName(id snap.RestoreID) string { return ".mulligan-" + string(id) }

// replace replaces the live database, which nobody else uses, by the state of r; write writes its
// content. At each instant the folder holds one of the two states and no mixture:
//
//  1. If a log or a hot journal counts, the database is first replaced by a copy with these
//     applied. Applying them to the copy again changes nothing.
//  2. The log, its index and the journal are removed.
//  3. The new file is renamed over the database, or the database is removed.
func (d *Driver) replace(ctx context.Context, l *live, id snap.RestoreID, r record, write func(*os.File) error) error {
	if len(l.layers) > 0 {
		if err := d.applyLogs(ctx, l, id); err != nil {
			return err
		}
	}
	if err := l.clear(); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("replace: cleared"); err != nil {
		return err
	}
	if r.State.Absent {
		return d.remove(l, r)
	}
	if l.dir == nil {
		if err := l.makeFolders(d.cfg.Path, r.Folders); err != nil {
			return err
		}
	}
	if err := d.put(l, id, r.State, write); err != nil {
		return err
	}
	return d.alone(ctx, l)
}

// applyLogs replaces the database by a copy with journal and log applied.
func (d *Driver) applyLogs(ctx context.Context, l *live, id snap.RestoreID) error {
	s, err := l.attributes()
	if err != nil {
		return err
	}
	return d.put(l, id, s, func(f *os.File) error {
		_, _, err := l.stream(ctx, readAll, func(p []byte) (cas.Hash, error) {
			_, err := f.Write(p)
			return cas.Hash{}, err
		})
		return err
	})
}

// put writes a new file and renames it over the database. The file stays locked until l is closed, so
// that nobody uses the database in between.
func (d *Driver) put(l *live, id snap.RestoreID, s state, write func(*os.File) error) error {
	temp := tempName(id)
	if err := l.unlink(temp, 0); err != nil {
		return err
	}
	f, err := l.dir.OpenFile(temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	l.files = append(l.files, f)
	err = d.fill(f, s, write)
	if err == nil {
		err = unix.Renameat(l.dir.FD(), temp, l.dir.FD(), l.name)
	}
	if err != nil {
		return errors.Join(err, l.unlink(temp, 0))
	}
	if err := d.cfg.Failpoint.At("replace: renamed"); err != nil {
		return err
	}
	return unix.Fsync(l.dir.FD())
}

func (d *Driver) fill(f *os.File, s state, write func(*os.File) error) error {
	if err := lockExclusive(f); err != nil {
		return err
	}
	if err := write(f); err != nil {
		return err
	}
	if err := s.apply(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return d.cfg.Failpoint.At("replace: written")
}

// clear removes the files beside the database that belong to it.
func (l *live) clear() error {
	if l.dir == nil {
		return nil
	}
	for _, suffix := range []string{"-wal", "-journal", "-shm"} {
		if err := l.unlink(l.name+suffix, 0); err != nil {
			return err
		}
	}
	return unix.Fsync(l.dir.FD())
}

// remove removes the database, and those of its folders that the state does not have if they are
// empty.
func (d *Driver) remove(l *live, r record) error {
	if l.dir == nil {
		return nil
	}
	if err := l.unlink(l.name, 0); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("replace: removed"); err != nil {
		return err
	}
	if err := unix.Fsync(l.dir.FD()); err != nil || !r.Missing {
		return err
	}
	return d.removeFolders(l, r)
}

// removeFolders removes the empty folders above the database that r does not have.
func (d *Driver) removeFolders(l *live, r record) error {
	parts := strings.Split(d.cfg.Path, "/")
	for n := len(parts) - 1; n > len(r.Folders); n-- {
		err := removeFolder(l.root, strings.Join(parts[:n], "/"))
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func removeFolder(root *beneath.Root, path string) error {
	dir, name, err := root.Parent(path)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(dir.FD(), name, unix.AT_REMOVEDIR)
	if err == nil {
		err = unix.Fsync(dir.FD())
	}
	return errors.Join(err, dir.Close())
}

// makeFolders creates the missing folders of path below Config.Dir, with the owners and modes in list.
func (l *live) makeFolders(path string, list []folder) error {
	if l.gone != nil {
		return l.gone
	}
	parts := strings.Split(path, "/")
	for i := range min(len(list), len(parts)-1) {
		if err := makeFolder(l.root, strings.Join(parts[:i+1], "/"), list[i]); err != nil {
			return err
		}
	}
	dir, _, err := l.root.Parent(path)
	if err == nil {
		l.dir = dir
	}
	return err
}

func makeFolder(root *beneath.Root, path string, as folder) error {
	dir, name, err := root.Parent(path)
	if err != nil {
		return err
	}
	defer dir.Close() // synced below where it matters
	err = unix.Mkdirat(dir.FD(), name, 0o700)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return err
	}
	made, err := dir.OpenDir(name)
	if err != nil {
		return err
	}
	err = unix.Fchown(made.FD(), int(as.UID), int(as.GID))
	if err == nil {
		err = unix.Fchmod(made.FD(), as.Mode)
	}
	return errors.Join(err, made.Close(), unix.Fsync(dir.FD()))
}

// unlink removes name from the folder; a missing name is no error.
func (l *live) unlink(name string, flags int) error {
	err := unix.Unlinkat(l.dir.FD(), name, flags)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// alone checks that nobody opened the old file while it was being replaced: such a process, waiting for
// the lock, would keep using a removed file. (A child that the daemon is just starting has the
// daemon's files open for a moment.)
func (d *Driver) alone(ctx context.Context, l *live) error {
	if l.db == nil {
		return nil
	}
	return retry(ctx, d.cfg.BusyTimeout, d.cfg.Path, func() error {
		if pid := opener(l.stat); pid != 0 {
			return &lockedError{l.db.Name(), pid}
		}
		return nil
	})
}

// removeTemp removes the files that an interrupted restore left beside the database.
func (d *Driver) removeTemp(id snap.RestoreID) error {
	root, err := openDir(d.cfg)
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close() // only read
	dir, _, err := root.Parent(d.cfg.Path)
	if err != nil {
		return ignoreMissing(err)
	}
	defer dir.Close()
	names := []string{tempName(id)}
	for _, suffix := range suffixes {
		names = append(names, builtName(id, suffix), movedName(id, suffix))
	}
	var all []error
	for _, name := range names {
		// On a filesystem that is mounted for reading only, even the removal of a missing entry fails.
		if err := unix.Faccessat(dir.FD(), name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
			all = append(all, d.removeTree(dir, name, 0))
		}
	}
	return errors.Join(all...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
