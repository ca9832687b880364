package files

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// Git moves objects into packs and refs into one file, and removes what is then double. A
// capture that reads one folder before such a move and another after it has neither. Hence a .git
// is captured as it was at one moment: it is looked at again, until nothing in it has changed
// between two looks. Taking git's locks instead would make the user's git fail.

const (
	// gitPatience is how long a capture waits for git to come to an end.
	gitPatience = 2 * time.Second
	// gitPause is how long it waits between two looks, so that what was written last is older than the clock's step.
	gitPause = 15 * time.Millisecond
	// lockAge is up to how old a lock is waited for: older ones are of a git that died.
	lockAge = 10 * time.Second
)

// isRepository reports whether n is what git keeps a repository in: a .git, or a bare one.
func isRepository(n *node) bool {
	objects, refs, head := n.kid("objects"), n.kid("refs"), n.kid("HEAD")
	return objects != nil && objects.isDir() && refs != nil && refs.isDir() && head != nil
}

// repositories calls do for each repository in n that lies in no other.
func repositories(n *node, path string, do func(path string, n *node)) {
	if isRepository(n) {
		do(path, n)
		return
	}
	for _, k := range n.kids {
		if k.isDir() {
			repositories(k, relpath.Join(path, k.name), do)
		}
	}
}

// settleRepositories makes each repository in top one of one moment, by reading it again. began
// is when the walk did.
func (s *scan) settleRepositories(root *beneath.Root, top *node, began time.Time) error {
	var failed error
	repositories(top, ".", func(path string, n *node) {
		if failed == nil && path != "." {
			failed = s.settleRepository(root, path, n, began)
		}
	})
	return failed
}

func (s *scan) settleRepository(root *beneath.Root, path string, n *node, began time.Time) error {
	until := time.Now().Add(gitPatience)
	for {
		still, err := s.still(root, path, n, began)
		if err != nil || still && !locked(n) {
			return err
		}
		if time.Now().After(until) {
			s.warn("%s", busyRepository(s.shown(path)))
			return nil
		}
		if err := pause(s.ctx, gitPause); err != nil {
			return err
		}
		began = time.Now()
		if err := s.readAgain(root, path, n); err != nil {
			return err
		}
	}
}

func busyRepository(path string) string {
	return "Git was at work in " + path + " all the time: what is captured of it may be of different moments, or hold git's locks. " +
		"After going back there, run `git fsck`, and remove what ends in .lock there."
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// still reports whether nothing came into, or went from, any folder in n since it was
// read, which began then. Git replaces files by renaming; those that it appends to are logs.
func (s *scan) still(root *beneath.Root, path string, n *node, began time.Time) (bool, error) {
	dir, err := root.OpenDir(path)
	if err == nil {
		defer dir.Close()
		return s.stillIn(dir, n, began)
	}
	if err = s.failed(path, err); errors.Is(err, errMoved) || errs.KindOf(err) == errs.Denied {
		return false, nil
	}
	return false, err
}

func (s *scan) stillIn(dir *beneath.Root, n *node, began time.Time) (bool, error) {
	st, err := inode.StatAt(dir.FD(), "")
	if err != nil || !n.is(st) || !settled(st, began) {
		return false, s.ctx.Err()
	}
	for _, k := range n.kids {
		if !k.isDir() {
			continue
		}
		if still, err := s.still(dir, k.name, k, began); !still || err != nil {
			return false, err
		}
	}
	return true, nil
}

// locked reports whether a git that is at work holds a lock of the repository's own, in n.
func locked(n *node) bool {
	return slices.ContainsFunc(n.kids, func(k *node) bool {
		return strings.HasSuffix(k.name, ".lock") && time.Since(time.Unix(k.ctime.Sec, int64(k.ctime.Nsec))) < lockAge
	})
}

// readAgain reads the folder at path anew into n.
func (s *scan) readAgain(root *beneath.Root, path string, n *node) error {
	s.files.Add(-int64(count(n)))
	dir, err := root.OpenDir(path)
	if err != nil {
		return s.failed(path, err)
	}
	defer dir.Close()
	return s.folder(dir, path, n)
}

// count is how many names are in n.
func count(n *node) int {
	c := len(n.kids)
	for _, k := range n.kids {
		c += count(k)
	}
	return c
}

// moving lists the repositories in the tree that are not as they were read, the reading of which
// began then, and those that are locked.
func (j *journal) moving(ctx context.Context, began time.Time) (moved, held []string, err error) {
	root, err := j.open()
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	s := j.d.newScan(ctx, "look at files", nil, nil)
	repositories(j.live.root, ".", func(path string, n *node) {
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

// touchesRepository reports whether what is on the list may lie in a repository.
func (t *todo) touchesRepository() bool {
	in := func(p string) bool {
		return strings.Contains(p, ".git") || strings.Contains(p, "objects") || strings.Contains(p, "refs")
	}
	for _, set := range []map[string]bool{t.paths, t.trees} {
		for p := range set {
			if in(p) {
				return true
			}
		}
	}
	return t.all
}
