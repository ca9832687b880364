package files

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// The journal is a chain of nodes in the content store, beginning at a
// manifest. Each is a batch of changes:
//
//	link: version 'j' seq seen start count record*
//	record: path what [before] [entry without its name]
//
// The first reference is the link before, or where start is 1 the manifest;
// then come the contents of the entries, in their order. seq numbers the links
// of a journal, seen is when the batch was first seen (ns since 1970). The bits
// of what: 1 there was an entry before, whose digest follows; 2 there is one now.
const sortLink = 'j'

const (
	wasThere = 1 << iota
	isThere
)

// record is one change of one path.
type record struct {
	path   string
	before snap.Hash // digest of the entry before; zero: there was none
	after  *entry    // nil: it is gone. Its name is empty, and a folder has no hash
}

// link is one batch of the journal.
type link struct {
	hash, prev snap.Hash
	start      bool // prev is a manifest
	seq        uint64
	seen       time.Time
	records    []record
}

// digest tells one state of an entry from another, but for its name, its other
// names, a folder's content, and a folder's time, which moves with its content.
func (e *entry) digest() snap.Hash {
	if e == nil {
		return snap.Hash{}
	}
	x := *e
	x.name = ""
	x.setGroup("")
	if x.isDir() {
		x.hash, x.mtime = snap.Hash{}, inode.Time{}
	}
	return blake3.Sum256(append(x.append(nil), x.hash[:]...))
}

// bare is e as a record has it.
func (e *entry) bare() *entry {
	x := *e
	x.name = ""
	if x.isDir() {
		x.hash = snap.Hash{}
	}
	return &x
}

func (l *link) encode() (data []byte, refs []snap.Hash) {
	data = append(make([]byte, 0, 32+160*len(l.records)), manifestVersion, sortLink)
	data = binary.AppendUvarint(data, l.seq)
	data = binary.AppendVarint(data, l.seen.UnixNano())
	start := uint64(0)
	if l.start {
		start = 1
	}
	data = binary.AppendUvarint(data, start)
	data = binary.AppendUvarint(data, uint64(len(l.records)))
	refs = []snap.Hash{l.prev}
	for i := range l.records {
		r := &l.records[i]
		data = r.append(data)
		if r.after != nil && !r.after.hash.IsZero() {
			refs = append(refs, r.after.hash)
		}
	}
	return data, refs
}

func (r *record) append(b []byte) []byte {
	b = appendString(b, r.path)
	what := byte(0)
	if !r.before.IsZero() {
		what |= wasThere
	}
	if r.after != nil {
		what |= isThere
	}
	b = append(b, what)
	if what&wasThere != 0 {
		b = append(b, r.before[:]...)
	}
	if r.after != nil {
		b = r.after.append(b)
	}
	return b
}

// decodeLink takes apart what link.encode wrote.
func decodeLink(data []byte, refs []snap.Hash) (*link, error) {
	r := reader{b: data, refs: refs}
	if r.byte() != manifestVersion || r.byte() != sortLink || len(refs) == 0 || refs[0].IsZero() {
		return nil, errManifest
	}
	l := &link{prev: refs[0]}
	r.refs = refs[1:]
	l.seq, l.seen = r.uvarint(), time.Unix(0, r.varint())
	start := r.uvarint()
	n := r.uvarint()
	if n > uint64(len(data)) || start > 1 {
		return nil, fmt.Errorf("%w: a link of impossible size", errManifest)
	}
	l.start, l.records = start == 1, make([]record, n)
	for i := range l.records {
		if r.record(&l.records[i]); r.err != nil {
			return nil, r.err
		}
	}
	if len(r.b) > 0 || len(r.refs) > 0 {
		r.fail("more than its records")
	}
	return l, r.err
}

func (r *reader) record(out *record) {
	out.path = r.string()
	if out.path != "." && !relpath.Valid(out.path) {
		r.fail("a record of no path")
		return
	}
	what := r.byte()
	if what&wasThere != 0 {
		if len(r.b) < len(out.before) {
			r.fail("too short")
			return
		}
		r.b = r.b[copy(out.before[:], r.b):]
	}
	if what > wasThere|isThere || (what&wasThere != 0) == out.before.IsZero() {
		r.fail("a record of no change")
		return
	}
	if what&isThere != 0 {
		out.after = &entry{}
		r.recorded(out.after)
	}
}

// recorded reads an entry that has no name and, if it is a folder, no content.
func (r *reader) recorded(e *entry) {
	f := r.fields(e)
	if f&hasHash != 0 {
		if len(r.refs) == 0 || r.refs[0].IsZero() {
			r.fail("a reference is missing")
			return
		}
		e.hash, r.refs = r.refs[0], r.refs[1:]
	}
	if e.name != "" || e.isDir() && f&hasHash != 0 {
		r.fail("a record with a name or a folder's content")
		return
	}
	if e.isDir() {
		e.hash = snap.Hash{1} // what checkEntry asks of a folder
		r.checkEntry(e, f|hasHash)
		e.hash = snap.Hash{}
		return
	}
	r.checkEntry(e, f)
}

// loadLink reads the link h; top reports that h is a manifest instead.
func loadLink(s *cas.Store, h snap.Hash) (l *link, top bool, err error) {
	data, refs, err := s.Node(h)
	if err != nil {
		return nil, false, damaged(h, err)
	}
	if len(data) > 1 && data[1] == sortTop {
		return nil, true, nil
	}
	if l, err = decodeLink(data, refs); err != nil {
		return nil, false, damaged(h, err)
	}
	l.hash = h
	return l, false, nil
}

// chain reads the links from h back to the manifest that they begin at, newest first.
func chain(s *cas.Store, h snap.Hash) (links []*link, base snap.Hash, err error) {
	for {
		l, top, err := loadLink(s, h)
		if err != nil {
			return nil, base, err
		}
		if top {
			return links, h, nil
		}
		links, h = append(links, l), l.prev
	}
}
