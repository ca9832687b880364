package output

import (
	"strings"

	"mulligan/ipc"
)

// PrintRevert prints the result of a revert.
func (p *Printer) PrintRevert(res ipc.RevertResult) error {
	if p.JSON {
		return p.PrintJSON(res)
	}
	if p.Terminal {
		p.revertForPeople(res)
		return nil
	}
	rows := [][]string{{"safety_checkpoint", p.idOf(res.SafetyCheckpoint)}, {"dry_run", YesNo(res.DryRun)}}
	for _, path := range res.RestoredPaths {
		rows = append(rows, []string{"restored", p.Text(path)})
	}
	for _, path := range res.MergedPaths {
		rows = append(rows, []string{"merged", p.Text(path)})
	}
	for _, conflict := range res.Conflicts {
		rows = append(rows, []string{"conflict", p.Text(conflict.Path), p.Text(conflict.Reason), p.Text(conflict.Message)})
	}
	for _, w := range res.Warnings {
		rows = append(rows, []string{"warning", p.Text(w)})
	}
	p.Table(nil, rows)
	return nil
}

// revertForPeople prints the result of a revert on a terminal.
func (p *Printer) revertForPeople(res ipc.RevertResult) {
	verb := "restored"
	if res.DryRun {
		verb = "would restore"
	}
	p.Printf("%s %s\n", verb, Count(len(res.RestoredPaths), "path"))
	merged := map[string]bool{}
	for _, path := range res.MergedPaths {
		merged[path] = true
	}
	const most = 20
	for i, path := range res.RestoredPaths {
		if i == most {
			p.Printf("  … and %s\n", Count(len(res.RestoredPaths)-most, "more path"))
			break
		}
		note := ""
		if merged[path] {
			note = " (merged with what others wrote)"
		}
		p.Printf("  %s%s\n", p.Text(path), note)
	}
	for _, conflict := range res.Conflicts {
		var calls []string
		for _, id := range conflict.Calls {
			calls = append(calls, p.Text(string(id)))
		}
		by := ""
		if len(calls) > 0 {
			by = " (" + strings.Join(calls, ", ") + ")"
		}
		p.Printf("  left alone  %s: %s%s\n", p.Text(conflict.Path), p.Text(conflict.Message), by)
	}
	for _, w := range res.Warnings {
		p.Printf("  warning     %s\n", p.Text(w))
	}
	if cp := res.SafetyCheckpoint; cp != nil {
		p.Printf("  safety      %s holds the files before; mulligan undo goes there\n", p.Text(string(cp.ID)))
	}
}
