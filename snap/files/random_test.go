package files

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
	"mulligan/testkit"
)

// TestRandom goes back and forth between random states of random trees, with
// some of the switches undone and some left to a new process.
func TestRandom(t *testing.T) {
	testkit.Rapid(t)
	testkit.Checks(t, 16)
	rapid.Check(t, func(rt *rapid.T) {
		s := newSite(t)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		type held struct {
			snap.Snapshot
			lines []string
		}
		var all []held
		hold := func() held {
			h := held{s.capture(t), listing(t, s.dir)}
			all = append(all, h)
			return h
		}
		for range rapid.IntRange(2, 6).Draw(rt, "rounds") {
			scramble(t, r, s.dir, rapid.IntRange(1, 25).Draw(rt, "changes"))
			base := hold()
			target := rapid.SampledFrom(all).Draw(rt, "target")
			s.n++
			id := snap.RestoreID(fmt.Sprint("op-", s.n))
			sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
			must(t, err)
			must(t, sw.Commit(t.Context()))
			same(t, "restored", listing(t, s.dir), target.lines)
			if rapid.Bool().Draw(rt, "undo") {
				s.open(t)
				sw, err = s.Resume(t.Context(), id)
				must(t, err)
				must(t, sw.Undo(t.Context()))
				same(t, "undone", listing(t, s.dir), base.lines)
			}
			p, err := sw.Check(t.Context())
			must(t, err)
			if !p.Match || len(p.Notes) > 0 {
				t.Fatalf("%+v", p)
			}
			must(t, sw.Finish(t.Context()))
		}
	})
}

func sampleEntries() []entry {
	return []entry{
		{name: "d", mode: unix.S_IFDIR | 0o1777, hash: snap.Hash{8}, loose: true, rare: &rare{xattrs: []inode.Xattr{{Name: "user.a", Value: ""}, {Name: "user.b", Value: "\x00"}}}},
		{name: "dev", mode: unix.S_IFBLK | 0o600, rare: &rare{rdev: unix.Mkdev(8, 300)}},
		{name: "empty", mode: unix.S_IFREG},
		{name: "link", mode: unix.S_IFLNK | 0o777, rare: &rare{link: "../\xfe"}},
		{name: "mnt", mode: unix.S_IFDIR, mount: true},
		{name: "\xff\n", mode: unix.S_IFREG | 0o4755, uid: 1, gid: 1 << 31, mtime: inode.Time{Sec: -1, Nsec: 999999999}, size: 1 << 40, hash: snap.Hash{9}, rare: &rare{group: "a/b"}},
	}
}

func pointers(list []entry) (out []*entry) {
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}

// FuzzManifest: whatever is decoded encodes to the same bytes, and names no
// way out of a folder; nothing else makes the decoder stumble.
func FuzzManifest(f *testing.F) {
	for _, sort := range []byte{sortFolder, sortList, sortTop} {
		list := sampleEntries()
		if sort == sortTop {
			list = list[:1]
			list[0].name = ""
		}
		data, refs := encodeNode(sort, pointers(list))
		f.Add(data, len(refs))
		got, err := decodeNode(sort, data, refs)
		if err != nil || !reflect.DeepEqual(got, list) {
			f.Fatalf("%c: %+v became %+v (%v)", sort, list, got, err)
		}
	}
	l := large{size: 3<<20 + 1, bits: []byte{0b1010}, refs: make([]snap.Hash, 2)}
	f.Add(l.encode(), 2)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n < 0 || n > 1000 {
			return
		}
		refs := make([]snap.Hash, n)
		for i := range refs {
			refs[i][0] = byte(i) | 1
		}
		for _, sort := range []byte{sortTop, sortFolder, sortList} {
			list, err := decodeNode(sort, data, refs)
			if err != nil {
				continue
			}
			again, used := encodeNode(sort, pointers(list))
			if !bytes.Equal(again, data) || len(used) != n {
				t.Fatalf("%q became %q", data, again)
			}
			for _, e := range list {
				if sort == sortFolder && !relpath.ValidName(e.name) {
					t.Fatalf("a name is %q", e.name)
				}
			}
		}
		if l, err := decodeLarge(data, refs); err == nil && !bytes.Equal(l.encode(), data) {
			t.Fatalf("%q became %q", data, l.encode())
		}
		decodeCache(data)
	})
}

// FuzzPlan: what is taken for a plan can be written again and is the same.
func FuzzPlan(f *testing.F) {
	b, err := json.Marshal(plan{Version: 1, State: prepared, Base: digest{1}, Target: digest{2}, Scope: [][]byte{[]byte("a/\xff")}, Notes: []string{"n"}})
	if err != nil {
		f.Fatal(err)
	}
	if p, err := decodePlan(b); err != nil || p.scope()[0] != "a/\xff" {
		f.Fatal(p, err)
	}
	f.Add(b)
	f.Add([]byte(`{"Version":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePlan(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(p)
		must(t, err)
		q, err := decodePlan(again)
		if err != nil || q.State != p.State || q.Base != p.Base || q.Target != p.Target || len(q.scope()) != len(p.scope()) {
			t.Fatalf("%+v became %+v (%v)", p, q, err)
		}
	})
}
