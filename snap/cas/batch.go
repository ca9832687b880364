package cas

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"

	"mulligan/errs"
)

// Batch puts objects into the store and makes them durable together, under roots. While the batch is open, objects that it
// wrote, or found stored already, are not collected. Blob and Node are safe for concurrent use. The caller must end every batch
// with Commit or Discard.
type Batch struct {
	s     *Store
	epoch uint64

	mu    sync.Mutex
	ended bool
	held  map[Hash]struct{}

	sound sync.Map // map[Hash]bool: the results of isSound
}

// Begin begins a batch.
func (s *Store) Begin() *Batch {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.open.Add(1)
	return &Batch{s: s, epoch: s.epoch, held: map[Hash]struct{}{}}
}

const opPut = "store an object"

// Blob stores p, unless the store has it already, and returns its hash. The error is of kind errs.Invalid if p is larger than
// MaxObject, and errs.Failed if the disk is full; the batch can still be used then.
func (b *Batch) Blob(p []byte) (Hash, error) { return b.blob(0, p) }

func (b *Batch) blob(series uint32, p []byte) (Hash, error) {
	if len(p) > MaxObject {
		return Hash{}, errs.New(errs.Invalid, opPut, "a blob of %d bytes is over the limit of %d", len(p), MaxObject)
	}
	h := blobHash(p)
	return h, b.put(kindBlob, series, h, nil, p)
}

// Node stores the node of p and refs and returns its hash. Each ref must be in the store; a zero ref refers to nothing. The
// error is of kind errs.NotFound if a ref is not in the store, and errs.Corrupt if it is damaged: the caller should store its
// content again.
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

// Series returns the series called name, for instance a file's path. [Store.Pack] stores the versions of a series as deltas to
// each other. The name affects only the space that the objects take.
func (b *Batch) Series(name string) Series {
	return Series{b, crc32.Checksum([]byte(name), castagnoli)}
}

// Part returns the series of the i-th part of the thing, for a thing that is stored in many parts.
func (s Series) Part(i int64) Series {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], uint64(i))
	return Series{s.b, crc32.Update(s.series, castagnoli, p[:])}
}

// Blob is [Batch.Blob].
func (s Series) Blob(p []byte) (Hash, error) { return s.b.blob(s.series, p) }

// Node is [Batch.Node].
func (s Series) Node(p []byte, refs []Hash) (Hash, error) { return s.b.node(s.series, p, refs) }

// Keep reports whether h and all objects below it are in the store. If so, they are not collected until the batch ends, as if
// the batch had written them. Keep returns false for an object that is known to be damaged, or that refers to a damaged one.
// The caller then puts the contents again, which repairs the object.
func (b *Batch) Keep(h Hash) bool {
	ok, err := b.hold(h, nil, false)
	return ok && err == nil && b.isSound(h)
}

// isSound reports whether h and all objects below it are free of known damage. If damage was found in the store, isSound reads
// the nodes, each once per batch.
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

// need keeps h from being collected while the batch is open, or returns an error if h cannot be used.
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

// put stores one object unless the store has it.
func (b *Batch) put(kind byte, series uint32, h Hash, refs []Hash, p []byte) error {
	if done, err := b.hold(h, refs, true); done || err != nil {
		return err
	}
	r := newObject(kind, series, h, refs, p)
	s := b.s
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if done, err := b.hold(h, refs, true); done || err != nil { // another batch has stored it meanwhile
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

// hold counts a reference of the batch to h, and reports whether it could: h must be in the store. If putting, the caller is
// storing h and already holds its refs; then a dead node becomes live again.
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

// usable returns an error if the batch can no longer be used. The caller must hold b.mu and s.mu.
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

// Commit makes the batch's objects and the roots durable. After an error, none of the roots is set; after a crash, all of them
// or none. A root replaces the root of the same name. Commit always ends the batch.
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

// Discard ends the batch; objects to which only the batch referred become garbage. After Commit, Discard does nothing.
func (b *Batch) Discard() {
	b.mu.Lock()
	held := b.held
	if !b.ended {
		b.s.open.Add(-1)
	}
	b.held, b.ended = nil, true
	b.mu.Unlock()
	list := make([]Hash, 0, len(held))
	for h := range held {
		list = append(list, h)
	}
	b.s.release(list)
}
