package output

import (
	"fmt"
	"strconv"
	"strings"

	"mulligan/ipc"
)

// PrintForks prints a table of forks.
func (p *Printer) PrintForks(list ipc.ForkList) error {
	if p.JSON {
		return p.PrintJSON(list)
	}
	var rows [][]string
	for _, a := range list.Forks {
		var addresses []string
		for _, port := range a.Fork.Ports {
			address := port.Address
			switch {
			case p.Terminal && port.Variable != "":
				address = port.Variable + "=" + address
			case p.Terminal && len(a.Fork.Ports) > 1:
				address = fmt.Sprintf("%s=%d", address, port.Port)
			}
			addresses = append(addresses, address)
		}
		address := strings.Join(addresses, " ")
		if address == "" {
			address = "-"
		}
		rows = append(rows, []string{p.Text(a.Fork.Name), p.Text(string(a.ID)), p.Text(a.State), p.Text(address), p.Text(a.Workspace), p.Text(string(a.Fork.Origin)), p.Time(a.CreatedAt), p.Text(a.Fork.Isolation)})
	}
	p.Table([]string{"FORK", "APP", "STATE", "ADDRESS", "FOLDER", "ORIGIN", "MADE", "ISOLATION"}, rows, "ISOLATION", "APP", "ORIGIN", "MADE", "STATE")
	if !p.Terminal {
		return nil
	}
	for _, a := range list.Forks {
		for _, note := range a.Fork.Notes {
			p.Printf("fork %s: %s\n", Escape(a.Fork.Name), Escape(note))
		}
	}
	return nil
}

// PrintComparison prints a table of forks, and for people what each changed and how its command ended.
func (p *Printer) PrintComparison(res ipc.Comparison) error {
	if p.JSON {
		return p.PrintJSON(res)
	}
	var rows [][]string
	for _, c := range res.Forks {
		row := []string{
			p.Text(c.Name), p.Text(c.State), healthy(c.Healthy), strconv.Itoa(c.Created), strconv.Itoa(c.Modified), strconv.Itoa(c.Deleted), "-", "-",
		}
		if c.Command != nil {
			row[6], row[7] = strconv.Itoa(c.Command.ExitCode), fmt.Sprintf("%.1f", c.Command.Seconds)
		}
		rows = append(rows, row)
	}
	p.Table([]string{"FORK", "STATE", "HEALTHY", "CREATED", "MODIFIED", "DELETED", "EXIT", "SECONDS"}, rows, "SECONDS", "STATE")
	for _, c := range res.Forks {
		if p.Terminal {
			p.comparedFork(c)
		}
	}
	return nil
}

// comparedFork prints the changes of a fork and the end of its command's output, for people.
func (p *Printer) comparedFork(c ipc.ComparedFork) {
	p.Printf("\nfork %s\n", Escape(c.Name))
	p.someChanges(c.Changes, c.Created+c.Modified+c.Deleted)
	for _, u := range append(c.Unreadable, c.Unknown...) {
		p.Printf("  not known: %s\n", Escape(u))
	}
	if r := c.Command; r != nil {
		switch {
		case r.Problem != "":
			p.Printf("  the command did not run: %s\n", Escape(r.Problem))
		case r.TimedOut:
			p.Printf("  the command was ended after %.1f s\n", r.Seconds)
		}
		for line := range strings.Lines(strings.TrimSpace(r.Output)) {
			p.Printf("  | %s\n", EscapeLine(strings.TrimSuffix(line, "\n")))
		}
	}
}

// someChanges prints the first of total changes.
func (p *Printer) someChanges(list []ipc.DiffChange, total int) {
	for _, c := range list {
		path := c.Path
		if c.Layer != "files" {
			path = c.Layer + ":" + path
		}
		p.Printf("  %s %s (%s)\n", Escape(c.Operation), Escape(path), Escape(c.Summary))
	}
	if more := total - len(list); more > 0 {
		p.Printf("  and %s\n", Count(more, "more change"))
	}
}

func healthy(b *bool) string {
	if b == nil {
		return "-"
	}
	return YesNo(*b)
}

// PrintBisect prints what a bisect found, and for people the tests.
func (p *Printer) PrintBisect(res ipc.BisectResult) error {
	if p.JSON {
		return p.PrintJSON(res)
	}
	if !p.Terminal {
		row := []string{res.Outcome, "-", "-"}
		if res.Good != nil && res.Bad != nil {
			row = []string{res.Outcome, p.Text(string(res.Good.ID)), p.Text(string(res.Bad.ID))}
		}
		for _, t := range res.Turns {
			row = append(row, p.Text(string(t.ID)))
		}
		if len(res.Turns) == 0 {
			row = append(row, "-")
		}
		p.Table(nil, [][]string{row})
		return nil
	}
	p.bisectForPeople(res)
	return nil
}

func (p *Printer) bisectForPeople(res ipc.BisectResult) {
	var rows [][]string
	for _, r := range res.Runs {
		rows = append(rows, []string{p.Text(string(r.CheckpointID)), p.Text(r.Verdict), fmt.Sprint(r.ExitCode), fmt.Sprintf("%.1f", r.Seconds)})
	}
	p.Table([]string{"CHECKPOINT", "VERDICT", "EXIT", "SECONDS"}, rows)
	if res.Good == nil || res.Bad == nil {
		return
	}
	p.Printf("\nlast good  %s, made %s\nfirst bad  %s, made %s\n", res.Good.ID, p.Time(res.Good.CreatedAt), res.Bad.ID, p.Time(res.Bad.CreatedAt))
	if len(res.Skipped) > 0 {
		p.Printf("skipped    %s between them\n", Count(len(res.Skipped), "checkpoint"))
	}
	for _, t := range res.Turns {
		p.Printf("turn       %s of %s, begun %s\n", p.TurnName(t), Escape(t.Agent), p.Time(t.StartedAt))
		p.Printf("           mulligan revert --turn %s undoes its writes to files alone\n", t.ID)
	}
	if len(res.Turns) == 0 {
		p.Println("turn       none: the change was made outside of turns")
	}
	p.someChanges(res.Changes, res.ChangesTotal)
}
