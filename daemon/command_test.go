package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/ipc"
	"mulligan/testkit"
)

// testCommandThatIsKilled has a supervised command that ignores SIGTERM. It is killed after StopTimeout, and so the app can be captured and
// rolled back like any other.
func testCommandThatIsKilled(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	opt := w.options()
	opt.StopTimeout = time.Second
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	starts := filepath.Join(w.dir, "starts")
	if _, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", `trap "" TERM; echo >>"$0"; while :; do sleep 1; done`, starts},
	}); err != nil {
		t.Fatal(err)
	}
	stop := func(times int, do func()) {
		t.Helper()
		testkit.Eventually(t, "the command ignores SIGTERM", func() bool {
			text, _ := os.ReadFile(starts)
			return strings.Count(string(text), "\n") == times
		})
		begun := time.Now()
		do()
		if took := time.Since(begun); took < opt.StopTimeout {
			t.Errorf("it took %s, in which nothing is killed", took)
		}
	}
	write(t, w.ws(), "work", "before")
	var cp ipc.CheckpointID
	stop(1, func() { cp = create(t, d) })
	write(t, w.ws(), "work", "after")
	stop(2, func() { goBack(t, d, cp, ipc.RollbackRequest{}) })
	if got := read(t, w.ws(), "work"); got != "before" || state(t, d) != "running" {
		t.Errorf("after the rollback work says %q, and the app is %s", got, state(t, d))
	}
}
