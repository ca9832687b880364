package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const listLong = `List the app's checkpoints, newest first.

In a pipe, the fields are: checkpoint id, time, trigger, pinned (yes or no), size
(what deleting it would free), git commit, notes. The notes of one that is damaged
begin with DAMAGED: mulligan verify says what of it is.

What needs attention of the app, as a layer that is held up, is said below the
table; in a pipe, on standard error.`

type listCmd struct {
	*cli
	trigger      string
	conversation string
	limit        int
}

func newList(c *cli) *cobra.Command {
	f := &listCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List checkpoints, newest first",
		Long:    listLong,
		Example: "  mulligan list --limit 5\n  mulligan list --trigger deploy | cut -f1",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 0 {
				return usage(cmd, "--limit %d is negative", f.limit)
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&f.trigger, "trigger", "", "only those made by `manual|deploy|agent|pre-rollback`")
	cmd.Flags().StringVar(&f.conversation, "conversation", "", "only those of this `CONVERSATION`'s turns")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "at most `N` (default: all)")
	return cmd
}

func (f *listCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{Trigger: ipc.Trigger(f.trigger), Limit: f.limit, Conversation: f.conversation})
	if err != nil {
		return err
	}
	if f.json {
		return f.printJSON(list)
	}
	f.printCheckpoints(list.Checkpoints, f.trigger == "" && f.conversation == "")
	if f.terminal {
		u := list.StorageUsage
		fmt.Fprintf(f.out, "%s, %d pinned, %s; the last %d and %s are kept\n",
			count(u.CheckpointCount, "checkpoint"), u.PinnedCount, f.size(u.TotalBytes), u.KeepLast, count(u.DailyDays, "daily one"))
	}
	a, err := client.App(ctx, app)
	if err != nil {
		return err
	}
	f.warn(a.Problems)
	return nil
}

// printCheckpoints prints a row per checkpoint. On a terminal, numbered rows
// begin with the N that commands take for a CP; that takes the whole list.
func (c *cli) printCheckpoints(list []ipc.Checkpoint, numbered bool) {
	header := []string{"CHECKPOINT", "MADE", "TRIGGER", "PIN", "SIZE", "COMMIT", "NOTES"}
	numbered = numbered && c.terminal
	if numbered {
		header = append([]string{"N"}, header...)
	}
	var rows [][]string
	n := 0
	for _, cp := range list {
		row, number := c.checkpointRow(cp), "-"
		if !cp.CalledOff {
			n++
			number = strconv.Itoa(n)
		}
		if numbered {
			row = append([]string{number}, row...)
		}
		rows = append(rows, row)
	}
	c.table(header, rows)
}

func (c *cli) checkpointRow(cp ipc.Checkpoint) []string {
	ref, pin := c.maybe(cp.Ref), yesNo(cp.Pinned)
	if c.terminal {
		ref = ref[:min(len(ref), 9)]
		if !cp.Pinned {
			pin = "-"
		}
	}
	notes := c.maybe(cp.Notes)
	if cp.Damaged != "" {
		notes = "DAMAGED " + notes
	}
	if cp.CalledOff {
		notes += ", which was called off"
	}
	if len(cp.Raw) > 0 {
		notes += " (raw bytes of " + c.text(strings.Join(cp.Raw, ", ")) + ")"
	}
	return []string{
		c.text(string(cp.ID)), c.when(cp.CreatedAt), c.text(string(cp.Trigger)), pin, c.size(cp.SizeBytes), ref, notes,
	}
}

// printCheckpoint prints the one checkpoint that a command made or changed.
func (c *cli) printCheckpoint(cp ipc.Checkpoint) error {
	if c.json {
		return c.printJSON(cp)
	}
	c.printCheckpoints([]ipc.Checkpoint{cp}, false)
	c.warn(cp.Warnings)
	return nil
}

// warn prints warnings: in a pipe, whose lines are for programs, on standard error.
func (c *cli) warn(warnings []string) {
	var to io.Writer = c.out
	if !c.terminal {
		to = c.err
	}
	for _, w := range warnings {
		fmt.Fprintf(to, "warning: %s\n", c.text(w))
	}
}
