// Package overlay mounts workspaces over one read-only copy of a workspace that they share (overlayfs). Such a workspace costs the same
// however large the copy is.
//
// A pinned copy is a folder that root alone may enter:
//
//	PINNED/base        the copy: the lower layer of all mounts. Nothing in it is ever changed, as the kernel requires.
//	PINNED/NAME/upper  what the workspace NAME has of its own
//	PINNED/NAME/work   overlayfs's own
//
// The folder around PINNED is the owner's, who can rename PINNED or put another folder in its place. So PINNED has an attribute that only
// root can set, and is opened and checked before it is used. The owner cannot rename or unmount a mounted workspace.
//
// Mounts are made in the mount namespace of the host's first process, so that everybody sees them, also if the daemon has a
// namespace of its own. Each has the source "mulligan:PINNED's name/NAME", by which it is found wherever its folder is moved to.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

// mark is the attribute of a pinned copy's folder. Its value is the folder's name.
const mark = "trusted.mulligan.pinned"

const baseName = "base"

// Base returns the folder of the copy itself.
func Base(pinned string) string { return filepath.Join(pinned, baseName) }

// Mount is a workspace over a pinned copy.
type Mount struct {
	Pinned string // the folder of the pinned copy
	Name   string // unique among the workspaces over this copy; a file name
	At     string // the workspace's folder, which is empty where nothing is mounted
	Owner  int    // uid that the folder must belong to, if not root
	Fresh  bool   // nobody has used the workspace yet: what it has of its own may be made anew
}

func source(pinned, name string) string { return "mulligan:" + filepath.Base(pinned) + "/" + name }

// one lets one call at a time change mounts: to look and to mount are two steps.
var one sync.Mutex

// Ensure mounts the workspace unless it is mounted. It fails, and leaves the folder as it is, if something of the workspace is missing. The folder
// below the mount becomes read-only: what is written where the mount is missing would be lost.
func (m Mount) Ensure() error {
	one.Lock()
	defer one.Unlock()
	const op = "mount the folder of a fork"
	if there, err := m.mounted(); there || err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if err := onHost(m.mount); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	there, err := m.mounted()
	if err == nil && !there {
		err = errs.New(errs.Unsupported, "", "what the host mounts is not seen by mulligand")
	}
	if err != nil {
		err = errs.Also(err, onHost(func() error { return unmount(source(m.Pinned, m.Name)) }))
	}
	return errs.Wrap(errs.Failed, op, err)
}

// mounted reports whether this process sees the workspace at its folder.
func (m Mount) mounted() (bool, error) {
	all, err := readMounts(ownMounts)
	if err != nil {
		return false, err
	}
	there := false
	for _, x := range all {
		if x.Path == m.At { // the last one covers the others
			there = x.Type == "overlay" && x.Source == source(m.Pinned, m.Name)
		}
	}
	return there, nil
}

// mount mounts the workspace. It runs in the host's namespace.
func (m Mount) mount() error {
	pinned, err := open(m.Pinned)
	if err != nil {
		return (&errs.Error{Kind: errs.NotFound, Message: fmt.Sprintf("the copy of files that %s is based on, %s, cannot be used", m.At, m.Pinned), Err: err}).
			WithHint("put it back to where it was; without it, nothing but the fork's checkpoints is left: drop the fork")
	}
	defer pinned.Close()
	base, err := pinned.OpenDir(baseName)
	if err != nil {
		return err
	}
	defer base.Close()
	upper, work, err := m.layers(pinned, base)
	if err != nil {
		return err
	}
	defer upper.Close()
	defer work.Close()
	at, err := m.openFolder()
	if err != nil {
		return err
	}
	defer at.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(pinned.FD(), &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if fs.Flags&unix.ST_NOEXEC != 0 {
		flags |= unix.MS_NOEXEC
	}
	// Without an index, files with several names split when they are first written to, and one upper folder could be mounted twice.
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=on,redirect_dir=on,metacopy=off",
		inode.ProcPath(base.FD()), inode.ProcPath(upper.FD()), inode.ProcPath(work.FD()))
	err = unix.Mount(source(m.Pinned, m.Name), inode.ProcPath(at.FD()), "overlay", flags, options)
	if errors.Is(err, unix.EBUSY) {
		return errs.New(errs.Busy, "", "the files of %s are still mounted for a process with mounts of its own, which was started before they were unmounted", m.At).
			WithHint("end it: `grep -l %s /proc/[0-9]*/mountinfo` finds it", source(m.Pinned, m.Name))
	}
	if err != nil {
		return &os.PathError{Op: "mount overlay", Path: m.At, Err: err}
	}
	return nil
}

// layers opens what the workspace has of its own.
func (m Mount) layers(pinned, base *beneath.Root) (upper, work *beneath.Root, err error) {
	own, err := pinned.OpenDir(m.Name)
	if errors.Is(err, unix.ENOENT) && m.Fresh {
		if err = m.makeLayers(pinned, base); err == nil {
			own, err = pinned.OpenDir(m.Name)
		}
	}
	if err != nil {
		return nil, nil, errs.Wrap(errs.NotFound, "open what the fork has of its own", err)
	}
	defer own.Close()
	if upper, err = own.OpenDir("upper"); err != nil {
		return nil, nil, err
	}
	if work, err = own.OpenDir("work"); err != nil {
		return nil, nil, errs.Also(err, upper.Close())
	}
	return upper, work, nil
}

// makeLayers makes the folders durably, and the upper one like the copy's: its metadata are those that the workspace has.
func (m Mount) makeLayers(pinned, base *beneath.Root) error {
	fresh := m.Name + ".new"
	if err := pinned.RemoveAll(fresh); err != nil {
		return err
	}
	for _, dir := range []string{fresh, fresh + "/upper", fresh + "/work"} {
		if err := unix.Mkdirat(pinned.FD(), dir, 0o700); err != nil { // PINNED is root's alone: there are no links in it
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
	}
	upper, err := pinned.OpenDir(fresh + "/upper")
	if err != nil {
		return err
	}
	err = errs.Also(like(upper, base), unix.Fsync(upper.FD()))
	if err = errs.Also(err, upper.Close()); err != nil {
		return err
	}
	if err := unix.Renameat(pinned.FD(), fresh, pinned.FD(), m.Name); err != nil {
		return os.NewSyscallError("rename", err)
	}
	return os.NewSyscallError("fsync", unix.Fsync(pinned.FD()))
}

// like gives a folder the metadata of another one.
func like(dir, of *beneath.Root) error {
	st, err := inode.StatAt(of.FD(), "")
	if err != nil {
		return err
	}
	xattrs, err := inode.ReadXattrs(of.FD())
	if err != nil {
		return err
	}
	if err := unix.Fchown(dir.FD(), int(st.Uid), int(st.Gid)); err != nil {
		return os.NewSyscallError("fchown", err)
	}
	if err := unix.Fchmod(dir.FD(), st.Mode&0o7777); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	for _, x := range xattrs {
		if err := unix.Fsetxattr(dir.FD(), x.Name, []byte(x.Value), 0); err != nil {
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtime.Spec()}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, inode.ProcPath(dir.FD()), now, 0))
}

// openFolder opens the folder to mount at. It must be empty, and the owner's or root's.
func (m Mount) openFolder() (at *beneath.Root, err error) {
	if at, err = beneath.Open(m.At); err != nil {
		return nil, err
	}
	if err = m.closeFolder(at); err != nil {
		return nil, errs.Also(err, at.Close())
	}
	return at, nil
}

// closeFolder makes the folder read-only, and then checks that it is empty.
func (m Mount) closeFolder(at *beneath.Root) error {
	st, err := inode.StatAt(at.FD(), "")
	if err != nil {
		return err
	}
	if st.Mount || st.Uid != 0 && int(st.Uid) != m.Owner {
		return errs.New(errs.Conflict, "", "%s is not the folder that was made for the fork", m.At).WithHint("move it away, and make an empty folder there")
	}
	if err := unix.Fchmod(at.FD(), 0o555); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	names, err := inode.List(at.FD())
	if err == nil && len(names) > 0 {
		err = errs.New(errs.Conflict, "", "%s has %q, although the fork's files are not mounted there", m.At, names[0]).WithHint("move what is in it to another folder")
	}
	return err
}

// Remove unmounts the workspace and removes what it has of its own. The folder stays, empty. Remove may be repeated.
func (m Mount) Remove() error {
	one.Lock()
	defer one.Unlock()
	return errs.Wrap(errs.Failed, "unmount the folder of a fork", onHost(func() error {
		if err := unmount(source(m.Pinned, m.Name)); err != nil {
			return err
		}
		pinned, err := open(m.Pinned)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, errForeign) {
			return nil // it is gone, or moved away by its owner
		}
		if err != nil {
			return err
		}
		defer pinned.Close()
		return errs.Also(pinned.RemoveAll(m.Name), pinned.RemoveAll(m.Name+".new"))
	}))
}

// Make makes the folder of a pinned copy, durably, with an empty folder for the copy, which belongs to uid and gid. It returns an error of kind
// errs.Unsupported if workspaces cannot be mounted over it. The folder around it must exist.
func Make(pinned string, uid, gid int) error {
	const op = "make a copy to mount forks over"
	parent, err := beneath.Open(filepath.Dir(pinned))
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(pinned)
	if err := unix.Mkdirat(parent.FD(), name, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: pinned, Err: err}
	}
	dir, err := parent.OpenDir(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	st, err := inode.StatAt(dir.FD(), "")
	if err == nil && (st.Uid != 0 || st.Mode&0o777 != 0o700) { // the owner has put another one there
		err = errForeign
	}
	if err == nil {
		err = unix.Fsetxattr(dir.FD(), mark, []byte(name), 0)
	}
	if err == nil {
		err = unix.Mkdirat(dir.FD(), baseName, 0o755)
	}
	if err != nil {
		return &errs.Error{Kind: errs.Unsupported, Op: op, Message: pinned, Err: err}
	}
	if err := probe(pinned, dir); err != nil {
		return &errs.Error{Kind: errs.Unsupported, Op: op, Message: "this host cannot mount folders of forks over one copy in " + filepath.Dir(pinned), Err: err}
	}
	base, err := dir.OpenDir(baseName)
	if err != nil {
		return err
	}
	defer base.Close()
	err = os.NewSyscallError("fchown", unix.Fchown(base.FD(), uid, gid))
	for _, of := range []*beneath.Root{dir, parent} {
		err = errs.Also(err, os.NewSyscallError("fsync", unix.Fsync(of.FD())))
	}
	return err
}

// errForeign says that another folder is in the place of a pinned copy's.
var errForeign = errors.New("another folder is there")

// open opens the folder of a pinned copy.
func open(pinned string) (*beneath.Root, error) {
	dir, err := beneath.Open(pinned)
	if err != nil {
		return nil, err
	}
	value := make([]byte, 256)
	n, err := unix.Fgetxattr(dir.FD(), mark, value)
	if errors.Is(err, unix.ENODATA) || err == nil && string(value[:n]) != filepath.Base(pinned) {
		err = errForeign
	}
	if err != nil {
		return nil, errs.Also(err, dir.Close())
	}
	return dir, nil
}

// Remove removes a pinned copy with all mounts over it. It leaves a folder that is not one, unless the folder is empty and root's as after a
// crash in Make. Remove may be repeated.
func Remove(pinned string) error {
	one.Lock()
	defer one.Unlock()
	return errs.Wrap(errs.Failed, "remove the copy that forks were mounted over", onHost(func() error {
		if err := unmount(source(pinned, "")); err != nil {
			return err
		}
		parent, err := beneath.Open(filepath.Dir(pinned))
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		defer parent.Close()
		name := filepath.Base(pinned)
		dir, err := open(pinned)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, errForeign):
			return removeBare(parent, name)
		case err != nil:
			return err
		}
		// What is in it first, by the folder that was opened: at its path may be another one by now.
		names, err := inode.List(dir.FD())
		for _, name := range names {
			err = errs.Also(err, dir.RemoveAll(name))
		}
		if err = errs.Also(err, dir.Close()); err != nil {
			return err
		}
		return removeBare(parent, name)
	}))
}

// removeBare removes an empty folder of root's.
func removeBare(parent *beneath.Root, name string) error {
	st, err := inode.StatAt(parent.FD(), name)
	if err != nil || st.Uid != 0 {
		return nil //nolint:nilerr // it is gone, or not ours
	}
	err = unix.Unlinkat(parent.FD(), name, unix.AT_REMOVEDIR)
	if slices.Contains([]error{unix.ENOENT, unix.ENOTEMPTY, unix.ENOTDIR}, err) {
		return nil
	}
	return os.NewSyscallError("rmdir", err)
}

// unmount unmounts all that is mounted from a source; one that ends with a slash stands for all that begin with it. Who still uses a mount keeps what
// is open.
func unmount(source string) error {
	for range 20 { // a folder may be moved between the look and the unmount
		all, err := readMounts(ownMounts)
		if err != nil {
			return err
		}
		ours := slices.DeleteFunc(all, func(m inode.MountPoint) bool {
			return m.Type != "overlay" || m.Source != source && !(strings.HasSuffix(source, "/") && strings.HasPrefix(m.Source, source))
		})
		if len(ours) == 0 {
			return nil
		}
		for _, m := range slices.Backward(ours) {
			if err := unmountOne(m); err != nil {
				return err
			}
		}
	}
	return errs.New(errs.Busy, "", "the folder is moved all the time")
}
