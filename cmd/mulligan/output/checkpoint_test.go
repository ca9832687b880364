package output

import (
	"strings"
	"testing"

	"mulligan/ipc"
)

// For people, a safety checkpoint is called after what its rollback went to; programs get the notes as they are.
func TestSafetyCheckpoint(t *testing.T) {
	notes := "safety checkpoint before rollback to cp-85e9aaaaaaaa"
	cp := ipc.Checkpoint{ID: "cp-0123456789ab", Trigger: ipc.TriggerPreRollback, Notes: &notes, RollbackTo: "cp-85e9aaaaaaaa", RollbackTitle: "fix the login page"}
	for _, terminal := range []bool{true, false} {
		var b strings.Builder
		p := &Printer{Stdout: NewWriter(&b), Terminal: terminal}
		p.PrintCheckpoints([]ipc.Checkpoint{cp}, true)
		want := notes
		if terminal {
			want = "safety checkpoint before rollback to “fix the login page”"
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("terminal %t: %s", terminal, b.String())
		}
	}
}
