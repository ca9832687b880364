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
