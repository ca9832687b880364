package main

import (
	"context"
	"fmt"
	"strings"

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

In a pipe, the fields are: turn, time, agent, conversation, message, checkpoint,
created, modified, deleted, state (open or ended), paths (some of them, separated by
spaces).`

type turnsCmd struct {
	*cli
	limit        int
	conversation string
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
	var rows [][]string
	for _, t := range turns {
		if f.out.Terminal {
			rows = append(rows, f.line(t))
		} else {
			rows = append(rows, f.record(t))
		}
	}
	f.out.Table([]string{"WHEN", "TURN", "AGENT", "CHECKPOINT", "CHANGED"}, rows)
	return nil
}

// line returns the row of a turn for people.
func (f *turnsCmd) line(t ipc.Turn) []string {
	agent := t.Agent
	if t.Inferred {
		agent = "(inferred)"
	}
	return []string{f.out.Time(t.StartedAt), f.out.Text(string(t.ID)), f.out.Text(agent), f.out.Text(checkpointOf(t)), f.changed(t)}
}

// changed returns what a turn changed, in a few words.
func (f *turnsCmd) changed(t ipc.Turn) string {
	if t.EndedAt == nil {
		return "(under way)"
	}
	c := t.Changes
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
		return "nothing"
	}
	const shown = 3
	var paths []string
	for _, p := range c.Paths[:min(len(c.Paths), shown)] {
		paths = append(paths, f.out.Text(p))
	}
	if c.Created+c.Modified+c.Deleted > shown {
		paths = append(paths, "…")
	}
	return strings.Join(words, ", ") + ": " + strings.Join(paths, " ")
}

// record returns the row of a turn for programs.
func (f *turnsCmd) record(t ipc.Turn) []string {
	state := "ended"
	if t.EndedAt == nil {
		state = "open"
	}
	var paths []string
	for _, p := range t.Changes.Paths {
		paths = append(paths, f.out.Text(p))
	}
	return []string{
		f.out.Text(string(t.ID)), f.out.Time(t.StartedAt), f.out.Text(t.Agent), f.out.Text(t.ConversationID), f.out.Text(t.MessageID), f.out.Text(checkpointOf(t)),
		fmt.Sprint(t.Changes.Created), fmt.Sprint(t.Changes.Modified), fmt.Sprint(t.Changes.Deleted), state, strings.Join(paths, " "),
	}
}

// checkpointOf returns the id of a turn's checkpoint, or "".
func checkpointOf(t ipc.Turn) string {
	if t.CheckpointID == nil {
		return ""
	}
	return string(*t.CheckpointID)
}
