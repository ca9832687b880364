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

// Git moves objects into packs and refs into one file, and removes what is then double. A
// capture that reads one folder before such a move and another after it has neither. Hence a .git
// is captured as it was at one moment: it is looked at again, until nothing in it has changed
// between two looks. Taking git's locks instead would make the user's git fail.

const (
	// GitPatience is how long a capture waits for git to come to an end.
	GitPatience = 2 * time.Second
	// GitPause is how long it waits between two looks, so that what was written last is older than the clock's step.
	GitPause = 15 * time.Millisecond
	// lockAge is up to how old a lock is waited for: older ones are of a git that died.
	lockAge = 10 * time.Second
)

// isRepository reports whether n is what git keeps a repository in: a .git, or a bare one.
func isRepository(n *manifest.Node) bool {
	objects, refs, head := n.Child("objects"), n.Child("refs"), n.Child("HEAD")
	return objects != nil && objects.IsDir() && refs != nil && refs.IsDir() && head != nil
}

// repositories calls do for each repository in n that lies in no other.
func repositories(n *manifest.Node, path string, do func(path string, n *manifest.Node)) {
	if isRepository(n) {
		do(path, n)
		return
	}
	for _, k := range n.Children {
		if k.IsDir() {
			repositories(k, relpath.Join(path, k.Name), do)
		}
	}
}

// rereadRepositories makes each repository in top one of one moment, by reading it again. began
// is when the walk did.
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

// still reports whether nothing came into, or went from, any folder in n since it was
// read, which began then. Git replaces files by renaming; those that it appends to are logs.
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
	for _, k := range n.Children {
		if !k.IsDir() {
			continue
		}
		if still, err := s.still(dir, k.Name, k, began); !still || err != nil {
			return false, err
		}
	}
	return true, nil
}

// locked reports whether a git that is at work holds a lock of the repository's own, in n.
func locked(n *manifest.Node) bool {
	return slices.ContainsFunc(n.Children, func(k *manifest.Node) bool {
		return strings.HasSuffix(k.Name, ".lock") && time.Since(time.Unix(k.Ctime.Sec, int64(k.Ctime.Nsec))) < lockAge
	})
}

// readAgain reads the folder at path anew into n.
func (s *Scan) readAgain(root *beneath.Root, path string, n *manifest.Node) error {
	s.Files.Add(-int64(count(n)))
	dir, err := root.OpenDir(path)
	if err != nil {
		return s.Failed(path, err)
	}
	defer dir.Close()
	return s.ReadTree(dir, path, n)
}

// count is how many names are in n.
func count(n *manifest.Node) int {
	c := len(n.Children)
	for _, k := range n.Children {
		c += count(k)
	}
	return c
}

// Moving lists the repositories in tree that are not as they were read, the reading of which
// began then, and those that are locked.
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
