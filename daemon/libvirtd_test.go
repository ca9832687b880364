//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/ipc"
)

// testLibvirtdRestarted kills libvirtd at steps of rollbacks. Where it is up again at once, and
// where it stays away until the rollback has ended one way or the other, the app is whole at the
// end with no command given: its guest is up, files, rows and both disks agree, and
// while anything is missing the daemon says so.
func testLibvirtdRestarted(t *testing.T) {
	t.Parallel()
	w := newDomain(t, "shop")
	w.set(t, "zero")
	var hit atomic.Pointer[func(step string)]
	w.d = w.failing(t, func(step string) error {
		if f := hit.Load(); f != nil {
			(*f)(step)
		}
		return nil
	})
	if _, err := w.d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Domain: w.Name, URI: w.host.URI, Shutdown: "destroy",
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
		Retention: ipc.Retention{KeepLast: 100, KeepSafety: 100, ExpireAfter: "0"},
	}); err != nil {
		t.Fatal(err)
	}
	w.put(t, "one")
	target := w.create(t, ipc.CreateRequest{Pinned: true}).ID
	points := []struct {
		step string
		away bool // until the rollback has ended
	}{
		{"commit disk", true}, {"stage start-unit", true}, {"switch: define", false},
	}
	if long() {
		for _, step := range []string{
			"stage safety-checkpoint", "capture disk", "prepare disk", "stage stop-unit", "stop unit", "plan switching", "commit disk", "phase committing",
			"switch: nvram", "switch: define", "switch: record", "commit db:shop", "plan switched", "start unit", "finish disk",
		} {
			points = append(points, struct {
				step string
				away bool
			}{step, true}, struct {
				step string
				away bool
			}{step, false})
		}
	}
	early := []string{"stage safety-checkpoint", "capture disk", "prepare disk", "stage stop-unit", "stop unit"} // nothing has been changed yet
	for i, p := range points {
		what := fmt.Sprintf("libvirtd was killed at %q, and stayed away: %t", p.step, p.away)
		word := fmt.Sprintf("later%d", i)
		w.put(t, word)
		reached := false
		f := func(step string) {
			if step != p.step || reached {
				return
			}
			reached = true
			if p.away {
				if err := w.host.Hold(true); err != nil {
					t.Error(err)
				}
			}
			if err := w.host.KillLibvirtd(); err != nil {
				t.Error(err)
			}
			if !p.away {
				if err := w.host.WaitUp(); err != nil {
					t.Error(err)
				}
			}
		}
		hit.Store(&f)
		res, err := w.d.Rollback(t.Context(), root, "shop", target, ipc.RollbackRequest{}, nil)
		hit.Store(nil)
		if !reached {
			t.Fatalf("a rollback has no step %q", p.step)
		}
		if p.away {
			problems := strings.Join(w.d.Status(root).Problems, "\n")
			if err != nil && !strings.Contains(problems, "tries again") && !slices.Contains(early, p.step) {
				t.Errorf("%s: the rollback said %v, and the problems are %q", what, err, problems)
			}
			if err := w.host.Hold(false); err != nil {
				t.Fatal(err)
			}
		}
		w.becomesWhole(t, w.d)
		w.reconnect(t)
		if !w.up(t) {
			t.Fatalf("%s: the guest is off (the rollback said %v)", what, err)
		}
		w.WaitReady(t)
		got := w.all(t)
		if got != word && got != "one" || err == nil && got != "one" || err != nil && (res.Recovered || slices.Contains(early, p.step)) && got != word {
			t.Errorf("%s: the rollback said %v (put back: %t), and the app is in state %q", what, err, res.Recovered, got)
		}
		progress(t, "%s: %v; the app is in state %q", what, err, got)
	}
}

// reconnect makes a connection to a libvirtd that was started anew.
func (w *vmWorld) reconnect(t *testing.T) {
	t.Helper()
	_, _ = w.conn.Close() // it is dead
	if err := w.host.WaitUp(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "libvirtd takes connections", func() bool {
		conn, err := libvirt.NewConnect(w.host.URI)
		if err == nil {
			w.conn = conn
		}
		return err == nil
	})
}
