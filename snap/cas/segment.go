package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/cas/mark"
)

const (
	// reserve is the number of bytes that are always allocated after the log's end, so that roots can be deleted when the disk is
	// full.
	reserve = 256 << 10
	// growth is the number of bytes that are allocated at a time for objects.
	growth = 1 << 20
	// early is the number of written bytes after which the kernel is asked to begin writing them to the disk, so that the sync of
	// a large batch has little left to do.
	early = 4 << 20
)

// segment is one file of the log, or a pack. Only the last segment of the log, the active one, grows.
type segment struct {
	seq       uint32
	path      string
	f         *os.File
	size      atomic.Int64 // offset of the end of the last record
	indexSize atomic.Int64 // size of the index file
	holes     atomic.Int64 // bytes of holes in the file
	live      int64        // bytes of the live objects in the segment; guarded by Store.mu
	patchy    bool         // the disk could not read all of the file when the store was opened

	// Fields of the active segment only, guarded by Store.wmu:
	objects []object
	dropped int   // number of objects whose refs were dropped from memory
	durable int64 // everything before this offset is on the disk
	started int64 // the kernel was asked to write everything before this offset
	alloc   int64 // the file system has allocated the file up to this offset; -1: it cannot allocate ahead
}

// ReadAt reads from the segment's file. If the segment is patchy, what the disk cannot read is zeros, page by page: no checksum fits them.
func (g *segment) ReadAt(p []byte, off int64) (n int, err error) {
	const page = 4 << 10
	n, err = g.f.ReadAt(p, off)
	for g.patchy && durable.Unreadable(err) {
		at := off + int64(n)
		gap := p[n:min(int64(len(p)), int64(n)+page-at%page)]
		clear(gap)
		more := 0
		if n, err = n+len(gap), nil; n < len(p) {
			more, err = g.f.ReadAt(p[n:], off+int64(n))
		}
		n += more
	}
	return n, err
}

// onDisk returns the space that the segment takes, in bytes.
func (g *segment) onDisk() int64 { return g.size.Load() - g.holes.Load() }

// measure sets the bytes of holes in a sealed segment, and returns onDisk.
func (g *segment) measure() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(g.f.Fd()), &st) == nil {
		g.holes.Store(max(0, g.size.Load()-st.Blocks*512))
	}
	return g.onDisk()
}

// indexPath returns the path of the index file of a segment of the log. Packs have no index file.
func (g *segment) indexPath() string { return strings.TrimSuffix(g.path, ".seg") + ".idx" }

func segPath(dir string, seq uint32) string { return filepath.Join(dir, fmt.Sprintf("%08x.seg", seq)) }

// ioError returns err, an error on the store's own files, with a kind and a hint.
func (s *Store) ioError(op string, err error) error {
	if err == nil {
		return nil
	}
	e := &errs.Error{Kind: errs.Failed, Op: op, Message: "in " + s.dir, Err: err}
	if noSpace(err) {
		e.Message = "no space left for " + s.dir
		return e.WithHint("free space on its file system, or delete checkpoints")
	}
	return e
}

func noSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// setAside makes the file system allocate n bytes for the active segment, and the reserve after them.
func (s *Store) setAside(n int64) error {
	g := s.active
	need := n + reserve
	if g.alloc < 0 || g.alloc >= need {
		return nil
	}
	grown := func(to int64) error {
		for {
			err := unix.Fallocate(int(g.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, g.alloc, to-g.alloc)
			if err != unix.EINTR {
				return err
			}
		}
	}
	err := grown(need + growth)
	if err == nil {
		g.alloc = need + growth
		return nil
	}
	if noSpace(err) {
		if err = grown(need); err == nil {
			g.alloc = need
		}
		return err
	}
	g.alloc = -1 // this file system cannot allocate ahead: go on without
	return nil
}

// leaves returns ENOSPC if the active segment cannot grow to end without what is to be left free.
func (s *Store) leaves(end int64) error {
	g := s.active
	if s.opt.Leave == 0 || g.alloc >= end+reserve {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(g.f.Fd()), &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if int64(fs.Bavail)*fs.Bsize < end-g.size.Load()+s.opt.Leave {
		return unix.ENOSPC
	}
	return nil
}

// appendObject writes an object's record at the log's end, in a new segment if the active one is full. The caller must hold
// wmu.
func (s *Store) appendObject(r *record) (object, error) {
	if s.active.size.Load()+r.size() > s.opt.SegmentBytes && len(s.active.objects) > 0 {
		if err := s.roll(); err != nil {
			return object{}, err
		}
	}
	if err := s.opt.Failpoint.At("append-object"); err != nil {
		return object{}, err
	}
	end := s.active.size.Load() + r.size()
	if err := s.leaves(end); err != nil {
		return object{}, err
	}
	if err := s.setAside(end); err != nil {
		return object{}, err
	}
	off, err := s.write(r)
	if err != nil {
		return object{}, err
	}
	o := object{hash: r.hash, off: uint32(off), stored: r.stored, kind: r.kind, refs: r.refList(), series: r.series}
	s.active.objects = append(s.active.objects, o)
	return o, nil
}

// write appends a record to the active segment. After an error, the end of the segment is where it was. The caller must hold
// wmu.
func (s *Store) write(r *record) (off int64, err error) {
	g := s.active
	off = g.size.Load()
	r.put(r.buf, s.salt, g.seq, off)
	if _, err := g.f.WriteAt(r.buf, off); err != nil {
		// If this fails too, the next record is written over the incomplete one.
		_ = g.f.Truncate(off)
		g.alloc = min(g.alloc, off)
		_ = s.setAside(off)
		return 0, err
	}
	g.size.Store(off + r.size())
	if n := g.size.Load() - g.started; n >= early {
		// This only begins the writing: sync returns errors of the disk.
		_ = unix.SyncFileRange(int(g.f.Fd()), g.started, n, unix.SYNC_FILE_RANGE_WRITE)
		g.started += n
	}
	return off, nil
}

// sync makes everything written so far durable. After a failure the content of the disk is unknown, so sync drops everything
// since the last sync. The caller must hold wmu.
func (s *Store) sync() error {
	g := s.active
	err := s.opt.Failpoint.At("sync")
	if err == nil {
		err = fdatasync(g.f)
	}
	if err != nil {
		s.rewind()
		return err
	}
	g.durable = g.size.Load()
	g.started = g.durable
	g.dropRefs()
	return nil
}

// dropRefs drops the refs of the durable objects from memory. Only rewind and the index file need refs: rewind those of objects
// that are not durable, and for the index file they are read again.
func (g *segment) dropRefs() {
	for ; g.dropped < len(g.objects); g.dropped++ {
		g.objects[g.dropped].refs = nil
	}
}

// readRefs reads the refs of objects in g from the segment.
func (s *Store) readRefs(g *segment, objects []object) error {
	for i := range objects {
		o := &objects[i]
		if o.kind != kindNode || o.bad {
			continue
		}
		r, err := s.loadRecord(g, o.hash, entry{seg: g.seq, off: o.off, stored: o.stored})
		if err != nil {
			return err
		}
		o.refs = r.refList()
	}
	return nil
}

func fdatasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// rewind truncates the log to its durable end. Open batches fail from then on, because they may rely on truncated objects. The
// caller must hold wmu.
func (s *Store) rewind() {
	g := s.active
	_ = g.f.Truncate(g.durable) // if this fails, the next record is written over the old content
	g.alloc, g.started = min(g.alloc, g.durable), min(g.started, g.durable)
	g.size.Store(g.durable)
	_ = s.setAside(g.durable)
	keep := len(g.objects)
	for keep > 0 && int64(g.objects[keep-1].off) >= g.durable {
		keep--
	}
	gone := g.objects[keep:]
	g.objects, g.dropped = g.objects[:keep:keep], min(g.dropped, keep)

	s.mu.Lock()
	s.epoch++
	var children []Hash
	for i := range gone {
		children = append(children, s.forget(&gone[i], g)...)
	}
	s.mu.Unlock()
	s.release(children)
}

// roll seals the active segment and begins the next one. After an error, the old one is still active. The caller must hold wmu.
func (s *Store) roll() error {
	old := s.active
	if err := s.sync(); err != nil {
		return err
	}
	next, err := s.create(old.seq + 1)
	if noSpace(err) && old.alloc > old.size.Load() {
		// Free the space that was allocated ahead for the old segment, for the new one.
		if old.f.Truncate(old.size.Load()) == nil {
			old.alloc = old.size.Load()
			next, err = s.create(old.seq + 1)
		}
	}
	if err != nil {
		return err
	}
	objects := old.objects
	s.mu.Lock()
	s.segs[next.seq] = next
	s.active = next
	old.objects, old.dropped = nil, 0
	s.mu.Unlock()
	// Free the space that was allocated ahead. A failure costs only a little space.
	_ = old.f.Truncate(old.size.Load())
	if s.readRefs(old, objects) == nil { // without an index file, the next Open scans the segment
		_ = s.writeIndex(old, objects)
	}
	_ = s.setAside(next.size.Load())
	return nil
}

// create durably creates a segment with all roots. It writes a temporary file and renames it when it is complete. The caller
// must hold wmu, unless the store is not yet shared.
func (s *Store) create(seq uint32) (*segment, error) {
	path := segPath(s.dir, seq)
	g := &segment{seq: seq, path: path}
	if err := s.opt.Failpoint.At("create-segment"); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	g.f = f
	if err := s.fill(g); err != nil {
		f.Close()
		os.Remove(path + ".tmp")
		return nil, err
	}
	if err := durable.Sync(s.dir); err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return g, nil
}

// fill writes the header and the known roots of a new segment, makes them durable, and renames the file to its final name.
func (s *Store) fill(g *segment) error {
	if _, err := g.f.WriteAt(mark.Header(mark.Segment, s.salt, g.seq), 0); err != nil {
		return err
	}
	c := change{id: s.changeID, set: s.Roots(""), all: !s.unsure}
	r := c.record()
	if r.raw > maxPayload {
		return errs.New(errs.Failed, "", "too many roots")
	}
	end := int64(segHeaderSize)
	for range 2 { // two copies: there may be no older segment to replay if one is damaged
		r.put(r.buf, s.salt, g.seq, end)
		if _, err := g.f.WriteAt(r.buf, end); err != nil {
			return err
		}
		end += r.size()
	}
	if err := s.opt.Failpoint.At("sync-segment"); err != nil {
		return err
	}
	if err := fdatasync(g.f); err != nil {
		return err
	}
	g.size.Store(end)
	g.durable, g.alloc = g.size.Load(), g.size.Load()
	if err := s.opt.Failpoint.At("name-segment"); err != nil {
		return err
	}
	return os.Rename(g.path+".tmp", g.path)
}

// remove removes the files of the segment and its index, and closes the segment.
func (g *segment) remove() error {
	if err := os.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(g.indexPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return g.f.Close()
}
