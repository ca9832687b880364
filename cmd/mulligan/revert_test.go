package main

import (
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// TestLeftAlone: --force is named where it may help, and only there.
func TestLeftAlone(t *testing.T) {
	forcible, fixed := ipc.RevertConflict{Path: "f", Forcible: true}, ipc.RevertConflict{Path: ".git"}
	for _, list := range [][]ipc.RevertConflict{{fixed}, {forcible}, {fixed, forcible}} {
		err := leftAlone(list)
		if names := strings.Contains(errs.HintOf(err), "--force"); errs.KindOf(err) != errs.Conflict || names != list[len(list)-1].Forcible {
			t.Errorf("%+v: %v (%s)", list, err, errs.HintOf(err))
		}
	}
}
