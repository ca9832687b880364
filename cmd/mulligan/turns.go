package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const turnsLong = `List the turns of agents' work, newest first, with what each changed. A turn that
changed something has a checkpoint of the state before it: mulligan undo goes to the
newest that an agent told of, mulligan rollback CP to any; mulligan revert undoes only
what one of them wrote. --json has the calls of each.

Turns are recorded for apps with auto = true (mulligan app set auto=true): as their
agents' hooks tell of them, else from the first write after a quiet time. The latter are
marked as inferred, count apart, and are not what undo takes back.

A turn is called by the first words of its prompt, as far as its agent tells them. They
stay on this host; mulligan app set titles=false removes them for good. --ids shows ids.

In a pipe, the fields are: turn, time, agent, conversation and message (with --ids, else
"-"), checkpoint, created, modified, deleted (files), state (open or ended), paths (some of them, separated
by spaces), title, changes in databases (separated by "; ").`

type turnsCmd struct {
	*cli
	limit        int
	conversation string
	ids          bool
}

func newTurns(c *cli) *cobra.Command {
	f := &turnsCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "turns",
		Short:   "List the turns of agents' work",
		Long:    turnsLong,
		Example: "  mulligan turns --limit 5",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 0 {
				return usage(cmd, "--limit %d is negative", f.limit)
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&f.limit, "limit", 20, "at most `N`; 0 is all")
	cmd.Flags().BoolVar(&f.ids, "ids", false, "show the ids of turns, conversations and messages")
	cmd.Flags().StringVar(&f.conversation, "conversation", "", "only the turns of this `CONVERSATION`, an agent's session")
	return cmd
}

func (f *turnsCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	turns, err := client.TurnsOf(ctx, app, f.conversation, f.limit)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(ipc.TurnList{Turns: turns})
	}
	f.out.PrintTurns(turns, f.ids)
	return nil
}
