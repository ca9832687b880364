package manifest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/testkit"
)

// TestPack: a folder that is packed shows the same entries, one by one and all together, and is as before when it is unpacked. What must be
// changed in its place is not packed.
func TestPack(t *testing.T) {
	r := testkit.Rand(t)
	for range 200 {
		n := &Node{Entry: Entry{Mode: DirKind}}
		want := anyEntries(r)
		for _, k := range want {
			n.Put(k)
		}
		before := slices.Clone(want)
		slices.SortFunc(before, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
		n.Pack()
		same(t, "packed", n.Children(), before)
		for _, k := range before {
			if got := n.Child(k.Name); !reflect.DeepEqual(got, k) {
				t.Fatalf("the child %q is %+v, want %+v", k.Name, got, k)
			}
			if !packable(k) && n.Child(k.Name) != k {
				t.Fatalf("%+v was packed", k)
			}
		}
		if got := n.Child("no such name"); got != nil {
			t.Fatalf("%+v", got)
		}
		var folders []*Node
		for k := range n.Folders {
			folders = append(folders, k)
		}
		same(t, "folders", folders, slices.DeleteFunc(slices.Clone(before), func(k *Node) bool { return !k.IsDir() }))
		n.Unpack()
		same(t, "unpacked", n.Children(), before)
		for _, k := range slices.Clone(n.Children()) {
			n.Remove(k.Name)
		}
		if len(n.Children()) > 0 {
			t.Fatalf("%d entries are left", len(n.Children()))
		}
	}
}

// TestPackMost: a folder that is packed is not packed once more, which would lose it, and one that is too large is not packed.
func TestPackMost(t *testing.T) {
	n := &Node{Entry: Entry{Mode: DirKind}}
	for i := range packMost {
		n.Put(&Node{Entry: Entry{Name: fmt.Sprintf("%05d", i), Mode: unix.S_IFREG}, Nlink: 1})
	}
	n.Pack()
	n.Pack()
	if n.packed == nil || len(n.Children()) != packMost {
		t.Fatalf("packed: %v, %d entries", n.packed != nil, len(n.Children()))
	}
	n.Unpack()
	n.Put(&Node{Entry: Entry{Name: "one more", Mode: unix.S_IFREG}, Nlink: 1})
	if n.Pack(); n.packed != nil {
		t.Fatal("a large folder is packed")
	}
}

// anyEntries returns nodes of all kinds with names that differ.
func anyEntries(r *rand.Rand) []*Node {
	list := make([]*Node, r.IntN(40))
	for i := range list {
		k := &Node{Entry: Entry{Name: fmt.Sprintf("%x-%d", r.Uint32N(1<<uint(r.IntN(32))+1), i), Uid: r.Uint32(), Gid: uint32(r.IntN(2000)),
			Mtime: inode.Time{Sec: r.Int64() >> r.IntN(60), Nsec: r.Uint32N(1e9)}}, ID: inode.ID{Dev: r.Uint64() >> r.IntN(64), Ino: r.Uint64() >> r.IntN(64)},
			Nlink: 1, Sure: r.IntN(2) == 0, Ctime: inode.Time{Sec: r.Int64() >> r.IntN(60), Nsec: r.Uint32N(1e9)}}
		if r.IntN(2) == 0 {
			k.Ctime = k.Mtime
		}
		k.Mode = []uint32{unix.S_IFREG, unix.S_IFREG, unix.S_IFREG, unix.S_IFLNK, unix.S_IFDIR, unix.S_IFIFO, unix.S_IFCHR}[r.IntN(7)] | r.Uint32N(0o10000)
		switch k.Kind() {
		case unix.S_IFREG:
			if k.Size = r.Int64() >> r.IntN(64); k.Size < 0 {
				k.Size = -(k.Size + 1)
			}
			if k.Size > 0 {
				k.Hash = snap.Hash{byte(r.IntN(255)) + 1, 31: byte(r.IntN(256))}
			}
			if r.IntN(8) == 0 {
				k.Nlink = 2
			}
			if r.IntN(8) == 0 {
				k.LinkKey = "8:1"
			}
			if r.IntN(8) == 0 {
				k.SetGroup("a/b")
			}
		case unix.S_IFLNK:
			k.SetLink("../" + k.Name)
		case unix.S_IFCHR:
			k.SetRdev(r.Uint64N(1<<20) + 1)
		case unix.S_IFDIR:
			k.Hash, k.HashState, k.Mount = snap.Hash{1}, Stored, r.IntN(8) == 0
		}
		if r.IntN(6) == 0 {
			k.SetXattrs([]inode.Xattr{{Name: "user.a", Value: "1"}, {Name: "user.b", Value: string([]byte{0, 255})}})
		}
		list[i] = k
	}
	return list
}

func same(t *testing.T, what string, got, want []*Node) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d entries, want %d", what, len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("%s: entry %d is %+v, want %+v", what, i, got[i], want[i])
		}
	}
}
