package carried

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/asowner"
)

// Parcel is what a state consists of on this host.
type Parcel struct {
	State State
	Dir   string   // the folder with the base backup
	List  []byte   // the checksums of its files, as asowner.Sums lists them
	Log   []string // names of log files, in their order
	At    []string // their paths
	// Archive is the folder of finished log files.
	Archive string
}

// Files makes objects of parcels. Base backups and finished log files do not change, so it remembers which pieces they have.
// Safe for concurrent use.
type Files struct {
	mu    sync.Mutex
	known map[string]*Index // by path
}

// index returns the pieces of one file, or of all files of a folder, at a path.
func (c *Files) index(ctx context.Context, open Opener, path string, list []Source, keep bool, check func(*os.File) error) (*Index, error) {
	c.mu.Lock()
	known := c.known[path]
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	x := &Index{}
	for _, src := range list {
		if err := ctx.Err(); err != nil {
			return nil, errs.Wrap(errs.Unavailable, "", err)
		}
		if err := x.Add(open, src, check); err != nil {
			return nil, err
		}
	}
	if keep {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.known == nil {
			c.known = map[string]*Index{}
		}
		c.known[path] = x
	}
	return x, nil
}

// only forgets everything but what is at these paths.
func (c *Files) only(paths map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path := range c.known {
		if !paths[path] {
			delete(c.known, path)
		}
	}
}

// Contents reads what is not known yet of the parcel's files as their owner, and returns the objects. ctx must last for as long as these are
// used.
func (c *Files) Contents(ctx context.Context, owner privsep.User, p Parcel) (*Contents, error) {
	open := func(path string) (*os.File, error) {
		o, err := asowner.Open.Call(ctx, owner, path)
		return o.File, err
	}
	files, err := Listed(p.List, p.Dir)
	if err != nil {
		return nil, err
	}
	base, err := c.index(ctx, open, p.Dir, files, true, nil)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{p.Dir: true}
	var log Index
	for i, name := range p.Log {
		src := Source{File: File{Path: name, Size: int64(p.State.Segments)}, At: p.At[i], Upto: int64(p.State.Segments)}
		last := i == len(p.Log)-1
		if rest := int64(p.State.LSN) % src.Size; last && rest > 0 {
			src.Upto = rest
		}
		begins := func(f *os.File) error { // the server may have reused it while it was read
			if _, err := f.Seek(0, 0); err != nil || !p.State.Segments.Begins(name, f) {
				return errs.Also(errChanged(src.At), err)
			}
			return nil
		}
		finished := src.At == filepath.Join(p.Archive, name) && !last
		x, err := c.index(ctx, open, src.At, []Source{src}, finished, begins)
		if err != nil {
			return nil, err
		}
		used[src.At] = finished
		log.Join(x)
	}
	c.only(used)
	folders, err := asowner.Folders.Call(ctx, owner, p.Dir)
	if err != nil {
		return nil, err
	}
	return New(p.State, Tree{Folders: folders}, base, &log, open)
}
