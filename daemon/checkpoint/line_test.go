package checkpoint

import (
	"testing"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
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
		to, err := c.l.Undo(c.n)
		if to != c.undo || (c.undo == "") != (errs.KindOf(err) == errs.NotFound && err != nil) {
			t.Errorf("%s: undo %d goes to %q, %v; want %q", c.name, c.n, to, err, c.undo)
		}
		to, err = c.l.Redo()
		if to != c.redo || (c.redo == "") != (errs.KindOf(err) == errs.NotFound && err != nil) {
			t.Errorf("%s: redo goes to %q, %v; want %q", c.name, to, err, c.redo)
		}
	}
}
