// Package extsort sorts more records than memory should hold. The drivers use it
// for what a database's server decides the number of: keys, members, rows.
//
// Records are gathered in memory up to a bound. Beyond it they are sorted and
// written to a file without a name, as one run; reading merges the runs.
package extsort

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Limits of a Sorter, in bytes.
const (
	// MaxRecord is the most that one record's key and value may have together.
	MaxRecord = 4 << 20
	// MaxFile is the most that a Sorter writes to its file.
	MaxFile = 8 << 30

	memory     = 8 << 20  // of records, with their offsets, before they become a run
	merging    = 32 << 20 // of the records that the merged runs stand at
	readAhead  = 16 << 10
	perRecord  = 16 // what the offset of a record costs while the slice grows
	firstArena = 4 << 10
)

// Sorter sorts records: pairs of a key and a value. It is for one goroutine. The
// caller must Close it.
type Sorter struct {
	dir     string
	arena   []byte // records: two uvarints, the key, the value
	offsets []int
	file    *os.File
	runs    []run
	end     int64
	largest int // record
}

// run is a sorted part of the file.
type run struct{ begin, end int64 }

// New makes a Sorter. Its file, where it needs one, is in the folder dir, without a name.
func New(dir string) *Sorter { return &Sorter{dir: dir} }

// Add takes a record; it copies both parts.
func (s *Sorter) Add(key, value []byte) error {
	size := len(key) + len(value)
	if size > MaxRecord {
		return errs.New(errs.Unsupported, "", "the server sent a name or an entry of more than %d MiB", MaxRecord>>20).
			WithHint("make it smaller, or keep it in another database")
	}
	s.largest = max(s.largest, size)
	if len(s.offsets) > 0 && len(s.arena)+size+len(s.offsets)*perRecord > memory {
		if err := s.spill(); err != nil {
			return err
		}
	}
	if s.arena == nil {
		s.arena = make([]byte, 0, firstArena)
	}
	s.offsets = append(s.offsets, len(s.arena))
	s.arena = binary.AppendUvarint(s.arena, uint64(len(key)))
	s.arena = binary.AppendUvarint(s.arena, uint64(len(value)))
	s.arena = append(append(s.arena, key...), value...)
	return nil
}

// record gives the parts of the record at an offset, and where it ends.
func (s *Sorter) record(at int) (key, value []byte, end int) {
	k, n := binary.Uvarint(s.arena[at:])
	v, m := binary.Uvarint(s.arena[at+n:])
	at += n + m
	return s.arena[at : at+int(k)], s.arena[at+int(k) : at+int(k+v)], at + int(k+v)
}

// sort orders the records in memory by key, those with equal keys by value.
func (s *Sorter) sort() {
	slices.SortFunc(s.offsets, func(a, b int) int {
		k, v, _ := s.record(a)
		l, w, _ := s.record(b)
		return cmp.Or(bytes.Compare(k, l), bytes.Compare(v, w))
	})
}

// Keep appends what write writes to the Sorter's file, and gives a reference to
// it, for use in a value that would be large.
func (s *Sorter) Keep(write func(io.Writer) error) (ref []byte, err error) {
	begin := s.end
	if err := s.append(write); err != nil {
		return nil, err
	}
	ref = binary.BigEndian.AppendUint64(nil, uint64(begin))
	return binary.BigEndian.AppendUint64(ref, uint64(s.end-begin)), nil
}

// Kept reads what Keep gave the reference to, and gives its size.
func (s *Sorter) Kept(ref []byte) (io.Reader, int64) {
	begin, size := int64(binary.BigEndian.Uint64(ref)), int64(binary.BigEndian.Uint64(ref[8:]))
	return io.NewSectionReader(s.file, begin, size), size
}

// append appends to the file, as far as that may grow.
func (s *Sorter) append(write func(io.Writer) error) (err error) {
	if s.file == nil {
		if s.file, err = unnamed(s.dir); err != nil {
			return err
		}
	}
	bound := &bounded{w: io.NewOffsetWriter(s.file, s.end), left: MaxFile - s.end}
	w := bufio.NewWriterSize(bound, 256<<10)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s.end = MaxFile - bound.left
	return nil
}

// bounded is a writer that refuses more than is left.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, errs.New(errs.Unsupported, "", "what the server sent takes more than %d GiB to sort", int64(MaxFile)>>30).
			WithHint("divide the database into several")
	}
	n, err := b.w.Write(p)
	b.left -= int64(n)
	return n, err
}

// spill writes the records in memory to the file, as one run.
func (s *Sorter) spill() error {
	s.sort()
	begin := s.end
	err := s.append(func(w io.Writer) error {
		for _, at := range s.offsets {
			_, _, end := s.record(at)
			if _, err := w.Write(s.arena[at:end]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.runs = append(s.runs, run{begin, s.end})
	s.arena, s.offsets = s.arena[:0], s.offsets[:0]
	return nil
}

// reduce merges runs until so many are left that a record of each fits in memory.
func (s *Sorter) reduce() error {
	for most := max(2, merging/(s.largest+readAhead)); len(s.runs) > most; {
		c, err := s.merge(s.runs[:most])
		if err != nil {
			return err
		}
		begin := s.end
		if err := s.append(c.copyTo); err != nil {
			return err
		}
		s.runs = append(s.runs[most:], run{begin, s.end})
	}
	return nil
}

// copyTo writes the records as a run has them.
func (c *Cursor) copyTo(w io.Writer) error {
	var head []byte
	for {
		k, v, err := c.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		head = binary.AppendUvarint(binary.AppendUvarint(head[:0], uint64(len(k))), uint64(len(v)))
		for _, part := range [][]byte{head, k, v} {
			if err == nil {
				_, err = w.Write(part)
			}
		}
		if err != nil {
			return err
		}
	}
}

// Each calls f for every record, in order. What f is given is valid until it
// returns. Each may be called again, and Add after it.
func (s *Sorter) Each(f func(key, value []byte) error) error {
	if len(s.runs) == 0 {
		s.sort()
		for _, at := range s.offsets {
			k, v, _ := s.record(at)
			if err := f(k, v); err != nil {
				return err
			}
		}
		return nil
	}
	c, err := s.Cursor()
	if err != nil {
		return err
	}
	for {
		k, v, err := c.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(k, v)
		}
		if err != nil {
			return err
		}
	}
}

// Reset makes the Sorter empty, for other records.
func (s *Sorter) Reset() {
	arena, offsets := s.arena[:0], s.offsets[:0]
	s.Close()
	if cap(arena) <= memory {
		s.arena, s.offsets = arena, offsets
	}
}

// Close lets the memory and the file go.
func (s *Sorter) Close() {
	if s.file != nil {
		_ = s.file.Close() // it has no name: nothing is left of it
	}
	*s = Sorter{dir: s.dir}
}

// Cursor reads all records in order. Add must not be called while it is used.
func (s *Sorter) Cursor() (*Cursor, error) {
	if err := s.reduce(); err != nil {
		return nil, err
	}
	c, err := s.merge(s.runs)
	if err != nil {
		return nil, err
	}
	s.sort()
	if in := (&source{s: s}); in.next() == nil {
		c.sources = append(c.sources, in)
	}
	heap.Init(c)
	return c, nil
}

// merge reads runs together.
func (s *Sorter) merge(runs []run) (*Cursor, error) {
	c := &Cursor{}
	for _, r := range runs {
		in := &source{r: bufio.NewReaderSize(io.NewSectionReader(s.file, r.begin, r.end-r.begin), readAhead)}
		if err := in.next(); err != nil {
			return nil, err
		}
		c.sources = append(c.sources, in)
	}
	heap.Init(c)
	return c, nil
}

// Cursor is a reading of a Sorter's records. It implements heap.Interface over its runs.
type Cursor struct {
	sources []*source
	used    bool // the first source's record was given
}

// Next gives the next record, valid until the next call; io.EOF after the last.
func (c *Cursor) Next() (key, value []byte, err error) {
	if c.used {
		switch err := c.sources[0].next(); {
		case errors.Is(err, io.EOF):
			heap.Pop(c)
		case err != nil:
			return nil, nil, err
		default:
			heap.Fix(c, 0)
		}
	}
	if c.used = len(c.sources) > 0; !c.used {
		return nil, nil, io.EOF
	}
	return c.sources[0].key, c.sources[0].value, nil
}

// Len is part of heap.Interface, as Less, Swap, Push and Pop are.
func (c *Cursor) Len() int { return len(c.sources) }

// Less compares the records that two runs stand at.
func (c *Cursor) Less(i, j int) bool {
	a, b := c.sources[i], c.sources[j]
	return cmp.Or(bytes.Compare(a.key, b.key), bytes.Compare(a.value, b.value)) < 0
}

// Swap exchanges two runs.
func (c *Cursor) Swap(i, j int) { c.sources[i], c.sources[j] = c.sources[j], c.sources[i] }

// Push is never called: no run is added.
func (c *Cursor) Push(any) {}

// Pop takes the last run away.
func (c *Cursor) Pop() any {
	last := c.sources[len(c.sources)-1]
	c.sources = c.sources[:len(c.sources)-1]
	return last
}

// source is a run in the file, or what is in memory.
type source struct {
	r          *bufio.Reader
	s          *Sorter
	at         int
	buf        []byte
	key, value []byte
}

func (in *source) next() error {
	if in.s != nil {
		if in.at == len(in.s.offsets) {
			return io.EOF
		}
		in.key, in.value, _ = in.s.record(in.s.offsets[in.at])
		in.at++
		return nil
	}
	k, err := binary.ReadUvarint(in.r)
	if err != nil {
		return err
	}
	v, err := binary.ReadUvarint(in.r)
	if err != nil {
		return io.ErrUnexpectedEOF
	}
	in.buf = slices.Grow(in.buf[:0], int(k+v))[:k+v]
	_, err = io.ReadFull(in.r, in.buf)
	in.key, in.value = in.buf[:k], in.buf[k:]
	return err
}

// unnamed makes a file in dir that has no name, and that goes with its descriptor.
func unnamed(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "runs"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f, err := os.CreateTemp(dir, ".sort-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // err is the one to tell
		return nil, err
	}
	return f, nil
}
