package picker

import (
	"context"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"mulligan/errs"
	"mulligan/ipc"
)

// busyOnce is a daemon that refuses the first preview.
type busyOnce struct {
	Daemon
	asked []ipc.CheckpointID
}

func (d *busyOnce) Rollback(_ context.Context, _ string, id ipc.CheckpointID, _ ipc.RollbackRequest, _ func(ipc.Stage)) (ipc.RollbackResult, error) {
	if d.asked = append(d.asked, id); len(d.asked) == 1 {
		return ipc.RollbackResult{}, errs.New(errs.Busy, "rollback", "shop is being rolled back")
	}
	return ipc.RollbackResult{}, nil
}

// A preview that was refused is asked for again when its row, or the undo, is chosen again, and one that is known is not.
func TestPreviewAfterRefusal(t *testing.T) {
	for _, key := range []rune{'g', 'u'} {
		t.Run(string(key), func(t *testing.T) {
			m := shown(120, 24, ipc.Checkpoint{})
			d := new(busyOnce)
			m.Daemon = d
			if key == 'g' {
				clear(m.preview)
			}
			choose := func() string {
				_, cmd := m.Update(tea.KeyPressMsg{Code: key, Text: string(key)})
				for cmd != nil {
					_, cmd = m.Update(cmd())
				}
				screen := ansi.Strip(m.screen())
				if m.mode == confirming {
					m.Update(tea.KeyPressMsg{Code: 'n', Text: "n"})
				}
				return screen
			}
			if got := choose(); !strings.Contains(got, "shop is being rolled back") || !strings.Contains(got, "choose it again to look again") {
				t.Errorf("refused:\n%s", got)
			}
			for range 2 {
				if got := choose(); !strings.Contains(got, "nothing differs from now") || len(d.asked) != 2 {
					t.Errorf("chosen again, and asked for %q:\n%s", d.asked, got)
				}
			}
		})
	}
}
