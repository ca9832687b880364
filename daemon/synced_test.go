package daemon_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"mulligan/daemon/sysfault"
	"mulligan/ipc"
)

// mayBeLost are files of the daemon's that are made anew where they are missing or wrong.
var mayBeLost = []string{"stat-cache"}

// What the daemon gives a name in its state folder was synced before, and the name is synced
// after it: a power cut leaves the old file or the new one, whole. What a rollback writes to the
// workspace is synced, too.
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
		renamesSynced(t, do, calls, renames)
		if do == "rollback" {
			restoredSynced(t, calls)
		}
	}
	o.stop(t)
	t.Logf("renamed: %v", renames)
	if renames["plan.json"] == 0 {
		t.Errorf("no plan was written: %v", renames)
	}
}

// The same for a daemon with a new state folder, and its first checkpoint: the store's format and its first
// segment get their names.
func TestNewStoreIsSynced(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	w.setFiles(t, "zero")
	h := watchHostage(t, w, func(p *sysfault.Process) { p.Arm(sysfault.Fault{}) })
	renames := map[string]int{}
	_, err := h.AddApp(t.Context(), ipc.App{Slug: "shop", Workspace: w.ws()})
	if err == nil {
		_, err = h.CreateCheckpoint(t.Context(), "shop", ipc.CreateRequest{})
	}
	calls := h.p.Disarm().Calls
	if err != nil {
		t.Fatal(err)
	}
	renamesSynced(t, "the first checkpoint", calls, renames)
	h.stop(t)
	t.Logf("renamed: %v", renames)
	if renames["#.seg"] == 0 || renames["format"] == 0 {
		t.Errorf("no store was begun: %v", renames)
	}
}

// renamesSynced checks what calls gave names in the state folder, and counts the names.
func renamesSynced(t *testing.T, do string, calls []string, renames map[string]int) {
	t.Helper()
	for i, call := range calls {
		name, ok := strings.CutPrefix(call, "rename state/")
		if !ok || slices.Contains(mayBeLost, path.Base(name)) {
			continue
		}
		name = "state/" + name
		renames[path.Base(name)]++
		folder := path.Dir(name)
		file := path.Ext(name) == ".json" || path.Ext(name) == ".seg" // else a folder, whose files were synced by themselves
		if last := lastOf(calls[:i], folder); file && !strings.HasPrefix(last, "sync ") {
			t.Errorf("%s: the last that was done in %s before %s got its name was %q, want a sync", do, folder, path.Base(name), last)
		}
		if !slices.Contains(calls[i:], "sync "+folder) {
			t.Errorf("%s: %s is not synced after %s got its name", do, folder, path.Base(name))
		}
	}
}

// restoredSynced checks that each file of the workspace that a rollback wrote was synced after the
// last write to it, by itself or with its whole filesystem.
func restoredSynced(t *testing.T, calls []string) {
	t.Helper()
	written := map[string]int{}
	for i, call := range calls {
		if name, ok := strings.CutPrefix(call, "write ws/"); ok && !strings.HasPrefix(name, "shop.db") {
			written[name] = i
		}
	}
	if len(written) == 0 {
		t.Error("the rollback wrote no file")
	}
	for name, i := range written {
		if !slices.ContainsFunc(calls[i:], func(c string) bool { return c == "sync ws/"+name || strings.HasPrefix(c, "syncfs ws") }) {
			t.Errorf("%s is not synced after it was restored", name)
		}
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
