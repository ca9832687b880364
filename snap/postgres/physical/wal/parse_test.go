package wal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"mulligan/testkit"

	"pgregory.net/rapid"
)

func TestLSN(t *testing.T) {
	testkit.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		l := LSN(rapid.Uint64().Draw(t, "lsn"))
		if got, err := ParseLSN(l.String()); err != nil || got != l {
			t.Fatalf("%s reads as %s, %v", l, got, err)
		}
	})
	for _, s := range []string{"", "1", "/", "1/", "g/0", "1/123456789", "-1/0"} {
		if l, err := ParseLSN(s); err == nil {
			t.Errorf("%q reads as %s", s, l)
		}
	}
}

func TestSegmentNames(t *testing.T) {
	const mb16 = Segments(16 << 20)
	for _, c := range []struct {
		at   LSN
		name string
	}{{0x1_6D5C_82B8, "00000003000000010000006D"}, {0xFFFF_FFFF, "0000000300000000000000FF"}, {0x1_0000_0000, "000000030000000100000000"}} {
		if got := mb16.Name(3, mb16.Number(c.at)); got != c.name || !IsSegment(got) {
			t.Errorf("%s is in %s, want %s", c.at, got, c.name)
		}
	}
}

// line has three timelines: 1 was left at 0/3000, 2 at 0/5000.
const line = "1\t0/3000\tat restore point\n\n# a remark\n2\t0/5000\treason with words\n"

func TestHistory(t *testing.T) {
	legs, err := ParseHistory(4, []byte(line))
	if want := []Leg{{1, 0x3000}, {2, 0x5000}, {4, Endless}}; err != nil || !reflect.DeepEqual(legs, want) {
		t.Fatalf("the legs are %v, %v", legs, err)
	}
	for _, c := range []struct {
		from     Timeline
		start    LSN
		to       LSN
		stations int // 0: the base is not on the way
	}{
		{1, 0x1000, 0x6000, 3}, {1, 0x3000, 0x6000, 3}, {1, 0x3001, 0x6000, 0}, // 1 went on elsewhere
		{2, 0x4000, 0x6000, 2}, {2, 0x6000, 0x7000, 0}, {3, 0x1000, 0x6000, 0}, // 3 is no ancestor
		{4, 0x5800, 0x6000, 1}, {4, 0x6001, 0x6000, 0}, {1, 0x1000, 0x6000, 3},
	} {
		if got := Path(legs, c.from, c.start, c.to); len(got) != c.stations {
			t.Errorf("from %s on %d to %s the way is %v", c.start, c.from, c.to, got)
		}
	}
	for _, bad := range []string{"x\t0/1\n", "1\n", "5\t0/1\n", "0\t0/1\n", "1\tnowhere\n"} {
		if legs, err := ParseHistory(4, []byte(bad)); err == nil {
			t.Errorf("%q reads as %v", bad, legs)
		}
	}
}

func TestRecords(t *testing.T) {
	for _, c := range []struct {
		line            string
		commits, counts bool
	}{
		{"rmgr: Heap        len (rec/tot):     59/    59, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: INSERT off 9 flags 0x08, blkref #0: rel 1663/5/16384 blk 0", false, true},
		{"rmgr: Heap        len (rec/tot):     59/    59, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: INSERT off 9 flags 0x08, blkref #0: rel 1663/5/2619 blk 0", false, false},
		{"rmgr: Heap        len (rec/tot):     59/  8059, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: UPDATE off 9, blkref #0: rel 1663/5/2619 blk 0 FPW, blkref #1: rel 1663/5/16385 blk 3", false, true},
		{"rmgr: Heap        len (rec/tot):     59/    59, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: INPLACE off 9, blkref #0: rel 1663/5/1259 blk 0", false, false},
		{"rmgr: XLOG        len (rec/tot):     98/    98, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: RESTORE_POINT desc: x", false, false},
		{"rmgr: Database    len (rec/tot):     98/    98, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: CREATE_WAL_LOG 1663/5", false, true},
		{"rmgr: Transaction len (rec/tot):     34/    34, tx:        735, lsn: 0/0150E600, prev 0/0150E5D0, desc: COMMIT 2026-11-21 02:00:00.000000 UTC", true, false},
		{"rmgr: Transaction len (rec/tot):     34/    34, tx:        735, lsn: 0/0150E600, prev 0/0150E5D0, desc: ABORT 2026-11-21 02:00:00.000000 UTC", false, false},
	} {
		r, ok := ParseRecord(c.line + "\n")
		if !ok || r.XID != 735 || r.Length == 0 || r.At>>8 == 0 {
			t.Fatalf("%q reads as %+v", c.line, r)
		}
		if r.Commits() != c.commits || r.Counts() != c.counts {
			t.Errorf("%q: commits %t, counts %t", c.line, r.Commits(), r.Counts())
		}
	}
	of := func(desc string) Record { return Record{Manager: "Transaction", Desc: desc} }
	for desc, own := range map[string]bool{"COMMIT 2026": false, "COMMIT 2026; subxacts: 7": true, "COMMIT_PREPARED 5: 2026": true, "PREPARE gid x": true} {
		if r := of(desc); !r.Commits() || r.OwnXID() != own {
			t.Errorf("%q: commits %t, of others %t", desc, r.Commits(), r.OwnXID())
		}
	}
}

// A record that runs over the end of a page goes on behind the next page's header.
func TestRecordEnd(t *testing.T) {
	const size = Segments(1 << 20)
	for _, c := range []struct{ at, length, end uint64 }{
		{0x100028, 50, 0x100028 + 56}, {0x101FF0, 16, 0x102000}, {0x101FF0, 24, 0x102000 + PageHead + 8},
		{0x1FFFF0, 24, 0x200000 + FirstHead + 8}, {0x100028, 20000, 0x100028 + 20000 + 2*PageHead},
	} {
		if got := (Record{At: LSN(c.at), Length: c.length}).End(size); got != LSN(c.end) {
			t.Errorf("%d bytes at %s end at %s, want %s", c.length, LSN(c.at), got, LSN(c.end))
		}
	}
}

// printed returns what pg_waldump 14 and later print of a message's record, and the record. others is the length of the rest of the record.
func printed(at LSN, prefix string, payload []byte, others int) (string, Record) {
	r := Record{Manager: "LogicalMessage", XID: 7, At: at, Length: uint64(len(prefix) + len(payload) + others), Desc: "MESSAGE transactional"}
	return fmt.Sprintf("rmgr: LogicalMessage len (rec/tot): %6d/%6d, tx: %10d, lsn: %s, prev 0/0150E5A0, desc: %s, prefix \"%s\"; payload (%d bytes): % X\n",
		r.Length, r.Length, r.XID, r.At, r.Desc, prefix, len(payload), payload), r
}

// Whatever a client writes into a message, the records that are read are those of the log.
func TestTextOfMessages(t *testing.T) {
	testkit.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		const commit = "rmgr: Transaction len (rec/tot):     34/    34, tx:        735, lsn: FFFFFFFF/0, prev 0/0150E5D0, desc: COMMIT 2026-11-21 02:00:00.000000 UTC"
		pieces := rapid.OneOf(rapid.Just("\n"), rapid.Just("\n"+commit+"\n"), rapid.Just("\""), rapid.StringMatching(`[0-9A-F ]{0,9}`), rapid.String(),
			rapid.Custom(func(t *rapid.T) string {
				payload := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "pretended")
				n := rapid.OneOf(rapid.Just(len(payload)), rapid.IntRange(0, 400)).Draw(t, "pretended length")
				return fmt.Sprintf("\"; payload (%d bytes): % X", n, payload)
			}))
		var text strings.Builder
		var want []Record
		for i := range rapid.IntRange(1, 4).Draw(t, "messages") {
			prefix := strings.Join(rapid.SliceOfN(pieces, 0, 6).Draw(t, "prefix"), "")
			line, r := printed(LSN(1000*i+1), prefix, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload"), rapid.IntRange(leastMessage, mostMessage).Draw(t, "others"))
			text.WriteString(line)
			want = append(want, r)
			if rapid.Bool().Draw(t, "a commit follows") {
				text.WriteString(commit + "\n")
				r, _ := ParseRecord(commit)
				want = append(want, r)
			}
		}
		var got []Record
		for r := bufio.NewReaderSize(strings.NewReader(text.String()), 512); ; {
			rec, line, ok, err := ReadRecord(r)
			if err == io.EOF {
				break
			} else if err != nil || !ok {
				t.Fatalf("%q: %v\n%s", line, err, text.String())
			}
			got = append(got, rec)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("the records are %v, want %v\n%s", got, want, text.String())
		}
	})
}

// A message of many megabytes is passed over, and nothing but one line is read of servers before 14.
func TestMessageOfMegabytes(t *testing.T) {
	const blocks, block = 1500, 1 << 14 // printed in more than maxLine
	text, want := printed(0x28, "p", nil, mostMessage)
	short := want.Length
	want.Length += blocks * block
	text = strings.NewReplacer(fmt.Sprint(short), fmt.Sprint(want.Length), "(0 bytes): \n", fmt.Sprintf("(%d bytes): AB", blocks*block)).Replace(text)
	more := strings.Repeat(" AB", block)
	parts := []io.Reader{strings.NewReader(text)}
	for range blocks - 1 {
		parts = append(parts, strings.NewReader(more))
	}
	parts = append(parts, strings.NewReader(more[3:]+"\n"))
	old := "rmgr: LogicalMessage len (rec/tot):     59/    59, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: MESSAGE transactional message size 2 bytes\n"
	r := bufio.NewReader(io.MultiReader(append(parts, strings.NewReader(old))...))
	if got, _, ok, err := ReadRecord(r); !ok || err != nil || got != want {
		t.Errorf("the record is %v, %v, want %v", got, err, want)
	}
	if got, _, ok, err := ReadRecord(r); !ok || err != nil || got.At != 0x0150E5D0 || got.Desc != "MESSAGE transactional message size 2 bytes" {
		t.Errorf("the record is %v, %v", got, err)
	}
	if _, _, _, err := ReadRecord(r); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

// The text of a message that never ends is an error.
func TestEndlessMessage(t *testing.T) {
	text, _ := printed(0x28, "p", []byte("x"), mostMessage+1)
	if _, _, ok, err := ReadRecord(bufio.NewReader(io.MultiReader(strings.NewReader(text), endless{}))); ok || !errors.Is(err, ErrUnclear) {
		t.Errorf("read: %v, %v", ok, err)
	}
}

// endless reads as quotes.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte{'"'}, len(p))), nil }

func FuzzReadRecord(f *testing.F) {
	text, _ := printed(0x28, "a\n\"; payload (2 bytes): 00 11\n", []byte("xy"), leastMessage)
	f.Add([]byte(text + text))
	f.Add([]byte(`rmgr: LogicalMessage len (rec/tot): x, desc: MESSAGE transactional, prefix "p"; payload (0 bytes): `)) // not a record
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bufio.NewReader(bytes.NewReader(text))
		for read := 0; ; read++ {
			_, line, ok, err := ReadRecord(r)
			if ok && err != nil || read > len(text) {
				t.Fatalf("after %d of %d bytes: %q, %t, %v", read, len(text), line, ok, err)
			}
			if err != nil {
				return
			}
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add("rmgr: Heap        len (rec/tot):     59/    59, tx:        735, lsn: 0/0150E5D0, prev 0/0150E5A0, desc: INSERT off 9 flags 0x08, blkref #0: rel 1663/5/16384 blk 0")
	f.Add("rmgr: , tx:0, lsn: 0/0, desc: rel ")
	f.Fuzz(func(t *testing.T, line string) {
		if r, ok := ParseRecord(line); ok {
			_, _ = r.Counts(), r.Commits() && r.OwnXID()
		}
	})
}

func FuzzParseHistory(f *testing.F) {
	f.Add([]byte(line))
	f.Fuzz(func(t *testing.T, data []byte) {
		legs, err := ParseHistory(9, data)
		if err == nil && legs[len(legs)-1] != (Leg{9, Endless}) {
			t.Errorf("the history ends with %v", legs)
		}
	})
}
