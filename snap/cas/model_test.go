package cas

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mulligan/errs"
	"mulligan/testkit"
)

// model is what a store should hold: objects by hash, and roots.
type model struct {
	objects map[Hash]modelObject
	roots   map[string]Hash
}

type modelObject struct {
	data []byte
	refs []Hash
	node bool
}

// reach lists what is reachable from the roots but those in without.
func (m *model) reach(without ...string) map[Hash]bool {
	seen := map[Hash]bool{}
	var walk func(Hash)
	walk = func(h Hash) {
		if h.IsZero() || seen[h] {
			return
		}
		seen[h] = true
		for _, ref := range m.objects[h].refs {
			walk(ref)
		}
	}
	for name, h := range m.roots {
		if !slices.Contains(without, name) {
			walk(h)
		}
	}
	return seen
}

// check compares everything.
func (m *model) check(t *rapid.T, s *Store) {
	for name, h := range m.roots {
		if r, err := s.Root(name); err != nil || r.Hash != h {
			t.Fatalf("root %q is %v (%v), want %v", name, r.Hash, err, h)
		}
		if err := s.Check(context.Background(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.Roots("")); n != len(m.roots) {
		t.Fatalf("%d roots, want %d", n, len(m.roots))
	}
	for h := range m.reach() {
		want := m.objects[h]
		data, err := s.Get(h)
		if err != nil || !bytes.Equal(data, want.data) || !s.Has(h) {
			t.Fatalf("object %v: %v", h, err)
		}
		if want.node {
			if _, refs, err := s.Node(h); err != nil || !slices.Equal(refs, want.refs) {
				t.Fatalf("node %v: %v", h, err)
			}
		}
	}
	m.checkCounts(t, s)
}

// checkCounts compares the reference counts with what the graph says, with no
// batch open.
func (m *model) checkCounts(t *rapid.T, s *Store) {
	want := map[Hash]uint32{}
	live := m.reach()
	for h := range live {
		for _, ref := range m.objects[h].refs {
			want[ref]++
		}
	}
	for _, h := range m.roots {
		want[h]++
	}
	var bytes, sum int64
	for h, e := range s.index {
		if e.refs != want[h] {
			t.Fatalf("object %v has %d references, want %d", h, e.refs, want[h])
		}
		if e.refs > 0 {
			sum += e.size()
		}
	}
	for _, g := range s.segs {
		bytes += g.live
	}
	if bytes != sum {
		t.Fatalf("segments say %d bytes are live, objects say %d", bytes, sum)
	}
}

// fill puts a random graph into a batch and returns its objects in order.
func (m *model) fill(t *rapid.T, b *Batch) []Hash {
	var made []Hash
	for i := rapid.IntRange(1, 12).Draw(t, "objects"); i > 0; i-- {
		// Few different contents: most are met again.
		data := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(0, 300).Draw(t, "size"))
		o := modelObject{data: append(data, fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "salt"))...)}
		series := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "series")
		var h Hash
		var err error
		if o.node = rapid.Bool().Draw(t, "node"); o.node {
			for _, ref := range made {
				if rapid.Bool().Draw(t, "ref") {
					o.refs = append(o.refs, ref)
				}
			}
			h, err = b.Series(series).Node(o.data, o.refs)
		} else {
			h, err = b.Series(series).Blob(o.data)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.objects[h] = o
		made = append(made, h)
	}
	return made
}

func TestModel(t *testing.T) {
	t.Parallel() // it waits for the disk
	testkit.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		dir := must(os.MkdirTemp(testkit.Quick(), "cas-model"))
		defer os.RemoveAll(dir)
		s := must(Open(dir, Options{SegmentBytes: 2 << 10, PackBytes: 1}))
		defer func() { s.Close() }()
		m := &model{objects: map[Hash]modelObject{}, roots: map[string]Hash{}}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { m.check(t, s) },
			"commit": func(t *rapid.T) {
				b := s.Begin()
				defer b.Discard()
				made := m.fill(t, b)
				n, h := name.Draw(t, "root"), rapid.SampledFrom(made).Draw(t, "of")
				if err := b.Commit(Root{Name: n, Hash: h}); err != nil {
					t.Fatal(err)
				}
				m.roots[n] = h
			},
			"discard": func(t *rapid.T) {
				b := s.Begin()
				m.fill(t, b)
				b.Discard()
			},
			"delete": func(t *rapid.T) {
				names := []string{name.Draw(t, "root"), name.Draw(t, "other")}
				before, after := m.reach(), m.reach(names...)
				var want int64
				for h := range before {
					if !after[h] {
						e := s.index[h]
						want += e.size()
					}
				}
				if got, err := s.Unique(names...); err != nil || got != want {
					t.Fatalf("Unique says %d (%v), want %d", got, err, want)
				}
				if err := s.Delete(names...); err != nil {
					t.Fatal(err)
				}
				delete(m.roots, names[0])
				delete(m.roots, names[1])
			},
			"collect during a batch": func(t *rapid.T) {
				b := s.Begin()
				defer b.Discard()
				made := m.fill(t, b)
				if _, err := s.Collect(context.Background()); err != nil {
					t.Fatal(err)
				}
				h := made[len(made)-1]
				if err := b.Commit(Root{Name: "a", Hash: h}); err != nil {
					t.Fatal(err)
				}
				m.roots["a"] = h
			},
			"pack during a batch": func(t *rapid.T) {
				b := s.Begin()
				defer b.Discard()
				made := m.fill(t, b)
				must(s.Pack(context.Background()))
				h := made[len(made)-1]
				if err := b.Commit(Root{Name: "b", Hash: h}); err != nil {
					t.Fatal(err)
				}
				m.roots["b"] = h
			},
			"pack": func(t *rapid.T) {
				must(s.Pack(context.Background()))
				onDisk(t, s)
			},
			"collect": func(t *rapid.T) {
				if _, err := s.Collect(context.Background()); err != nil {
					t.Fatal(err)
				}
				onDisk(t, s)
			},
			"reopen": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = must(Open(dir, Options{SegmentBytes: 2 << 10, PackBytes: 1}))
			},
			"reopen without indexes": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				removeIndexes(dir)
				s = must(Open(dir, Options{SegmentBytes: 2 << 10, PackBytes: 1}))
			},
		})
	})
}

func TestBatchRules(t *testing.T) {
	s := open(t, testkit.TempDir(t), small)
	b := s.Begin()
	_, err := b.Blob(make([]byte, MaxObject+1))
	wantKind(t, err, errs.Invalid)
	_, err = b.Node(make([]byte, MaxNode+1), nil)
	wantKind(t, err, errs.Invalid)
	_, err = b.Node(nil, []Hash{{1}})
	wantKind(t, err, errs.NotFound)
	wantKind(t, b.Commit(Root{Name: "r", Hash: Hash{1}}), errs.NotFound)
	_, err = b.Blob(nil)
	wantKind(t, err, errs.Internal)
	wantKind(t, s.Begin().Commit(Root{Name: "r"}), errs.Invalid)
	wantKind(t, s.Begin().Commit(Root{Name: "", Hash: Hash{1}}), errs.Invalid)
	_, err = s.Get(Hash{1})
	wantKind(t, err, errs.NotFound)
	noErr(t, s.Delete("no such root"))
	wantKind(t, s.Check(context.Background(), "no such root", true), errs.NotFound)
}

// A dead node's children may have been collected: it must not count as there.
func TestDeadNodeIsNotThere(t *testing.T) {
	s := open(t, testkit.TempDir(t), Options{})
	h := save(t, s, "a", []byte("child"))
	child := blobHash([]byte("child"))
	if !s.Has(h) || !s.Has(child) {
		t.Fatal("a live object is not there")
	}
	noErr(t, s.Delete("a"))
	if s.Has(h) {
		t.Fatal("a dead node is there")
	}
	b := s.Begin()
	defer b.Discard()
	if b.Keep(h) || !b.Keep(child) {
		t.Fatal("Keep must refuse a dead node and take a dead blob")
	}
	_, err := b.Node(nil, []Hash{h})
	wantKind(t, err, errs.NotFound)
	if _, err := b.Node([]byte("node of a"), []Hash{child}); err != nil || !s.Has(h) {
		t.Fatalf("the node put again is not there: %v", err)
	}
}

func TestOpenTwice(t *testing.T) {
	dir := testkit.TempDir(t)
	open(t, dir, small)
	_, err := Open(dir, small)
	wantKind(t, err, errs.Busy)
}

func TestUnknownFormat(t *testing.T) {
	dir := testkit.TempDir(t)
	noErr(t, open(t, dir, small).Close())
	noErr(t, os.WriteFile(dir+"/format", []byte("mulligan-cas 99 future\n"), 0o600))
	_, err := Open(dir, small)
	wantKind(t, err, errs.Unsupported)
}
