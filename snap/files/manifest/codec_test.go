package manifest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

func sampleEntries() []Entry {
	return []Entry{
		{Name: "d", Mode: unix.S_IFDIR | 0o1777, Hash: snap.Hash{8}, Loose: true, rare: &rare{xattrs: []inode.Xattr{{Name: "user.a", Value: ""}, {Name: "user.b", Value: "\x00"}}}},
		{Name: "dev", Mode: unix.S_IFBLK | 0o600, rare: &rare{rdev: unix.Mkdev(8, 300)}},
		{Name: "empty", Mode: unix.S_IFREG},
		{Name: "link", Mode: unix.S_IFLNK | 0o777, rare: &rare{link: "../\xfe"}},
		{Name: "mnt", Mode: unix.S_IFDIR, Mount: true},
		{Name: "\xff\n", Mode: unix.S_IFREG | 0o4755, Uid: 1, Gid: 1 << 31, Mtime: inode.Time{Sec: -1, Nsec: 999999999}, Size: 1 << 40, Hash: snap.Hash{9}, rare: &rare{group: "a/b"}},
	}
}

func pointers(list []Entry) (out []*Entry) {
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}

// FuzzManifest: whatever is decoded encodes to the same bytes, and names no
// way out of a folder; nothing else makes the decoder stumble.
func FuzzManifest(f *testing.F) {
	for _, sort := range []byte{SortFolder, sortList, SortTop} {
		list := sampleEntries()
		if sort == SortTop {
			list = list[:1]
			list[0].Name = ""
		}
		data, refs := EncodeNode(sort, pointers(list))
		f.Add(data, len(refs))
		got, err := decodeNode(sort, data, refs)
		if err != nil || !reflect.DeepEqual(got, list) {
			f.Fatalf("%c: %+v became %+v (%v)", sort, list, got, err)
		}
	}
	large, refs := EncodeLarge(3<<20+1, map[int64]snap.Hash{1: {1}, 3: {2}})
	f.Add(large, len(refs))
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n < 0 || n > 1000 {
			return
		}
		refs := make([]snap.Hash, n)
		for i := range refs {
			refs[i][0] = byte(i) | 1
		}
		for _, sort := range []byte{SortTop, SortFolder, sortList} {
			list, err := decodeNode(sort, data, refs)
			if err != nil {
				continue
			}
			again, used := EncodeNode(sort, pointers(list))
			if !bytes.Equal(again, data) || len(used) != n {
				t.Fatalf("%q became %q", data, again)
			}
			for _, e := range list {
				if sort == SortFolder && !relpath.ValidName(e.Name) {
					t.Fatalf("a name is %q", e.Name)
				}
			}
		}
		if l, err := decodeLarge(data, refs); err == nil {
			hashes, next := map[int64]snap.Hash{}, 0
			for i := range Pieces(l.size) {
				if l.has(i) {
					hashes[i] = l.refs[next]
					next++
				}
			}
			if again, _ := EncodeLarge(l.size, hashes); !bytes.Equal(again, data) {
				t.Fatalf("%q became %q", data, again)
			}
		}
	})
}

// TestRefuses: bytes that no encoder writes are refused. They may come from another host, and a name among them could lead out of a folder.
func TestRefuses(t *testing.T) {
	file := func(change func(*Entry)) *Entry {
		e := &Entry{Name: "f", Mode: unix.S_IFREG | 0o644, Size: 1, Hash: snap.Hash{1}}
		change(e)
		return e
	}
	named := func(names ...string) (list []*Entry) {
		for _, name := range names {
			list = append(list, file(func(e *Entry) { e.Name = name }))
		}
		return list
	}
	attrs := func(names ...string) []*Entry {
		return []*Entry{file(func(e *Entry) {
			var list []inode.Xattr
			for _, name := range names {
				list = append(list, inode.Xattr{Name: name})
			}
			e.SetXattrs(list)
		})}
	}
	one := func(change func(*Entry)) []*Entry { return []*Entry{file(change)} }
	for what, x := range map[string]struct {
		sort    byte
		entries []*Entry
	}{
		"a name that leads up":             {SortFolder, named("..")},
		"the folder itself":                {SortFolder, named(".")},
		"a path for a name":                {SortFolder, named("a/b")},
		"no name":                          {SortFolder, named("")},
		"a zero in a name":                 {SortFolder, named("a\x00")},
		"a path that leads up":             {sortList, named("a/../../b")},
		"an absolute path":                 {sortList, named("/a")},
		"a top with a name":                {SortTop, named("f")},
		"names out of order":               {SortFolder, named("b", "a")},
		"a name twice":                     {SortFolder, named("a", "a")},
		"attributes out of order":          {SortFolder, attrs("user.b", "user.a")},
		"an attribute twice":               {SortFolder, attrs("user.a", "user.a")},
		"too many nanoseconds":             {SortFolder, one(func(e *Entry) { e.Mtime.Nsec = 1e9 })},
		"a negative size":                  {SortFolder, one(func(e *Entry) { e.Size = -1 })},
		"a group that leads up":            {SortFolder, one(func(e *Entry) { e.SetGroup("../x") })},
		"content without its hash":         {SortFolder, one(func(e *Entry) { e.Hash = snap.Hash{} })},
		"a hash without content":           {SortFolder, one(func(e *Entry) { e.Size = 0 })},
		"a folder without its hash":        {SortFolder, one(func(e *Entry) { e.Mode, e.Size, e.Hash = unix.S_IFDIR, 0, snap.Hash{} })},
		"an unknown type":                  {SortFolder, one(func(e *Entry) { e.Mode, e.Size, e.Hash = 0o644, 0, snap.Hash{} })},
		"a mount point of an unknown type": {SortFolder, one(func(e *Entry) { e.Mode, e.Size, e.Hash, e.Mount = 0, 0, snap.Hash{}, true })},
	} {
		data, refs := EncodeNode(x.sort, x.entries)
		if list, err := decodeNode(x.sort, data, refs); err == nil {
			t.Errorf("%s: accepted: %+v", what, list)
		}
	}

	list := sampleEntries()
	data, refs := EncodeNode(SortFolder, pointers(list))
	refused := func(what string, data []byte, refs []snap.Hash) {
		t.Helper()
		if list, err := decodeNode(SortFolder, data, refs); err == nil {
			t.Errorf("%s: accepted: %+v", what, list)
		}
	}
	for i := range data {
		refused(fmt.Sprintf("cut after %d bytes", i), data[:i], refs)
	}
	refused("a byte more", append(slices.Clone(data), 0), refs)
	refused("a reference more", data, append(slices.Clone(refs), snap.Hash{1}))
	refused("a reference less", data, refs[:len(refs)-1])
	refused("a reference to nothing", data, make([]snap.Hash, len(refs)))
	for i, what := range []string{"another version", "another sort"} {
		other := slices.Clone(data)
		other[i]++
		refused(what, other, refs)
	}
	raw := func(parts ...uint64) []byte {
		b := []byte{Version, SortFolder}
		for _, v := range parts {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	const file1, long = unix.S_IFREG, 1 << 32
	valid := raw(1, 1, 'f', file1, 0, 0, 0, 0, 0)
	if _, err := decodeNode(SortFolder, valid, nil); err != nil {
		t.Fatalf("a valid node: %v", err)
	}
	refused("more entries than bytes", raw(1<<40, 1, 'f', file1, 0, 0, 0, 0, 0), nil)
	refused("a name longer than the node", raw(1, 1<<20, 'f', file1, 0, 0, 0, 0, 0), nil)
	refused("more attributes than bytes", raw(1, 1, 'f', file1, 0, 0, 0, 0, hasXattrs, 1<<40), nil)
	refused("an owner out of range", raw(1, 1, 'f', file1, long, 0, 0, 0, 0), nil)
	refused("unknown flags", raw(1, 1, 'f', file1, 0, 0, 0, 0, allFlags+1), nil)
	refused("a size of zero that is announced", raw(1, 1, 'f', file1, 0, 0, 0, 0, hasSize, 0), nil)
	refused("a number that is longer than it need be", append([]byte{Version, SortFolder, 0x81, 0}, valid[3:]...), nil)
}

// TestLargeRefuses: the pieces of a large file are decoded as they were, and bytes that no encoder writes are refused.
func TestLargeRefuses(t *testing.T) {
	const pieces = 11
	hashes := map[int64]snap.Hash{0: {1}, 8: {2}, pieces - 1: {3}}
	data, refs := EncodeLarge((pieces-1)<<20+1, hashes)
	l, err := decodeLarge(data, refs)
	if err != nil || l.size != (pieces-1)<<20+1 {
		t.Fatalf("%+v, %v", l, err)
	}
	for i := range int64(pieces) {
		if _, want := hashes[i]; l.has(i) != want {
			t.Errorf("piece %d: %v", i, !want)
		}
	}
	refused := func(what string, data []byte, refs []snap.Hash) {
		t.Helper()
		if l, err := decodeLarge(data, refs); err == nil {
			t.Errorf("%s: accepted: %+v", what, l)
		}
	}
	for i := range data {
		refused(fmt.Sprintf("cut after %d bytes", i), data[:i], refs)
	}
	for i, what := range []string{"another version", "another sort"} {
		other := slices.Clone(data)
		other[i]++
		refused(what, other, refs)
	}
	refused("a byte more", append(slices.Clone(data), 0), refs)
	refused("a reference less", data, refs[:2])
	refused("a reference more", data, append(slices.Clone(refs), snap.Hash{4}))
	beyond := slices.Clone(data)
	beyond[len(beyond)-1] |= 1 << 3 // of piece 11, where the last is 10
	refused("a piece beyond the end", beyond, append(slices.Clone(refs), snap.Hash{4}))
	sized := func(size uint64, bits ...byte) []byte {
		return append(binary.AppendUvarint([]byte{Version, sortLarge}, size), bits...)
	}
	refused("a file that is not large", sized(cas.ChunkSize, 1), refs[:1])
	refused("a file larger than any", sized(1<<62, 1), refs[:1])
	refused("a negative size", sized(1<<63, 1), refs[:1])
	if _, err := decodeLarge(sized(cas.ChunkSize+1, 3), refs[:2]); err != nil {
		t.Errorf("the smallest: %v", err)
	}
}
