package naming

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

type fixed []ipc.Checkpoint

func (f fixed) Checkpoints(context.Context, string, ipc.CheckpointQuery) (ipc.CheckpointList, error) {
	return ipc.CheckpointList{Checkpoints: f}, nil
}

func TestCheckpoint(t *testing.T) {
	note := func(s string) *string { return &s }
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	list := fixed{
		{ID: "cp-aa0000000001", CreatedAt: ago(time.Minute), Title: "Fix the login page, again"},
		{ID: "cp-aa0000000002", CreatedAt: ago(time.Hour), CalledOff: true, Notes: note("before the rollback")},
		{ID: "cp-bb0000000003", CreatedAt: ago(2 * time.Hour), Title: "Fix the login page"},
		{ID: "cp-bb0000000004", CreatedAt: ago(50 * time.Hour), Notes: note("before the Migration")},
	}
	for name, want := range map[string]ipc.CheckpointID{
		"1": "cp-aa0000000001", "2": "cp-bb0000000003", "3": "cp-bb0000000004",
		"cp-bb0000000004": "cp-bb0000000004", "cp-aa0000000002": "cp-aa0000000002",
		"@{1 minute ago}": "cp-aa0000000001", "@30m": "cp-bb0000000003", "@{2 days ago}": "cp-bb0000000004",
		"again": "cp-aa0000000001", " Login page, AGAIN": "cp-aa0000000001", "fix the login page": "cp-bb0000000003", "migration": "cp-bb0000000004",
	} {
		if got, err := Checkpoint(t.Context(), list, "shop", name); got != want || err != nil {
			t.Errorf("%q is %s, %v; it should be %s", name, got, err, want)
		}
	}
	for name, kind := range map[string]errs.Kind{
		"0": errs.Invalid, "4": errs.NotFound, "99999999999999999999": errs.Invalid, "": errs.Invalid, " ": errs.Invalid,
		"cp-": errs.Invalid, "cp-aa": errs.Invalid, "cp-cc": errs.NotFound, "@": errs.Invalid, "@{soon}": errs.Invalid, "@{1 year ago}": errs.NotFound,
		"@2001-01-01": errs.NotFound, "login": errs.Invalid, "logout": errs.NotFound,
	} {
		if got, err := Checkpoint(t.Context(), list, "shop", name); errs.KindOf(err) != kind {
			t.Errorf("%q is %s, %v; the error should be %s", name, got, err, kind)
		}
	}
}

// Names of other tools lead to numbers, and what was typed is told as it was typed.
func TestNamesOfOtherTools(t *testing.T) {
	for _, name := range []string{"HEAD~1", "HEAD", "head^", "latest", "Newest", "-1", "~2"} {
		_, err := Checkpoint(t.Context(), fixed{{ID: "cp-aa0000000001"}}, "shop", name)
		if errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), strconv.Quote(name)+" names no checkpoint") || !strings.HasPrefix(errs.HintOf(err), "give N ") {
			t.Errorf("%s: %v, %s", name, err, errs.HintOf(err))
		}
	}
	if _, err := Checkpoint(t.Context(), fixed{}, "shop", "Heading"); strings.HasPrefix(errs.HintOf(err), "give N ") {
		t.Errorf("a word is taken for a name of another tool: %v", errs.HintOf(err))
	}
}
