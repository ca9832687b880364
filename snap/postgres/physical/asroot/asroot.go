// Package asroot has what only root can do for a cluster in a volume of containers. The engine's folders belong to root: so the store of such a
// cluster is made, the data folder and a fork are exchanged, and links to log files are made by the daemon itself. Everything below the volume and
// the store is the cluster's owner's, and the containers', who may put anything there. So this package opens no file, follows no link, and never leaves
// the two folders.
package asroot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
)

// Home has the folders of a cluster in a volume.
type Home struct {
	Volume   string // the volume's folder, which only root can replace
	Data     string // the data folder: the volume's folder, or one below it
	Store    string // not in the volume, so that it stays when the volume is removed
	UID, GID int    // the cluster's owner
}

// StoreOf returns the path of the store for the volume with this folder, which is …/volumes/NAME/_data. It is in the engine's own folder, and so, as a
// rule, on the volume's file system.
func StoreOf(volume string) string {
	name := filepath.Dir(volume)
	return filepath.Join(filepath.Dir(filepath.Dir(name)), "mulligan", filepath.Base(name))
}

// Seen returns the folder that shows the volume's folder to a container, also after another one has taken its place: the one above it if everybody
// may pass through that, as Docker has it. Otherwise that is the volume's folder itself, and the container goes on seeing what was there.
func (h Home) Seen() string {
	var st unix.Stat_t
	above := filepath.Dir(h.Volume)
	if unix.Lstat(above, &st) == nil && st.Mode&0o001 != 0 {
		return above
	}
	return h.Volume
}

// Make makes the store, unless it exists, for the cluster's owner. made reports whether it is new.
func (h Home) Make() (made bool, err error) {
	all := filepath.Dir(h.Store)
	if err := os.Mkdir(all, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	for _, dir := range []string{all, filepath.Dir(h.Volume)} {
		if err := guarded(dir); err != nil {
			return false, err
		}
	}
	err = os.Mkdir(h.Store, 0o700)
	made = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	if err := unix.Lchown(h.Store, h.UID, h.GID); err != nil {
		return made, &os.PathError{Op: "chown", Path: h.Store, Err: err}
	}
	return made, errs.Also(durable.Sync(all), durable.Sync(filepath.Dir(all)))
}

// guarded returns an error if somebody else than root could replace dir, or something in it.
func guarded(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: at, Err: err}
		}
		open := st.Mode&0o022 != 0 && (at == dir || st.Mode&unix.S_ISVTX == 0)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || open {
			return errs.New(errs.Unsupported, "", "others than root could replace the engine's folder %s", at).WithHint("use mode = logical")
		}
		if at == "/" {
			return nil
		}
	}
}

// Fits returns an error unless the data folder and those in the store can be exchanged.
func (h Home) Fits() error {
	var data, store unix.Stat_t
	if err := errors.Join(unix.Lstat(h.Data, &data), unix.Lstat(h.Store, &store)); err != nil {
		return err
	}
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, h.Data, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &x); err != nil {
		return &os.PathError{Op: "statx", Path: h.Data, Err: err}
	}
	switch {
	case x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return errs.New(errs.Unsupported, "", "the data folder %s is a mount point, which cannot be exchanged", h.Data).WithHint("use mode = logical")
	case data.Dev != store.Dev:
		return errs.New(errs.Unsupported, "", "%s is not on the file system of %s", h.Store, h.Data).WithHint("use mode = logical")
	}
	return nil
}

// folder opens the folder at path, which is base or below it, without following a link below base.
func folder(base, path string) (int, error) {
	at, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: base, Err: err}
	}
	rel, err := filepath.Rel(base, path)
	if err != nil || rel == "." {
		return at, err
	}
	defer unix.Close(at)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unix.Openat2(at, rel, &how)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// entry is a name in an open folder.
type entry struct {
	dir  int
	name string
}

// find opens the folder of a path below base.
func find(base, path string) (entry, error) {
	dir, err := folder(base, filepath.Dir(path))
	return entry{dir, filepath.Base(path)}, err
}

func (e entry) close() { _ = unix.Close(e.dir) } // nothing was written through it

// look returns what the name stands for, or nil.
func (e entry) look() (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(e.dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return &st, err
}

func rename(from, to entry, flags uint) error {
	err := unix.Renameat2(from.dir, from.name, to.dir, to.name, flags)
	if err == nil {
		err = errors.Join(sync(from.dir), sync(to.dir))
	}
	return os.NewSyscallError("renameat2", err)
}

// sync makes the names in a folder durable.
func sync(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}

// Exchange exchanges the data folder and whatever is at the path fork in the store; one of them may be missing. No process may run meanwhile that
// is the cluster's owner and sees the store: the engine gives containers whatever lies in the place of the volume's folder.
func (h Home) Exchange(fork string) error {
	base := h.Volume
	if h.Data == h.Volume {
		base = filepath.Dir(h.Volume)
	}
	data, err := find(base, h.Data)
	if err != nil {
		return err
	}
	defer data.close()
	other, err := find(h.Store, fork)
	if err != nil {
		return err
	}
	defer other.close()
	x, err := data.look()
	if err != nil {
		return err
	}
	y, err := other.look()
	if err != nil {
		return err
	}
	isFolder := func(st *unix.Stat_t) bool {
		return st != nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == h.UID
	}
	switch {
	case h.Data == h.Volume && (x == nil || !isFolder(y)):
		return errs.New(errs.Conflict, "", "what would become the volume's folder %s is no folder of the server's user", h.Volume).
			WithHint("docker compose up makes a volume anew that was removed; then restore again")
	case x == nil && y == nil:
		return nil
	case x == nil:
		return rename(other, data, unix.RENAME_NOREPLACE)
	case y == nil:
		return rename(data, other, unix.RENAME_NOREPLACE)
	}
	return rename(data, other, unix.RENAME_EXCHANGE)
}

// Link makes links to log files of the live server in the archive, with a suffix to their names. A link to another file than the live one is replaced.
// It makes none on a file system without hard links.
func (h Home) Link(wal, archive, suffix string, names []string) error {
	from, err := folder(h.Volume, wal)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := folder(h.Store, archive)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, "/.") {
			return errs.New(errs.Internal, "", "%.40q is not a log file", name)
		}
		err := unix.Linkat(from, name, to, name+suffix, 0)
		if !errors.Is(err, unix.EEXIST) {
			continue
		}
		if err := unix.Unlinkat(to, name+suffix, 0); err != nil {
			return os.NewSyscallError("unlinkat", err)
		}
		if err := unix.Linkat(from, name, to, name+suffix, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return os.NewSyscallError("linkat", err)
		}
	}
	return nil
}

// Drop removes a store, whose content the cluster's owner has removed.
func Drop(store string) error {
	err := os.Remove(store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
