package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"hash"
	"strings"
	"unicode/utf16"

	"github.com/zeebo/blake3"

	"mulligan/snap/database"
)

// The functions below read a database's contents from its b-trees (section 2 of the file format), since
// SQLite never opens a file that a user wrote. To let SQLite read a private copy without rights, each
// comparison would first write both databases. Any error ends the reading: the result is only shown
// to people.

// countLimit is the size in bytes up to which rows are counted too.
const countLimit = 2 << 30

// object is an entry of the schema table.
type object struct {
	kind, name, table, sql string
	root                   uint32
	rows                   int64 // of a table; -1: not counted
	sum                    [32]byte
}

var errBTree = errors.New("its b-trees are damaged, or of a kind that is not known")

// pages reads pages of an image chunk by chunk.
type pages struct {
	ctx       context.Context
	size      int64
	pageSize  int64
	usable    int64 // bytes of a page without its reserved end
	encoding  uint32
	read      func(buf []byte, off int64) (int, error)
	chunk     []byte
	at        int64 // number of the chunk in memory; -1: none
	remaining int64 // how many more pages may be read: a valid database needs each once
}

// readObjects lists the objects of an image of size bytes; read is like image.readAt.
func readObjects(ctx context.Context, size int64, read func([]byte, int64) (int, error)) ([]object, error) {
	p := &pages{ctx: ctx, size: size, read: read, chunk: make([]byte, chunkSize), at: -1}
	if size == 0 {
		return nil, nil
	}
	var h header
	if n, err := read(p.chunk, 0); err != nil || n < headerSize {
		return nil, errors.Join(err, errBTree)
	}
	copy(h[:], p.chunk)
	p.at = 0
	p.pageSize, p.encoding = h.pageSize(), binary.BigEndian.Uint32(h[56:])
	if !h.valid() || p.pageSize-int64(h[20]) < 480 {
		return nil, errBTree
	}
	p.usable, p.remaining = p.pageSize-int64(h[20]), 2*(size/p.pageSize+1)
	var list []object
	err := p.walk(1, 0, func(payload []byte) error {
		o, ok := p.object(payload)
		if !ok {
			return errBTree
		}
		list = append(list, o)
		return nil
	})
	for i := range list {
		if err != nil {
			break
		}
		err = p.count(&list[i])
	}
	return list, err
}

// count counts the rows of a table and hashes them in order.
func (p *pages) count(o *object) error {
	o.rows = -1
	if o.kind != "table" || o.root == 0 || p.size > countLimit {
		return nil
	}
	o.rows = 0
	sum := blake3.New()
	err := p.walk(o.root, 0, func(payload []byte) error {
		o.rows++
		writeRow(sum, payload)
		return nil
	})
	copy(o.sum[:], sum.Sum(nil))
	return err
}

func writeRow(sum hash.Hash, payload []byte) {
	_, _ = sum.Write(binary.AppendUvarint(nil, uint64(len(payload)))) // never fails
	_, _ = sum.Write(payload)
}

// page returns the content of a page, valid until the next call.
func (p *pages) page(n uint32) ([]byte, error) {
	off := (int64(n) - 1) * p.pageSize
	if p.remaining--; n == 0 || off+p.pageSize > p.size || p.remaining < 0 {
		return nil, errBTree
	}
	if at := off / chunkSize * chunkSize; at != p.at {
		if err := p.ctx.Err(); err != nil {
			return nil, err
		}
		p.at = -1
		if _, err := p.read(p.chunk, at); err != nil {
			return nil, err
		}
		p.at = at
	}
	return p.chunk[off%chunkSize:][:p.pageSize], nil
}

// The kinds of b-tree pages (1.6).
const (
	indexInterior = 2
	tableInterior = 5
	indexLeaf     = 10
	tableLeaf     = 13
)

// maxDepth exceeds the depth of any b-tree of 2^32 pages.
const maxDepth = 40

// walk calls f with the payload of each entry of a b-tree, in order; that of a table is preceded by
// the row number.
func (p *pages) walk(root uint32, depth int, f func([]byte) error) error {
	now, err := p.page(root)
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return errBTree
	}
	page := append([]byte(nil), now...)
	head := page
	if root == 1 {
		head = page[headerSize:]
	}
	kind, n, first := head[0], int(binary.BigEndian.Uint16(head[3:])), 8
	interior := kind == tableInterior || kind == indexInterior
	if interior {
		first = 12
	} else if kind != tableLeaf && kind != indexLeaf {
		return errBTree
	}
	if first+2*n > len(head) {
		return errBTree
	}
	for i := range n {
		at := int(binary.BigEndian.Uint16(head[first+2*i:]))
		if at+4 > int(p.usable) {
			return errBTree
		}
		cell := page[at:p.usable]
		if interior {
			if err := p.walk(binary.BigEndian.Uint32(cell), depth+1, f); err != nil {
				return err
			}
			cell = cell[4:]
		}
		if kind == tableInterior {
			continue // only a number
		}
		payload, err := p.payload(cell, kind == tableLeaf)
		if err == nil {
			err = f(payload)
		}
		if err != nil {
			return err
		}
	}
	if !interior {
		return nil
	}
	return p.walk(binary.BigEndian.Uint32(head[8:]), depth+1, f)
}

// payload returns a cell's content, including overflow pages (1.6).
func (p *pages) payload(cell []byte, isTable bool) ([]byte, error) {
	size, n := varint(cell)
	rest := cell[n:]
	var all []byte
	u := p.usable
	limit := (u-12)*64/255 - 23
	if isTable {
		_, k := varint(rest)
		all, rest = append(all, rest[:k]...), rest[k:]
		limit = u - 35
	}
	if n == 0 || size > uint64(p.size) {
		return nil, errBTree
	}
	total := int64(size)
	local := total
	if total > limit {
		least := (u-12)*32/255 - 23
		if local = least + (total-least)%(u-4); local > limit {
			local = least
		}
	}
	if local > int64(len(rest)) || total > local && local+4 > int64(len(rest)) {
		return nil, errBTree
	}
	all = append(all, rest[:local]...)
	for left := total - local; left > 0; {
		page, err := p.page(binary.BigEndian.Uint32(rest[local:]))
		if err != nil {
			return nil, err
		}
		k := min(left, u-4)
		all = append(all, page[4:4+k]...)
		rest, local, left = append([]byte(nil), page[:4]...), 0, left-k
	}
	return all, nil
}

// varint reads a big-endian number of one to nine bytes (1.6); n is 0 if it is truncated.
func varint(b []byte) (v uint64, n int) {
	for n < len(b) && n < 8 {
		v = v<<7 | uint64(b[n]&0x7f)
		if n++; b[n-1] < 0x80 {
			return v, n
		}
	}
	if n < len(b) && n == 8 {
		return v<<8 | uint64(b[8]), 9
	}
	return 0, 0
}

// object parses a row of the schema table: type, name, tbl_name, rootpage, sql (2.6).
func (p *pages) object(row []byte) (o object, ok bool) {
	_, k := varint(row) // the row's number
	row = row[k:]
	size, n := varint(row)
	if n == 0 || size > uint64(len(row)) || size < uint64(n) {
		return o, false
	}
	types, body := row[n:size], row[size:]
	places := []*string{&o.kind, &o.name, &o.table, nil, &o.sql}
	for _, place := range places {
		t, n := varint(types)
		if n == 0 {
			return o, false
		}
		types = types[n:]
		length := serialSize(t)
		if length > uint64(len(body)) {
			return o, false
		}
		value := body[:length]
		body = body[length:]
		if place == nil {
			for _, b := range value {
				o.root = o.root<<8 | uint32(b)
			}
			if t == 9 { // type 9 is the number 1 without bytes
				o.root = 1
			}
		} else if t >= 13 && t%2 == 1 {
			*place = p.text(value)
		}
	}
	return o, true
}

// serialSize returns the length of a value of a serial type (2.1).
func serialSize(t uint64) uint64 {
	switch {
	case t >= 12:
		return (t - 12) / 2
	case t >= 8:
		return 0
	}
	return []uint64{0, 1, 2, 3, 4, 6, 8, 8}[t]
}

func (p *pages) text(b []byte) string {
	if p.encoding != 2 && p.encoding != 3 {
		return string(b)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if p.encoding == 3 {
		order = binary.BigEndian
	}
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = order.Uint16(b[2*i:])
	}
	return string(utf16.Decode(units))
}

// tableOf parses the definition of a table.
func tableOf(sql string) *database.Table {
	t := &database.Table{}
	before, body, found := cutAtParen(sql)
	t.Details = []database.Detail{{Name: "definition", Value: database.Short(before)}}
	if !found {
		return t
	}
	parts, after := splitTop(body)
	for _, part := range parts {
		part = plain(part)
		word := firstWord(part)
		switch strings.ToUpper(word) {
		case "CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN":
			t.Clauses = append(t.Clauses, part)
		default:
			t.Columns = append(t.Columns, database.Column{Name: ident(strings.ToLower(unquote(word))), Definition: part})
		}
	}
	t.Clauses = append(t.Clauses, ")"+plain(after))
	return t
}

// cutAtParen cuts s at the first parenthesis outside of quotes.
func cutAtParen(sql string) (before, body string, found bool) {
	for i := 0; i < len(sql); i++ {
		if sql[i] == '(' {
			return sql[:i], sql[i+1:], true
		}
		i = pastQuoted(sql, i)
	}
	return sql, "", false
}

// splitTop splits at commas up to the closing parenthesis; after is the rest.
func splitTop(body string) (parts []string, after string) {
	depth, begin := 0, 0
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '(':
			depth++
		case c == ')' && depth == 0:
			return append(parts, body[begin:i]), body[i+1:]
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts, begin = append(parts, body[begin:i]), i+1
		default:
			i = pastQuoted(body, i)
		}
	}
	return append(parts, body[begin:]), ""
}

// pastQuoted returns the index of the last byte of the quoted text or comment at i, or i if none
// begins there.
func pastQuoted(s string, i int) int {
	ends := map[byte]string{'\'': "'", '"': "\"", '`': "`", '[': "]"}
	end := ends[s[i]]
	switch {
	case strings.HasPrefix(s[i:], "--"):
		end = "\n"
	case strings.HasPrefix(s[i:], "/*"):
		end = "*/"
	}
	if end == "" {
		return i
	}
	if at := strings.Index(s[i+1:], end); at >= 0 {
		return i + at + len(end)
	}
	return len(s) - 1
}

// plain returns a piece of SQL on one line.
func plain(s string) string { return strings.Join(strings.Fields(s), " ") }

func firstWord(s string) string {
	if s == "" {
		return ""
	}
	if end := pastQuoted(s, 0); end > 0 {
		return s[:end+1]
	}
	if end := strings.IndexAny(s, " ("); end >= 0 {
		return s[:end]
	}
	return s
}

func unquote(s string) string { return strings.Trim(s, "\"'`[]") }
