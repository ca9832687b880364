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
)

const (
	// reserve is kept allocated behind the log's end, so that roots can be
	// deleted when the disk is full.
	reserve = 256 << 10
	// growth is how much is allocated at a time for objects.
	growth = 1 << 20
	// early is how much is written before the disk is asked to begin with it, so
	// that a sync finds most of a large batch done.
	early = 4 << 20
)

// segment is one file of the log. Only the last one, the active, grows.
type segment struct {
	seq       uint32
	path      string
	f         *os.File
	size      atomic.Int64 // end of its last record
	indexSize atomic.Int64 // of its index file
	holes     atomic.Int64 // bytes punched out of it
	live      int64        // bytes of the live objects in it; Store.mu

	// Of the active segment only; Store.wmu:
	objects []object
	dropped int   // objects whose refs are not kept
	durable int64 // everything before this offset is on the disk
	started int64 // everything before this offset is on its way there
	alloc   int64 // the file system has set this much aside; -1: it doesn't do that
}

// onDisk is the space that the segment takes, in bytes.
func (g *segment) onDisk() int64 { return g.size.Load() - g.holes.Load() }

// measure finds out how much of a sealed segment is holes, and returns onDisk.
func (g *segment) measure() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(g.f.Fd()), &st) == nil {
		g.holes.Store(max(0, g.size.Load()-st.Blocks*512))
	}
	return g.onDisk()
}

// indexPath is where the index of a segment of the log is; a pack has none.
func (g *segment) indexPath() string { return strings.TrimSuffix(g.path, ".seg") + ".idx" }

func segPath(dir string, seq uint32) string { return filepath.Join(dir, fmt.Sprintf("%08x.seg", seq)) }

// ioError gives err, met on the store's own files, its kind and a remedy.
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

// setAside makes sure that the file system has allocated the active segment up
// to n bytes and the reserve behind it.
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
	g.alloc = -1 // not on this file system: do without
	return nil
}

// appendObject writes an object's record at the log's end, beginning a new
// segment when this one is full. wmu is held.
func (s *Store) appendObject(r *record) (object, error) {
	if s.active.size.Load()+r.size() > s.opt.SegmentBytes && len(s.active.objects) > 0 {
		if err := s.roll(); err != nil {
			return object{}, err
		}
	}
	if err := s.opt.Failpoint.At("append-object"); err != nil {
		return object{}, err
	}
	if err := s.setAside(s.active.size.Load() + r.size()); err != nil {
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

// write puts a record at the end of the active segment. After an error the
// end is where it was. wmu is held.
func (s *Store) write(r *record) (off int64, err error) {
	g := s.active
	off = g.size.Load()
	r.put(r.buf, s.salt, g.seq, off)
	if _, err := g.f.WriteAt(r.buf, off); err != nil {
		// If this fails too, the next record goes over the half-written one.
		_ = g.f.Truncate(off)
		g.alloc = min(g.alloc, off)
		_ = s.setAside(off)
		return 0, err
	}
	g.size.Store(off + r.size())
	if n := g.size.Load() - g.started; n >= early {
		// Only an early start: an error of the disk is the sync's to tell.
		_ = unix.SyncFileRange(int(g.f.Fd()), g.started, n, unix.SYNC_FILE_RANGE_WRITE)
		g.started += n
	}
	return off, nil
}

// sync makes everything written so far durable. When that fails nobody knows
// what is on the disk, and everything since the last sync is given up. wmu is held.
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

// dropRefs lets go of the refs of what is durable: only rewind and the index ask for
// them, and that one can read them again.
func (g *segment) dropRefs() {
	for ; g.dropped < len(g.objects); g.dropped++ {
		g.objects[g.dropped].refs = nil
	}
}

// readRefs reads the refs of objects in g again.
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
	_ = g.f.Truncate(g.durable) // else the next record is written over it
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

// roll seals the active segment and begins the next. After an error the old one
// is active still. wmu is held.
func (s *Store) roll() error {
	old := s.active
	if err := s.sync(); err != nil {
		return err
	}
	next, err := s.create(old.seq + 1)
	if noSpace(err) && old.alloc > old.size.Load() {
		// The new segment may have what was set aside for the old one.
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
	// Give back what was set aside; a failure costs a little space.
	_ = old.f.Truncate(old.size.Load())
	if s.readRefs(old, objects) == nil { // without an index the next opening reads the segment
		_ = s.writeIndex(old, objects)
	}
	_ = s.setAside(next.size.Load())
	return nil
}

// create makes a segment that holds all roots, durably: a temporary file that
// gets its name when it is complete. wmu is held, or the store not yet shared.
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

// fill writes what a new segment begins with and gives it its name.
func (s *Store) fill(g *segment) error {
	if _, err := g.f.WriteAt(segHeader(s.salt, g.seq), 0); err != nil {
		return err
	}
	c := change{id: s.changeID, set: s.Roots(""), all: true}
	r := c.record()
	if r.raw > maxPayload {
		return errs.New(errs.Failed, "", "too many roots")
	}
	end := int64(segHeaderSize)
	for range 2 { // there may be no older segment to replace a damaged one
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

// remove unlinks a segment and its index.
func (g *segment) remove() error {
	if err := os.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(g.indexPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return g.f.Close()
}
