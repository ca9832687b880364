package merge

import (
	"bytes"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"mulligan/snap/cas"
)

// maxMerge bounds a file that is merged, in bytes: one piece of content.
const maxMerge = cas.ChunkSize

// isText reports whether a content may be merged by lines.
func isText(b []byte) bool { return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) }

// mergeText makes the change from base to theirs in ours. It does not if ours
// has changed the same lines, or lines next to them, in another way.
func mergeText(base, ours, theirs string) (merged string, ok bool) {
	x, y := udiff.Lines(base, ours), udiff.Lines(base, theirs)
	if touch(x, y) {
		return "", false
	}
	all, ok := udiff.Merge(x, y)
	if !ok {
		return "", false
	}
	merged, err := udiff.Apply(base, all)
	return merged, err == nil
}

// touch reports whether an edit of x and another one of y meet; both are in order.
func touch(x, y []udiff.Edit) bool {
	for len(x) > 0 && len(y) > 0 {
		a, b := x[0], y[0]
		switch {
		case a == b:
			x, y = x[1:], y[1:]
		case a.End < b.Start:
			x = x[1:]
		case b.End < a.Start:
			y = y[1:]
		default:
			return true
		}
	}
	return false
}
