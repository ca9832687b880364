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

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
)

// Hash names an object. It is the BLAKE3-256 digest of a blob's bytes, or of a node's refs and bytes with a key derived for
// nodes.
type Hash = snap.Hash

const (
	// MaxObject is the largest blob, in bytes.
	MaxObject = 1<<20 + 64<<10
	// MaxNode is the largest node, in bytes of data and refs together.
	MaxNode = 64 << 20
	// ChunkSize is the default size of the blobs into which large contents are cut.
	ChunkSize = 1 << 20
	// MaxName and MaxMeta limit the bytes of a root's name and of its Meta.
	MaxName = 4 << 10
	MaxMeta = 64 << 10
)

// Root is a durable name for an object.
type Root struct {
	Name string
	Hash Hash
	Meta []byte // data of the driver that owns the root, at most MaxMeta bytes
}

// Options adjust a store; the zero value is right for production.
type Options struct {
	// SegmentBytes is the size at which a new segment is begun: 128 MiB if 0,
	// at most 1 GiB.
	SegmentBytes int64
	// PackBytes is the least size of the unpacked objects at which Pack packs them: 256 KiB if 0.
	PackBytes int64
	// Leave is the number of free bytes on the file system below which no objects are stored. They are for others.
	Leave     int64
	Failpoint failpoint.Hook // for tests: called before each durable step
}

// Store is an open content-addressed store. Its methods are safe for concurrent use.
type Store struct {
	dir  string
	lock *os.File // the folder itself, under flock
	salt salt
	opt  Options

	// Locks must be acquired in this order: gc, wmu, refMu, mu.
	gc       sync.Mutex // held by Collect, Pack and Close
	wmu      sync.Mutex // held while the log is written
	changeID uint64     // id of the newest change; guarded by wmu
	refMu    sync.Mutex // held while reference counts are decreased along a graph

	mu     sync.RWMutex
	closed bool
	index  map[Hash]entry
	roots  map[string]Root
	segs   map[uint32]*segment
	active *segment // written only with both wmu and mu held
	epoch  uint64   // how often rewind truncated the log

	// suspect is set when damage is found, and stays set: from then on, Batch.Keep also checks the objects below the kept one.
	suspect atomic.Bool

	unread []string // the files that the disk could not read whole when the store was opened
	unsure bool     // what could not be read may have changes of the roots that no other file has

	groups   groupCache
	lastPack uint32       // the newest pack's number; guarded by gc
	open     atomic.Int64 // number of open batches, from which Pack sees that the store is in use
}

// entry is the index's information on an object. refs counts the roots, the live nodes and the open batches that refer to the
// object; an object is live if refs is not 0. Each reference of a live node is counted in the entry of the object to which it
// refers.
type entry struct {
	seg, off, stored uint32 // seg 0: the object is missing, though others refer to it
	refs             uint32
	slot             uint16 // number within the group at off; stored is then the object's share of the group's size
	flags            uint8
}

const (
	isNode  = 1 << iota
	isBad   // the object is damaged
	counted // the node's refs are counted in the objects to which it refers
)

func (e entry) has(flag uint8) bool { return e.flags&flag != 0 }
func (e entry) grouped() bool       { return e.seg >= firstPack }

func (e entry) size() int64 {
	if e.grouped() {
		return int64(e.stored)
	}
	return headerSize + int64(e.stored)
}

// is reports whether the entry stands for the copy o in the segment seq.
func (e entry) is(o *object, seq uint32) bool {
	return e.seg == seq && e.off == o.off && e.slot == o.slot
}

// there reports whether new nodes may refer to the object. They may not refer to a dead node, because objects below it may have
// been collected.
func (e entry) there() bool {
	return e.seg != 0 && !e.has(isBad) && (e.refs > 0 || !e.has(isNode))
}

// closedError returns the error of every method of a closed store.
func closedError(op string) error {
	return errs.New(errs.Unavailable, op, "the store is closed")
}

// Close closes the store and unlocks its folder. The objects of open batches are lost. Closing a closed store is no error.
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

// drop only closes the files, as the end of the process would. The caller must hold wmu, unless the store is not yet shared.
func (s *Store) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var list []error
	for _, g := range s.segs {
		list = append(list, g.f.Close())
	}
	// A child process that another goroutine is just starting has the folder open until its exec. If drop only closed the folder,
	// the child would keep the lock.
	return errors.Join(append(list, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN), s.lock.Close())...)
}

// Has reports whether h is stored and a new node may refer to it. h may be collected before that node is stored; [Batch.Keep]
// also keeps h from being collected.
func (s *Store) Has(h Hash) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index[h].there()
}

// Get reads the bytes of the blob or node h and checks them against the hash. The error is of kind errs.NotFound if the object
// was never stored or was collected, and errs.Corrupt if it is damaged, or missing though others refer to it.
func (s *Store) Get(h Hash) ([]byte, error) {
	c, err := s.read("read an object", h)
	return c.data, err
}

// Node reads the node h like Get, and also returns the hashes of the objects to which it refers.
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

// Object reads the blob or node h like Get. If h is a node, Object also returns the hashes of the objects to which it refers.
func (s *Store) Object(h Hash) (data []byte, refs []Hash, node bool, err error) {
	c, err := s.read("read an object", h)
	return c.data, c.refs, c.kind == kindNode, err
}

// content is the content of one object.
type content struct {
	kind   byte
	series uint32
	refs   []Hash
	data   []byte
}

// read reads and verifies one object. If the object is damaged, read marks it so in the index.
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
			continue // the segment was just removed, and the object is in another one now
		}
		if err == nil {
			return c, nil
		}
		if ioFailure(err) {
			return c, s.ioError(op, err)
		}
		if !s.markBad(h, e) {
			continue // the object was moved or removed meanwhile
		}
		return c, &errs.Error{Kind: errs.Corrupt, Op: op, Err: err,
			Message: "object " + h.String() + " is damaged in " + g.path}
	}
}

// ioFailure reports whether err is a failure of the system and not damage. A block that the disk cannot read counts as
// damage.
func ioFailure(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && !durable.Unreadable(err)
}

// Unread returns an error if the disk could not read all files whole when the store was opened. What it could not read counts as damaged. Nodes may be among it, so it
// is not known which objects are needed, and neither Collect nor Pack does anything.
func (s *Store) Unread() error {
	if len(s.unread) == 0 {
		return nil
	}
	return errs.New(errs.Corrupt, "", "the disk cannot read all of %s: what is lost counts as damaged, and the content store deletes nothing", strings.Join(s.unread, ", ")).
		WithHint("put a copy in its place, from a backup or by ddrescue, and start mulligand again")
}

// load reads and verifies the object h, whose entry e is in the segment g.
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

// loadRecord reads the record of h at the position of e, and checks its checksum: a changed byte of compressed data may decompress
// to the same content, so the hash alone does not find it.
func (s *Store) loadRecord(g *segment, h Hash, e entry) (*record, error) {
	r := &record{buf: make([]byte, e.size())}
	if err := readFull(g, r.buf, int64(e.off)); err != nil {
		return nil, err
	}
	var ok bool
	r.header, ok = parseHeader(r.buf, s.salt, g.seq, int64(e.off))
	if !ok || r.hash != h || r.stored != e.stored {
		return nil, errors.New("no such record at its place")
	}
	if !r.intact() {
		return nil, errors.New("its checksum is wrong")
	}
	return r, nil
}

// markBad marks the copy of h at e as damaged. The object then counts as absent, and the next batch that puts its content
// stores it again. markBad returns false if h is no longer at e.
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

// Root returns the root called name. The error is of kind errs.NotFound if there is no such root.
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

// Roots returns the roots whose names begin with prefix, sorted by name.
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

// DiskUsage returns the bytes that the store's files take on disk.
func (s *Store) DiskUsage() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var n int64
	for _, g := range s.segs {
		n += g.onDisk() + g.indexSize.Load()
	}
	return n
}
