package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestGrowthIsBounded: however many turns there are, what their rules let go of
// goes, the journal included; the oldest that is kept goes back exactly.
func TestGrowthIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rules ipc.Retention
	}{
		{"keep_turns", ipc.Retention{KeepLast: 2, KeepTurns: 4, ExpireAfter: "0"}},
		{"max_bytes", ipc.Retention{KeepLast: 2, KeepTurns: 1000, MaxBytes: 16 << 20, ExpireAfter: "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, w := openAuto(t, time.Hour)
			if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &c.rules}); err != nil {
				t.Fatal(err)
			}
			before, last := map[string]string{}, 1 // the state at a turn's start
			spend(t, d, w, 0, 100)
			turn := func(bytes int) {
				before[fmt.Sprint("turn", last)] = read(t, w.ws(), "state")
				spend(t, d, w, last, bytes)
				last++
			}
			for range 30 {
				turn(3 << 20)
			}
			polls := 0
			waitFor(t, "the store is small", func() bool {
				if polls++; polls%100 == 1 { // with rests between them, in which the journal is tidied
					turn(100)
				}
				return d.Status(root).StoreBytes < 48<<20
			})
			list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{})
			if err != nil {
				t.Fatal(err)
			}
			if n := list.StorageUsage.TotalBytes; n > d.Status(root).StoreBytes {
				t.Errorf("the checkpoints have %d bytes, the whole store %d", n, d.Status(root).StoreBytes)
			}
			if c.rules.MaxBytes > 0 && list.StorageUsage.TotalBytes > c.rules.MaxBytes+8<<20 {
				t.Errorf("the checkpoints have %d bytes of %d allowed", list.StorageUsage.TotalBytes, c.rules.MaxBytes)
			}
			oldest := list.Checkpoints[len(list.Checkpoints)-1]
			if _, err := d.Rollback(t.Context(), root, "shop", oldest.ID, ipc.RollbackRequest{Scope: []string{"layer:files"}}, nil); err != nil {
				t.Fatal(err)
			}
			if got, want := read(t, w.ws(), "state"), before[*oldest.TurnID]; got != want {
				t.Errorf("the state is %q, want %q", got, want)
			}
		})
	}
}

// spend has a turn write that many bytes over those of the turn before.
func spend(t *testing.T, d *daemon.Daemon, w world, i, bytes int) {
	t.Helper()
	id := ipc.TurnID(fmt.Sprintf("turn%d", i))
	begin(t, d, id)
	p := testkit.Bytes(t, bytes)
	if err := os.WriteFile(filepath.Join(w.ws(), "large"), p, 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, w.ws(), "state", "after "+string(id))
	end(t, d, id)
}
