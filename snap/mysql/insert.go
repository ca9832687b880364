package mysql

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"mulligan/errs"
)

// Limits in bytes of an INSERT: the size of a statement that every server accepts, and the size of a row from which its values
// are sent in pieces.
const (
	maxInsert = 512 << 10
	longRow   = 256 << 10
)

// insert writes stored rows into a table of database db. It must run within the session's method during.
type insert struct {
	ctx  context.Context
	s    *session
	db   string
	t    *table
	sql  bytes.Buffer // statement for the rows that are not sent yet
	left []byte       // beginning of a row that continues in the next chunk
	long *long        // the row that is being sent in pieces, or nil
}

func (i *insert) chunk(data []byte) error {
	p := data
	if len(i.left) > 0 {
		p = append(i.left, data...)
	}
	for len(p) > 0 {
		n, err := i.next(p)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		p = p[n:]
	}
	i.left = append([]byte(nil), p...)
	return nil
}

// next consumes a row at the beginning of p, or a part of a long row. n is 0 if p is too short.
func (i *insert) next(p []byte) (n int, err error) {
	if i.long == nil {
		values, n, err := i.one(p)
		switch {
		case err != nil, n == 0 && len(p) <= longRow:
			return 0, err
		case n > 0 && n <= longRow || i.t.Sequence:
			return n, i.add(values)
		}
		if err := i.beginLong(); err != nil {
			return 0, err
		}
	}
	n, done, err := i.long.feed(p)
	if done {
		i.long = nil
	}
	return n, err
}

var errRows = errs.New(errs.Corrupt, "", "the stored rows cannot be read").WithHint("use another checkpoint")

// one returns the values of the row at the beginning of p, and its size, which is 0 if p has only a part of it.
func (i *insert) one(p []byte) (values [][]byte, n int, err error) {
	for range max(1, len(i.t.Columns)) { // if all columns are generated, a row has one empty value
		size, w := binary.Uvarint(p[n:])
		switch {
		case w < 0:
			return nil, 0, errRows
		case w == 0 || size > 0 && uint64(len(p)-n-w) < size-1:
			return nil, 0, nil
		}
		n += w
		if size == 0 {
			values = append(values, nil)
			continue
		}
		values = append(values, p[n:n+int(size)-1])
		n += int(size) - 1
	}
	return values, n, nil
}

// add adds a row to the statement, and sends the statement once it is long enough.
func (i *insert) add(values [][]byte) error {
	if i.t.Sequence {
		return i.s.setSequence(i.ctx, i.db, i.t.Name, values)
	}
	if i.sql.Len() == 0 {
		i.sql.WriteString(i.head())
	} else {
		i.sql.WriteString(", ")
	}
	i.sql.WriteByte('(')
	for k, c := range i.t.Columns {
		if k > 0 {
			i.sql.WriteString(", ")
		}
		text := "NULL"
		if values[k] != nil {
			text = literal(values[k])
		}
		i.sql.WriteString(c.write(text))
	}
	i.sql.WriteByte(')')
	if i.sql.Len() > maxInsert/2 {
		return i.flush()
	}
	return nil
}

// head returns the beginning of the statement.
func (i *insert) head() string {
	var names []string
	for _, c := range i.t.Columns {
		names = append(names, quote(c.Name))
	}
	return "INSERT INTO " + in(i.db, i.t.Name) + " (" + strings.Join(names, ", ") + ") VALUES "
}

// write returns the expression that writes a value to the column.
func (c column) write(value string) string {
	if c.Text {
		return "CONVERT(" + value + " USING utf8mb4)"
	}
	return value
}

// flush sends the rows that are not sent yet.
func (i *insert) flush() error {
	if i.sql.Len() == 0 {
		return nil
	}
	sql := i.sql.String()
	i.sql.Reset()
	return i.s.query(sql, func(*row) error { return errProtocol })
}

// end sends the last rows.
func (i *insert) end() error {
	if len(i.left) > 0 || i.long != nil {
		return errRows
	}
	return i.flush()
}

// long is a row whose values are sent in pieces.
type long struct {
	to     *prepared
	column int
	left   uint64 // unread bytes of the column's value; 0: its size follows
}

func (i *insert) beginLong() error {
	if err := i.flush(); err != nil {
		return err
	}
	var marks []string
	for _, c := range i.t.Columns {
		marks = append(marks, c.write("?"))
	}
	to, err := i.s.prepare(i.head()+"("+strings.Join(marks, ", ")+")", len(marks))
	i.long = &long{to: to}
	return err
}

// feed sends the part of the row in p. done reports whether the row is complete.
func (l *long) feed(p []byte) (n int, done bool, err error) {
	for l.column < len(l.to.nulls) {
		if l.left > 0 {
			piece := p[n:][:min(l.left, uint64(len(p)-n))]
			if len(piece) == 0 {
				return n, false, nil
			}
			if err := l.to.long(l.column, piece); err != nil {
				return n, false, err
			}
			n += len(piece)
			if l.left -= uint64(len(piece)); l.left == 0 {
				l.column++
			}
			continue
		}
		size, w := binary.Uvarint(p[n:])
		switch {
		case w < 0:
			return n, false, errRows
		case w == 0:
			return n, false, nil
		}
		if n += w; size > 1 {
			l.left = size - 1
			continue
		}
		if size == 0 {
			l.to.nulls[l.column] = true
		} else if err := l.to.long(l.column, nil); err != nil {
			return n, false, err
		}
		l.column++
	}
	return n, true, l.to.execute()
}

// setSequence sets a sequence's next number and its number of cycles.
func (s *session) setSequence(ctx context.Context, db, name string, values [][]byte) error {
	var n [2]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(string(values[i]), 10, 64); err != nil {
			return errRows
		}
	}
	return s.exec(ctx, fmt.Sprintf("SELECT SETVAL(%s, %d, 0, %d)", in(db, name), n[0], n[1]))
}
