package remote

import (
	"os"
	"path/filepath"
	"testing"

	"mulligan/snap"
)

// No bytes of an index, a node or an entry's head make their parsers fail in another way than by an error.
func FuzzParsers(f *testing.F) {
	var p packing
	p.add(snap.Hash{1}, []byte("blob"), nil, false)
	p.add(snap.Hash{2}, []byte("node"), []snap.Hash{{1}}, true)
	f.Add(p.index)
	f.Add(p.data.Bytes()[4:])
	f.Add([]byte(magic + NewName() + " " + proof(NewKey(), "x", "y", nil) + "\nsealed"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k := Pack{Index: data}
		list, err := k.objects()
		end := 0
		for _, o := range list {
			if err == nil && (o.off != end || o.n < 0) {
				t.Errorf("an object lies at %d, after %d", o.off, end)
			}
			end = o.off + o.n
		}
		if rest, refs, err := splitNode(data); err == nil && len(rest)+len(refs)*32 >= len(data) && len(data) > 0 {
			t.Errorf("%d refs and %d bytes of %d", len(refs), len(rest), len(data))
		}
		if h, err := cutEntry(data); err == nil && !isName(h.writer) {
			t.Errorf("the writer is %q", h.writer)
		}
	})
}

// A ledger's file may hold anything: what is whole at its beginning counts, and it can be written on.
func FuzzLedger(f *testing.F) {
	place := NewName()
	path := filepath.Join(f.TempDir(), "ledger")
	l, err := openLedger(path, place)
	must(f, err)
	var p packing
	p.add(snap.Hash{1}, []byte("blob"), nil, false)
	must(f, l.write(frame{Pack: &noted{Pack: Pack{Name: NewName(), Index: p.index}}}))
	must(f, l.write(frame{Intent: &intent{Seq: 1, Sum: []byte("sum"), Named: 1, Sent: &Sent{ID: "cp-1"}}}))
	must(f, l.write(frame{Wrote: []byte("sum")}))
	must(f, l.close())
	data, err := os.ReadFile(path)
	must(f, err)
	f.Add(data)
	f.Add(data[:len(data)-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "ledger")
		must(t, os.WriteFile(path, data, 0o600))
		l, err := openLedger(path, place)
		must(t, err)
		next := l.Next
		must(t, l.write(frame{Intent: &intent{Seq: next, Sum: []byte("of the next")}}))
		must(t, l.write(frame{Wrote: []byte("of the next")}))
		must(t, l.close())
		l, _, err = readLedger(path, place)
		must(t, err)
		if l.Next != next+1 {
			t.Errorf("the next entry is %d, not %d", l.Next, next+1)
		}
	})
}
