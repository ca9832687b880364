package manifest

import (
	"bytes"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
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
