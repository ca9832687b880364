package journal

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// The journal is a chain of nodes in the content store, beginning at a manifest. Each node is a batch of changes:
//
//	link: version 'j' seq seen start count record*
//	record: path what [before] [entry without its name]
//
// The first reference is the previous link, or the manifest if start is 1. The contents of the entries follow, in their order.
// seq numbers the links of a journal, and seen is the time at which the batch was first seen (ns since 1970). The bits of what:
// 1 means that an entry existed before, whose digest follows; 2 means that an entry exists now.
const sortLink = 'j'

const (
	wasThere = 1 << iota
	isThere
)

// Record is one change of one path.
type Record struct {
	Path   string
	Before snap.Hash       // digest of the entry before; zero if there was none
	After  *manifest.Entry // nil if the path was removed. Its name is empty, and a folder has no hash
}

// link is one batch of the journal.
type link struct {
	hash, prev snap.Hash
	start      bool // prev is a manifest
	seq        uint64
	seen       time.Time
	records    []Record
}

func (l *link) encode() (data []byte, refs []snap.Hash) {
	data = append(make([]byte, 0, 32+160*len(l.records)), manifest.Version, sortLink)
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
		if r.After != nil && !r.After.Hash.IsZero() {
			refs = append(refs, r.After.Hash)
		}
	}
	return data, refs
}

func (r *Record) append(b []byte) []byte {
	b = manifest.AppendString(b, r.Path)
	what := byte(0)
	if !r.Before.IsZero() {
		what |= wasThere
	}
	if r.After != nil {
		what |= isThere
	}
	b = append(b, what)
	if what&wasThere != 0 {
		b = append(b, r.Before[:]...)
	}
	if r.After != nil {
		b = r.After.Append(b)
	}
	return b
}

// decodeLink decodes what link.encode wrote.
func decodeLink(data []byte, refs []snap.Hash) (*link, error) {
	r := manifest.Decoder{Rest: data, Refs: refs}
	if r.Byte() != manifest.Version || r.Byte() != sortLink || len(refs) == 0 || refs[0].IsZero() {
		return nil, manifest.ErrFormat
	}
	l := &link{prev: refs[0]}
	r.Refs = refs[1:]
	l.seq, l.seen = r.Uvarint(), time.Unix(0, r.Varint())
	start := r.Uvarint()
	n := r.Uvarint()
	if n > uint64(len(data)) || start > 1 {
		return nil, fmt.Errorf("%w: a link of impossible size", manifest.ErrFormat)
	}
	l.start, l.records = start == 1, make([]Record, n)
	for i := range l.records {
		if decodeRecord(&r, &l.records[i]); r.Err != nil {
			return nil, r.Err
		}
	}
	if len(r.Rest) > 0 || len(r.Refs) > 0 {
		r.Fail("more than its records")
	}
	return l, r.Err
}

func decodeRecord(r *manifest.Decoder, out *Record) {
	out.Path = r.String()
	if out.Path != "." && !relpath.Valid(out.Path) {
		r.Fail("a record of no path")
		return
	}
	what := r.Byte()
	if what&wasThere != 0 {
		out.Before = r.Digest()
	}
	if what > wasThere|isThere || (what&wasThere != 0) == out.Before.IsZero() {
		r.Fail("a record of no change")
		return
	}
	if what&isThere != 0 {
		out.After = &manifest.Entry{}
		r.Bare(out.After)
	}
}

// loadLink reads the link h. top reports that h is a manifest and not a link.
func loadLink(s *cas.Store, h snap.Hash) (l *link, top bool, err error) {
	data, refs, err := s.Node(h)
	if err != nil {
		return nil, false, manifest.Damaged(h, err)
	}
	if len(data) > 1 && data[1] == manifest.SortTop {
		return nil, true, nil
	}
	if l, err = decodeLink(data, refs); err != nil {
		return nil, false, manifest.Damaged(h, err)
	}
	l.hash = h
	return l, false, nil
}

// chain reads the links from h back to the manifest of their epoch, base. The newest link is first.
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

// newest returns the state of each changed path after all of links, which are sorted newest first.
func newest(links []*link) *manifest.Edits {
	t := &manifest.Edits{}
	for _, l := range links {
		for i := len(l.records) - 1; i >= 0; i-- {
			if k := t.At(l.records[i].Path); !k.Set {
				k.Set, k.To = true, l.records[i].After
			}
		}
	}
	return t
}

// Resolve returns the manifest of the state after the link h. h may also be a manifest, which Resolve loads.
func Resolve(ctx context.Context, s *cas.Store, h snap.Hash) (*manifest.Manifest, error) {
	links, base, err := chain(s, h)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Load(s, base)
	if err != nil || len(links) == 0 {
		return m, err
	}
	if m, err = m.Edit(ctx, newest(links)); err != nil {
		return nil, err
	}
	m.Source = h
	return m, nil
}

// journalName is the series of the journal's links in the content store.
const journalName = "/journal"
