// Package beneath opens files and folders below a root folder and never leaves that folder: it follows no symbolic link in any
// component, does not let ".." lead out, and crosses no mount point. Every driver that works as root opens paths in a workspace
// only with this package, because the workspace's owner may replace folders by links at any moment.
//
// The package needs openat2(2) (Linux 5.6). It has no fallback, because none would be safe.
package beneath

import (
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Root is an open folder. It remains open on the same folder if the folder is moved or renamed.
type Root struct {
	f *os.File
}

// Open opens the folder dir. dir must be an absolute path without symbolic links.
func Open(dir string) (*Root, error) {
	if !path.IsAbs(dir) {
		return nil, errs.New(errs.Invalid, "open folder", "%q is not an absolute path", dir)
	}
	fd, err := openat2(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0,
		unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, classify("open folder", dir, err)
	}
	return &Root{os.NewFile(uintptr(fd), dir)}, nil
}

// From returns an open folder as a Root. Whoever opened it decided which links lead there.
func From(folder *os.File) *Root { return &Root{folder} }

// Close closes the folder.
func (r *Root) Close() error { return r.f.Close() }

// FD returns the folder's descriptor, for the *at system calls on names without a slash.
func (r *Root) FD() int { return int(r.f.Fd()) }

// Name returns the path with which the folder was opened.
func (r *Root) Name() string { return r.f.Name() }

// OpenFile opens rel, a slash-separated path relative to the folder ("." is the folder itself), with the flags and mode of
// open(2). It always adds O_CLOEXEC and O_NOFOLLOW. It also adds O_NONBLOCK, so that opening a fifo does not block, except with
// O_PATH, which never blocks and with which openat2(2) refuses O_NONBLOCK. rel may be longer than the kernel's limit
// (PATH_MAX). The error is EAGAIN if another process does not give up its lease of the file within two seconds.
func (r *Root) OpenFile(rel string, flags int, mode uint32) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK
	}
	fd, err := openBelow(r.FD(), rel, flags|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: r.path(rel), Err: err}
	}
	return os.NewFile(uintptr(fd), r.path(rel)), nil
}

// path returns the path of rel. It does not clean the path, as path.Join would, because that takes long where folders are very deep.
func (r *Root) path(rel string) string {
	if rel == "." {
		return r.Name()
	}
	return strings.TrimSuffix(r.Name(), "/") + "/" + rel
}

// OpenRegular opens the regular file rel to be read. Anything else is an error; its kind is errs.Invalid.
func (r *Root) OpenRegular(rel string) (*os.File, os.FileInfo, error) {
	f, err := r.OpenFile(rel, unix.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errs.New(errs.Invalid, "", "%q is no regular file", rel)
	}
	if err != nil {
		f.Close() // nothing was written
		return nil, nil, err
	}
	return f, info, nil
}

// ReadFile returns the content of the regular file rel, and its mode. A file of more than most bytes is an error of the kind errs.Invalid.
func (r *Root) ReadFile(rel string, most int64) ([]byte, os.FileMode, error) {
	f, info, err := r.OpenRegular(rel)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close() // nothing was written
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = errs.New(errs.Invalid, "", "%q has more than %d bytes", rel, most)
	}
	if err != nil {
		return nil, 0, err
	}
	return b, info.Mode(), nil
}

// OpenDir opens the folder rel as another Root.
func (r *Root) OpenDir(rel string) (*Root, error) {
	f, err := r.OpenFile(rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Root{f}, nil
}

// Parent opens the folder that contains rel. It returns this folder and rel's last component, for the *at system calls. The
// caller must close dir.
func (r *Root) Parent(rel string) (dir *Root, base string, err error) {
	folder, base := path.Split(rel)
	if base == "" || base == "." || base == ".." {
		return nil, "", errs.New(errs.Invalid, "open folder", "%q names no entry of a folder", rel)
	}
	folder = strings.TrimRight(folder, "/")
	if folder == "" {
		folder = "."
	}
	dir, err = r.OpenDir(folder)
	return dir, base, err
}

// longest bounds the bytes of a path in one system call. The kernel's limit is 4095.
const longest = 3000

// openBelow opens rel, in several steps if it is long.
func openBelow(dirfd int, rel string, flags int, mode uint32) (int, error) {
	const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	at := dirfd
	for len(rel) > longest {
		cut := strings.LastIndexByte(rel[:longest], '/')
		if cut <= 0 {
			break // a single name: the kernel returns an error if it is too long
		}
		next, err := openat2(at, rel[:cut], unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, resolve)
		closeStep(at, dirfd)
		if err != nil {
			return -1, err
		}
		at, rel = next, rel[cut+1:]
	}
	fd, err := openat2(at, rel, flags, mode, resolve)
	closeStep(at, dirfd)
	return fd, err
}

// closeStep closes at, an intermediate folder on the way from dirfd.
func closeStep(at, dirfd int) {
	if at != dirfd {
		unix.Close(at) // the descriptor is O_PATH: closing it cannot fail
	}
}

// patience bounds the time for which openat2 repeats a call that returns EAGAIN. There are two causes, and repeating helps with
// both: a concurrent rename raced the walk, so the kernel could not prove that the path stayed beneath; or another process
// holds a lease of the file (fcntl(2)) and was told to release it, which it may never do.
const patience = 2 * time.Second

func openat2(dirfd int, name string, flags int, mode uint32, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	if flags&(unix.O_CREAT|unix.O_TMPFILE) != 0 {
		how.Mode = uint64(mode)
	}
	var began time.Time
	for rest := time.Duration(0); ; {
		fd, err := unix.Openat2(dirfd, name, &how)
		switch {
		case err == unix.EINTR:
			continue
		case err != unix.EAGAIN:
			return fd, err
		case began.IsZero():
			began = time.Now()
		case time.Since(began) > patience:
			return fd, err
		}
		time.Sleep(rest)
		rest = min(2*rest+10*time.Microsecond, 10*time.Millisecond)
	}
}

func classify(op, object string, err error) error {
	kind, hint := errs.Failed, ""
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		kind, hint = errs.NotFound, "check that the folder exists"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		kind, hint = errs.Denied, "check who may read the folder"
	case errors.Is(err, unix.ELOOP):
		kind, hint = errs.Denied, "name the folder by a path without symbolic links"
	case errors.Is(err, unix.ENOSYS):
		kind, hint = errs.Unsupported, "a Linux kernel of 5.6 or newer is needed"
	}
	return &errs.Error{Kind: kind, Op: op, Message: object, Hint: hint, Err: err}
}
