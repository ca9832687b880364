package picker

import (
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"

	"mulligan/errs"
	"mulligan/ipc"
)

// preview is what a rollback would do, in lines.
type preview struct {
	lines   []string
	refused bool // they say why there is none
}

// rest is how long a row is chosen before the daemon is asked what a rollback to it would do: who moves through the list asks for
// nothing.
const rest = 150 * time.Millisecond

// dueMsg says that a row may have been chosen for long enough.
type dueMsg struct{ id ipc.CheckpointID }

// previewMsg has the preview of a checkpoint.
type previewMsg struct {
	id      ipc.CheckpointID
	preview preview
}

// look has the preview of the chosen row made, if it is still chosen after a moment.
func (m *model) look() tea.Cmd {
	r, ok := m.selected()
	if !ok || m.looked(r.cp.ID) {
		return nil
	}
	return tea.Tick(rest, func(time.Time) tea.Msg { return dueMsg{r.cp.ID} })
}

// looked reports whether the preview of id is known, or being made. One that was refused is asked for again.
func (m *model) looked(id ipc.CheckpointID) bool {
	p := m.preview[id]
	return p != nil && !p.refused
}

// ask asks the daemon what a rollback to id would do, unless that is known or another row was chosen since.
func (m *model) ask(id ipc.CheckpointID) tea.Cmd {
	r, ok := m.selected()
	if m.looked(id) || id != ipc.Undo && id != ipc.Redo && (!ok || r.cp.ID != id) {
		return nil
	}
	m.preview[id] = &preview{lines: []string{"looking …"}}
	return func() tea.Msg {
		res, err := m.Daemon.Rollback(m.ctx, string(m.App.ID), id, ipc.RollbackRequest{DryRun: true}, nil)
		if err != nil {
			return previewMsg{id, preview{m.refusal(err), true}}
		}
		return previewMsg{id, preview{lines: m.linesOf(res)}}
	}
}

// refusal returns why there is no preview.
func (m *model) refusal(err error) []string {
	body := ipc.Body(err)
	lines := []string{m.Escape(body.Message)}
	if body.Hint != "" {
		lines = append(lines, m.Escape(body.Hint))
	}
	if body.Kind == errs.Busy {
		lines = append(lines, "choose it again to look again")
	}
	return lines
}

// linesOf returns the preview of a dry run.
func (m *model) linesOf(res ipc.RollbackResult) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if cp := res.RestoredTo; cp != nil {
		add("to the state of %s", m.Ago(cp.CreatedAt))
	}
	if res.ChangesTotal == 0 {
		add("nothing differs from now")
	}
	if p := res.Preview; p != nil {
		for _, l := range p.Layers {
			if l.Create+l.Modify+l.Delete > 0 {
				add("%s: %s", m.Escape(l.Layer), counts(l))
			}
		}
		if p.StopsUnit {
			down := "for a moment"
			if p.DowntimeMS != nil {
				down = "for about " + (time.Duration(*p.DowntimeMS) * time.Millisecond).Round(100*time.Millisecond).String()
			}
			add("the app is stopped %s", down)
		}
	}
	for _, w := range res.Warnings {
		add("! %s", m.Escape(w))
	}
	add("")
	for _, c := range res.ChangesReverted {
		sign := map[string]string{"create": "-", "delete": "+"}[c.Operation] // what was created goes, what was deleted comes back
		if sign == "" {
			sign = "~"
		}
		line := sign + " " + m.Escape(c.Path)
		if c.Summary != "" {
			line += "  " + m.Escape(c.Summary)
		}
		lines = append(lines, line)
	}
	if more := res.ChangesTotal - len(res.ChangesReverted); more > 0 {
		add("… and %d more", more)
	}
	if p := res.Preview; p != nil && len(p.NotCovered) > 0 {
		add("")
		add("stays as it is:")
		for _, s := range p.NotCovered {
			add("  %s", m.Escape(s))
		}
	}
	return lines
}

// counts says what a rollback does in a layer.
func counts(l ipc.LayerPreview) string {
	text := ""
	for _, c := range []struct {
		n    int
		what string
	}{{l.Create, "removed"}, {l.Modify, "put back"}, {l.Delete, "brought back"}} {
		if c.n == 0 {
			continue
		}
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d %s", c.n, c.what)
	}
	return text
}
