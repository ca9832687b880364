package merge

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"mulligan/snap/cas"
)

// maxMerge is the largest size in bytes of a file that is merged: one piece of content.
const maxMerge = cas.ChunkSize

// isText reports whether a content may be merged by lines.
func isText(b []byte) bool { return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) }

// mergeText makes the change from base to theirs in ours. ok is false if ours has changed the same lines, or lines next to
// them, in another way.
func mergeText(base, ours, theirs string) (merged string, ok bool) {
	x, y := udiff.Lines(base, ours), udiff.Lines(base, theirs)
	if touch(reaches(base, x), reaches(base, y)) {
		return "", false
	}
	all, ok := udiff.Merge(x, y)
	if !ok {
		return "", false
	}
	merged, err := udiff.Apply(base, all)
	return merged, err == nil
}

// A reach is an edit with the range of the base, in bytes, in which the edit can be placed without changing the resulting text.
// For example, if one of two equal adjacent lines was deleted, nobody can say which, so the edit reaches over both.
type reach struct {
	edit       udiff.Edit
	start, end int
}

// reaches returns the reach of each edit of base.
func reaches(base string, edits []udiff.Edit) []reach {
	out := make([]reach, 0, len(edits))
	for _, e := range edits {
		up, down := 0, 0
		switch {
		case e.New == "":
			up, down = slide(base[:e.Start], base[e.Start:e.End], base[e.End:])
		case e.Start == e.End:
			up, down = slide(base[:e.Start], e.New, base[e.End:])
		}
		out = append(out, reach{e, e.Start - up, e.End + down})
	}
	return out
}

// slide returns the number of bytes by which a block of lines can move up and down in a text without changing the text that
// remains when the block is removed.
func slide(before, block, after string) (up, down int) {
	lines := slices.Collect(strings.Lines(before + block + after))
	first := strings.Count(before, "\n")
	last := first + len(slices.Collect(strings.Lines(block)))
	for i, j := first-1, last-1; i >= 0 && lines[i] == lines[j]; i, j = i-1, j-1 {
		up += len(lines[i])
	}
	for i, j := first, last; j < len(lines) && lines[i] == lines[j]; i, j = i+1, j+1 {
		down += len(lines[j])
	}
	return up, down
}

// touch reports whether the reaches of two different edits of x and y overlap or adjoin. x and y are sorted.
func touch(x, y []reach) bool {
	for len(x) > 0 && len(y) > 0 {
		a, b := x[0], y[0]
		switch {
		case a.edit == b.edit:
			x, y = x[1:], y[1:]
		case a.end < b.start:
			x = x[1:]
		case b.end < a.start:
			y = y[1:]
		default:
			return true
		}
	}
	return false
}
