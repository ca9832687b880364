// Package walk reads a workspace, or parts of it, into a tree of manifest nodes. It reads folder by folder, takes unchanged
// files from the memory of earlier walks, and puts contents into the content store.
package walk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/reflink"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// Walker walks one workspace.
type Walker struct {
	Workspace          *workspace.Workspace
	Cache              *Cache          // the results of earlier walks
	MaxFiles, MaxBytes int64           // limits; a walk of a larger tree fails
	Flags              Flags           // inode flags that were seen
	Copies             *reflink.Copies // of large files; nil: none are kept

	// Shown returns a path as the app's owner may see it in a warning or an error: absolute, on one line, and without names from folders that the owner
	// may not look into.
	Shown func(path string) string

	Before func(path string) error // for tests: called before each entry is read, by several goroutines; an error is that of the reading
}

// Scan is one walk of the workspace.
type Scan struct {
	W         *Walker
	op        string
	Ctx       context.Context
	sink      Sink
	has       func(snap.Hash) bool   // reports whether a remembered content is still stored
	Fresh     func(path string) bool // paths to read even if the memory knows them; nil: none
	Mapped    map[uint64]bool        // inode numbers of files to read even if the memory knows them
	Scope     relpath.Scope
	Need      relpath.Scope // what lies outside of it and cannot be read is left out, with a warning; empty: nothing may be unreadable
	Memory    Memory
	OneMoment bool                         // reread git repositories until each was read at one moment
	Skip      func(path string, err error) // unless nil, is called for paths that change or can't be read; the rest is read
	Pack      bool                         // pack folders once they are read: the tree of a large workspace takes a quarter of the memory

	Top          *beneath.Root // the workspace, from which deep folders are opened
	slots        chan struct{} // limits the goroutines beside the first
	Files, bytes atomic.Int64
	paths        atomic.Int64 // the bytes of all paths
	meter        *snap.Meter
	mu           sync.Mutex
	warnings     map[string]bool
	counted      map[*manifest.Node]total // what each folder has added to Files and bytes
}

// total is what a folder has, without what is in the folders below it.
type total struct{ files, bytes, paths int64 }

// ErrMoved means that an entry is not as the listing of its folder said. The folder must be listed again.
var ErrMoved = errors.New("it moved while it was read")

// The number of times that a folder or a file is read if it changes meanwhile.
const (
	folderTries = 10
	fileTries   = 3
)

// walkers bounds the folders that are read at a time. It is higher than the number of processors, because a walker sometimes
// waits for the disk.
var walkers = min(2*runtime.GOMAXPROCS(0), 8)

// NewScan prepares a walk that puts contents into s. keep reports whether a remembered content is still stored, and protects it
// from deletion.
func (w *Walker) NewScan(ctx context.Context, op string, s Sink, keep func(snap.Hash) bool) *Scan {
	return &Scan{W: w, op: op, Ctx: ctx, sink: s, has: keep, Memory: w.Cache, slots: make(chan struct{}, walkers-1),
		warnings: map[string]bool{}, counted: map[*manifest.Node]total{}}
}

// Run walks the workspace and returns its tree, in which the folders have no hashes yet.
func (s *Scan) Run() (*manifest.Node, error) {
	root, err := s.W.Workspace.Open()
	if err != nil {
		return nil, workspace.Wrap(errs.Failed, s.op, err)
	}
	defer root.Close()
	s.Top = root
	s.meter = snap.NewMeter(s.Ctx, "files read", snap.UnitFiles, s.W.Cache.size())
	defer s.foretell()()
	n, began, walk := &manifest.Node{}, time.Now(), s.W.Cache.begin()
	err = s.ReadTree(root, ".", n)
	if err == nil && s.OneMoment {
		err = s.rereadRepositories(root, n, began)
	}
	if err != nil {
		if errors.Is(err, ErrMoved) {
			err = snap.Changed(s.op, s.W.Workspace.Dir)
		}
		return nil, err
	}
	if _, ok := s.Memory.(*Cache); ok && len(s.Scope) == 0 {
		s.W.Cache.retain(walk)
	}
	return n, nil
}

func (s *Scan) warn(format string, args ...any) {
	s.mu.Lock()
	s.warnings[fmt.Sprintf(format, args...)] = true
	s.mu.Unlock()
}

// Warned returns the warnings of the walk, sorted.
func (s *Scan) Warned() []string {
	var out []string
	for w := range s.warnings {
		out = append(out, w)
	}
	slices.Sort(out)
	return out
}

// heldOpen is the depth down to which a walk keeps its folders open. Deeper folders are opened from the top when they are read,
// so that depth does not use up open files.
const heldOpen = 16

// ReadTree reads the open folder dir and everything below it into n. It returns ErrMoved if dir was removed, or if it changes
// and Skip is set.
func (s *Scan) ReadTree(dir *beneath.Root, path string, n *manifest.Node) error {
	name := n.Name
	for range folderTries {
		if err := s.Ctx.Err(); err != nil {
			return err
		}
		*n = manifest.Node{Entry: manifest.Entry{Name: name}}
		err := s.listing(dir, path, n)
		if err == nil {
			err = s.subfolders(dir, path, n)
		}
		if !errors.Is(err, ErrMoved) {
			return err
		}
		if s.Skip != nil || path != "." && gone(dir) {
			return ErrMoved
		}
		s.uncount(n)
	}
	return snap.Changed(s.op, s.shown(path))
}

// deepFolder does the same as ReadTree, but closes dir before it reads the folders below it.
func (s *Scan) deepFolder(dir *beneath.Root, path string, n *manifest.Node) error {
	name := n.Name
	for range folderTries {
		if err := s.Ctx.Err(); err != nil {
			dir.Close()
			return err
		}
		*n = manifest.Node{Entry: manifest.Entry{Name: name}}
		err := s.listing(dir, path, n)
		dir.Close()
		if err == nil {
			err = s.subfolders(nil, path, n)
		}
		if !errors.Is(err, ErrMoved) || s.Skip != nil {
			return err
		}
		s.uncount(n)
		if dir, err = s.Top.OpenDir(path); err != nil {
			return s.Failed(path, err)
		}
	}
	dir.Close()
	return snap.Changed(s.op, s.shown(path))
}

// Passes returns err. If Skip is set, and err is transient or of a path that cannot be read, Passes calls Skip with it and returns nil.
func (s *Scan) Passes(path string, err error) error {
	if err == nil || s.Skip == nil {
		return err
	}
	if Transient(err) || Unreadable(err) {
		s.Skip(path, err)
		return nil
	}
	return err
}

// gone reports whether the open folder was removed.
func gone(dir *beneath.Root) bool {
	st, err := inode.StatAt(dir.FD(), "")
	return err != nil || st.Nlink == 0
}

// listing reads everything in the folder dir except what is in its subfolders. Their nodes get only the fields that stat
// returns.
func (s *Scan) listing(dir *beneath.Root, path string, n *manifest.Node) error {
	fd := dir.FD()
	before, err := inode.StatAt(fd, "")
	if err != nil {
		return s.Failed(path, err)
	}
	names, err := inode.List(fd)
	if err != nil {
		return s.Failed(path, err)
	}
	var bytes, paths int64
	var kids []*manifest.Node
	for _, name := range names {
		p := relpath.Join(path, name)
		st, err := inode.StatAt(fd, name)
		if err == unix.ENOENT && s.Skip != nil {
			continue
		}
		if err != nil {
			if err = s.Failed(p, err); !Unreadable(err) {
				return err
			}
			st.Mode = inode.ListedKind(fd, name)
		}
		if !s.Scope.Leads(p) || s.W.Workspace.Exclude.Excludes(p, st.Kind() == manifest.DirKind) {
			continue
		}
		kid := &manifest.Node{Entry: manifest.NewEntry(name, st)}
		if err == nil {
			kid, err = s.ReadEntry(dir, p, name, st)
		}
		if err := s.Passes(p, s.leaveOut(p, kid, st.Kind(), err)); err != nil {
			return err
		}
		s.meter.Add(1)
		kids = append(kids, kid)
		bytes += min(st.Size, st.Blocks*512)
		paths += int64(len(p))
	}
	after, err := inode.StatAt(fd, "")
	if err != nil {
		return s.Failed(path, err)
	}
	if s.Skip == nil && !before.Same(after) {
		return ErrMoved
	}
	if err := s.count(path, n, total{int64(len(kids)), bytes, paths}); err != nil {
		return err
	}
	n.SetChildren(kids)
	return s.ReadFolder(fd, path, n, before)
}

// ReadFolder sets the entry of the folder n.
func (s *Scan) ReadFolder(fd int, path string, n *manifest.Node, st inode.Stat) error {
	n.Entry = manifest.NewEntry(n.Name, st)
	n.Mount = false // the workspace itself may be a mount point
	n.Mode, n.Uid, n.Gid, n.Mtime = st.Mode, st.Uid, st.Gid, st.Mtime
	n.ID, n.Ctime, n.Sure = st.ID, st.Ctime, true
	if !s.Memory.Find(path, st, &n.Entry) {
		at := time.Now()
		xattrs, err := inode.ReadXattrs(fd)
		if err != nil {
			return s.Failed(path, err)
		}
		n.SetXattrs(xattrs)
		s.W.Flags.look(fd, path)
		s.Memory.Add(st, &n.Entry, at)
		n.Sure = Reliable(st, at)
	}
	if n.Loose = s.W.Workspace.Exclude.Loose[path]; n.Loose {
		n.Mtime = inode.Time{}
	}
	return nil
}

// subfolders walks the folders among n's children, some of them in other goroutines, and then packs n if Pack is set. If dir is nil, it opens them from the top.
func (s *Scan) subfolders(dir *beneath.Root, path string, n *manifest.Node) error {
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	walk := func(k *manifest.Node) {
		p := relpath.Join(path, k.Name)
		if err := s.Passes(p, s.leaveOut(p, k, manifest.DirKind, s.Subfolder(dir, p, k))); err != nil {
			once.Do(func() { failed = err })
		}
	}
	for k := range n.Folders {
		select {
		case s.slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-s.slots }()
				walk(k)
			})
		default:
			walk(k)
		}
	}
	wg.Wait()
	if failed == nil && s.Pack {
		n.Pack()
	}
	return failed
}

// Subfolder reads the folder at path, which dir contains, into n. If dir is nil, it is opened from the top.
func (s *Scan) Subfolder(dir *beneath.Root, path string, n *manifest.Node) error {
	from, rel := dir, n.Name
	if dir == nil {
		from, rel = s.Top, path
	}
	sub, err := from.OpenDir(rel)
	if errors.Is(err, unix.EXDEV) {
		s.Mounted(path, n)
		return nil
	}
	if err != nil {
		return s.Failed(path, err)
	}
	if s.Top != nil && strings.Count(path, "/") >= heldOpen {
		return s.deepFolder(sub, path, n)
	}
	defer sub.Close()
	return s.ReadTree(sub, path, n)
}

// Mounted turns n into a mount point.
func (s *Scan) Mounted(path string, n *manifest.Node) {
	unread(n, n.Kind())
	s.warn("%s", MountWarning(s.shown(path)))
}

// unread gives n, of which only name and type are known, the entry of a mount point: a restore leaves it as it is.
func unread(n *manifest.Node, kind uint32) {
	n.Entry = manifest.Entry{Name: n.Name, Mode: kind, Mount: true}
	n.SetChildren(nil)
	n.LinkKey = ""
}

// leaveOut returns err. If n cannot be read because of it, and lies outside of Need, leaveOut records n as not read and returns nil.
func (s *Scan) leaveOut(path string, n *manifest.Node, kind uint32, err error) error {
	if !Unreadable(err) || s.Need.Leads(path) {
		return err
	}
	s.uncount(n)
	unread(n, kind)
	s.warn("%s is not captured, and a restore leaves it as it is: it is outside of the scope and cannot be read.", s.shown(path))
	return nil
}

func MountWarning(path string) string {
	return path + " is a mount point: what is mounted there is not captured."
}

// The bytes that all paths of a workspace may have together: some, and more for each file. Journals, comparisons and restores hold the paths of what changed,
// which may be everything. Without a bound, a chain of folders with short names, or many files deep down, would fill the memory.
const (
	pathsLeast   = 16 << 20
	pathsPerFile = 256
)

// CheckPaths returns an error, about the folder that at returns, if the paths of that many files have more bytes in all than they may.
func CheckPaths(op string, at func() string, files, bytes int64) error {
	if bytes <= pathsLeast+pathsPerFile*files {
		return nil
	}
	return errs.New(errs.Invalid, op, "%s has too many long paths: %d bytes in all", at(), bytes).WithHint("exclude what is deep in it")
}

// count adds what the folder n has to the totals, and returns an error if the tree is too large.
func (s *Scan) count(path string, n *manifest.Node, has total) error {
	s.mu.Lock()
	s.counted[n] = has
	s.mu.Unlock()
	f, b := s.Files.Add(has.files), s.bytes.Add(has.bytes)
	if err := CheckPaths(s.op, func() string { return s.shown(relpath.Beginning(path)) }, f, s.paths.Add(has.paths)); err != nil {
		return err
	}
	if f <= s.W.MaxFiles && b <= s.W.MaxBytes {
		return nil
	}
	return errs.New(errs.Invalid, s.op, "%s is too large: at least %d files of %d allowed, %d bytes of %d allowed",
		s.W.Workspace.Dir, f, s.W.MaxFiles, b, s.W.MaxBytes).
		WithHint("exclude paths that need no restore (exclude = [\"node_modules/\"] in the app's file), or raise [limits] in mulligand.toml")
}

// uncount takes back what count added for the folder n and the folders below it, which are read again.
func (s *Scan) uncount(n *manifest.Node) {
	s.mu.Lock()
	had := s.counted[n]
	delete(s.counted, n)
	s.mu.Unlock()
	s.Files.Add(-had.files)
	s.bytes.Add(-had.bytes)
	s.paths.Add(-had.paths)
	for k := range n.Folders {
		s.uncount(k)
	}
}

// Failed translates the error of a system call into ErrMoved or an error for people. It returns errors that the walk handles
// as they are.
func (s *Scan) Failed(path string, err error) error {
	switch {
	case errors.Is(err, errGrew), errors.Is(err, ErrMoved), errors.Is(err, unix.EXDEV), errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ESTALE):
		return ErrMoved
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return (&errs.Error{Kind: errs.Denied, Op: s.op, Message: "cannot read " + s.shown(path), Err: workspace.Cause(err)}).
			WithHint("make it readable for the user that mulligand runs as, or exclude it")
	case errors.Is(err, unix.EAGAIN):
		return workspace.Leased(s.op, s.shown(path))
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return (&errs.Error{Kind: errs.Failed, Op: s.op, Message: "cannot read " + s.shown(path), Err: workspace.Cause(err)}).
			WithHint("allow mulligand more open files (LimitNOFILE= in its unit, ulimit -n in a shell)")
	case durable.Unreadable(err):
		return (&errs.Error{Kind: errs.Failed, Op: s.op, Message: "cannot read " + s.shown(path), Err: workspace.Cause(err)}).
			WithHint("look for disk errors in dmesg; exclude the file to protect the rest")
	}
	var e *errs.Error
	if errors.As(err, &e) {
		return err
	}
	return &errs.Error{Kind: errs.Failed, Op: s.op, Message: s.shown(path), Err: workspace.Cause(err)}
}

func (s *Scan) shown(path string) string { return s.W.Shown(path) }

// Transient reports whether err concerns a path that may be readable at another time.
func Transient(err error) bool {
	kind := errs.KindOf(err)
	return errors.Is(err, ErrMoved) || errors.Is(err, snap.ErrChanged) || kind == errs.Denied || kind == errs.Busy
}

// Unreadable reports whether err says that a path may not be read, or that the disk cannot read it.
func Unreadable(err error) bool { return errs.KindOf(err) == errs.Denied || durable.Unreadable(err) }
