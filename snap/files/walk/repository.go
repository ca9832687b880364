package walk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// Git moves objects into packs and refs into one file, and then removes the originals. A capture that reads one folder before
// such a move and another one after it has neither copy. Therefore a .git is captured at one moment: it is read again until
// nothing in it has changed between two readings. Holding git's locks instead would make the user's git fail.

const (
	// GitPatience is the longest time that a capture waits until git has finished.
	GitPatience = 2 * time.Second
	// GitPause is the pause between two readings. It exceeds the clock's step, so that a later write gets another timestamp.
	GitPause = 15 * time.Millisecond
	// lockAge bounds the age of a lock that is waited for. An older lock is of a git process that died.
	lockAge = 10 * time.Second
)

// isRepository reports whether n is a git repository: a .git, or a bare repository.
func isRepository(n *manifest.Node) bool {
	objects, refs, head := n.Child("objects"), n.Child("refs"), n.Child("HEAD")
	return objects != nil && objects.IsDir() && refs != nil && refs.IsDir() && head != nil
}

// repositories calls do for each repository in n that is not inside another one.
func repositories(n *manifest.Node, path string, do func(path string, n *manifest.Node)) {
	if isRepository(n) {
		do(path, n)
		return
	}
	for k := range n.Folders {
		repositories(k, relpath.Join(path, k.Name), do)
	}
}

// rereadRepositories reads each repository below top again until it was read at one moment, or warns after
// GitPatience. began is the time at which the walk began.
func (s *Scan) rereadRepositories(root *beneath.Root, top *manifest.Node, began time.Time) error {
	var failed error
	repositories(top, ".", func(path string, n *manifest.Node) {
		if failed == nil && path != "." {
			failed = s.rereadRepository(root, path, n, began)
		}
	})
	return failed
}

func (s *Scan) rereadRepository(root *beneath.Root, path string, n *manifest.Node, began time.Time) error {
	until := time.Now().Add(GitPatience)
	for {
		still, err := s.still(root, path, n, began)
		if err != nil || still && !locked(n) {
			return err
		}
		if time.Now().After(until) {
			s.warn("%s", BusyWarning(s.shown(path)))
			return nil
		}
		if err := Wait(s.Ctx, GitPause); err != nil {
			return err
		}
		began = time.Now()
		if err := s.readAgain(root, path, n); err != nil {
			return err
		}
	}
}

func BusyWarning(path string) string {
	return "Git was at work in " + path + " all the time: its captured files may be of different moments, or include git's locks. " +
		"After a rollback to this checkpoint, run `git fsck` and remove the *.lock files."
}

func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// still reports whether no entry was added to, or removed from, any folder in n since n was read. began is the time at which
// that reading began. Git replaces files by renaming, and appends only to logs, so the folders show every relevant change.
func (s *Scan) still(root *beneath.Root, path string, n *manifest.Node, began time.Time) (bool, error) {
	dir, err := root.OpenDir(path)
	if err == nil {
		defer dir.Close()
		return s.stillIn(dir, n, began)
	}
	if err = s.Failed(path, err); errors.Is(err, ErrMoved) || errs.KindOf(err) == errs.Denied {
		return false, nil
	}
	return false, err
}

func (s *Scan) stillIn(dir *beneath.Root, n *manifest.Node, began time.Time) (bool, error) {
	st, err := inode.StatAt(dir.FD(), "")
	if err != nil || !n.Unchanged(st) || !Reliable(st, began) {
		return false, s.Ctx.Err()
	}
	for k := range n.Folders {
		if still, err := s.still(dir, k.Name, k, began); !still || err != nil {
			return false, err
		}
	}
	return true, nil
}

// locked reports whether a running git process holds a lock of the repository n: whether n has a recent .lock file.
func locked(n *manifest.Node) bool {
	return slices.ContainsFunc(n.Children(), func(k *manifest.Node) bool {
		return strings.HasSuffix(k.Name, ".lock") && time.Since(time.Unix(k.Ctime.Sec, int64(k.Ctime.Nsec))) < lockAge
	})
}

// readAgain reads the folder at path into n, and replaces what n had.
func (s *Scan) readAgain(root *beneath.Root, path string, n *manifest.Node) error {
	s.uncount(n)
	dir, err := root.OpenDir(path)
	if err != nil {
		return s.Failed(path, err)
	}
	defer dir.Close()
	return s.ReadTree(dir, path, n)
}

// Moving returns the repositories in tree that have changed since they were read (moved), and those that are locked (held).
// began is the time at which the tree's reading began.
func (s *Scan) Moving(root *beneath.Root, tree *manifest.Node, began time.Time) (moved, held []string, err error) {
	repositories(tree, ".", func(path string, n *manifest.Node) {
		if err != nil || path == "." {
			return
		}
		var still bool
		still, err = s.still(root, path, n, began)
		switch {
		case err != nil:
		case !still:
			moved = append(moved, path)
		case locked(n):
			held = append(held, path)
		}
	})
	return moved, held, err
}
