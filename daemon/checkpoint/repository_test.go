package checkpoint

import (
	"testing"

	"mulligan/snap"
)

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
