package mcpserver

import (
	"strings"
	"testing"

	"mulligan/ipc"
)

// TestNextOfRevert: the user's force is named where it may help, and only there.
func TestNextOfRevert(t *testing.T) {
	forcible, fixed := ipc.RevertConflict{Path: "f", Reason: "overlaps", Forcible: true}, ipc.RevertConflict{Path: ".git", Reason: "repository"}
	for want, left := range map[string][]ipc.RevertConflict{
		"":                                    nil,
		"1 left alone: repair them by hand; ": {fixed},
		"2 left alone: repair them by hand, or ask the user to revert them with force; ":                        {forcible, forcible},
		"3 left alone: repair them by hand, or ask the user to revert those with force that are forcible (1); ": {fixed, forcible, fixed},
	} {
		next := nextOfRevert(ipc.App{ID: "app-1"}, invocation{}, ipc.RevertResult{Conflicts: left})
		if said, _, _ := strings.Cut(next, "nothing was changed"); said != want {
			t.Errorf("%+v: %q, want %q", left, said, want)
		}
	}
}
