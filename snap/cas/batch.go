package cas

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"

	"mulligan/errs"
)

// Batch puts objects into the store and makes them durable under roots, all at
// once. What it wrote or found there already is not collected while it is open.
// Blob and Node are safe for concurrent use. Every batch is ended by Commit or Discard.
type Batch struct {
	s     *Store
	epoch uint64

	mu    sync.Mutex
	ended bool
	held  map[Hash]struct{}

	sound sync.Map // from Hash to bool: what isSound found out
}

// Begin opens a batch.
func (s *Store) Begin() *Batch {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return &Batch{s: s, epoch: s.epoch, held: map[Hash]struct{}{}}
}

const opPut = "store an object"

// Blob stores p, if the store doesn't hold it yet, and returns its hash.
// More than MaxObject bytes are errs.Invalid; a full disk is errs.Failed, and
// the batch may go on.
func (b *Batch) Blob(p []byte) (Hash, error) { return b.blob(0, p) }

func (b *Batch) blob(series uint32, p []byte) (Hash, error) {
	if len(p) > MaxObject {
		return Hash{}, errs.New(errs.Invalid, opPut, "a blob of %d bytes is over the limit of %d", len(p), MaxObject)
	}
	h := blobHash(p)
	return h, b.put(kindBlob, series, h, nil, p)
}

// Node stores the node of p and refs and returns its hash. Each ref must be in
// the store; a zero ref refers to nothing. A ref that is not there is
// errs.NotFound, a damaged one errs.Corrupt: store its content again.
func (b *Batch) Node(p []byte, refs []Hash) (Hash, error) { return b.node(0, p, refs) }

func (b *Batch) node(series uint32, p []byte, refs []Hash) (Hash, error) {
	if n := len(p) + len(refs)*hashSize; n > MaxNode {
		return Hash{}, errs.New(errs.Invalid, opPut, "a node of %d bytes is over the limit of %d", n, MaxNode)
	}
	for _, ref := range refs {
		if err := b.need(ref); err != nil {
			return Hash{}, err
		}
	}
	h := nodeHash(p, refs)
	return h, b.put(kindNode, series, h, refs, p)
}

// Series adds objects to a batch as versions of one thing.
type Series struct {
	b      *Batch
	series uint32
}

// Series returns the series called name, for instance a file's path. [Store.Pack] stores the
// versions of a series as deltas to each other. The name affects nothing but the space taken.
func (b *Batch) Series(name string) Series {
	return Series{b, crc32.Checksum([]byte(name), castagnoli)}
}

// Part returns the series of the i-th part of the thing, for content that is stored in many parts.
func (s Series) Part(i int64) Series {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], uint64(i))
	return Series{s.b, crc32.Update(s.series, castagnoli, p[:])}
}

// Blob is [Batch.Blob].
func (s Series) Blob(p []byte) (Hash, error) { return s.b.blob(s.series, p) }

// Node is [Batch.Node].
func (s Series) Node(p []byte, refs []Hash) (Hash, error) { return s.b.node(s.series, p, refs) }

// Keep reports whether h is in the store with everything that it refers to, and if so keeps it there until the batch ends, as if
// the batch had written it. An object that is known to be damaged, or refers to a damaged one, is not kept: what is built on it
// could not be read, and putting its contents again mends it.
func (b *Batch) Keep(h Hash) bool {
	ok, err := b.hold(h, nil, false)
	return ok && err == nil && b.isSound(h)
}

// isSound reports whether no damage is known of h and of what it refers to, having looked at each object once. It reads nodes, if
// damage was found in the store.
func (b *Batch) isSound(h Hash) bool {
	if !b.s.suspect.Load() || h.IsZero() {
		return true
	}
	if sound, known := b.sound.Load(h); known {
		return sound.(bool)
	}
	refs, err := b.s.checkObject(opPut, h, false)
	sound := err == nil && !slices.ContainsFunc(refs, func(ref Hash) bool { return !b.isSound(ref) })
	b.sound.Store(h, sound)
	return sound
}

// need holds a ref, or says why that can't be.
func (b *Batch) need(h Hash) error {
	if h.IsZero() {
		return nil
	}
	ok, err := b.hold(h, nil, false)
	if ok || err != nil {
		return err
	}
	s := b.s
	s.mu.RLock()
	e := s.index[h]
	s.mu.RUnlock()
	if e.refs > 0 || e.has(isBad) {
		return errs.New(errs.Corrupt, opPut, "object %v is damaged or missing in %s", h, s.dir).
			WithHint("store its content again")
	}
	return errs.New(errs.NotFound, opPut, "object %v is not in the store", h)
}

// put stores one object unless it is there.
func (b *Batch) put(kind byte, series uint32, h Hash, refs []Hash, p []byte) error {
	if done, err := b.hold(h, refs, true); done || err != nil {
		return err
	}
	r := newObject(kind, series, h, refs, p)
	s := b.s
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if done, err := b.hold(h, refs, true); done || err != nil { // another was quicker
		return err
	}
	o, err := s.appendObject(r)
	if err != nil {
		return s.ioError(opPut, err)
	}
	s.mu.Lock()
	s.insert(o, s.active)
	s.mu.Unlock()
	_, err = b.hold(h, refs, true)
	return err
}

// hold refers to h on behalf of the batch, if it is there. Putting the object,
// with its refs known to be there, it also brings back a dead node.
func (b *Batch) hold(h Hash, refs []Hash, putting bool) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := b.usable(); err != nil {
		return false, err
	}
	if _, ok := b.held[h]; ok {
		return true, nil
	}
	e, ok := s.index[h]
	if !ok || e.seg == 0 || e.has(isBad) || (!putting && !e.there()) {
		return false, nil
	}
	b.held[h] = struct{}{}
	s.incref(h)
	s.countRefs(h, refs)
	return true, nil
}

// usable says whether the batch can go on. b.mu and s.mu are held.
func (b *Batch) usable() error {
	switch {
	case b.s.closed:
		return closedError(opPut)
	case b.ended:
		return errs.New(errs.Internal, opPut, "the batch has ended")
	case b.epoch != b.s.epoch:
		return errs.New(errs.Failed, opPut, "what the batch wrote was lost when the disk failed").
			WithHint("begin again")
	}
	return nil
}

// Commit makes everything the batch wrote durable, and the roots with it: all
// of them or, after an error or a crash, none. A root replaces the one of the
// same name. The batch is over, whatever comes of it.
func (b *Batch) Commit(roots ...Root) error {
	const op = "commit to the store"
	defer b.Discard()
	for _, r := range roots {
		if r.Name == "" || len(r.Name) > MaxName || len(r.Meta) > MaxMeta {
			return errs.New(errs.Invalid, op, "root %.40q: the name must have 1 to %d bytes, its own bytes at most %d", r.Name, MaxName, MaxMeta)
		}
		if r.Hash.IsZero() {
			return errs.New(errs.Invalid, op, "root %q is of no object", r.Name)
		}
		if err := b.need(r.Hash); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	set := make([]Root, len(roots))
	for i, r := range roots {
		set[i] = Root{Name: r.Name, Hash: r.Hash, Meta: append([]byte(nil), r.Meta...)}
	}
	s := b.s
	return s.commit(op, func(c *change) error {
		c.set = set
		b.mu.Lock()
		defer b.mu.Unlock()
		s.mu.RLock()
		defer s.mu.RUnlock()
		return b.usable()
	})
}

// Discard ends the batch; what only it referred to is garbage. After Commit it
// does nothing.
func (b *Batch) Discard() {
	b.mu.Lock()
	held := b.held
	b.held, b.ended = nil, true
	b.mu.Unlock()
	list := make([]Hash, 0, len(held))
	for h := range held {
		list = append(list, h)
	}
	b.s.release(list)
}
