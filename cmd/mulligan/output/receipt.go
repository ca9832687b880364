package output

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mulligan/ipc"
)

// PrintReceipt prints the result of a rollback to the checkpoint id.
func (p *Printer) PrintReceipt(id ipc.CheckpointID, res ipc.RollbackResult) error {
	if p.JSON || p.Events {
		return p.PrintJSON(res)
	}
	if p.Terminal {
		p.receiptForPeople(id, res)
		return nil
	}
	p.receiptLines(res)
	return nil
}

// receiptLines prints the receipt in lines for programs.
func (p *Printer) receiptLines(res ipc.RollbackResult) {
	rows := [][]string{
		{"rolled_back", YesNo(res.RolledBack)},
		{"dry_run", YesNo(res.DryRun)},
		{"restored_to", p.idOf(res.RestoredTo)},
		{"turn", p.titleOf(res.RestoredTo)},
		{"safety_checkpoint", p.idOf(res.SafetyCheckpoint)},
		{"changes_total", strconv.Itoa(res.ChangesTotal)},
		{"verified", verdict(res.Verification)},
		{"recovered", YesNo(res.Recovered)},
	}
	for _, s := range res.Stages {
		rows = append(rows, []string{"stage", p.Text(string(s.Stage)), p.Text(string(s.Status)), strconv.FormatInt(s.DurationMS, 10), p.Text(s.Notes)})
	}
	for _, ch := range res.ChangesReverted {
		rows = append(rows, []string{"change", p.Text(ch.Operation), p.Text(ch.Path), p.Text(ch.Summary)})
	}
	for _, l := range res.StayedBehind {
		rows = append(rows, []string{"stayed_behind", p.Text(l)})
	}
	for _, l := range res.PutBack {
		rows = append(rows, []string{"put_back", p.Text(l)})
	}
	for _, w := range res.Warnings {
		rows = append(rows, []string{"warning", p.Text(w)})
	}
	if res.DowntimeMS != nil {
		rows = append(rows, []string{"downtime", fmt.Sprintf("%d ms", *res.DowntimeMS), "measured"})
	}
	rows = append(rows, p.previewLines(res)...)
	if what := next(res); what != "" {
		rows = append(rows, []string{"next", p.Text(what)})
	}
	p.Table(nil, rows)
}

// previewLines returns the rows of a dry run's preview, except for the changes of files and those that the receipt lists anyway.
func (p *Printer) previewLines(res ipc.RollbackResult) (rows [][]string) {
	preview := res.Preview
	if preview == nil {
		return nil
	}
	for _, l := range preview.Layers {
		rows = append(rows, []string{"layer", p.Text(l.Layer), fmt.Sprintf("created %d", l.Create), fmt.Sprintf("modified %d", l.Modify), fmt.Sprintf("deleted %d", l.Delete)})
		if l.Layer == "files" {
			continue
		}
		for _, ch := range l.Changes {
			if slices.Contains(res.ChangesReverted, ch) {
				continue
			}
			rows = append(rows, []string{"database", p.Text(ch.Operation), p.Text(ch.Path), p.Text(ch.Summary)})
		}
	}
	for _, s := range preview.NotCovered {
		rows = append(rows, []string{"unaffected", p.Text(s)})
	}
	down := "unknown"
	if preview.DowntimeMS != nil {
		down = fmt.Sprintf("%d ms", *preview.DowntimeMS)
	}
	return append(rows, []string{"downtime", down, p.Text(preview.DowntimeFrom)})
}

func (p *Printer) idOf(cp *ipc.Checkpoint) string {
	if cp == nil {
		return "-"
	}
	return p.Text(string(cp.ID))
}

// titleOf returns the title of the turn that begins at cp, or "-".
func (p *Printer) titleOf(cp *ipc.Checkpoint) string {
	if cp == nil {
		return "-"
	}
	return p.Text(cp.Title)
}

func verdict(v *ipc.Verification) string {
	if v == nil {
		return "skipped"
	}
	return YesNo(v.Match)
}

// receiptForPeople prints the receipt on a terminal, in a few lines.
func (p *Printer) receiptForPeople(id ipc.CheckpointID, res ipc.RollbackResult) {
	p.Println(p.outcome(id, res))
	line := func(name, format string, args ...any) {
		p.Printf("  %-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	if res.DryRun {
		p.printChanges(res, "would undo")
	} else if res.RolledBack {
		line("undone", "%s", Count(res.ChangesTotal, "change"))
		line("verified", "%s", verdictForPeople(res.Verification))
	}
	if res.DowntimeMS != nil {
		line("downtime", "%s, until its unit had started", seconds(*res.DowntimeMS))
	}
	if len(res.StayedBehind) > 0 {
		line("unchanged", "%s stayed as it was", p.Text(strings.Join(res.StayedBehind, ", ")))
	}
	for _, l := range res.PutBack {
		line("put back", "%s", p.Text(l))
	}
	if cp := res.SafetyCheckpoint; cp != nil {
		line("safety", "%s holds the state before", p.Text(string(cp.ID)))
	}
	for _, l := range p.previewLines(res) {
		line(l[0], "%s", strings.Join(l[1:], " "))
	}
	for _, w := range res.Warnings {
		line("warning", "%s", p.Text(w))
	}
	switch {
	case res.DryRun:
	case res.RolledBack && res.SafetyCheckpoint != nil:
		line("forward", "mulligan redo")
	default:
		if what := next(res); what != "" {
			line("next", "%s", p.Text(what))
		}
	}
}

// next says what to do after a rollback. The API's own words for it are calls of MCP tools.
func next(res ipc.RollbackResult) string {
	switch {
	case res.DryRun && res.RestoredTo != nil:
		return "mulligan rollback " + string(res.RestoredTo.ID) + " does it"
	case res.RolledBack && res.SafetyCheckpoint != nil:
		return "mulligan redo goes forward again"
	case res.Recovered:
		return "mulligan list shows what else to go back to"
	case res.SafetyCheckpoint != nil:
		return "mulligan rollback " + string(res.SafetyCheckpoint.ID) + " goes to the state before the rollback"
	}
	return ""
}

// outcome returns a sentence that says which state the app is in now.
func (p *Printer) outcome(id ipc.CheckpointID, res ipc.RollbackResult) string {
	to := p.Text(string(id))
	if cp := res.RestoredTo; cp != nil {
		to = p.Text(string(cp.ID))
		if turn := p.turnOf(*cp); turn != "" {
			to = fmt.Sprintf("%s, made %s before %s", to, p.Time(cp.CreatedAt), turn)
		}
	}
	if cp := res.RestoredTo; cp != nil && res.RolledBack && cp.TurnID == nil {
		to = fmt.Sprintf("%s, made %s", p.Text(string(cp.ID)), p.Time(cp.CreatedAt))
		if cp.Notes != nil {
			to += " (" + p.notesOf(*cp) + ")"
		}
	}
	switch {
	case res.DryRun:
		return "nothing was changed; this is what a rollback to " + to + " would do"
	case res.RolledBack:
		return "the app is at " + to
	case res.Recovered:
		return "the rollback failed; the app is back where it was before it"
	}
	return "the rollback failed"
}

func verdictForPeople(v *ipc.Verification) string {
	switch {
	case v == nil:
		return "skipped"
	case v.Match:
		return "hashes match the checkpoint's"
	}
	return "NO: the hashes differ from the checkpoint's"
}

// printChanges prints the first changes of res, each after verb.
func (p *Printer) printChanges(res ipc.RollbackResult, verb string) {
	const most = 20
	for i, ch := range res.ChangesReverted {
		if i == most {
			break
		}
		p.Printf("  %s  %-6s %s", verb, p.Text(ch.Operation), p.Text(ch.Path))
		if ch.Summary != "" {
			p.Printf(" (%s)", p.Text(ch.Summary))
		}
		p.Println()
	}
	if more := res.ChangesTotal - min(len(res.ChangesReverted), most); more > 0 {
		p.Printf("  %s  %s\n", verb, Count(more, "further change"))
	}
}
