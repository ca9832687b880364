package cas

import (
	"errors"
	"io/fs"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
)

// Hash names an object: BLAKE3-256 of a blob's bytes, or of a node's refs and
// bytes in a domain of its own.
type Hash = snap.Hash

const (
	// MaxObject is the largest blob, in bytes.
	MaxObject = 1<<20 + 64<<10
	// MaxNode is the largest node, in bytes of data and refs together.
	MaxNode = 64 << 20
	// ChunkSize is the usual size of the blobs that large contents are cut into.
	ChunkSize = 1 << 20
	// MaxName and MaxMeta limit a root's name and the owner's bytes in it.
	MaxName = 4 << 10
	MaxMeta = 64 << 10
)

// Root is a durable name for an object.
type Root struct {
	Name string
	Hash Hash
	Meta []byte // the owner's own bytes, at most MaxMeta
}

// Options adjust a store; the zero value is right for production.
type Options struct {
	// SegmentBytes is the size at which a new segment is begun: 128 MiB if 0,
	// at most 1 GiB.
	SegmentBytes int64
	// PackBytes is how much must lie loose at least before Pack does something:
	// 256 KiB if 0.
	PackBytes int64
	Failpoint failpoint.Hook // for tests: called ahead of each step that lasts
}

// Store is an open content-addressed store. Its methods are safe for concurrent use.
type Store struct {
	dir  string
	lock *os.File // the folder itself, under flock
	salt salt
	opt  Options

	// Locks are taken in this order: gc, wmu, refMu, mu.
	gc       sync.Mutex // one collection at a time
	wmu      sync.Mutex // the log's end
	changeID uint64     // of the newest change; wmu
	refMu    sync.Mutex // counts on their way down a graph

	mu     sync.RWMutex
	closed bool
	index  map[Hash]entry
	roots  map[string]Root
	segs   map[uint32]*segment
	active *segment // changes under wmu and mu
	epoch  uint64   // how often the log's end was given up

	// suspect is set once damage was found, and stays set: a batch then looks below what it keeps.
	suspect atomic.Bool

	groups   groupCache
	lastPack uint32        // the newest pack's number; gc
	commits  atomic.Uint64 // how many there were, to tell whether somebody is at work
}

// entry is what the index knows of an object. refs counts the roots, the live
// nodes and the open batches that refer to it; it is live when refs is not 0.
// Every refs of a live node is counted in the objects that it refers to.
type entry struct {
	seg, off, stored uint32 // seg 0: it is referred to, and it is not there
	refs             uint32
	slot             uint16 // in a group, which is at off then, and stored its share
	flags            uint8
}

const (
	isNode  = 1 << iota
	isBad   // damage was found in it
	counted // its refs are counted
)

func (e entry) has(flag uint8) bool { return e.flags&flag != 0 }
func (e entry) grouped() bool       { return e.seg >= firstPack }

func (e entry) size() int64 {
	if e.grouped() {
		return int64(e.stored)
	}
	return headerSize + int64(e.stored)
}

// is reports whether the entry is of o in the segment seq.
func (e entry) is(o *object, seq uint32) bool {
	return e.seg == seq && e.off == o.off && e.slot == o.slot
}

// there reports whether new nodes may refer to the object. A dead node is not
// there: what it refers to may have been collected.
func (e entry) there() bool {
	return e.seg != 0 && !e.has(isBad) && (e.refs > 0 || !e.has(isNode))
}

// closedError is what every method of a closed store answers with.
func closedError(op string) error {
	return errs.New(errs.Unavailable, op, "the store is closed")
}

// Close makes the store's folder free for others. Batches that are open are
// lost. Closing twice is no error.
func (s *Store) Close() error {
	s.gc.Lock()
	defer s.gc.Unlock()
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if s.isClosed() {
		return nil
	}
	err := s.ioError("close the store", s.sync())
	return errors.Join(err, s.drop())
}

func (s *Store) isClosed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.closed
}

// drop closes the files and nothing else, as the end of the process would. wmu
// is held, or the store not yet shared.
func (s *Store) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var list []error
	for _, g := range s.segs {
		list = append(list, g.f.Close())
	}
	// A child that another goroutine is just starting holds the folder open until
	// its exec: closing alone would leave the lock with it.
	return errors.Join(append(list, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN), s.lock.Close())...)
}

// Has reports whether h is stored so that a new node may refer to it. Between
// Has and the node it may be deleted: [Batch.Keep] asks and holds on to it.
func (s *Store) Has(h Hash) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index[h].there()
}

// Get reads the bytes of the blob or node h and checks them against the hash.
// An object that was never stored or was deleted is errs.NotFound, a damaged
// one or one that went missing errs.Corrupt.
func (s *Store) Get(h Hash) ([]byte, error) {
	c, err := s.read("read an object", h)
	return c.data, err
}

// Node reads the node h like Get, with the hashes that it refers to.
func (s *Store) Node(h Hash) (data []byte, refs []Hash, err error) {
	c, err := s.read("read a node", h)
	if err != nil {
		return nil, nil, err
	}
	if c.kind != kindNode {
		return nil, nil, errs.New(errs.Invalid, "read a node", "%v is a blob", h)
	}
	return c.data, c.refs, nil
}

// content is one object, read.
type content struct {
	kind   byte
	series uint32
	refs   []Hash
	data   []byte
}

// read reads and verifies one object, and remembers damage.
func (s *Store) read(op string, h Hash) (c content, err error) {
	for {
		s.mu.RLock()
		closed, e, g := s.closed, s.index[h], (*segment)(nil)
		if e.seg != 0 {
			g = s.segs[e.seg]
		}
		s.mu.RUnlock()
		switch {
		case closed:
			return c, closedError(op)
		case g == nil && e.refs > 0:
			return c, errs.New(errs.Corrupt, op, "object %v is missing from %s", h, s.dir)
		case g == nil:
			return c, errs.New(errs.NotFound, op, "no object %v", h)
		}
		c, err := s.load(g, h, e)
		if errors.Is(err, os.ErrClosed) {
			continue // its segment was just collected, and it is elsewhere
		}
		if err == nil {
			return c, nil
		}
		if ioFailure(err) {
			return c, s.ioError(op, err)
		}
		if !s.markBad(h, e) {
			continue // it is elsewhere now, or gone
		}
		return c, &errs.Error{Kind: errs.Corrupt, Op: op, Err: err,
			Message: "object " + h.String() + " is damaged in " + g.path}
	}
}

// ioFailure tells a fault of the system from damage: a place that the disk
// cannot read (EIO) is damaged.
func ioFailure(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && !errors.Is(err, unix.EIO)
}

// load reads and verifies the object h, which e says is in g.
func (s *Store) load(g *segment, h Hash, e entry) (c content, err error) {
	if e.grouped() {
		return s.loadGrouped(g, h, e)
	}
	r, err := s.loadRecord(g, h, e)
	if err != nil {
		return c, err
	}
	c = content{kind: r.kind, series: r.series, refs: r.refList()}
	c.data, err = r.verify()
	return c, err
}

// loadRecord reads the record that e says is h's.
func (s *Store) loadRecord(g *segment, h Hash, e entry) (*record, error) {
	r := &record{buf: make([]byte, e.size())}
	if err := readFull(g.f, r.buf, int64(e.off)); err != nil {
		return nil, err
	}
	var ok bool
	r.header, ok = parseHeader(r.buf, s.salt, g.seq, int64(e.off))
	if !ok || r.hash != h || r.stored != e.stored {
		return nil, errors.New("no such record at its place")
	}
	return r, nil
}

// markBad notes that h is damaged where e has it: it counts as absent from then
// on, and the next batch that brings its content stores it anew. It reports
// false when h is no longer there.
func (s *Store) markBad(h Hash, e entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, ok := s.index[h]
	if !ok || now.seg != e.seg || now.off != e.off || now.slot != e.slot {
		return false
	}
	now.flags |= isBad
	s.index[h] = now
	s.suspect.Store(true)
	return true
}

// Root finds a root by name; an unknown one is errs.NotFound.
func (s *Store) Root(name string) (Root, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return Root{}, closedError("find a root")
	}
	r, ok := s.roots[name]
	if !ok {
		return Root{}, errs.New(errs.NotFound, "find a root", "no root %q", name)
	}
	return r, nil
}

// Roots lists the roots whose names begin with prefix, sorted by name.
func (s *Store) Roots(prefix string) []Root {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []Root
	for name, r := range s.roots {
		if strings.HasPrefix(name, prefix) {
			list = append(list, r)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// DiskUsage is the number of bytes that the store's files take.
func (s *Store) DiskUsage() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var n int64
	for _, g := range s.segs {
		n += g.onDisk() + g.indexSize.Load()
	}
	return n
}
