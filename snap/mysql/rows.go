package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/ipc/errs"
	"mulligan/snap/cas"
)

// A row is kept as its values, each with its length and one as a uvarint; 0 is
// NULL. Rows are put into chunks that end where a row's checksum says so: a row that
// changes moves the cuts no further than the next of them.
const (
	minChunk = 16 << 10
	maxChunk = 1 << 20
	cutMask  = 1<<8 - 1 // on average after 256 rows more
	perList  = 1024     // chunks in a list
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rowsOf digests rows, and stores them where it has a batch.
type rowsOf struct {
	b      *cas.Batch // nil: only digest
	sum    *blake3.Hasher
	set    [][32]byte // of rows that have no order
	keyed  bool
	n      int64
	row    []byte
	buf    []byte
	chunks []cas.Hash
	lists  []cas.Hash
}

func newRows(t *table, b *cas.Batch) *rowsOf {
	return &rowsOf{b: b, sum: blake3.New(), keyed: len(t.Key) > 0}
}

func (r *rowsOf) add(values []sql.RawBytes) error {
	r.row = r.row[:0]
	for _, v := range values {
		if v == nil {
			r.row = append(r.row, 0)
			continue
		}
		r.row = binary.AppendUvarint(r.row, uint64(len(v))+1)
		r.row = append(r.row, v...)
	}
	r.n++
	if r.keyed {
		_, _ = r.sum.Write(r.row) // never fails
	} else {
		r.set = append(r.set, blake3.Sum256(r.row))
	}
	if r.b == nil {
		return nil
	}
	r.buf = append(r.buf, r.row...)
	for len(r.buf) > maxChunk {
		if err := r.cut(maxChunk); err != nil {
			return err
		}
	}
	if len(r.buf) >= minChunk && (len(r.buf) > maxChunk/4 || crc32.Checksum(r.row, castagnoli)&cutMask == 0) {
		return r.cut(len(r.buf))
	}
	return nil
}

// cut stores the first n bytes that wait.
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

// node stores the node of all rows.
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

// digest is the same for the same rows, wherever they are kept.
func (r *rowsOf) digest() string {
	slices.SortFunc(r.set, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
	for _, one := range r.set {
		_, _ = r.sum.Write(one[:]) // never fails
	}
	return hex.EncodeToString(r.sum.Sum(nil))
}

// query reads a table's rows, in the order of its key.
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
	if len(list) == 0 { // all columns are computed
		list = []string{"NULL"}
	}
	q := "SELECT " + strings.Join(list, ", ") + " FROM " + in(db, t.Name)
	if len(key) > 0 {
		q += " FORCE INDEX (PRIMARY) ORDER BY " + strings.Join(key, ", ")
	}
	return q
}

// readRows reads a table's rows as db has them, into t and, where there is one, the batch.
func (s *session) readRows(ctx context.Context, db string, t *table, b *cas.Batch) (node cas.Hash, err error) {
	r := newRows(t, b)
	if err := s.each(ctx, t.query(db), nil, r.add); err != nil {
		return node, err
	}
	t.Rows, t.Digest = r.n, r.digest()
	if b != nil {
		node, err = r.node()
	}
	return node, err
}

// Limits of one INSERT: the protocol's number of parameters, and a size that every server takes.
const (
	maxParams = 60000
	maxInsert = 512 << 10
)

// insert writes stored rows into the table as db has it.
type insert struct {
	head, row string
	columns   int
	left      []byte // of a row that goes on in the next chunk
	args      []any
	size      int
	send      func(query string, args []any) error
}

func (t *table) insert(db string, send func(string, []any) error) *insert {
	var names, marks []string
	for _, c := range t.Columns {
		names = append(names, quote(c.Name))
		if c.Text {
			marks = append(marks, "CONVERT(? USING utf8mb4)")
		} else {
			marks = append(marks, "?")
		}
	}
	n := len(names)
	if n == 0 { // all columns are computed; a row has one value that says nothing
		return &insert{head: "INSERT INTO " + in(db, t.Name) + " () VALUES ", row: "()", columns: 1, send: send}
	}
	return &insert{head: "INSERT INTO " + in(db, t.Name) + " (" + strings.Join(names, ", ") + ") VALUES ",
		row: "(" + strings.Join(marks, ", ") + ")", columns: n, send: send}
}

// chunk writes the rows of one chunk.
func (i *insert) chunk(data []byte) error {
	p := append(i.left, data...)
	for len(p) > 0 {
		n, ok, err := i.one(p)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		p = p[n:]
		if len(i.args)+i.columns > maxParams || i.size > maxInsert {
			if err := i.flush(); err != nil {
				return err
			}
		}
	}
	i.left = append([]byte(nil), p...)
	return nil
}

var errRows = errs.New(errs.Corrupt, "", "the stored rows cannot be read").WithHint("use another checkpoint")

// one takes a row from the front of p, unless it is not all there.
func (i *insert) one(p []byte) (n int, ok bool, err error) {
	var args []any
	for range i.columns {
		size, w := binary.Uvarint(p[n:])
		switch {
		case w < 0:
			return 0, false, errRows
		case w == 0 || size > 0 && uint64(len(p)-n-w) < size-1:
			return 0, false, nil
		}
		n += w
		if size == 0 {
			args = append(args, nil)
			continue
		}
		args = append(args, p[n:n+int(size)-1])
		n += int(size) - 1
	}
	i.args, i.size = append(i.args, args...), i.size+n
	return n, true, nil
}

// flush sends what waits.
func (i *insert) flush() error {
	if len(i.args) == 0 {
		return nil
	}
	rows := len(i.args) / i.columns
	q := i.head + strings.Repeat(i.row+", ", rows-1) + i.row
	args := i.args
	if i.row == "()" {
		args = nil
	}
	err := i.send(q, args)
	i.args, i.size = nil, 0
	return err
}

// end sends the last rows.
func (i *insert) end() error {
	if len(i.left) > 0 {
		return errRows
	}
	return i.flush()
}
