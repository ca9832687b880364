package output

import (
	"fmt"
	"strings"

	"mulligan/ipc"
)

// PrintTurns prints a row for each turn. Without ids, the ids of conversations and messages are left out.
func (p *Printer) PrintTurns(turns []ipc.Turn, ids bool) {
	var rows [][]string
	for _, t := range turns {
		if p.Terminal {
			rows = append(rows, p.turnLine(t, ids))
		} else {
			rows = append(rows, p.turnRecord(t, ids))
		}
	}
	header := []string{"WHEN", "AGENT", "TURN", "CHECKPOINT", "CHANGED"}
	if ids {
		header = append(header, "ID", "CONVERSATION", "MESSAGE")
	}
	p.Table(header, rows, "CHECKPOINT", "AGENT")
}

// TurnName returns what people call a turn: its title, or else what is known of it.
func (p *Printer) TurnName(t ipc.Turn) string {
	switch {
	case t.Title != "":
		return p.quoted(t.Title)
	case t.Inferred:
		return "(nobody told of it)"
	}
	return "(without a title)"
}

// quoted returns a title in quotation marks.
func (p *Printer) quoted(title string) string { return "“" + p.Text(title) + "”" }

// turnOf returns what people call the turn of a checkpoint, with its agent: “fix the login page” (claude-code). It returns "" if the
// checkpoint is of no turn.
func (p *Printer) turnOf(cp ipc.Checkpoint) string {
	name := "a turn"
	switch {
	case cp.TurnID == nil:
		return ""
	case cp.Title != "":
		name = p.quoted(cp.Title)
	case cp.Inferred:
		return "writes that nobody told of"
	}
	if cp.Agent != "" {
		name += " (" + p.Text(cp.Agent) + ")"
	}
	return name
}

// turnLine returns the row of a turn for people.
func (p *Printer) turnLine(t ipc.Turn, ids bool) []string {
	agent := t.Agent
	if t.Inferred {
		agent = "(inferred)"
	}
	row := []string{p.Time(t.StartedAt), p.Text(agent), p.TurnName(t), p.Text(checkpointOf(t)), p.changedIn(t)}
	if ids {
		row = append(row, p.Text(string(t.ID)), p.Text(t.ConversationID), p.Text(t.MessageID))
	}
	return row
}

// changedIn returns what a turn changed, in a few words.
func (p *Printer) changedIn(t ipc.Turn) string {
	if t.EndedAt == nil {
		return "(under way)"
	}
	var parts []string
	if files := p.filesIn(t.Changes); files != "" {
		parts = append(parts, files)
	}
	const shown = 2
	for _, db := range t.Changes.Databases {
		parts = append(parts, p.Text(db.Database)+": "+strings.Join(p.inDatabase(db, shown), ", "))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// filesIn returns the changes of files, or "" if there are none.
func (p *Printer) filesIn(c ipc.TurnChanges) string {
	var words []string
	for _, w := range []struct {
		n    int
		what string
	}{{c.Created, "created"}, {c.Modified, "modified"}, {c.Deleted, "deleted"}} {
		if w.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", w.n, w.what))
		}
	}
	if len(words) == 0 {
		return ""
	}
	const shown = 3
	var paths []string
	for _, path := range c.Paths[:min(len(c.Paths), shown)] {
		paths = append(paths, p.Text(path))
	}
	if c.Created+c.Modified+c.Deleted > shown {
		paths = append(paths, "…")
	}
	return strings.Join(words, ", ") + ": " + strings.Join(paths, " ")
}

// inDatabase returns the changes of a database, at most so many.
func (p *Printer) inDatabase(db ipc.DatabaseChanges, most int) []string {
	if len(db.Changes) == 0 {
		return []string{"changed"}
	}
	var list []string
	for _, c := range db.Changes[:min(len(db.Changes), most)] {
		list = append(list, p.Text(c.Path)+" "+p.Text(c.Summary))
	}
	if more := db.Total - len(list); more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return list
}

// turnRecord returns the row of a turn for programs.
func (p *Printer) turnRecord(t ipc.Turn, ids bool) []string {
	state := "ended"
	if t.EndedAt == nil {
		state = "open"
	}
	var paths []string
	for _, path := range t.Changes.Paths {
		paths = append(paths, p.Text(path))
	}
	var databases []string
	for _, db := range t.Changes.Databases {
		for _, words := range p.inDatabase(db, len(db.Changes)) {
			databases = append(databases, p.Text(db.Database)+": "+words)
		}
	}
	conversation, message := t.ConversationID, t.MessageID
	if !ids {
		conversation, message = "", ""
	}
	return []string{
		p.Text(string(t.ID)), p.Time(t.StartedAt), p.Text(t.Agent), p.Text(conversation), p.Text(message), p.Text(checkpointOf(t)),
		fmt.Sprint(t.Changes.Created), fmt.Sprint(t.Changes.Modified), fmt.Sprint(t.Changes.Deleted), state, strings.Join(paths, " "),
		p.Text(t.Title), strings.Join(databases, "; "),
	}
}

// checkpointOf returns the id of a turn's checkpoint, or "".
func checkpointOf(t ipc.Turn) string {
	if t.CheckpointID == nil {
		return ""
	}
	return string(*t.CheckpointID)
}
