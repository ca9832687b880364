package turns

import (
	"slices"
	"testing"

	"mulligan/ipc"
	"mulligan/snap"
)

// What changed within the git repository is one change, and what was created and deleted again is none.
func TestSumUp(t *testing.T) {
	none, one, two := snap.Hash{}, snap.Hash{1}, snap.Hash{2}
	for _, c := range []struct {
		writes []snap.Write
		want   ipc.TurnChanges
	}{
		{nil, ipc.TurnChanges{}},
		{[]snap.Write{{Path: "a", Before: one, After: two}, {Path: "b", After: one}, {Path: "c", Before: one}, {Path: "d", After: one}, {Path: "d", Before: one, After: none}},
			ipc.TurnChanges{Created: 1, Modified: 1, Deleted: 1, Paths: []string{"a", "b", "c"}}},
		{[]snap.Write{{Path: ".git/objects/ab", After: one}, {Path: ".git/objects/ab/cd", After: one}, {Path: "a", Before: one, After: two}, {Path: ".git/index", Before: one, After: two}},
			ipc.TurnChanges{Modified: 2, Paths: []string{"a", ".git"}}},
		{[]snap.Write{{Path: ".git/index.lock", After: one}, {Path: ".git/index.lock", Before: one}}, ipc.TurnChanges{}},
		{[]snap.Write{{Path: ".git", After: one}, {Path: ".git/HEAD", After: one}, {Path: ".gitignore", After: one}},
			ipc.TurnChanges{Created: 2, Paths: []string{".git", ".gitignore"}}},
	} {
		got := sumUp(c.writes)
		if got.Created != c.want.Created || got.Modified != c.want.Modified || got.Deleted != c.want.Deleted || !slices.Equal(got.Paths, c.want.Paths) {
			t.Errorf("%+v: %+v, want %+v", c.writes, got, c.want)
		}
	}
}
