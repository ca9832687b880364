package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
)

type bisectCmd struct {
	*cli
	good, bad string
	req       ipc.BisectRequest
}

func newBisect(c *cli) *cobra.Command {
	b := &bisectCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "bisect [-- COMMAND...]",
		Short: "Find the first checkpoint at which a command fails, without touching the app",
		Long: `Find the first checkpoint at which a command fails, and what changed there. Each test runs
in a fork of a checkpoint, which is dropped afterwards; the app itself is not touched. The
command runs as in mulligan exec: 0 is good, 125 means that it cannot tell, and all else is
bad. Without a command, the app is started in the fork, and its health check decides.

Without --bad, the present state is the bad one. Without --good, a good one is looked for.
The two checkpoints that are found are tested again: a command that answers now this, now
that, is said to be one.

In a pipe: outcome (found, range or cannot_tell), last good checkpoint, first bad one, and
the turns between them or "-".`,
		Example: "  mulligan bisect -- npm test\n  mulligan bisect --good 12 --jobs 2 -- ./check.sh\n  mulligan bisect",
		RunE:    func(cmd *cobra.Command, args []string) error { return b.run(cmd.Context(), args) },
	}
	cmd.Flags().StringVar(&b.good, "good", "", "a `checkpoint` that is good")
	cmd.Flags().StringVar(&b.bad, "bad", "", "a later `checkpoint` that is bad (default: the present state)")
	cmd.Flags().IntVar(&b.req.Jobs, "jobs", 1, "test `N` checkpoints at a time")
	cmd.Flags().BoolVar(&b.req.Start, "start", false, "start the app in each fork before the command")
	cmd.Flags().StringVar(&b.req.Timeout, "timeout", "", "the `time` that the command may take (default 10m)")
	cmd.Flags().SetInterspersed(false) // the command's flags are its own
	return cmd
}

func (b *bisectCmd) run(ctx context.Context, command []string) error {
	client, app, err := b.target(ctx)
	if err != nil {
		return err
	}
	if b.good != "" {
		if _, _, b.req.Good, err = b.checkpoint(ctx, b.good); err != nil {
			return err
		}
	}
	if b.bad != "" {
		if _, _, b.req.Bad, err = b.checkpoint(ctx, b.bad); err != nil {
			return err
		}
	}
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	b.req.Command = command
	res, err := client.Bisect(ctx, app, b.req)
	if err != nil {
		return err
	}
	if b.out.JSON {
		err = b.out.PrintJSON(res)
	} else {
		b.print(res)
	}
	if err == nil && res.Outcome == ipc.BisectUnsure {
		err = errs.New(errs.Failed, "bisect", "the command cannot tell: for the same or an older state it says now this, now that").
			WithHint("make the command decide by the state alone, and let it exit with 125 where it cannot tell")
	}
	return err
}

func (b *bisectCmd) print(res ipc.BisectResult) {
	if !b.out.Terminal {
		row := []string{res.Outcome, "-", "-"}
		if res.Good != nil && res.Bad != nil {
			row = []string{res.Outcome, b.out.Text(string(res.Good.ID)), b.out.Text(string(res.Bad.ID))}
		}
		for _, t := range res.Turns {
			row = append(row, b.out.Text(string(t.ID)))
		}
		if len(res.Turns) == 0 {
			row = append(row, "-")
		}
		b.out.Table(nil, [][]string{row})
		return
	}
	b.forPeople(res)
}

func (b *bisectCmd) forPeople(res ipc.BisectResult) {
	var rows [][]string
	for _, r := range res.Runs {
		rows = append(rows, []string{b.out.Text(string(r.CheckpointID)), b.out.Text(r.Verdict), fmt.Sprint(r.ExitCode), fmt.Sprintf("%.1f", r.Seconds)})
	}
	b.out.Table([]string{"CHECKPOINT", "VERDICT", "EXIT", "SECONDS"}, rows)
	if res.Good == nil || res.Bad == nil {
		return
	}
	b.out.Printf("\nlast good  %s, made %s\nfirst bad  %s, made %s\n", res.Good.ID, b.out.Time(res.Good.CreatedAt), res.Bad.ID, b.out.Time(res.Bad.CreatedAt))
	if len(res.Skipped) > 0 {
		b.out.Printf("skipped    %s between them\n", output.Count(len(res.Skipped), "checkpoint"))
	}
	for _, t := range res.Turns {
		b.out.Printf("turn       %s of %s, conversation %s, message %s\n", t.ID, output.Escape(t.Agent), output.Escape(t.ConversationID), output.Escape(t.MessageID))
		b.out.Printf("           mulligan revert --turn %s undoes its writes to files alone\n", t.ID)
	}
	if len(res.Turns) == 0 {
		b.out.Println("turn       none: the change was made outside of turns")
	}
	for _, c := range res.Changes {
		b.out.Printf("  %s %s (%s)\n", output.Escape(c.Operation), output.Escape(c.Path), output.Escape(c.Summary))
	}
	if more := res.ChangesTotal - len(res.Changes); more > 0 {
		b.out.Printf("  and %s\n", output.Count(more, "more change"))
	}
}
