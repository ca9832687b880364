package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/ipc"
)

type compareCmd struct {
	*cli
	req ipc.CompareRequest
	run string
}

func newCompare(c *cli) *cobra.Command {
	f := &compareCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "compare [FORK...]",
		Short: "Compare forks: what each changed, whether it is healthy, how a command ends in it",
		Long: `Compare the app's forks, all or some: what each one changed in files and databases since
its origin, whether its health check passes, and with --run how a command ends inside of
it. The command runs in a shell, with the rights of the app's owner, in all forks at the
same time.

In a pipe, a line for each fork: name, state, healthy (yes, no or "-"), what it created,
modified and deleted, the command's exit code or "-", seconds or "-".`,
		Example: "  mulligan compare\n  mulligan compare 1 3 --run 'npm test'",
		RunE:    func(cmd *cobra.Command, args []string) error { return f.compare(cmd.Context(), args) },
	}
	cmd.Flags().StringVar(&f.run, "run", "", "run a `command` in each fork")
	cmd.Flags().StringVar(&f.req.Timeout, "timeout", "", "the `time` that the command may take (default 10m)")
	return cmd
}

func (f *compareCmd) compare(ctx context.Context, names []string) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	f.req.Names = names
	if f.run != "" {
		f.req.Command = []string{"/bin/sh", "-c", f.run}
	}
	res, err := client.CompareForks(ctx, app, f.req)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(res)
	}
	f.print(res)
	return nil
}

func (f *compareCmd) print(res ipc.Comparison) {
	var rows [][]string
	for _, c := range res.Forks {
		row := []string{
			f.out.Text(c.Name), f.out.Text(c.State), healthy(c.Healthy), strconv.Itoa(c.Created), strconv.Itoa(c.Modified), strconv.Itoa(c.Deleted), "-", "-",
		}
		if c.Command != nil {
			row[6], row[7] = strconv.Itoa(c.Command.ExitCode), fmt.Sprintf("%.1f", c.Command.Seconds)
		}
		rows = append(rows, row)
	}
	f.out.Table([]string{"FORK", "STATE", "HEALTHY", "CREATED", "MODIFIED", "DELETED", "EXIT", "SECONDS"}, rows)
	if !f.out.Terminal {
		return
	}
	for _, c := range res.Forks {
		f.details(c)
	}
}

// details prints the changes of a fork and the end of its command's output, for people.
func (f *compareCmd) details(c ipc.ComparedFork) {
	f.out.Printf("\nfork %s\n", output.Escape(c.Name))
	for _, ch := range c.Changes {
		path := ch.Path
		if ch.Layer != "files" {
			path = ch.Layer + ":" + path
		}
		f.out.Printf("  %s %s (%s)\n", output.Escape(ch.Operation), output.Escape(path), output.Escape(ch.Summary))
	}
	if more := c.Created + c.Modified + c.Deleted - len(c.Changes); more > 0 {
		f.out.Printf("  and %s; mulligan diff --app %s lists them\n", output.Count(more, "more change"), c.AppID)
	}
	for _, u := range append(c.Unreadable, c.Unknown...) {
		f.out.Printf("  not known: %s\n", output.Escape(u))
	}
	if r := c.Command; r != nil {
		switch {
		case r.Problem != "":
			f.out.Printf("  the command did not run: %s\n", output.Escape(r.Problem))
		case r.TimedOut:
			f.out.Printf("  the command was ended after %.1f s\n", r.Seconds)
		}
		for line := range strings.SplitSeq(strings.TrimSpace(r.Output), "\n") {
			f.out.Printf("  | %s\n", output.EscapeLine(line))
		}
	}
}

func healthy(b *bool) string {
	if b == nil {
		return "-"
	}
	return output.YesNo(*b)
}
