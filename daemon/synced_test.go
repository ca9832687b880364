package daemon_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit/sysfault"
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
			if written := restoredSynced(t, calls); written < 3 {
				t.Errorf("the rollback wrote %d files", written)
			}
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

// A database file that an agent ruined is replaced by bytes, and comes back as bytes: these are synced as well.
func TestRuinIsSynced(t *testing.T) {
	for _, name := range []string{"text beside logs", "folder"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			h := startHostage(t, w)
			cp, err := h.CreateCheckpoint(t.Context(), "shop", ipc.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			sh(t, ruins[name], w.ws())
			no := false
			for _, to := range []ipc.CheckpointID{cp.ID, ipc.Redo} {
				h.p.Arm(sysfault.Fault{})
				_, err := h.Rollback(t.Context(), "shop", to, ipc.RollbackRequest{Start: &no}, nil)
				calls := h.p.Disarm().Calls
				if err != nil {
					t.Fatalf("to %s: %v", to, err)
				}
				if written := restoredSynced(t, calls); written == 0 {
					t.Errorf("to %s: nothing was written to the workspace", to)
				}
			}
			h.stop(t)
		})
	}
}

// restoredSynced checks what a rollback did in the workspace: that it is durable, and that a log of a database, once removed, cannot come
// back beside another database. It returns how many files were written.
func restoredSynced(t *testing.T, calls []string) int {
	t.Helper()
	calls = slices.DeleteFunc(slices.Clone(calls), func(c string) bool {
		_, name, _ := strings.Cut(c, " ")
		return name != "ws" && !strings.HasPrefix(name, "ws/")
	})
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
	written := map[string]bool{}
	for i, call := range calls {
		do, name, _ := strings.Cut(call, " ")
		switch {
		case do == "write":
			written[name] = true
		case do == "unlink" && strings.HasPrefix(path.Base(name), "shop.db-"):
			synced, replaced := slices.Index(calls[i:], "sync ws"), slices.Index(calls[i:], "rename ws/shop.db")
			if synced < 0 || replaced >= 0 && synced > replaced {
				t.Errorf("%q is not synced before the database is replaced", call)
			}
		}
	}
	return len(written)
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
