package main

import (
	"fmt"
	"strconv"
	"strings"

	"mulligan/ipc"
)

// printReceipt says how a rollback to id went.
func (c *cli) printReceipt(id ipc.CheckpointID, res ipc.RollbackResult) error {
	if c.json {
		return c.printJSON(res)
	}
	if c.terminal {
		c.receiptForPeople(id, res)
		return nil
	}
	c.receiptLines(res)
	return nil
}

func (c *cli) receiptLines(res ipc.RollbackResult) {
	rows := [][]string{
		{"rolled_back", yesNo(res.RolledBack)},
		{"dry_run", yesNo(res.DryRun)},
		{"restored_to", c.idOf(res.RestoredTo)},
		{"safety_checkpoint", c.idOf(res.SafetyCheckpoint)},
		{"changes_total", strconv.Itoa(res.ChangesTotal)},
		{"verified", verdict(res.Verification)},
		{"recovered", yesNo(res.Recovered)},
	}
	for _, s := range res.Stages {
		rows = append(rows, []string{"stage", c.text(string(s.Stage)), c.text(string(s.Status)), strconv.FormatInt(s.DurationMS, 10), c.text(s.Notes)})
	}
	for _, ch := range res.ChangesReverted {
		rows = append(rows, []string{"change", c.text(ch.Operation), c.text(ch.Path), c.text(ch.Summary)})
	}
	for _, l := range res.StayedBehind {
		rows = append(rows, []string{"stayed_behind", c.text(l)})
	}
	for _, l := range res.PutBack {
		rows = append(rows, []string{"put_back", c.text(l)})
	}
	for _, w := range res.Warnings {
		rows = append(rows, []string{"warning", c.text(w)})
	}
	rows = append(rows, c.previewLines(res.Preview)...)
	if res.Next != "" {
		rows = append(rows, []string{"next", c.text(res.Next)})
	}
	c.table(nil, rows)
}

// previewLines is what a dry run foresees, beside the changes of files.
func (c *cli) previewLines(p *ipc.Preview) (rows [][]string) {
	if p == nil {
		return nil
	}
	for _, l := range p.Layers {
		rows = append(rows, []string{"layer", c.text(l.Layer), fmt.Sprintf("created %d", l.Create), fmt.Sprintf("modified %d", l.Modify), fmt.Sprintf("deleted %d", l.Delete)})
		if l.Layer == "files" {
			continue
		}
		for _, ch := range l.Changes {
			rows = append(rows, []string{"database", c.text(ch.Operation), c.text(ch.Path), c.text(ch.Summary)})
		}
	}
	for _, s := range p.NotCovered {
		rows = append(rows, []string{"unaffected", c.text(s)})
	}
	down := "unknown"
	if p.DowntimeMS != nil {
		down = fmt.Sprintf("%d ms", *p.DowntimeMS)
	}
	return append(rows, []string{"downtime", down, c.text(p.DowntimeFrom)})
}

func (c *cli) idOf(cp *ipc.Checkpoint) string {
	if cp == nil {
		return "-"
	}
	return c.text(string(cp.ID))
}

func verdict(v *ipc.Verification) string {
	if v == nil {
		return "skipped"
	}
	return yesNo(v.Match)
}

// receiptForPeople is the receipt in a few lines.
func (c *cli) receiptForPeople(id ipc.CheckpointID, res ipc.RollbackResult) {
	fmt.Fprintln(c.out, c.outcome(id, res))
	line := func(name, format string, args ...any) {
		fmt.Fprintf(c.out, "  %-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	if res.DryRun {
		c.printChanges(res, "would undo")
	} else if res.RolledBack {
		line("undone", "%s", count(res.ChangesTotal, "change"))
		line("verified", "%s", verdictForPeople(res.Verification))
	}
	if len(res.StayedBehind) > 0 {
		line("unchanged", "%s stayed as it was", c.text(strings.Join(res.StayedBehind, ", ")))
	}
	for _, l := range res.PutBack {
		line("put back", "%s", c.text(l))
	}
	if cp := res.SafetyCheckpoint; cp != nil {
		line("safety", "%s holds the state before", c.text(string(cp.ID)))
	}
	for _, l := range c.previewLines(res.Preview) {
		line(l[0], "%s", strings.Join(l[1:], " "))
	}
	for _, w := range res.Warnings {
		line("warning", "%s", c.text(w))
	}
	switch {
	case res.DryRun:
	case res.RolledBack && res.SafetyCheckpoint != nil:
		line("forward", "mulligan redo")
	case res.Next != "":
		line("next", "%s", c.text(res.Next))
	}
}

// outcome says where the app is now.
func (c *cli) outcome(id ipc.CheckpointID, res ipc.RollbackResult) string {
	to := c.text(string(id))
	if cp := res.RestoredTo; cp != nil {
		to = c.text(string(cp.ID))
	}
	if cp := res.RestoredTo; cp != nil && res.RolledBack {
		to = fmt.Sprintf("%s, made %s", c.text(string(cp.ID)), c.when(cp.CreatedAt))
		if cp.Notes != nil {
			to += " (" + c.text(*cp.Notes) + ")"
		}
	}
	switch {
	case res.DryRun:
		return "nothing was changed; a rollback to " + to + " would"
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

// printChanges lists the first changes of res.
func (c *cli) printChanges(res ipc.RollbackResult, verb string) {
	const most = 20
	for i, ch := range res.ChangesReverted {
		if i == most {
			break
		}
		fmt.Fprintf(c.out, "  %s  %-6s %s", verb, c.text(ch.Operation), c.text(ch.Path))
		if ch.Summary != "" {
			fmt.Fprintf(c.out, " (%s)", c.text(ch.Summary))
		}
		fmt.Fprintln(c.out)
	}
	if more := res.ChangesTotal - min(len(res.ChangesReverted), most); more > 0 {
		fmt.Fprintf(c.out, "  %s  %s\n", verb, count(more, "further change"))
	}
}
