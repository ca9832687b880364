package daemon_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
)

// testServerFrozen has a database's server stand still, which takes connections and answers none. The
// checkpoint of a turn goes on without it after a short time, and says so; once the server runs again, it is captured.
func testServerFrozen(t *testing.T) {
	for name, start := range awayServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.start(t)
			tryServerFrozen(t, s)
		})
	}
}

func tryServerFrozen(t *testing.T, s *awayServer) {
	w := world{dir: worldDir(t)}
	write(t, w.ws(), "work", "before")
	s.set(t, "zero")
	d := w.open(t)
	defer func() { w.close(t, d) }()
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Auto: true, Databases: []ipc.Database{s.db}}); err != nil {
		t.Fatal(err)
	}
	awaitFollowing(t, d)
	create(t, d)
	turn := func(id ipc.TurnID) ipc.Checkpoint {
		t.Helper()
		if _, err := d.BeginTurn(t.Context(), root, "shop", ipc.BeginTurn{TurnID: id, ConversationID: "c", Agent: "test"}); err != nil {
			t.Fatal(err)
		}
		write(t, w.ws(), "work", string(id))
		end(t, d, id)
		cps := agentCheckpoints(t, d)
		if len(cps) == 0 {
			t.Fatalf("turn %s has no checkpoint", id)
		}
		return cps[0] // the newest
	}
	pid := s.pid(t)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // it may have ended
	cp := turn("frozen")
	if words := strings.Join(cp.Warnings, "\n"); len(cp.DBSnapshots) != 0 || !strings.Contains(words, "db:main is not in it") || !strings.Contains(words, "did not let mulligan in within 5s") {
		t.Errorf("the server stands still, and the turn's checkpoint has %d databases and says %q", len(cp.DBSnapshots), cp.Warnings)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if cp := turn("awake"); len(cp.DBSnapshots) != 1 {
		t.Errorf("the server runs again, and the turn's checkpoint has %d databases and says %q", len(cp.DBSnapshots), cp.Warnings)
	}
}
