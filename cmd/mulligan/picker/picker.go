// Package picker is the interactive choice of a state to go back to: a list of checkpoints and turns, with a preview of what would
// change beside it. It changes nothing itself: it returns what was chosen.
package picker

import (
	"context"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"mulligan/ipc"
)

// Daemon has the calls of the daemon that the picker needs. *ipc.Client implements it.
type Daemon interface {
	Checkpoints(ctx context.Context, app string, query ipc.CheckpointQuery) (ipc.CheckpointList, error)
	Turns(ctx context.Context, app string, limit int) ([]ipc.Turn, error)
	Rollback(ctx context.Context, app string, id ipc.CheckpointID, req ipc.RollbackRequest, onStage func(ipc.Stage)) (ipc.RollbackResult, error)
}

// Deed is what was chosen.
type Deed int

// The deeds.
const (
	Nothing Deed = iota
	GoBack       // to the checkpoint ID
	Undo         // the newest turn
	Redo         // the newest rollback forward again
	Fork         // make a fork of the checkpoint ID
)

// Choice is what a person chose.
type Choice struct {
	Deed Deed
	ID   ipc.CheckpointID
}

// Options say what is shown where.
type Options struct {
	Daemon Daemon
	App    ipc.App
	In     io.Reader
	Out    io.Writer
	// Escape makes a text fit to be printed; Ago and Size return a time and a number of bytes in words.
	Escape func(string) string
	Ago    func(time.Time) string
	Size   func(int64) string
	Now    func() time.Time
	Plain  bool // without colours
}

// Run shows the picker until something is chosen or the person leaves.
func Run(ctx context.Context, o Options) (Choice, error) {
	end, err := tea.NewProgram(newModel(ctx, o), tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out)).Run()
	if err != nil {
		return Choice{}, err
	}
	m := end.(*model)
	return m.choice, m.failed
}

// mode is what the keys mean at the moment.
type mode int

const (
	choosing mode = iota
	searching
	confirming
	helping
)

// model is the state of the picker.
type model struct {
	Options
	ctx context.Context

	rows   []row
	shown  []int // indexes of the rows that the search leaves
	at     int   // index in shown
	top    int   // the first line that is on the screen
	search string
	mode   mode

	asks    Choice // what is to be confirmed
	choice  Choice
	failed  error
	loaded  bool
	notice  string // a line at the bottom, until the next key
	width   int
	height  int
	preview map[ipc.CheckpointID]*preview
}

// row is a checkpoint in the list.
type row struct {
	cp     ipc.Checkpoint
	number int // 0 for the checkpoint of a rollback that was called off
	turn   *ipc.Turn
}

func newModel(ctx context.Context, o Options) *model {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &model{Options: o, ctx: ctx, width: 80, height: 24, preview: map[ipc.CheckpointID]*preview{}}
}

// Init loads the list.
func (m *model) Init() tea.Cmd { return m.load }

// loadedMsg has the list, or why there is none.
type loadedMsg struct {
	rows []row
	err  error
}

func (m *model) load() tea.Msg {
	list, err := m.Daemon.Checkpoints(m.ctx, string(m.App.ID), ipc.CheckpointQuery{})
	if err != nil {
		return loadedMsg{err: err}
	}
	turns, err := m.Daemon.Turns(m.ctx, string(m.App.ID), 0)
	if err != nil {
		return loadedMsg{err: err}
	}
	byID := map[string]*ipc.Turn{}
	for i := range turns {
		byID[string(turns[i].ID)] = &turns[i]
	}
	var rows []row
	n := 0
	for _, cp := range list.Checkpoints {
		r := row{cp: cp}
		if !cp.CalledOff {
			n++
			r.number = n
		}
		if cp.TurnID != nil && cp.Trigger == ipc.TriggerAgent {
			r.turn = byID[*cp.TurnID]
		}
		rows = append(rows, r)
	}
	return loadedMsg{rows: rows}
}

// Update applies a message. It is called by Bubble Tea, for one message at a time.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 20), max(msg.Height, 6)
		m.scroll()
	case loadedMsg:
		if msg.err != nil {
			m.failed = msg.err
			return m, tea.Quit
		}
		m.rows, m.loaded = msg.rows, true
		m.filter()
		return m, m.look()
	case dueMsg:
		return m, m.ask(msg.id)
	case previewMsg:
		m.preview[msg.id] = &msg.preview
	case tea.KeyPressMsg:
		return m.key(msg)
	case tea.PasteMsg:
		if m.mode == searching {
			m.search += msg.Content
			m.filter()
			return m, m.look()
		}
	}
	return m, nil
}

// key handles a key.
func (m *model) key(msg tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	m.notice = ""
	if msg.String() == "ctrl+c" {
		return m, tea.Quit
	}
	switch m.mode {
	case searching:
		return m, m.keyOfSearch(msg)
	case confirming:
		m.mode = choosing
		switch msg.String() {
		case "y", "Y", "enter":
			m.choice = m.asks
			return m, tea.Quit
		}
		m.notice = "nothing was changed"
		return m, nil
	case helping:
		m.mode = choosing
		return m, nil
	}
	return m.keyOfList(msg.String())
}

func (m *model) keyOfList(key string) (tea.Model, tea.Cmd) {
	page := max(1, m.lines()-1)
	switch key {
	case "q", "esc":
		if key == "esc" && m.search != "" {
			m.search = ""
			m.filter()
			return m, m.look()
		}
		return m, tea.Quit
	case "up", "k":
		m.at--
	case "down", "j":
		m.at++
	case "pgup", "ctrl+b":
		m.at -= page
	case "pgdown", "ctrl+f", "space":
		m.at += page
	case "home", "g":
		m.at = 0
	case "end", "G":
		m.at = len(m.shown) - 1
	case "/":
		m.mode = searching
	case "?":
		m.mode = helping
	case "u":
		return m, m.confirm(Choice{Deed: Undo})
	case "r":
		return m, m.confirm(Choice{Deed: Redo})
	case "enter", "f":
		r, ok := m.selected()
		if !ok {
			m.notice = "there is nothing to choose"
			return m, nil
		}
		deed := GoBack
		if key == "f" {
			deed = Fork
		}
		return m, m.confirm(Choice{deed, r.cp.ID})
	}
	m.scroll()
	return m, m.look()
}

// confirm asks whether c is meant. What an undo or a redo would do is looked up meanwhile.
func (m *model) confirm(c Choice) tea.Cmd {
	m.asks, m.mode = c, confirming
	switch c.Deed {
	case Undo:
		return m.ask(ipc.Undo)
	case Redo:
		return m.ask(ipc.Redo)
	}
	return nil
}

func (m *model) keyOfSearch(msg tea.KeyPressMsg) tea.Cmd {
	switch msg.String() {
	case "enter":
		m.mode = choosing
		return nil
	case "esc":
		m.mode, m.search = choosing, ""
	case "backspace":
		if r := []rune(m.search); len(r) > 0 {
			m.search = string(r[:len(r)-1])
		}
	case "up":
		m.at--
	case "down":
		m.at++
	default:
		m.search += msg.Text // "" for keys that are no text
	}
	m.filter()
	return m.look()
}

// filter works out which rows the search leaves, and stays at the row that was chosen if it is one of them.
func (m *model) filter() {
	var was ipc.CheckpointID
	if r, ok := m.selected(); ok {
		was = r.cp.ID
	}
	m.shown = m.shown[:0]
	at := -1
	for i, r := range m.rows {
		if !strings.Contains(strings.ToLower(m.words(r)), strings.ToLower(m.search)) {
			continue
		}
		if r.cp.ID == was {
			at = len(m.shown)
		}
		m.shown = append(m.shown, i)
	}
	if at >= 0 && m.mode != searching {
		m.at = at
	}
	m.scroll()
}

// scroll keeps the chosen row in the list, and on the screen.
func (m *model) scroll() {
	m.at = max(0, min(m.at, len(m.shown)-1))
	lines := m.lines()
	m.top = max(0, min(m.top, len(m.shown)-lines))
	m.top = min(m.top, m.at)
	m.top = max(m.top, m.at-lines+1)
}

// selected returns the chosen row.
func (m *model) selected() (row, bool) {
	if m.at < 0 || m.at >= len(m.shown) {
		return row{}, false
	}
	return m.rows[m.shown[m.at]], true
}
