package walk

import (
	"fmt"
	"maps"
	"sync"

	"mulligan/snap/files/inode"
)

// Flags collects the paths with inode flags (chattr) that were met since the last capture, for that capture to warn of.
// A path is met when it is read, which is when it is new or has changed; a change of flags is one. Safe for concurrent use.
type Flags struct {
	mu    sync.Mutex
	paths map[string]string // what chattr would set, by path
	told  map[string]string // the same of those that a capture warned of: what is read again is not told again
	more  bool              // there are others, which are not among paths
}

// maxFlagged bounds how many paths are told apart.
const maxFlagged = 1000

// look notes the inode flags of the open file or folder fd.
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

// Warning returns the sentence for a capture, or "", and forgets what it is about. name gives the path as people see it.
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
