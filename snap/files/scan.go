package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// scan is one walk of the workspace.
type scan struct {
	d         *Driver
	op        string
	ctx       context.Context
	sink      sink
	has       func(snap.Hash) bool   // is a remembered content still stored
	fresh     func(path string) bool // these are read whatever the memory says; nil: none
	mapped    map[uint64]bool        // so are files with these inode numbers
	scope     relpath.Scope
	mind      memory
	oneMoment bool                         // git repositories are read again until each is of one moment
	lax       func(path string, err error) // where set: what moves is left out and told, the rest is read

	top          *beneath.Root // the workspace: what is deep is opened from there
	slots        chan struct{} // walkers beside the first
	files, bytes atomic.Int64
	mu           sync.Mutex
	seen         map[inode.ID]bool
	warnings     map[string]bool
}

// errMoved is the finding that a name is not what the listing of its folder
// said: the folder must be listed again.
var errMoved = errors.New("it moved while it was read")

// tries is how often a folder or a file may change under the reader.
const (
	folderTries = 10
	fileTries   = 3
)

// walkers is how many folders are read at a time: more than there are processors,
// since each of them waits for the disk now and then.
var walkers = min(2*runtime.GOMAXPROCS(0), 8)

// newScan prepares a walk that puts contents into s. keep says whether a
// remembered content is still there, and holds it.
func (d *Driver) newScan(ctx context.Context, op string, s sink, keep func(snap.Hash) bool) *scan {
	return &scan{d: d, op: op, ctx: ctx, sink: s, has: keep, mind: byInode{d.cache}, slots: make(chan struct{}, walkers-1),
		seen: map[inode.ID]bool{}, warnings: map[string]bool{}}
}

// run walks the workspace and gives its tree, unsealed.
func (s *scan) run() (*node, error) {
	root, err := s.d.open()
	if err != nil {
		return nil, wrapped(errs.Failed, s.op, err)
	}
	defer root.Close()
	s.top = root
	n, began := &node{}, time.Now()
	err = s.folder(root, ".", n)
	if err == nil && s.oneMoment {
		err = s.settleRepositories(root, n, began)
	}
	if err != nil {
		if errors.Is(err, errMoved) {
			err = snap.Changed(s.op, s.d.cfg.Dir)
		}
		return nil, err
	}
	if _, ok := s.mind.(byInode); ok && len(s.scope) == 0 {
		s.d.cache.retain(s.seen)
	}
	return n, nil
}

func (s *scan) warn(format string, args ...any) {
	s.mu.Lock()
	s.warnings[fmt.Sprintf(format, args...)] = true
	s.mu.Unlock()
}

func (s *scan) warned() []string {
	var out []string
	for w := range s.warnings {
		out = append(out, w)
	}
	slices.Sort(out)
	return out
}

// heldOpen is down to which depth a walk keeps the folders open that it is in. Below, each is
// opened from the top when its turn comes, so that depth does not cost open files.
const heldOpen = 16

// folder reads the open folder dir and everything below it into n.
func (s *scan) folder(dir *beneath.Root, path string, n *node) error {
	name := n.name
	for range folderTries {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		*n = node{entry: entry{name: name}}
		err := s.listing(dir, path, n)
		if err == nil {
			err = s.subfolders(dir, path, n)
		}
		if !errors.Is(err, errMoved) {
			return err
		}
		if s.lax != nil || path != "." && gone(dir) {
			return errMoved
		}
	}
	return snap.Changed(s.op, s.shown(path))
}

// deepFolder is folder for dir, a folder that it does not keep open while it reads those below.
func (s *scan) deepFolder(dir *beneath.Root, path string, n *node) error {
	name := n.name
	for range folderTries {
		if err := s.ctx.Err(); err != nil {
			dir.Close()
			return err
		}
		*n = node{entry: entry{name: name}}
		err := s.listing(dir, path, n)
		dir.Close()
		if err == nil {
			err = s.subfolders(nil, path, n)
		}
		if !errors.Is(err, errMoved) || s.lax != nil {
			return err
		}
		if dir, err = s.top.OpenDir(path); err != nil {
			return s.failed(path, err)
		}
	}
	dir.Close()
	return snap.Changed(s.op, s.shown(path))
}

// passes hands to lax what did not hold still or can't be read, if there is a lax.
func (s *scan) passes(path string, err error) error {
	if err == nil || s.lax == nil {
		return err
	}
	if unsettled(err) {
		s.lax(path, err)
		return nil
	}
	return err
}

// gone reports whether the open folder was removed.
func gone(dir *beneath.Root) bool {
	st, err := inode.StatAt(dir.FD(), "")
	return err != nil || st.Nlink == 0
}

// listing reads everything in the folder but what is below its subfolders,
// whose nodes it only begins.
func (s *scan) listing(dir *beneath.Root, path string, n *node) error {
	fd := dir.FD()
	before, err := inode.StatAt(fd, "")
	if err != nil {
		return s.failed(path, err)
	}
	names, err := inode.List(fd)
	if err != nil {
		return s.failed(path, err)
	}
	var bytes int64
	for _, name := range names {
		p := relpath.Join(path, name)
		st, err := inode.StatAt(fd, name)
		if err == unix.ENOENT && s.lax != nil {
			continue
		}
		if err != nil {
			return s.failed(p, err)
		}
		if !s.scope.Leads(p) || s.d.exclude.excludes(p, st.Kind() == dirKind) {
			continue
		}
		kid, err := s.entry(dir, p, name, st)
		if err := s.passes(p, err); err != nil {
			return err
		}
		n.kids = append(n.kids, kid)
		bytes += min(st.Size, st.Blocks*512)
	}
	after, err := inode.StatAt(fd, "")
	if err != nil {
		return s.failed(path, err)
	}
	if s.lax == nil && !before.Same(after) {
		return errMoved
	}
	if err := s.count(len(n.kids), bytes); err != nil {
		return err
	}
	return s.own(fd, path, n, before)
}

// own fills in the folder's own entry.
func (s *scan) own(fd int, path string, n *node, st inode.Stat) error {
	n.entry = newEntry(n.name, st)
	n.mount = false // for the workspace itself, which may well be a mount point
	n.mode, n.uid, n.gid, n.mtime = st.Mode, st.Uid, st.Gid, st.Mtime
	s.mark(st)
	n.id, n.ctime, n.sure = st.ID, st.Ctime, true
	if !s.mind.find(path, st, &n.entry) {
		at := time.Now()
		xattrs, err := inode.ReadXattrs(fd)
		if err != nil {
			return s.failed(path, err)
		}
		n.setXattrs(xattrs)
		s.mind.add(st, &n.entry, at)
		n.sure = settled(st, at)
	}
	if n.loose = s.d.exclude.loose[path]; n.loose {
		n.mtime = inode.Time{}
	}
	return nil
}

func (s *scan) mark(st inode.Stat) {
	if s.seen == nil {
		return
	}
	s.mu.Lock()
	s.seen[st.ID] = true
	s.mu.Unlock()
}

// subfolders walks the folders among n's kids, some of them beside this walker. Without a
// dir they are opened from the top.
func (s *scan) subfolders(dir *beneath.Root, path string, n *node) error {
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	walk := func(k *node) {
		p := relpath.Join(path, k.name)
		if err := s.passes(p, s.subfolder(dir, p, k)); err != nil {
			once.Do(func() { failed = err })
		}
	}
	for _, k := range n.kids {
		if !k.isDir() {
			continue
		}
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
	return failed
}

func (s *scan) subfolder(dir *beneath.Root, path string, n *node) error {
	from, rel := dir, n.name
	if dir == nil {
		from, rel = s.top, path
	}
	sub, err := from.OpenDir(rel)
	if errors.Is(err, unix.EXDEV) {
		s.mounted(path, n)
		return nil
	}
	if err != nil {
		return s.failed(path, err)
	}
	if s.top != nil && strings.Count(path, "/") >= heldOpen {
		return s.deepFolder(sub, path, n)
	}
	defer sub.Close()
	return s.folder(sub, path, n)
}

// mounted makes n a mount point.
func (s *scan) mounted(path string, n *node) {
	n.entry = entry{name: n.name, mode: n.kind(), mount: true}
	n.kids, n.tie = nil, ""
	s.warn("%s", mountWarning(s.shown(path)))
}

func mountWarning(path string) string {
	return path + " is a mount point: what is mounted there is not captured."
}

// count adds to the totals and refuses a tree that is too large.
func (s *scan) count(files int, bytes int64) error {
	f, b := s.files.Add(int64(files)), s.bytes.Add(bytes)
	if f <= s.d.cfg.MaxFiles && b <= s.d.cfg.MaxBytes {
		return nil
	}
	return errs.New(errs.Invalid, s.op, "%s is too large: at least %d files of %d allowed, %d bytes of %d allowed",
		s.d.cfg.Dir, f, s.d.cfg.MaxFiles, b, s.d.cfg.MaxBytes).
		WithHint("exclude what need not go back (exclude = [\"node_modules/\"] in the app's file), or raise [limits] in mulligand.toml")
}

// failed makes of a system call's error what the walk goes by.
func (s *scan) failed(path string, err error) error {
	switch {
	case errors.Is(err, errGrew), errors.Is(err, errMoved), errors.Is(err, unix.EXDEV), errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ESTALE):
		return errMoved
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return (&errs.Error{Kind: errs.Denied, Op: s.op, Message: "cannot read " + s.shown(path), Err: cause(err)}).
			WithHint("make it readable for the user that mulligand runs as, or exclude it")
	case errors.Is(err, unix.EAGAIN):
		return leased(s.op, s.shown(path))
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return (&errs.Error{Kind: errs.Failed, Op: s.op, Message: "cannot read " + s.shown(path), Err: cause(err)}).
			WithHint("allow mulligand more open files (LimitNOFILE= in its unit, ulimit -n in a shell)")
	case errors.Is(err, unix.EIO):
		return (&errs.Error{Kind: errs.Failed, Op: s.op, Message: "cannot read " + s.shown(path), Err: cause(err)}).
			WithHint("see what the kernel says of that disk (dmesg); exclude the file to protect the rest")
	}
	var e *errs.Error
	if errors.As(err, &e) {
		return err
	}
	return &errs.Error{Kind: errs.Failed, Op: s.op, Message: s.shown(path), Err: cause(err)}
}

// leased is the error for a file that another process has leased and does not give back.
func leased(op, path string) error {
	return errs.New(errs.Busy, op, "%s is leased by another program, which was asked to give it back and has not (fcntl F_SETLEASE)", path).
		WithHint("stop that program (lslocks names it), or try again in a minute: the kernel ends the lease after fs.lease-break-time seconds")
}

// cause is the system's error without the path that the message has already.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// shown is path as a reader may see it: in full, and on one line.
func (s *scan) shown(path string) string { return shown(s.d.cfg.Dir, path) }

func shown(dir, path string) string {
	full := dir
	if path != "." {
		full = dir + "/" + path
	}
	if strings.ContainsFunc(full, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return fmt.Sprintf("%q", full)
	}
	return full
}
