package picker

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"mulligan/ipc"
)

const (
	wide    = 96 // columns from which on the preview is beside the list
	minRows = 3
)

// View returns the screen. Bubble Tea calls it after each message.
func (m *model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

func (m *model) screen() string {
	if m.mode == helping {
		return m.help()
	}
	head := m.bold(m.fit(fmt.Sprintf("%s: go back to …   %s", m.App.Slug, m.position()), m.width))
	var body []string
	if m.beside() {
		left := m.width * 11 / 20
		list, side := m.list(left), m.side(m.width-left-3, m.lines())
		for i := range m.lines() {
			body = append(body, m.pad(at(list, i), left)+" │ "+at(side, i))
		}
	} else {
		body = m.list(m.width)
		for len(body) < m.lines() {
			body = append(body, "")
		}
		body = append(body, m.dim(strings.Repeat("─", m.width)))
		side := m.side(m.width, m.below())
		for i := range m.below() {
			body = append(body, at(side, i))
		}
	}
	return head + "\n" + strings.Join(body, "\n") + "\n" + m.bottom()
}

// beside reports whether the screen is wide enough for the preview beside the list.
func (m *model) beside() bool { return m.width >= wide }

// below is the height of the preview below the list.
func (m *model) below() int { return max(0, (m.height-3)*2/5) }

// lines is the height of the list.
func (m *model) lines() int {
	n := m.height - 2
	if !m.beside() {
		n -= m.below() + 1
	}
	return max(n, min(minRows, m.height-2))
}

func (m *model) position() string {
	switch {
	case !m.loaded:
		return "reading the checkpoints …"
	case len(m.shown) == 0 && m.search == "":
		return "there is no checkpoint yet: mulligan create makes one"
	case len(m.shown) == 0:
		return "nothing has these words"
	}
	return fmt.Sprintf("%d of %d", m.at+1, len(m.shown))
}

// list returns the lines of the list.
func (m *model) list(width int) (lines []string) {
	for i := m.top; i < min(m.top+m.lines(), len(m.shown)); i++ {
		r := m.rows[m.shown[i]]
		mark := "  "
		if i == m.at {
			mark = "> "
		}
		line := m.fit(mark+m.line(r), width)
		if i == m.at {
			line = m.reverse(m.pad(line, width))
		}
		lines = append(lines, line)
	}
	return lines
}

// line returns a checkpoint in a line.
func (m *model) line(r row) string {
	number := "-"
	if r.number > 0 {
		number = fmt.Sprint(r.number)
	}
	return fmt.Sprintf("%3s  %-14s  %s", number, m.Ago(r.cp.CreatedAt), m.words(r))
}

// words returns what a checkpoint is called, and what its turn changed.
func (m *model) words(r row) string {
	cp := r.cp
	var words []string
	switch {
	case cp.Trigger == ipc.TriggerAgent && cp.Title != "":
		words = append(words, "before “"+m.Escape(cp.Title)+"”")
	case cp.Trigger == ipc.TriggerAgent && cp.Inferred:
		words = append(words, "before writes that nobody told of")
	case cp.Trigger == ipc.TriggerAgent:
		words = append(words, "before a turn")
	case cp.RollbackTitle != "":
		words = append(words, "before going back to “"+m.Escape(cp.RollbackTitle)+"”")
	case cp.Notes != nil:
		words = append(words, m.Escape(*cp.Notes))
	default:
		words = append(words, string(cp.Trigger))
	}
	if cp.Agent != "" {
		words = append(words, m.Escape(cp.Agent))
	}
	if r.turn != nil {
		words = append(words, changed(*r.turn))
	}
	for _, flag := range []struct {
		on   bool
		word string
	}{{cp.Pinned, "pinned"}, {cp.Damaged != "", "DAMAGED"}, {cp.CalledOff, "called off"}} {
		if flag.on {
			words = append(words, flag.word)
		}
	}
	return strings.Join(words, " · ")
}

// changed says what a turn changed.
func changed(t ipc.Turn) string {
	if t.EndedAt == nil {
		return "under way"
	}
	var words []string
	switch n := t.Changes.Created + t.Changes.Modified + t.Changes.Deleted; {
	case n == 1:
		words = append(words, "1 file")
	case n > 1:
		words = append(words, fmt.Sprintf("%d files", n))
	}
	for _, db := range t.Changes.Databases {
		words = append(words, "db "+db.Database)
	}
	if len(words) == 0 {
		return "no change"
	}
	return strings.Join(words, ", ")
}

// side returns the preview of the chosen row, or of what is to be confirmed.
func (m *model) side(width, height int) (lines []string) {
	r, ok := m.selected()
	id := r.cp.ID
	switch {
	case m.mode == confirming && m.asks.Deed == Undo:
		id, ok = ipc.Undo, true
	case m.mode == confirming && m.asks.Deed == Redo:
		id, ok = ipc.Redo, true
	}
	if !ok {
		return nil
	}
	if id == r.cp.ID {
		for _, line := range m.about(r) {
			lines = append(lines, m.dim(m.fit(line, width)))
		}
	}
	p := m.preview[id]
	if p == nil {
		return append(lines, "…")
	}
	for i, line := range p.lines {
		if len(lines) == height-1 && i < len(p.lines)-1 {
			return append(lines, m.dim(m.fit(fmt.Sprintf("… %d more lines", len(p.lines)-i), width)))
		}
		lines = append(lines, m.tint(m.fit(line, width)))
	}
	return lines
}

// about returns what is known of a checkpoint.
func (m *model) about(r row) []string {
	lines := []string{fmt.Sprintf("%s  %s  %s", r.cp.ID, r.cp.CreatedAt.Local().Format("2006-01-02 15:04:05"), m.Size(r.cp.SizeBytes))}
	if r.cp.Damaged != "" {
		lines = append(lines, "DAMAGED: "+m.Escape(r.cp.Damaged))
	}
	return lines
}

// bottom returns the last line: what the keys do, a question, or what is searched for.
func (m *model) bottom() string {
	text := "enter go back  u undo  r redo  f fork  / search  ? help  q leave"
	switch {
	case m.mode == searching:
		return m.fit("/"+m.Escape(m.search)+"▏  enter: done  esc: all", m.width)
	case m.mode == confirming:
		return m.bold(m.fit(m.question(m.width-len(yesNo))+yesNo, m.width))
	case m.notice != "":
		text = m.notice
	case m.search != "":
		text = "with “" + m.Escape(m.search) + "” (esc: all)  " + text
	}
	return m.dim(m.fit(text, m.width))
}

// yesNo are the keys that answer a question.
const yesNo = " [Y/n]"

// question returns what is asked before something is done. Of what a checkpoint is called it shows as much as fits into width.
func (m *model) question(width int) string {
	r, _ := m.selected()
	switch m.asks.Deed {
	case Undo:
		return "Undo the newest turn of an agent?"
	case Redo:
		return "Take the newest rollback back?"
	case Fork:
		return fmt.Sprintf("Make a fork, a running copy of the app, of the state of %s?", m.Ago(r.cp.CreatedAt))
	}
	before, after := fmt.Sprintf("Go back to %s (", m.Ago(r.cp.CreatedAt)), ")? The present state is kept."
	room := width - ansi.StringWidth(before+after)
	if least := ansi.StringWidth("before “…"); room < least {
		return m.fit("Go back to "+m.Ago(r.cp.CreatedAt), width-1) + "?"
	}
	return before + m.fit(m.words(row{cp: r.cp}), room) + after
}

// keys are the keys and what they do.
var keys = [][2]string{
	{"up, down, k, j", "the row before, the next"}, {"page up, page down", "a page"}, {"home, end, g, G", "the newest, the oldest"},
	{"enter", "go back to this state: files, disks and databases together"}, {"u", "undo the newest turn of an agent"},
	{"r", "redo: take the newest rollback back"}, {"f", "make a fork of this state, and leave the app as it is"},
	{"/", "show only rows with some words; esc shows all"}, {"q, esc", "leave, and change nothing"},
}

func (m *model) help() string {
	const column = 22 // where the texts begin
	lines := []string{m.bold("What the keys do"), ""}
	for _, k := range keys {
		indent := fmt.Sprintf("  %-*s", column-2, k[0])
		for _, part := range m.wrapped(k[1], m.width-column) {
			lines = append(lines, m.fit(indent+part, m.width))
			indent = strings.Repeat(" ", column)
		}
	}
	lines = append(lines, "")
	for _, text := range []string{"A rollback first makes a checkpoint of the present state: it can always be taken back.",
		"Beside the list is what a rollback would do: - goes, + comes back, ~ becomes as it was."} {
		lines = append(lines, m.wrapped(text, m.width)...)
	}
	lines = append(lines, "", m.dim("any key: back to the list"))
	return strings.Join(lines[:min(len(lines), m.height)], "\n")
}

// wrapped divides a text into lines of at most so many columns, between words.
func (m *model) wrapped(text string, width int) []string {
	return strings.Split(ansi.Wrap(text, max(width, 10), ""), "\n")
}

// fit cuts a text to a width in columns.
func (m *model) fit(text string, width int) string { return ansi.Truncate(text, max(width, 1), "…") }

// pad fills a text with spaces up to a width.
func (m *model) pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

func (m *model) bold(s string) string    { return "\x1b[1m" + s + "\x1b[0m" }
func (m *model) reverse(s string) string { return "\x1b[7m" + s + "\x1b[0m" }

func (m *model) dim(s string) string {
	if m.Plain {
		return s
	}
	return "\x1b[2m" + s + "\x1b[0m"
}

// tint colours a line of the preview by its first character.
func (m *model) tint(s string) string {
	colours := map[string]string{"+ ": "32", "- ": "31", "~ ": "36", "! ": "33"}
	if c := colours[s[:min(2, len(s))]]; c != "" && !m.Plain {
		return "\x1b[" + c + "m" + s + "\x1b[0m"
	}
	return s
}

// at returns the line number i, or "" if there is none.
func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}
