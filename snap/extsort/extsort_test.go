package extsort

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"mulligan/errs"
	"mulligan/testkit"
)

// What comes out is what went in, in order, whether or not it fits in memory.
func TestSorts(t *testing.T) {
	r := testkit.Rand(t)
	for _, count := range []int{0, 1, 1000, 300_000} {
		s := New(t.TempDir())
		var want [][]byte
		for range count {
			key := binary.BigEndian.AppendUint64(nil, r.Uint64N(1<<40))[3:]
			value := bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(16))
			if err := s.Add(key, value); err != nil {
				t.Fatal(err)
			}
			want = append(want, append(key, value...))
		}
		slices.SortFunc(want, bytes.Compare)
		for range 2 {
			i := 0
			err := s.Each(func(k, v []byte) error {
				if got := append(slices.Clone(k), v...); !bytes.Equal(got, want[i]) {
					return fmt.Errorf("record %d of %d is %x, not %x", i, count, got, want[i])
				}
				i++
				return nil
			})
			if err != nil || i != count {
				t.Fatalf("%d of %d records: %v", i, count, err)
			}
		}
		if spilled := len(s.runs) > 0; spilled != (count > 100_000) {
			t.Errorf("%d records made %d runs", count, len(s.runs))
		}
		s.Close()
	}
}

// A short key comes before one that it begins, and large records are bounded.
func TestKeysAndSizes(t *testing.T) {
	s := New(t.TempDir())
	defer s.Close()
	big := make([]byte, MaxRecord-2)
	keys := []string{"ab", "b", "a", "", "abc", "c", "d", "e", "ba", "bb", "bc", "bd", "be", "bf"}
	for _, k := range keys {
		if err := s.Add([]byte(k)[:min(2, len(k))], big); err != nil {
			t.Fatal(err)
		}
	}
	ref, err := s.Keep(func(w io.Writer) error { _, err := io.WriteString(w, "kept"); return err })
	if err != nil {
		t.Fatal(err)
	}
	if r, n := s.Kept(ref); n != 4 {
		t.Errorf("%d bytes are kept", n)
	} else if p, err := io.ReadAll(r); err != nil || string(p) != "kept" {
		t.Errorf("%q is kept: %v", p, err)
	}
	runs := len(s.runs)
	c, err := s.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.runs) >= runs || len(s.runs) > merging/MaxRecord {
		t.Errorf("%d runs of %d are merged at once", len(s.runs), runs)
	}
	for _, want := range []string{"", "a", "ab", "ab", "b", "ba", "bb", "bc", "bd", "be", "bf", "c", "d", "e"} {
		k, v, err := c.Next()
		if err != nil || string(k) != want || len(v) != len(big) {
			t.Fatalf("%q with %d bytes instead of %q: %v", k, len(v), want, err)
		}
	}
	if _, _, err := c.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if err := s.Add(nil, make([]byte, MaxRecord+1)); errs.KindOf(err) != errs.Unsupported || errs.HintOf(err) == "" {
		t.Errorf("a record that is too large: %v", err)
	}
}

// Records with one key come in the order of their values, also out of several runs.
func TestSortsValues(t *testing.T) {
	s := New(t.TempDir())
	r := testkit.Rand(t)
	const count = 400_000
	for range count {
		if err := s.Add([]byte("key"), binary.BigEndian.AppendUint64(nil, r.Uint64())); err != nil {
			t.Fatal(err)
		}
	}
	var last []byte
	n := 0
	err := s.Each(func(_, v []byte) error {
		if bytes.Compare(last, v) > 0 {
			return fmt.Errorf("value %d, %x, comes after %x", n, v, last)
		}
		last = append(last[:0], v...)
		n++
		return nil
	})
	if err != nil || n != count {
		t.Errorf("%d of %d values: %v", n, count, err)
	}
}

// A file that ends too early is an error, wherever it ends: no record is left out in silence.
func TestShortFile(t *testing.T) {
	for end := range int64(20) {
		s := New(t.TempDir())
		defer s.Close()
		for range 2 {
			if err := s.Add([]byte("key"), []byte("value")); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.spill(); err != nil {
			t.Fatal(err)
		}
		if err := s.Each(func(_, _ []byte) error { return nil }); err != nil {
			t.Fatalf("the whole file: %v", err)
		}
		if err := s.file.Truncate(end); err != nil {
			t.Fatal(err)
		}
		if err := s.Each(func(_, _ []byte) error { return nil }); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a file of %d bytes of 20 is read as a whole one: %v", end, err)
		}
	}
}

// The file is bounded, and what does not fit in it is an error that says what to do.
func TestFullFile(t *testing.T) {
	var out bytes.Buffer
	w := &bounded{w: &out, left: 5}
	if _, err := w.Write([]byte("12345")); err != nil || w.left != 0 || out.String() != "12345" {
		t.Errorf("what fits: %v, %d bytes left, %q", err, w.left, out.String())
	}
	if _, err := w.Write([]byte("6")); errs.KindOf(err) != errs.Unsupported || errs.HintOf(err) == "" || out.Len() != 5 {
		t.Errorf("one byte more: %v, %q", err, out.String())
	}
}
