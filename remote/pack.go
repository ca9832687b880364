package remote

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"mulligan/errs"
	"mulligan/snap"
)

// packBytes is the size, before compression, at which a pack is sent.
const packBytes = 16 << 20

// Pack describes a pack.
type Pack struct {
	Name string `json:"name"`
	// Sum is the SHA-256 of its sealed bytes.
	Sum  []byte `json:"sum"`
	Size int64  `json:"size"` // of its sealed bytes
	// Index says which objects it holds, in their order: for each its hash, and its length as a varint, with 1 added to its double
	// for a node.
	Index []byte `json:"index"`
}

// packing is a pack that is being filled. Its zero value is empty.
type packing struct {
	data  *bytes.Buffer
	index []byte
	refs  []byte // of its nodes, as noted.Refs
}

// size returns the bytes of the data.
func (p *packing) size() int {
	if p.data == nil {
		return 0
	}
	return p.data.Len()
}

// add adds an object. The data of a node follow its refs: their number, as a varint, and the hashes.
func (p *packing) add(h snap.Hash, data []byte, refs []snap.Hash, node bool) {
	if p.data == nil {
		p.data = takeBuffer()
	}
	at := p.data.Len()
	if node {
		p.data.Write(binary.AppendUvarint(p.data.AvailableBuffer(), uint64(len(refs))))
		for _, r := range refs {
			p.data.Write(r[:])
		}
		p.refs = appendRefs(p.refs, refs)
	}
	p.data.Write(data)
	n := uint64(p.data.Len()-at) << 1
	if node {
		n |= 1
	}
	p.index = binary.AppendUvarint(append(p.index, h[:]...), n)
}

// takeAll adds what another pack has, which is empty afterwards.
func (p *packing) takeAll(q *packing) {
	if q.data == nil {
		return
	}
	if p.data == nil {
		p.data = takeBuffer()
	}
	p.data.Write(q.data.Bytes())
	p.index = append(p.index, q.index...)
	p.refs = append(p.refs, q.refs...)
	giveBuffer(q.data)
	*q = packing{}
}

// object is where an object is in a pack.
type object struct {
	hash   snap.Hash
	node   bool
	off, n int
}

// objects decodes a pack's index.
func (p *Pack) objects() (list []object, err error) {
	off := 0
	for rest := p.Index; len(rest) > 0; {
		if len(rest) < len(snap.Hash{}) {
			return nil, damagedIndex(p)
		}
		h := snap.Hash(rest[:len(snap.Hash{})])
		rest = rest[len(h):]
		v, used := binary.Uvarint(rest)
		n := v >> 1
		if used <= 0 || n > maxPlain || off+int(n) > maxPlain {
			return nil, damagedIndex(p)
		}
		rest = rest[used:]
		list = append(list, object{h, v&1 == 1, off, int(n)})
		off += int(n)
	}
	return list, nil
}

func damagedIndex(p *Pack) error {
	return errs.New(errs.Corrupt, "", "the index of pack %.40q is damaged", p.Name)
}

// splitNode returns the parts of a node's bytes in a pack.
func splitNode(p []byte) (data []byte, refs []snap.Hash, err error) {
	n, used := binary.Uvarint(p)
	size := uint64(len(snap.Hash{}))
	if used <= 0 || n > uint64(len(p))/size || n*size > uint64(len(p)-used) {
		return nil, nil, errs.New(errs.Corrupt, "", "a node in a pack is damaged")
	}
	p = p[used:]
	for range n {
		refs = append(refs, snap.Hash(p[:size]))
		p = p[size:]
	}
	return p, refs, nil
}

func sum(p []byte) []byte {
	s := sha256.Sum256(p)
	return s[:]
}
