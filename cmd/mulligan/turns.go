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
	var rows [][]string
	for _, t := range turns {
		if f.out.Terminal {
			rows = append(rows, f.line(t))
		} else {
			rows = append(rows, f.record(t))
		}
	}
	header := []string{"WHEN", "AGENT", "TURN", "CHECKPOINT", "CHANGED"}
	if f.ids {
		header = append(header, "ID", "CONVERSATION", "MESSAGE")
	}
	f.out.Table(header, rows, "CHECKPOINT", "AGENT")
	return nil
}

// line returns the row of a turn for people.
func (f *turnsCmd) line(t ipc.Turn) []string {
	agent := t.Agent
	if t.Inferred {
		agent = "(inferred)"
	}
	row := []string{f.out.Time(t.StartedAt), f.out.Text(agent), f.out.TurnName(t), f.out.Text(checkpointOf(t)), f.changed(t)}
	if f.ids {
		row = append(row, f.out.Text(string(t.ID)), f.out.Text(t.ConversationID), f.out.Text(t.MessageID))
	}
	return row
}

// changed returns what a turn changed, in a few words.
func (f *turnsCmd) changed(t ipc.Turn) string {
	if t.EndedAt == nil {
		return "(under way)"
	}
	var parts []string
	if files := f.files(t.Changes); files != "" {
		parts = append(parts, files)
	}
	const shown = 2
	for _, db := range t.Changes.Databases {
		parts = append(parts, f.out.Text(db.Database)+": "+strings.Join(f.inDatabase(db, shown), ", "))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// files returns the changes of files, or "" if there are none.
func (f *turnsCmd) files(c ipc.TurnChanges) string {
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
		return ""
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

// inDatabase returns the changes of a database, at most so many.
func (f *turnsCmd) inDatabase(db ipc.DatabaseChanges, most int) []string {
	if len(db.Changes) == 0 {
		return []string{"changed"}
	}
	var list []string
	for _, c := range db.Changes[:min(len(db.Changes), most)] {
		list = append(list, f.out.Text(c.Path)+" "+f.out.Text(c.Summary))
	}
	if more := db.Total - len(list); more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return list
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
	var databases []string
	for _, db := range t.Changes.Databases {
		for _, words := range f.inDatabase(db, len(db.Changes)) {
			databases = append(databases, f.out.Text(db.Database)+": "+words)
		}
	}
	conversation, message := t.ConversationID, t.MessageID
	if !f.ids {
		conversation, message = "", ""
	}
	return []string{
		f.out.Text(string(t.ID)), f.out.Time(t.StartedAt), f.out.Text(t.Agent), f.out.Text(conversation), f.out.Text(message), f.out.Text(checkpointOf(t)),
		fmt.Sprint(t.Changes.Created), fmt.Sprint(t.Changes.Modified), fmt.Sprint(t.Changes.Deleted), state, strings.Join(paths, " "),
		f.out.Text(t.Title), strings.Join(databases, "; "),
	}
}

// checkpointOf returns the id of a turn's checkpoint, or "".
func checkpointOf(t ipc.Turn) string {
	if t.CheckpointID == nil {
		return ""
	}
	return string(*t.CheckpointID)
}
