package merge

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/testkit"
)

func FuzzMergeText(f *testing.F) {
	f.Add("a\nb\nc\nd\n", "a\nB\nc\nd\n", "a\nb\nc\nD\n")
	f.Fuzz(func(t *testing.T, base, ours, theirs string) {
		for _, s := range []string{base, ours, theirs} {
			if !isText([]byte(s)) {
				return
			}
		}
		a, ok := mergeText(base, ours, theirs)
		b, okToo := mergeText(base, theirs, ours)
		if ok != okToo || a != b {
			t.Errorf("the order matters: %q %v, %q %v", a, ok, b, okToo)
		}
		if got, ok := mergeText(base, base, theirs); !ok || got != theirs {
			t.Errorf("an untouched side: %q %v", got, ok)
		}
	})
}

// TestMergeText compares with git, on texts at random: what is merged here, git
// merges to the same.
func TestMergeText(t *testing.T) {
	r := testkit.Rand(t)
	dir := t.TempDir()
	var merged, conflicts, stricter int
	for range 300 {
		base := randomLines(r, 12)
		ours, theirs := disturbed(r, base), disturbed(r, base)
		got, ok := mergeText(strings.Join(base, ""), strings.Join(ours, ""), strings.Join(theirs, ""))
		want, clean := gitMerge(t, dir, base, ours, theirs)
		switch {
		case ok && (!clean || got != want):
			t.Fatalf("base %q\nours %q\ntheirs %q\ngave %q, git %q (%v)", base, ours, theirs, got, want, clean)
		case ok:
			merged++
		case clean:
			stricter++
		default:
			conflicts++
		}
	}
	t.Logf("%d merged as git does, %d conflicts, %d that git merges", merged, conflicts, stricter)
	if merged < 50 || conflicts < 50 {
		t.Error("too few of one kind to tell")
	}
}

// TestEqualLines deletes one of two equal lines and edits the line beside them: the deleted one can be the one beside it.
func TestEqualLines(t *testing.T) {
	for _, test := range []struct{ base, ours, theirs string }{
		{"1\n2\n2\n3\n", "1\n2\n3\n", "1\n2\n2\nX\n"},
		{"1\n2\n2\n3\n", "1\n2\n3\n", "X\n2\n2\n3\n"},
		{"1\n2\n3\n", "1\n2\n2\n3\n", "1\n2\nX\n"},
		{"1\n2\n3\n", "1\n2\n2\n3\n", "X\n2\n3\n"},
		{"0\n1\n2\n1\n2\n3", "0\n1\n2\n3", "0\n1\n2\n1\n2\nX"},
		{"0\n1\n2\n1\n2\n3", "0\n1\n2\n3", "X\n1\n2\n1\n2\n3"},
	} {
		if got, ok := mergeText(test.base, test.ours, test.theirs); ok {
			t.Errorf("%q merged to %q", test, got)
		}
	}
}

func randomLines(r *rand.Rand, n int) []string {
	var out []string
	for _, i := range r.Perm(1000)[:n] { // of equal lines, git may take another one for the deleted one
		out = append(out, fmt.Sprintf("line %d\n", i))
	}
	return out
}

func disturbed(r *rand.Rand, base []string) []string {
	out := slices.Clone(base)
	for range 1 + r.IntN(2) {
		i := r.IntN(len(out))
		switch r.IntN(3) {
		case 0:
			out[i] = fmt.Sprintf("edited %d\n", r.IntN(3))
		case 1:
			out = slices.Delete(out, i, i+1)
		default:
			out = slices.Insert(out, i, fmt.Sprintf("added %d\n", r.IntN(3)))
		}
	}
	return out
}

func gitMerge(t *testing.T, dir string, base, ours, theirs []string) (string, bool) {
	t.Helper()
	for name, lines := range map[string][]string{"base": base, "ours": ours, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "git", "merge-file", "-p", "-q", "ours", "base", "theirs")
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err == nil
}

// TestSlide compares slide with what it stands for: a block of lines can be taken from another place, without a change of what is left, as long
// as each place on the way leaves the same.
func TestSlide(t *testing.T) {
	r := testkit.Rand(t)
	slid := 0
	for range 2000 {
		var lines []string
		for range 1 + r.IntN(9) {
			lines = append(lines, []string{"a\n", "bb\n", "ccc\n"}[r.IntN(1+r.IntN(3))])
		}
		first := r.IntN(len(lines))
		last := first + 1 + r.IntN(len(lines)-first)
		text := func(from, to int) string { return strings.Join(lines[from:to], "") }
		left := text(0, first) + text(last, len(lines))
		way := func(step int) (bytes int) {
			for i, j := first+step, last+step; i >= 0 && j <= len(lines) && text(0, i)+text(j, len(lines)) == left; i, j = i+step, j+step {
				bytes = len(text(min(i, first), max(i, first)))
				if step > 0 {
					bytes = len(text(last, j))
				}
			}
			return bytes
		}
		up, down := slide(text(0, first), text(first, last), text(last, len(lines)))
		if up != way(-1) || down != way(1) {
			t.Fatalf("%q from line %d to %d: up %d, down %d; want %d and %d", lines, first, last, up, down, way(-1), way(1))
		}
		if up > 4 || down > 4 {
			slid++
		}
	}
	if slid < 100 {
		t.Errorf("only %d of 2000 blocks could move by several lines", slid)
	}
}

func TestIsText(t *testing.T) {
	for text, want := range map[string]bool{"": true, "a\n\u00e9\n": true, "\x00": false, "a\x00b": false, "\xff": false} {
		if isText([]byte(text)) != want {
			t.Errorf("%q is a text: %v", text, !want)
		}
	}
}
