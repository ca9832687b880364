package files

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

var _ snap.GapFinder = (*Driver)(nil)

// surveyed bounds the names that a survey examines.
const surveyed = 500_000

// survey searches a workspace for files that cannot be captured or restored.
type survey struct {
	d     *Driver
	ctx   context.Context
	top   *beneath.Root
	giver rights.Giver
	left  int // names that may still be examined
	gaps  []*gap
}

// gap is a reason why files cannot be captured or restored, with the number of files.
type gap struct {
	*reason
	one   string // the sentence after the path
	first string // the path of the first file
	n     int
}

// reason is a reason why files cannot be captured or restored.
type reason struct {
	many   string // the sentence after a number of paths
	remedy string
	blocks bool
}

var (
	unreadable = &reason{"cannot be read", "no checkpoint can be made until the user that mulligand runs as may read it, or it is excluded (`mulligan app set exclude=PATTERN`)", true}
	endless    = &reason{"are larger than any file may be, holes included", "no checkpoint can be made until it is truncated or excluded (`mulligan app set exclude=PATTERN`)", true}
	tooDeep    = &reason{fmt.Sprintf("have more than %d bytes, and are shown by their beginnings", manifest.MaxPath), "no checkpoint can be made until they are removed or excluded (`mulligan app set exclude=PATTERN`)", true}
	mounted    = &reason{"are mount points: the filesystems mounted there are not captured", "protect that as an app of its own, or as a database", false}
	flagged    = &reason{"have inode flags (chattr) that are not part of a checkpoint", "a rollback that makes such a path anew leaves it without them: set them again with chattr. " +
		"One that has to change an immutable or append-only path fails and is undone: take the flag off first, or exclude the path", false}
	ungivable = &reason{"belong to other users, or have attributes that only root can set", "a rollback that has to make or replace such a path is refused; " +
		"chown or chgrp it to yourself, exclude it, or protect this app with the host daemon (root)", false}
)

// FindGaps returns what cannot be captured or restored in the workspace. It reads no contents.
func (d *Driver) FindGaps(ctx context.Context) ([]snap.Gap, error) {
	const op = "look at files"
	s, err := d.survey(ctx)
	if err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	list, err := told(d, s.gaps)
	if err == nil && s.left <= 0 {
		list = append(list, snap.Gap{What: fmt.Sprintf("Only the first %d names of %s were looked at.", surveyed, d.cfg.Dir), Remedy: "exclude paths that need no restore"})
	}
	return list, workspace.Wrap(errs.Failed, op, err)
}

// survey examines every name in the workspace.
func (d *Driver) survey(ctx context.Context) (*survey, error) {
	s := &survey{d: d, ctx: ctx, left: surveyed}
	var err error
	if s.giver, err = rights.Self(); err != nil {
		return nil, err
	}
	root, err := d.ws.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	s.top = root
	st, err := inode.StatAt(root.FD(), "")
	if err != nil {
		return nil, err
	}
	s.flags(".", inode.Chattr(root.FD()), st)
	return s, s.folder(".")
}

// told returns the gaps in a form that the app's owner may see.
func told(d *Driver, gaps []*gap) (list []snap.Gap, err error) {
	for _, g := range gaps {
		seen, err := d.RedactPaths([]string{g.first})
		if err != nil {
			return nil, err
		}
		path := workspace.Shown(d.cfg.Dir, seen[0])
		what := path + " " + g.one + "."
		if g.n > 1 {
			what = fmt.Sprintf("%d paths %s, the first of them %s.", g.n, g.many, path)
		}
		list = append(list, snap.Gap{What: what, Remedy: g.remedy, Blocks: g.blocks})
	}
	return list, nil
}

// note adds path to the gap with this reason.
func (s *survey) note(path, one string, why *reason) {
	for _, g := range s.gaps {
		if g.reason == why {
			g.n++
			return
		}
	}
	s.gaps = append(s.gaps, &gap{why, one, path, 1})
}

func (s *survey) unreadable(path string) { s.note(path, "cannot be read", unreadable) }

// folder examines the entries of the folder path. It closes the folder before it examines the folders below.
func (s *survey) folder(path string) error {
	dir, err := s.top.OpenDir(path)
	if err != nil {
		return s.passes(path, err)
	}
	names, err := inode.List(dir.FD())
	var below []string
	for _, name := range names {
		if s.left--; err != nil || s.left < 0 || s.ctx.Err() != nil {
			break
		}
		var isDir bool
		if isDir, err = s.one(dir, relpath.Join(path, name), name); isDir {
			below = append(below, relpath.Join(path, name))
		}
	}
	dir.Close() // opened for reading
	if err == nil {
		err = s.ctx.Err()
	}
	if err != nil {
		return s.passes(path, err)
	}
	for _, p := range below {
		if err := s.folder(p); err != nil {
			return err
		}
	}
	return nil
}

// passes records an error about a path as a gap.
func (s *survey) passes(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ESTALE):
		return nil // the path changed meanwhile
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), durable.Unreadable(err):
		s.unreadable(path)
		return nil
	}
	return err
}

// one examines one name, and reports whether it is a folder to be examined too.
func (s *survey) one(dir *beneath.Root, path, name string) (isDir bool, err error) {
	st, err := inode.StatAt(dir.FD(), name)
	if err != nil {
		return false, s.passes(path, err)
	}
	if s.d.ws.Exclude.Excludes(path, st.Kind() == manifest.DirKind) {
		return false, nil
	}
	if st.Mount {
		s.note(path, "is a mount point: the filesystem mounted there is not captured", mounted)
		return false, nil
	}
	if len(path) > manifest.MaxPath {
		s.note(relpath.Beginning(path), fmt.Sprintf("has paths of more than %d bytes in it", manifest.MaxPath), tooDeep)
		return false, nil
	}
	if st.Kind() == unix.S_IFREG && st.Size > manifest.MaxFile {
		s.note(path, fmt.Sprintf("has a size of %d bytes, holes included, and a file may have %d", st.Size, int64(manifest.MaxFile)), endless)
	}
	s.flags(path, chattr(dir, name, st), st)
	return st.Kind() == manifest.DirKind, s.rights(dir, path, name, st)
}

// flags records inode flags that a rollback does not restore: those of chattr(1) or, for a file that this process may not read,
// those that statx returns.
func (s *survey) flags(path, set string, st inode.Stat) {
	if set == "" {
		set = st.Chattr()
	}
	if set != "" {
		s.note(path, "has inode flags (chattr "+set+") that are not part of a checkpoint", flagged)
	}
}

// chattr returns the inode flags of the file or folder name, or "" if it is neither or cannot be opened. It never waits,
// neither for a lease on a file nor for the other end of a fifo.
func chattr(dir *beneath.Root, name string, st inode.Stat) string {
	if kind := st.Kind(); kind != unix.S_IFREG && kind != manifest.DirKind {
		return ""
	}
	f, err := dir.OpenFile(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer f.Close() // opened for reading
	return inode.Chattr(int(f.Fd()))
}

// rights records what a daemon without root's rights could not read or restore.
func (s *survey) rights(dir *beneath.Root, path, name string, st inode.Stat) error {
	if s.giver.Root {
		return nil
	}
	if kind := st.Kind(); kind == unix.S_IFREG {
		if unix.Faccessat(dir.FD(), name, unix.R_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW) == unix.EACCES {
			s.unreadable(path)
			return nil
		}
	}
	e, err := s.entry(dir, name, st)
	if err != nil {
		return s.passes(path, err)
	}
	if word := s.giver.Refuses(e); word != "" {
		s.note(path, word, ungivable)
	}
	return nil
}

// entry returns the entry of a name for the survey. It reads capabilities only of executable files.
func (s *survey) entry(dir *beneath.Root, name string, st inode.Stat) (*manifest.Entry, error) {
	e := manifest.NewEntry(name, st)
	if !e.IsFile() || st.Mode&0o111 == 0 {
		return &e, nil
	}
	f, err := inode.OpenPath(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	xattrs, err := inode.ReadXattrsPath(int(f.Fd()))
	e.SetXattrs(xattrs)
	return &e, err
}
