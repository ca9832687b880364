package beneath

import (
	"errors"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// RemoveAll removes what is called name in the folder, with everything in it. A name that does not exist is no error. RemoveAll follows no
// link and enters no mount: where something is mounted, it returns an error of kind errs.Conflict, and what is mounted stays as it is. A
// folder in which this process may not remove anything gets the permissions for that, if it belongs to this process's user.
func (r *Root) RemoveAll(name string) error {
	if path.Base(name) != name || name == "." || name == ".." || name == "/" {
		return errs.New(errs.Invalid, "remove", "%q is not the name of an entry of a folder", name)
	}
	return r.removeAll(name, path.Join(r.Name(), name))
}

// removeAll does the work of RemoveAll. full is the path for errors.
func (r *Root) removeAll(name, full string) error {
	err := unix.Unlinkat(r.FD(), name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR): // unlink(2) on Linux; EBUSY is a file on which another one is mounted
		return removal(full, err)
	}
	dir, err := r.openToEmpty(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return removal(full, err)
	}
	err = dir.empty(full)
	if err = errs.Also(err, dir.Close()); err != nil {
		return err
	}
	if err := unix.Unlinkat(r.FD(), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return removal(full, err)
	}
	return nil
}

// empty removes everything in the folder.
func (r *Root) empty(full string) error {
	names, err := r.f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.removeAll(name, path.Join(full, name)); err != nil {
			return err
		}
	}
	return nil
}

// openToEmpty opens a folder, and lets its owner list and change it.
func (r *Root) openToEmpty(name string) (*Root, error) {
	at, err := r.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close() // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err == nil && st.Mode&0o700 != 0o700 {
		// The path leads to the folder that is open. Without success, what follows says what is not allowed.
		_ = unix.Chmod("/proc/self/fd/"+strconv.Itoa(int(at.Fd())), st.Mode&0o7777|0o700)
	}
	return r.OpenDir(name)
}

// removal returns an error about the removal of what is at a path.
func removal(full string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return errs.New(errs.Conflict, "", "%s cannot be removed: something is mounted there", full).WithHint("umount %s", full)
	}
	var p *os.PathError
	if errors.As(err, &p) {
		return err
	}
	return &os.PathError{Op: "remove", Path: full, Err: err}
}
