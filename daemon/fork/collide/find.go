package collide

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
)

// Bounds of a search.
const (
	maxFiles = 20_000
	maxFile  = 256 << 10 // bytes of a file that is read
	maxRead  = 64 << 20  // bytes that are read of all files
	maxNamed = 3         // files in one sentence
)

// Search is what to look for in a fork's folder: traces of its parent's.
type Search struct {
	Folder string // the fork's
	Parent string // the parent's
	Ports  []int  // the parent's
}

// trace is what is looked for, and the files that have it.
type trace struct {
	says string // the rest of a sentence after the files' names
	has  func(text string) bool

	files []string
	more  int
}

// Find reads the files of a fork, with a user's rights, and returns whole sentences on what in them may lead to its parent. It looks
// at small files of text, and neither into packages (node_modules) nor into git's own files. What it returns names files, and has nothing else of their
// contents.
func Find(ctx context.Context, user privsep.User, s Search) ([]string, error) {
	return find.Call(ctx, user, s)
}

var find = privsep.Define("collide.find", func(ctx context.Context, s Search) (notes []string, err error) {
	root, err := os.OpenRoot(s.Folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	traces := s.traces()
	worktree, files, left := false, 0, int64(maxRead)
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return nil // it cannot be read, or is gone
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "node_modules"):
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		if files++; files > maxFiles || left <= 0 {
			return fs.SkipAll
		}
		worktree = worktree || path == ".git"
		text := textOf(root, path, e)
		left -= int64(len(text))
		for _, t := range traces {
			if path != ".git" && text != "" && t.has(text) {
				t.note(path)
			}
		}
		return nil
	})
	if worktree {
		notes = append(notes, "The folder is a git worktree: what is committed in the fork is committed in the repository that .git leads to.")
	}
	for _, t := range traces {
		if len(t.files) > 0 {
			notes = append(notes, t.String())
		}
	}
	return notes, err
})

// traces lists what to look for.
func (s Search) traces() []*trace {
	list := []*trace{
		{says: "the app's folder " + s.Parent + " is named here, which leads from the fork to the app.", has: func(text string) bool { return namesPath(text, s.Parent) }},
		{says: "a path in a folder for temporary files is named here, which the fork shares with the app.", has: func(text string) bool {
			return sharedPath(ReplacePath(ReplacePath(text, s.Parent, ""), s.Folder, ""))
		}},
	}
	slices.Sort(s.Ports)
	for _, port := range slices.Compact(s.Ports) {
		is := regexp.MustCompile(fmt.Sprintf(`\b%d\b`, port))
		list = append(list, &trace{says: fmt.Sprintf("port %d is named here, which is the app's.", port), has: is.MatchString})
	}
	return list
}

// String is a whole sentence.
func (t *trace) String() string {
	names := strings.Join(t.files, ", ")
	if t.more > 0 {
		names += fmt.Sprintf(" and %d more", t.more)
	}
	return names + ": " + t.says
}

func (t *trace) note(path string) {
	if len(t.files) == maxNamed {
		t.more++
		return
	}
	t.files = append(t.files, path)
}

// textOf returns the content of a small file of text, or the target of a link; "" for all else.
func textOf(root *os.Root, path string, e fs.DirEntry) string {
	if e.Type() == fs.ModeSymlink {
		target, _ := root.Readlink(path) // one that is gone leads nowhere
		return target
	}
	info, err := e.Info()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return ""
	}
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer f.Close() // it is only read
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil || bytes.IndexByte(b, 0) >= 0 {
		return ""
	}
	return string(b)
}
