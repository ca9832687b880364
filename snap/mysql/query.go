package mysql

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
)

// query runs a statement and calls f for each row of its answer. f reads the row as it arrives.
func (w *wire) query(sql string, f func(*row) error) error {
	if err := w.command(comQuery, []byte(sql)); err != nil {
		return err
	}
	names, kinds, err := w.head()
	if err != nil || len(names) == 0 {
		return err
	}
	r := &row{w: w, names: names, kinds: kinds}
	for {
		more, err := r.next()
		if err != nil || !more {
			return err
		}
		if err := f(r); err != nil {
			return err
		}
		if err := r.end(); err != nil {
			return err
		}
	}
}

// head reads the beginning of an answer, with the columns if there are any.
func (w *wire) head() (names []string, kinds []kind, err error) {
	p, err := w.packet("an answer", maxHead)
	switch {
	case err != nil:
		return nil, nil, err
	case len(p) == 0, p[0] == headLocal:
		return nil, nil, errProtocol
	case p[0] == headError:
		return nil, nil, refusal(p)
	case p[0] == headOK:
		return nil, nil, nil
	}
	count, n := lenenc(p)
	if n != len(p) || count == 0 || count > maxColumns {
		return nil, nil, errProtocol
	}
	for range count {
		p, err := w.packet("a column's description", maxLogin)
		if err != nil {
			return nil, nil, err
		}
		name, k, ok := describe(p)
		if !ok {
			return nil, nil, errProtocol
		}
		names, kinds = append(names, name), append(kinds, k)
	}
	return names, kinds, w.eof()
}

// eof reads the packet that ends the columns.
func (w *wire) eof() error {
	p, err := w.packet("an answer", maxHead)
	if err == nil && (len(p) == 0 || p[0] != headEOF || len(p) >= 9) {
		err = errProtocol
	}
	return err
}

// kind is the encoding of a column's values.
type kind byte

const (
	kindText kind = iota
	kindSigned
	kindUnsigned
	kindFloat
	kindDouble
)

// unsigned is the flag of a column of an unsigned type.
const unsigned = 1 << 5

// kinds maps the protocol's types of numbers (https://mariadb.com/kb/en/result-set-packets/#field-types) to their encodings.
var kinds = map[byte]kind{1: kindSigned, 2: kindSigned, 3: kindSigned, 4: kindFloat, 5: kindDouble, 8: kindSigned, 9: kindSigned}

// describe parses a column's description: four texts, the name, another text, and the type.
func describe(p []byte) (name string, k kind, ok bool) {
	for i := range 6 {
		size, n := lenenc(p)
		if n == 0 || size > uint64(len(p)-n) {
			return "", 0, false
		}
		if i == 4 {
			name = string(p[n : n+int(size)])
		}
		p = p[n+int(size):]
	}
	if len(p) < 1+2+4+1+2 {
		return "", 0, false
	}
	k = kinds[p[7]]
	if p[7] == 8 && binary.LittleEndian.Uint16(p[8:])&unsigned != 0 {
		k = kindUnsigned
	}
	return name, k, true
}

// row is a row of an answer, read as it arrives.
type row struct {
	w     *wire
	names []string
	kinds []kind
	at    int   // the next column
	size  int64 // bytes of the row so far
	left  int64 // unread bytes of the field
}

// next begins the next row. It returns false after the last one.
func (r *row) next() (bool, error) {
	if err := r.w.begin(); err != nil {
		return false, unexpected(err)
	}
	r.at, r.size, r.left = 0, 0, 0
	first, some, err := r.w.peek()
	switch {
	case err != nil:
		return false, err
	case !some:
		return false, errProtocol
	case first == headError:
		p, err := r.w.rest("an error", maxHead)
		if err == nil {
			err = refusal(p)
		}
		return false, err
	case first == headEOF && r.w.left < 9:
		p, err := r.w.rest("an answer", maxHead)
		if err == nil && len(p) >= 5 && p[3]&8 != 0 { // the server announces a second answer to the statement
			err = errProtocol
		}
		return false, err
	}
	return true, nil
}

// field begins the next field and returns its size, or whether it is null. Read returns its content.
func (r *row) field() (size int64, null bool, err error) {
	var head [9]byte
	if _, err := io.ReadFull(r.w, head[:1]); err != nil {
		return 0, false, unexpected(err)
	}
	if r.at++; head[0] == headLocal {
		return 0, true, nil
	}
	n := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[head[0]]
	if _, err := io.ReadFull(r.w, head[1:1+n]); err != nil {
		return 0, false, unexpected(err)
	}
	v, used := lenenc(head[:1+n])
	if used == 0 {
		return 0, false, errProtocol
	}
	if v > maxRow || r.size+int64(v) > maxRow {
		return 0, false, tooLong("a row", maxRow)
	}
	r.size += int64(v)
	r.left = int64(v)
	return r.left, false, nil
}

// Read reads the current field; it returns io.EOF at its end.
func (r *row) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.w.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, unexpected(err)
}

// end returns an error unless the row was read completely.
func (r *row) end() error {
	if r.at != len(r.names) || r.left != 0 || r.w.left != 0 {
		return errProtocol
	}
	if _, err := r.w.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return errProtocol
	}
	return nil
}

// number returns a number in its stored form.
func (k kind) number(text []byte) ([]byte, error) {
	switch k {
	case kindSigned:
		n, err := strconv.ParseInt(string(text), 10, 64)
		return strconv.AppendInt(nil, n, 10), err
	case kindUnsigned:
		n, err := strconv.ParseUint(string(text), 10, 64)
		return strconv.AppendUint(nil, n, 10), err
	case kindFloat:
		f, err := strconv.ParseFloat(string(text), 32)
		return strconv.AppendFloat(nil, f, 'g', -1, 32), err
	case kindDouble:
		f, err := strconv.ParseFloat(string(text), 64)
		return strconv.AppendFloat(nil, f, 'g', -1, 64), err
	}
	return text, nil
}

// texts reads a whole row. NULL, and columns up to minColumns that are missing, are "". It subtracts the used bytes from room.
func (r *row) texts(room *int64) ([]string, error) {
	line := make([]string, max(len(r.names), minColumns))
	*room -= perRow + perField*int64(len(line))
	for i := range r.names {
		size, _, err := r.field()
		if *room -= size; err == nil && *room < 0 {
			err = tooLong("an answer", maxAnswer)
		}
		if err != nil {
			return nil, err
		}
		p := make([]byte, size)
		if _, err := io.ReadFull(r, p); err != nil {
			return nil, unexpected(err)
		}
		line[i] = string(p)
	}
	return line, nil
}

// interpolate replaces the question marks in a statement by args, except those in names.
func interpolate(sql string, args []string) string {
	var b strings.Builder
	name := false
	for i := range len(sql) {
		switch c := sql[i]; {
		case c == '?' && !name && len(args) > 0:
			b.WriteString(literal([]byte(args[0])))
			args = args[1:]
		default:
			name = name != (c == '`')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// literal returns a string constant. In the session's sql_mode, backslashes escape.
func literal(p []byte) string {
	var b strings.Builder
	b.Grow(len(p) + 2)
	b.WriteByte('\'')
	for _, c := range p {
		switch c {
		case 0:
			b.WriteString(`\0`)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case 0x1a:
			b.WriteString(`\Z`)
		case '\'', '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// prepared is a prepared statement whose values are sent in pieces
// (https://mariadb.com/kb/en/3-binary-protocol-prepared-statements/).
type prepared struct {
	w     *wire
	id    []byte
	nulls []bool
}

func (w *wire) prepare(sql string, values int) (*prepared, error) {
	if err := w.command(comStmtPrepare, []byte(sql)); err != nil {
		return nil, err
	}
	p, err := w.plain()
	if err != nil {
		return nil, err
	}
	if len(p) < 9 || binary.LittleEndian.Uint16(p[5:]) != 0 || int(binary.LittleEndian.Uint16(p[7:])) != values {
		return nil, errProtocol
	}
	for range values {
		if _, err := w.packet("a column's description", maxLogin); err != nil {
			return nil, err
		}
	}
	return &prepared{w: w, id: append([]byte(nil), p[1:5]...), nulls: make([]bool, values)}, w.eof()
}

// long sends a piece of a value. The server does not answer it.
func (s *prepared) long(i int, p []byte) error {
	head := append(append([]byte(nil), s.id...), byte(i), byte(i>>8))
	return s.w.command(comStmtLong, append(head, p...))
}

// execute runs the statement with the values that were sent, and closes it.
func (s *prepared) execute() error {
	p := append(append([]byte(nil), s.id...), 0, 1, 0, 0, 0)
	null := make([]byte, (len(s.nulls)+7)/8)
	for i, is := range s.nulls {
		if is {
			null[i/8] |= 1 << (i % 8)
		}
	}
	p = append(append(p, null...), 1)
	for range s.nulls {
		p = append(p, 0xfe, 0) // a string
	}
	if err := s.w.command(comStmtExecute, p); err != nil {
		return err
	}
	if _, err := s.w.plain(); err != nil {
		return err
	}
	return s.w.command(comStmtClose, s.id)
}
