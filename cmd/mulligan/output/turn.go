package output

import "mulligan/ipc"

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
