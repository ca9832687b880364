package beneath

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

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
	e := emptying{{dir: r, left: []string{name}}}
	err := e.run()
	for _, l := range e[1:] {
		if l.dir != nil {
			err = errs.Also(err, l.dir.Close())
		}
	}
	return err
}

// emptying is the way from the folder of RemoveAll down to the one that is being emptied. It has names and no paths, each of which would take as
// much memory as all names above it.
type emptying []level

// level is a folder on that way.
type level struct {
	name string
	dir  *Root    // nil: closed for now
	left []string // names in it that are to be removed
}

// heldOpen is the number of levels that are open at most, beside the first.
const heldOpen = 16

func (e *emptying) run() error {
	for {
		l := &(*e)[len(*e)-1]
		if n := len(l.left); n > 0 {
			name := l.left[n-1]
			l.left = l.left[:n-1]
			if err := e.remove(l.dir, name); err != nil {
				return err
			}
		} else if len(*e) == 1 {
			return nil
		} else if err := e.leave(); err != nil {
			return err
		}
	}
}

// remove removes what is called name in the folder dir, the last of the way, or makes it the next of the way if it is a folder.
func (e *emptying) remove(dir *Root, name string) error {
	err := unix.Unlinkat(dir.FD(), name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR): // unlink(2) on Linux; EBUSY is a file on which another one is mounted
		return removal(e.path(name), err)
	}
	sub, err := dir.openToEmpty(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return removal(e.path(name), err)
	}
	*e = append(*e, level{name: name, dir: sub})
	l := &(*e)[len(*e)-1]
	if l.left, err = sub.f.Readdirnames(-1); err != nil {
		return removal(e.path(), err)
	}
	if high := len(*e) - 1 - heldOpen; high > 0 && (*e)[high].dir != nil {
		err = (*e)[high].dir.Close()
		(*e)[high].dir = nil
	}
	return err
}

// leave removes the last folder of the way, which is empty.
func (e *emptying) leave() error {
	last := len(*e) - 1
	l := (*e)[last]
	err := l.dir.Close()
	*e = (*e)[:last]
	if (*e)[last-1].dir == nil {
		err = errs.Also(err, e.reopen())
	}
	if err != nil {
		return removal(e.path(l.name), err)
	}
	if err := unix.Unlinkat((*e)[last-1].dir.FD(), l.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return removal(e.path(l.name), err)
	}
	return nil
}

// reopen opens the last levels of the way again, the highest of them from the top.
func (e *emptying) reopen() (err error) {
	first := max(1, len(*e)-heldOpen)
	at, rel := (*e)[0].dir, strings.Join(e.names()[:first], "/")
	for i := first; err == nil && i < len(*e); i++ {
		l := &(*e)[i]
		if i > first {
			rel = l.name
		}
		if at, err = at.openShort(rel); err == nil {
			l.dir = at
		}
	}
	return err
}

// path returns the path of names in the last folder of the way, for an error.
func (e *emptying) path(names ...string) string {
	return path.Join((*e)[0].dir.Name(), strings.Join(append(e.names(), names...), "/"))
}

// names returns the names of the folders of the way, without the first.
func (e *emptying) names() (list []string) {
	for _, l := range (*e)[1:] {
		list = append(list, l.name)
	}
	return list
}

// openToEmpty opens a folder, and lets its owner list and change it.
func (r *Root) openToEmpty(name string) (*Root, error) {
	at, err := openBelow(r.FD(), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(at) // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err == nil && st.Mode&0o700 != 0o700 {
		// The path leads to the folder that is open. Without success, what follows says what is not allowed.
		_ = unix.Chmod("/proc/self/fd/"+strconv.Itoa(at), st.Mode&0o7777|0o700)
	}
	return r.openShort(name)
}

// openShort does the same as OpenDir, but the folder that it returns does not keep its whole path, and errors have none.
func (r *Root) openShort(rel string) (*Root, error) {
	fd, err := openBelow(r.FD(), rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &Root{os.NewFile(uintptr(fd), path.Base(rel))}, nil
}

// removal returns an error about the removal of what is at a path.
func removal(full string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return errs.New(errs.Conflict, "", "%s cannot be removed: something is mounted there", full).WithHint("umount %s", full)
	}
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err // its path is not the whole one
	}
	return &os.PathError{Op: "remove", Path: full, Err: err}
}
