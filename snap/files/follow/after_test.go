package follow

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
)

// TestAfter: the patrol passes every path once, whatever its stride.
func TestAfter(t *testing.T) {
	root := &manifest.Node{Entry: manifest.Entry{Mode: manifest.DirKind}}
	add := func(in *manifest.Node, name string, mode uint32) *manifest.Node {
		if in.Child(name) == nil {
			in.Put(&manifest.Node{Entry: manifest.Entry{Name: name, Mode: mode}})
		}
		return in.Child(name)
	}
	for i := range 50 {
		a := add(root, fmt.Sprint("a", i%3), manifest.DirKind)
		add(add(a, fmt.Sprint("b", i%5), manifest.DirKind), fmt.Sprint("f", i), unix.S_IFREG)
	}
	l := newLive(root)
	var want []string
	l.each(root, ".", func(p string, _ *manifest.Node) {
		if p != "." {
			want = append(want, p)
		}
	})
	l.pack()
	for stride := 1; stride < 80; stride += 13 {
		var got []string
		for at := ""; ; at = got[len(got)-1] {
			some := l.after(at, stride)
			if got = append(got, some...); len(some) < stride {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("in steps of %d: %q instead of %q", stride, got, want)
		}
	}
}

// TestInodes: what is recorded of inodes does not grow without end while files come and go, and those of the tree are always in it.
func TestInodes(t *testing.T) {
	root := &manifest.Node{Entry: manifest.Entry{Mode: manifest.DirKind}}
	file := func(name string, ino uint64) *manifest.Node {
		n := &manifest.Node{Entry: manifest.Entry{Name: name, Mode: unix.S_IFREG}}
		n.ID.Ino = ino
		return n
	}
	for i := range uint64(100) {
		root.Put(file(fmt.Sprint("f", i), i*inodeBlock))
	}
	l := newLive(root)
	l.pack()
	for i := range uint64(20_000) {
		n := file("passing", (i+1000)*inodeBlock)
		l.enter("passing", n)
		if !l.mayHave(n.ID.Ino) {
			t.Fatalf("the inode %d, which just came, is not known", n.ID.Ino)
		}
		l.leave("passing", n)
		if most := 2*l.files + 1024; int64(len(l.inodes)) > most+5 {
			t.Fatalf("%d blocks of inodes are recorded for 100 files", len(l.inodes))
		}
	}
	for i := range uint64(100) {
		if !l.mayHave(i * inodeBlock) {
			t.Errorf("the inode of f%d is not known any more", i)
		}
	}
}
