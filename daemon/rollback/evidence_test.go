package rollback

import (
	"testing"

	"mulligan/snap"
)

// TestWithoutRefresh leaves out what git writes by itself, and nothing else.
func TestWithoutRefresh(t *testing.T) {
	for _, c := range []struct{ in, want int }{
		{len(withoutRefresh([]string{".git/index", ".git"})), 0},
		{len(withoutRefresh([]string{".git/index", "a"})), 1},
		{len(withoutRefresh([]string{".git/index", ".git/refs/heads/main"})), 2},
	} {
		if c.in != c.want {
			t.Errorf("%d are left, want %d", c.in, c.want)
		}
	}
}

// TestConfidence holds the rules to the table that is documented.
func TestConfidence(t *testing.T) {
	for _, c := range []struct {
		v    verdict
		want float64
	}{
		{verdict{}, 0}, {verdict{layers: 2, compared: 2}, 0}, {verdict{done: true, layers: 2, compared: 2}, 1},
		{verdict{done: true, layers: 2, compared: 1}, 0.5}, {verdict{done: true, layers: 2, compared: 2, unwell: true}, 0.5},
		{verdict{done: true, layers: 2, unwell: true}, 0.25},
	} {
		if got := c.v.confidence(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.v, got, c.want)
		}
	}
}

// TestFoldGit words what happened to a repository.
func TestFoldGit(t *testing.T) {
	a, b := "1111111111111", "2222222222222"
	change := func(path string, op snap.Operation) snap.Change {
		return snap.Change{Path: path, Operation: op, Summary: "5 B"}
	}
	for _, c := range []struct {
		list      []snap.Change
		now, then *string
		want      snap.Change
	}{
		{[]snap.Change{change(".git/index", snap.Modify)}, &a, &a, snap.Change{Path: ".git", Operation: snap.Modify, Summary: "index; 1 path"}},
		{[]snap.Change{change(".git/index", snap.Modify), change(".git/refs/heads/main", snap.Modify), change(".git/objects/ab/cd", snap.Create)}, &b, &a,
			snap.Change{Path: ".git", Operation: snap.Modify, Summary: "commit 222222222 → 111111111; branches main; index; 3 paths"}},
		{[]snap.Change{change(".git", snap.Delete), change(".git/HEAD", snap.Delete)}, nil, &a,
			snap.Change{Path: ".git", Operation: snap.Delete, Summary: "commit none → 111111111; 2 paths"}},
	} {
		if got := foldGit(c.list, c.now, c.then); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}
