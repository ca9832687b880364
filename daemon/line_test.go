package daemon

import (
	"testing"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// TestLine follows the marks of checkpoints, and does without those that older daemons
// made.
func TestLine(t *testing.T) {
	point := func(id ipc.CheckpointID, trigger ipc.Trigger, marks ...ipc.CheckpointID) (cp store.Checkpoint) {
		cp.ID, cp.Trigger = id, trigger
		if len(marks) > 0 {
			cp.UndoTo = &marks[0]
		}
		if len(marks) > 1 {
			cp.UndoNext = &marks[1]
		}
		return cp
	}
	off := func(cp store.Checkpoint) store.Checkpoint { cp.CalledOff = true; return cp }
	const agent, manual, safety = ipc.TriggerAgent, ipc.TriggerManual, ipc.TriggerPreRollback
	for _, c := range []struct {
		name string
		l    line // newest first
		n    int
		undo ipc.CheckpointID
		redo ipc.CheckpointID
	}{
		{"nothing", nil, 1, "", ""},
		{"one turn", line{point("t1", agent, "", "t1"), point("m", manual, "")}, 1, "t1", ""},
		{"no second", line{point("t1", agent, "", "t1")}, 2, "", ""},
		{"two turns", line{point("t2", agent, "t1", "t2"), point("t1", agent, "", "t1")}, 2, "t1", ""},
		{"a manual one after", line{point("m", manual, "t1"), point("t1", agent, "", "t1")}, 1, "t1", ""},
		{"one undone", line{point("s", safety, "t2", "t1"), point("t2", agent, "t1", "t2"), point("t1", agent, "", "t1")}, 1, "t1", "s"},
		{"all undone", line{point("s", safety, "t1", ""), point("t1", agent, "", "t1")}, 1, "", "s"},
		{"one called off", line{off(point("s", safety, "t1")), point("t1", agent, "", "t1")}, 1, "t1", ""},
		{"one called off after one undone", line{off(point("s2", safety, "")), point("s1", safety, "t1", ""), point("t1", agent, "", "t1")}, 1, "", "s1"},
		{"one gone", line{point("t2", agent, "t1", "t2")}, 2, "", ""},
		{"of older daemons", line{point("t2", agent), point("m", manual), point("t1", agent)}, 2, "t1", ""},
		{"an old manual one after", line{point("m", manual), point("t1", agent)}, 1, "t1", ""},
		{"a new one after old ones", line{point("t2", agent, "t1", "t2"), point("t1", agent), point("t0", agent)}, 3, "t0", ""},
	} {
		to, err := c.l.undo(c.n)
		if to != c.undo || (c.undo == "") != (errs.KindOf(err) == errs.NotFound && err != nil) {
			t.Errorf("%s: undo %d goes to %q, %v; want %q", c.name, c.n, to, err, c.undo)
		}
		to, err = c.l.redo()
		if to != c.redo || (c.redo == "") != (errs.KindOf(err) == errs.NotFound && err != nil) {
			t.Errorf("%s: redo goes to %q, %v; want %q", c.name, to, err, c.redo)
		}
	}
}

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
