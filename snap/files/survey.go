package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

var _ snap.Surveyor = (*Driver)(nil)

// surveyed is how many names a survey looks at.
const surveyed = 500_000

// survey is one look at what of a workspace cannot be captured or given back.
type survey struct {
	d     *Driver
	ctx   context.Context
	giver giver
	left  int // names that are still to be looked at
	gaps  []*gap
}

// gap is one reason why things cannot be captured or given back.
type gap struct {
	one, many string // what is so, after a path and after a number of paths
	remedy    string
	first     string // a path
	n         int
}

// Survey says what of the workspace cannot be captured, or could not be given back, in
// whole sentences with a remedy. It reads no contents.
func (d *Driver) Survey(ctx context.Context) ([]string, error) {
	s, err := d.survey(ctx)
	if err != nil {
		return nil, wrapped(errs.Failed, "look at files", err)
	}
	return s.words(s.gaps)
}

// lacks are the sentences that a snapshot bears: what of it this process could not give back.
func (d *Driver) lacks(ctx context.Context) ([]string, error) {
	if os.Geteuid() == 0 {
		return nil, nil
	}
	s, err := d.survey(ctx)
	if err != nil {
		return nil, err
	}
	return s.words(slices.DeleteFunc(s.gaps, func(g *gap) bool { return g.remedy != ungivable }))
}

// survey looks at every name of the workspace.
func (d *Driver) survey(ctx context.Context) (*survey, error) {
	s := &survey{d: d, ctx: ctx, left: surveyed}
	var err error
	if s.giver, err = self(); err != nil {
		return nil, err
	}
	root, err := d.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return s, s.folder(root, ".")
}

// words makes sentences of gaps.
func (s *survey) words(gaps []*gap) (list []string, err error) {
	for _, g := range gaps {
		path := g.first
		if seen, err := s.d.Seen([]string{path}); err != nil {
			return nil, err
		} else if len(seen) == 1 {
			path = seen[0]
		}
		subject := shown(s.d.cfg.Dir, path) + " " + g.one
		if g.n > 1 {
			subject = fmt.Sprintf("%d paths %s, the first of them %s", g.n, g.many, shown(s.d.cfg.Dir, path))
		}
		list = append(list, subject+": "+g.remedy+".")
	}
	if s.left <= 0 {
		list = append(list, fmt.Sprintf("Only the first %d names of %s were looked at.", surveyed, s.d.cfg.Dir))
	}
	return list, nil
}

// note counts path to the gap of that kind.
func (s *survey) note(path, one, many, remedy string) {
	for _, g := range s.gaps {
		if g.remedy == remedy {
			g.n++
			return
		}
	}
	s.gaps = append(s.gaps, &gap{one, many, remedy, path, 1})
}

func (s *survey) unreadable(path string) {
	s.note(path, "cannot be read", "cannot be read",
		"no checkpoint can be made until the user that mulligand runs as may read it, or it is excluded (mulligan app set exclude=PATTERN)")
}

// folder looks at what is in the open folder dir.
func (s *survey) folder(dir *beneath.Root, path string) error {
	names, err := list(dir.FD())
	if err != nil {
		return s.passes(path, err)
	}
	for _, name := range names {
		if s.left--; s.left < 0 || s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		if err := s.one(dir, join(path, name), name); err != nil {
			return err
		}
	}
	return nil
}

// passes takes an error that says something about the path as a finding.
func (s *survey) passes(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ESTALE):
		return nil // it changed meanwhile
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EIO):
		s.unreadable(path)
		return nil
	}
	return err
}

// one looks at one name.
func (s *survey) one(dir *beneath.Root, path, name string) error {
	st, err := statAt(dir.FD(), name)
	if err != nil {
		return s.passes(path, err)
	}
	if s.d.exclude.excludes(path, st.kind() == dirKind) {
		return nil
	}
	if st.mount {
		s.note(path, "is a mount point", "are mount points", "what is mounted there is not captured; protect it as an app of its own, or as a database")
		return nil
	}
	if err := s.rights(dir, path, name, st); err != nil || st.kind() != dirKind {
		return err
	}
	in, err := dir.OpenDir(name)
	if err != nil {
		return s.passes(path, err)
	}
	defer in.Close()
	return s.folder(in, path)
}

// rights notes what a daemon that is not root could not read or give back.
func (s *survey) rights(dir *beneath.Root, path, name string, st stat) error {
	if s.giver.root {
		return nil
	}
	if kind := st.kind(); kind == unix.S_IFREG {
		if unix.Faccessat(dir.FD(), name, unix.R_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW) == unix.EACCES {
			s.unreadable(path)
			return nil
		}
	}
	e, err := s.entry(dir, name, st)
	if err != nil {
		return s.passes(path, err)
	}
	if word := s.giver.refuses(e); word != "" {
		s.note(path, word, "belong to others, or have what only root can give", ungivable)
	}
	return nil
}

// entry is what a survey knows of a name. Only what may be executed is asked for capabilities.
func (s *survey) entry(dir *beneath.Root, name string, st stat) (*entry, error) {
	e := newEntry(name, st)
	if !e.isFile() || st.mode&0o111 == 0 {
		return &e, nil
	}
	f, err := openPath(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	xattrs, err := readXattrsPath(int(f.Fd()))
	e.setXattrs(xattrs)
	return &e, err
}

// ungivable is the remedy for what a restore by this process cannot make anew.
const ungivable = "a rollback that has to make or replace such a path is refused; chown or chgrp it to yourself, exclude it, or protect this app with the host daemon (root)"
