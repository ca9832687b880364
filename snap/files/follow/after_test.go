package follow

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
)

// TestAfter: the patrol passes every path once, whatever its stride.
func TestAfter(t *testing.T) {
	root := &manifest.Node{Entry: manifest.Entry{Mode: manifest.DirKind}}
	add := func(in *manifest.Node, name string, mode uint32) *manifest.Node {
		i, ok := in.ChildIndex(name)
		if !ok {
			in.Children = slices.Insert(in.Children, i, &manifest.Node{Entry: manifest.Entry{Name: name, Mode: mode}})
		}
		return in.Children[i]
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
