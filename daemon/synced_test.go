package daemon_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"mulligan/daemon/sysfault"
)

// mayBeLost are files of the daemon's that are made anew where they are missing or wrong.
var mayBeLost = []string{"stat-cache"}

// What the daemon gives a name in its state folder was synced before, and the name is synced
// after it: a power cut leaves the old file or the new one, whole.
func TestRenamesAreSynced(t *testing.T) {
	t.Parallel()
	o := newOrdeal(t)
	renames := map[string]int{}
	for _, do := range operations {
		o.prepare(t, do)
		o.p.Arm(sysfault.Fault{})
		res, err := o.operate(t.Context())
		calls := o.p.Disarm().Calls
		o.check(t, do, res, err)
		for i, call := range calls {
			name, ok := strings.CutPrefix(call, "rename state/")
			if !ok || slices.Contains(mayBeLost, path.Base(name)) {
				continue
			}
			name = "state/" + name
			renames[path.Base(name)]++
			folder := path.Dir(name)
			file := path.Ext(name) == ".json" // else a folder, whose files were synced by themselves
			if last := lastOf(calls[:i], folder); file && !strings.HasPrefix(last, "sync ") {
				t.Errorf("%s: the last that was done in %s before %s got its name was %q, want a sync", do, folder, path.Base(name), last)
			}
			if !slices.Contains(calls[i:], "sync "+folder) {
				t.Errorf("%s: %s is not synced after %s got its name", do, folder, path.Base(name))
			}
		}
	}
	o.stop(t)
	t.Logf("renamed: %v", renames)
	if renames["plan.json"] == 0 {
		t.Errorf("no plan was written: %v", renames)
	}
}

// lastOf is the last of calls that was made on a file in folder.
func lastOf(calls []string, folder string) string {
	for _, c := range slices.Backward(calls) {
		if _, name, _ := strings.Cut(c, " "); path.Dir(name) == folder && !strings.HasPrefix(c, "close ") {
			return c
		}
	}
	return ""
}
