// Package extsort sorts more records than fit in memory. Drivers use it for keys, members and
// rows, whose number a database's server decides.
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

	memory     = 8 << 20  // records and their offsets that are sorted in memory before they are written as a run
	merging    = 32 << 20 // memory for the current record of each run being merged
	readAhead  = 16 << 10
	perRecord  = 16 // amortized memory of a record's offset while the slice grows
	firstArena = 4 << 10
)

// Sorter sorts records: pairs of a key and a value. It is not safe for concurrent use. The
// caller must Close it.
type Sorter struct {
	dir     string
	arena   []byte // records: two uvarints, the key, the value
	offsets []int
	file    *os.File
	runs    []run
	end     int64
	largest int // size of the largest record
}

// run is a sorted part of the file.
type run struct{ begin, end int64 }

// New returns a Sorter. If it needs a file, it creates an unnamed one in the folder dir.
func New(dir string) *Sorter { return &Sorter{dir: dir} }

// Add adds a record and copies both parts.
func (s *Sorter) Add(key, value []byte) error {
	size := len(key) + len(value)
	if size > MaxRecord {
		return errs.New(errs.Unsupported, "", "the server sent a record (a name or an entry) of more than %d MiB", MaxRecord>>20).
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

// record returns the parts of the record at an offset, and the offset of its end.
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

// Keep appends what write writes to the Sorter's file, and returns a reference to use as the
// value of a record, in place of a large value.
func (s *Sorter) Keep(write func(io.Writer) error) (ref []byte, err error) {
	begin := s.end
	if err := s.append(write); err != nil {
		return nil, err
	}
	ref = binary.BigEndian.AppendUint64(nil, uint64(begin))
	return binary.BigEndian.AppendUint64(ref, uint64(s.end-begin)), nil
}

// Kept returns a reader of the bytes that ref refers to, and their number.
func (s *Sorter) Kept(ref []byte) (io.Reader, int64) {
	begin, size := int64(binary.BigEndian.Uint64(ref)), int64(binary.BigEndian.Uint64(ref[8:]))
	return io.NewSectionReader(s.file, begin, size), size
}

// append appends to the file, up to MaxFile.
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

// bounded is a writer that returns an error when more than left bytes are written.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, errs.New(errs.Unsupported, "", "sorting the data that the server sent takes more than %d GiB of disk", int64(MaxFile)>>30).
			WithHint("divide the database into several")
	}
	n, err := b.w.Write(p)
	b.left -= int64(n)
	return n, err
}

// spill writes the records in memory to the file as one run.
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

// reduce merges runs until one record of each remaining run fits in memory.
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

// copyTo writes the records in the form that a run has.
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

// Each calls f for every record, in order. The slices are valid only during the call. Each
// may be called again, and Add may be called after it.
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

// Reset removes all records.
func (s *Sorter) Reset() {
	arena, offsets := s.arena[:0], s.offsets[:0]
	s.Close()
	if cap(arena) <= memory {
		s.arena, s.offsets = arena, offsets
	}
}

// Close releases the memory and the file.
func (s *Sorter) Close() {
	if s.file != nil {
		_ = s.file.Close() // the file has no name: closing frees it
	}
	*s = Sorter{dir: s.dir}
}

// Cursor returns a reader of all records in order. Add must not be called while it is used.
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

// merge returns a Cursor over runs.
func (s *Sorter) merge(runs []run) (*Cursor, error) {
	c := &Cursor{}
	for _, r := range runs {
		part := io.NewSectionReader(s.file, r.begin, r.end-r.begin)
		in := &source{part: part, r: bufio.NewReaderSize(part, readAhead)}
		if err := in.next(); err != nil {
			return nil, err
		}
		c.sources = append(c.sources, in)
	}
	heap.Init(c)
	return c, nil
}

// Cursor reads a Sorter's records. It implements heap.Interface over its runs.
type Cursor struct {
	sources []*source
	used    bool // the first source's current record was returned
}

// Next returns the next record, valid until the next call, or io.EOF after the last one.
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

// Len implements heap.Interface.
func (c *Cursor) Len() int { return len(c.sources) }

// Less compares the current records of two runs.
func (c *Cursor) Less(i, j int) bool {
	a, b := c.sources[i], c.sources[j]
	return cmp.Or(bytes.Compare(a.key, b.key), bytes.Compare(a.value, b.value)) < 0
}

// Swap exchanges two runs.
func (c *Cursor) Swap(i, j int) { c.sources[i], c.sources[j] = c.sources[j], c.sources[i] }

// Push is never called, since no run is added.
func (c *Cursor) Push(any) {}

// Pop removes the last run.
func (c *Cursor) Pop() any {
	last := c.sources[len(c.sources)-1]
	c.sources = c.sources[:len(c.sources)-1]
	return last
}

// source is a run in the file, or the records in memory.
type source struct {
	part       *io.SectionReader // of the file
	r          *bufio.Reader     // of part
	s          *Sorter
	at         int
	buf        []byte
	key, value []byte
}

// next reads the next record. It returns io.EOF only at the end of the run: a file that is too short is another error, since its
// records would be left out in silence.
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
	if errors.Is(err, io.EOF) {
		if at, e := in.part.Seek(0, io.SeekCurrent); e != nil || at < in.part.Size() {
			return io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		return err
	}
	v, err := binary.ReadUvarint(in.r)
	if err != nil {
		return io.ErrUnexpectedEOF
	}
	in.buf = slices.Grow(in.buf[:0], int(k+v))[:k+v]
	_, err = io.ReadFull(in.r, in.buf)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	in.key, in.value = in.buf[:k], in.buf[k:]
	return err
}

// unnamed creates a file in dir without a name, which is freed when it is closed.
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
		_ = f.Close() // err is more useful
		return nil, err
	}
	return f, nil
}
