package walk

import (
	"fmt"
	"maps"
	"sync"

	"mulligan/snap/files/inode"
)

// Flags collects the paths whose inode flags (chattr) were seen since the last capture, so that the next capture warns of them.
// The flags of a path are read when the path is read: when it is new, or has changed, which includes a change of flags. Safe
// for concurrent use.
type Flags struct {
	mu    sync.Mutex
	paths map[string]string // the flags by path, as arguments of chattr
	told  map[string]string // the same for paths of earlier warnings, which are not repeated
	more  bool              // more than maxFlagged paths have flags
}

// maxFlagged bounds the paths that are kept.
const maxFlagged = 1000

// look records the inode flags of the open file or folder fd.
func (f *Flags) look(fd int, path string) {
	set := inode.Chattr(fd)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paths == nil {
		f.paths, f.told = map[string]string{}, map[string]string{}
	}
	switch {
	case set == "":
		delete(f.paths, path)
		delete(f.told, path)
	case f.told[path] == set:
	case len(f.paths) == maxFlagged && f.paths[path] == "":
		f.more = true
	default:
		f.paths[path] = set
	}
}

// Warning returns a sentence about the paths for the warnings of a capture, or "" if there are none. It empties the collection.
// name returns a path as people see it.
func (f *Flags) Warning(name func(path string) string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := ""
	for path := range f.paths {
		if first == "" || path < first {
			first = path
		}
	}
	if first == "" {
		return ""
	}
	n, than, set := len(f.paths), "", f.paths[first]
	if f.more {
		than = "more than "
	}
	if len(f.told) > maxFlagged {
		clear(f.told)
	}
	maps.Copy(f.told, f.paths)
	clear(f.paths)
	f.more = false
	if n == 1 {
		return fmt.Sprintf("%s has inode flags (chattr %s) that are not part of a checkpoint: made anew, it is without them.", name(first), set)
	}
	return fmt.Sprintf("%s%d paths have inode flags that are not part of a checkpoint: made anew, they are without them. The first of them is %s (chattr %s).", than, n, name(first), set)
}
