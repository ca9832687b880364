package walk

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// foretell counts what a walk will read, for its progress, until the returned function is called. A walk whose memory knows the workspace
// needs no counting, and neither does one to which nobody listens.
func (s *Scan) foretell() (end func()) {
	if s.meter == nil || s.W.Cache.size() > 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(s.Ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The walk lists the folder that it has open, and an open folder has one place up to which it was listed: this needs its own.
		root, err := s.Top.OpenDir(".")
		if err != nil {
			return // it is the walk's to tell what cannot be read
		}
		defer root.Close()
		if n, err := s.number(ctx, root, "."); err == nil {
			s.meter.Expect(n)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// number returns how many entries are in the folder dir and below it.
func (s *Scan) number(ctx context.Context, dir *beneath.Root, path string) (n int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	names, err := inode.List(dir.FD())
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		p := relpath.Join(path, name)
		st, err := inode.StatAt(dir.FD(), name)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return 0, err
		}
		folder := st.Kind() == manifest.DirKind
		if !s.Scope.Leads(p) || s.W.Workspace.Exclude.Excludes(p, folder) {
			continue
		}
		n++
		if !folder {
			continue
		}
		below, err := s.below(ctx, dir, p, name)
		if err != nil {
			return 0, err
		}
		n += below
	}
	return n, nil
}

// errDeep means that counting would hold too many folders open.
var errDeep = errors.New("a folder is too deep to be counted")

// below returns how many entries are below the folder at path, which dir contains.
func (s *Scan) below(ctx context.Context, dir *beneath.Root, path, name string) (int64, error) {
	if strings.Count(path, "/") >= 4*heldOpen {
		return 0, errDeep
	}
	sub, err := dir.OpenDir(name)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOENT) {
		return 0, nil // a mount point, of which nothing is read; or it is gone
	}
	if err != nil {
		return 0, err
	}
	defer sub.Close()
	return s.number(ctx, sub, path)
}
