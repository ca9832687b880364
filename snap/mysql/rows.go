package mysql

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/snap/cas"
	"mulligan/snap/extsort"
)

// A row is stored as its values, each preceded by its length plus one as a uvarint; 0 is NULL. The checksum of a row decides
// whether a chunk ends after it, so a changed row affects chunks only up to the next cut.
const (
	minChunk = 16 << 10
	maxChunk = 1 << 20
	cutMask  = 1<<8 - 1 // on average a chunk ends after 256 more rows
	perList  = 1024     // chunks in a list
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rowsOf computes the digest of rows as they arrive, and stores them if it has a batch. The caller must close it.
type rowsOf struct {
	b      *cas.Batch // nil: rows are not stored
	sum    *blake3.Hasher
	one    *blake3.Hasher  // digest of a row, for a table without a key
	set    *extsort.Sorter // digests of all rows, for a table without a key
	keyed  bool
	n      int64
	crc    uint32 // checksum of the row
	some   []byte // bytes of the row that are not digested yet
	buf    []byte
	chunks []cas.Hash
	lists  []cas.Hash
}

func newRows(t *table, b *cas.Batch, dir string) *rowsOf {
	return &rowsOf{b: b, sum: blake3.New(), one: blake3.New(), set: extsort.New(dir), keyed: len(t.Key) > 0}
}

func (r *rowsOf) close() { r.set.Close() }

// add reads a row. It has at most a part of the row in memory.
func (r *rowsOf) add(row *row) error {
	r.crc = 0
	r.one.Reset()
	for i := range row.names {
		size, null, err := row.field()
		switch {
		case err != nil:
			return err
		case null:
			r.some = append(r.some, 0)
		case row.kinds[i] != kindText:
			err = r.number(row, row.kinds[i], size)
		default:
			r.some = binary.AppendUvarint(r.some, uint64(size)+1)
			err = r.copy(row, size)
		}
		if err != nil {
			return err
		}
	}
	if err := r.put(); err != nil {
		return err
	}
	r.n++
	if !r.keyed {
		if err := r.set.Add(r.one.Sum(nil), nil); err != nil {
			return err
		}
	}
	if r.b != nil && len(r.buf) >= minChunk && (len(r.buf) > maxChunk/4 || r.crc&cutMask == 0) {
		return r.cut(len(r.buf))
	}
	return nil
}

// number reads a field that is a number.
func (r *rowsOf) number(row *row, k kind, size int64) error {
	if size > maxNumber {
		return tooLong("a number", maxNumber)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(row, text); err != nil {
		return unexpected(err)
	}
	text, err := k.number(text)
	if err != nil {
		return errProtocol
	}
	r.some = append(binary.AppendUvarint(r.some, uint64(len(text))+1), text...)
	return nil
}

// copy reads a field of size bytes.
func (r *rowsOf) copy(row *row, size int64) error {
	const atOnce = 64 << 10
	for size > 0 {
		n := int(min(size, atOnce))
		at := len(r.some)
		r.some = slices.Grow(r.some, n)[:at+n]
		if _, err := io.ReadFull(row, r.some[at:]); err != nil {
			return unexpected(err)
		}
		if size -= int64(n); len(r.some) >= atOnce {
			if err := r.put(); err != nil {
				return err
			}
		}
	}
	return nil
}

// put digests and stores the pending bytes.
func (r *rowsOf) put() error {
	into := r.sum
	if !r.keyed {
		into = r.one
	}
	_, _ = into.Write(r.some) // never fails
	if r.b != nil {
		r.crc = crc32.Update(r.crc, castagnoli, r.some)
		r.buf = append(r.buf, r.some...)
	}
	r.some = r.some[:0]
	for len(r.buf) > maxChunk {
		if err := r.cut(maxChunk); err != nil {
			return err
		}
	}
	return nil
}

// cut stores the first n pending bytes as a chunk.
func (r *rowsOf) cut(n int) error {
	h, err := r.b.Blob(r.buf[:n])
	r.buf = append(r.buf[:0], r.buf[n:]...)
	r.chunks = append(r.chunks, h)
	if err == nil && len(r.chunks) == perList {
		err = r.list()
	}
	return err
}

func (r *rowsOf) list() error {
	h, err := r.b.Node(nil, r.chunks)
	r.lists, r.chunks = append(r.lists, h), r.chunks[:0]
	return err
}

// node stores the node of all rows and returns its hash.
func (r *rowsOf) node() (cas.Hash, error) {
	if len(r.buf) > 0 {
		if err := r.cut(len(r.buf)); err != nil {
			return cas.Hash{}, err
		}
	}
	if len(r.chunks) > 0 {
		if err := r.list(); err != nil {
			return cas.Hash{}, err
		}
	}
	return r.b.Node([]byte("mulligan mysql rows 1"), r.lists)
}

// digest returns the digest of the rows, which does not depend on the chunks.
func (r *rowsOf) digest() (string, error) {
	err := r.set.Each(func(one, _ []byte) error {
		_, _ = r.sum.Write(one) // never fails
		return nil
	})
	return hex.EncodeToString(r.sum.Sum(nil)), err
}

// query returns the statement that reads a table's rows, in the order of its key.
func (t *table) query(db string) string {
	var list, key []string
	for _, c := range t.Columns {
		if c.Read == "" {
			list = append(list, quote(c.Name))
		} else {
			list = append(list, fmt.Sprintf(c.Read, quote(c.Name)))
		}
	}
	for _, k := range t.Key {
		key = append(key, quote(k))
	}
	if len(list) == 0 { // all columns are generated
		list = []string{"NULL"}
	}
	q := "SELECT " + strings.Join(list, ", ") + " FROM " + in(db, t.Name)
	if len(key) > 0 {
		q += " FORCE INDEX (PRIMARY) ORDER BY " + strings.Join(key, ", ")
	}
	return q
}

// readRows reads a table's rows from db into t and, unless b is nil, into b. It returns the node of the rows.
func (s *session) readRows(ctx context.Context, db string, t *table, b *cas.Batch) (node cas.Hash, err error) {
	r := newRows(t, b, s.d.cfg.StateDir)
	defer r.close()
	columns := max(1, len(t.Columns))
	err = s.during(ctx, func() error {
		return s.query(t.query(db), func(row *row) error {
			if len(row.names) != columns {
				return errProtocol
			}
			return r.add(row)
		})
	})
	if err != nil {
		return node, err
	}
	t.Rows = r.n
	err = s.awake(ctx, func() (err error) { // the rows of a very large table without a key take minutes to be sorted
		if s.d.digesting != nil && !r.keyed {
			s.d.digesting()
		}
		t.Digest, err = r.digest()
		return err
	})
	if err != nil {
		return node, err
	}
	if b != nil {
		node, err = r.node()
	}
	return node, err
}
