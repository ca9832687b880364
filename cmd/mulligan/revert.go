package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
)

const revertLong = `Undo what one tool call, one turn, or a range of a conversation's messages wrote to
files, and nothing else: the app runs on, and databases stay as they are.

A path goes back to what it was before the first of those writes. Where somebody else
wrote to it since, only the lines and attributes of theirs are kept and the rest goes
back; where that cannot be, the path is left alone and named, and the exit code is 4.
With --force it goes back all the same. Left alone also with --force are a git repository
that others changed too, as a whole, a folder with others' files in it, what was in a folder
that is gone, and what is excluded now. A safety checkpoint is made first: mulligan undo,
or redo, goes back over a revert.

Of a conversation, without --from, the messages after its checkpoint are meant: see
--set-checkpoint. mulligan turns --ids shows turns, conversations and messages, and with
--json the calls.

In a pipe, a line per fact: safety_checkpoint, dry_run; then "restored", path;
"merged", path (a restored one that keeps what others wrote); "conflict", path, reason,
words; "warning", text.`

type revertCmd struct {
	*cli
	req        ipc.RevertRequest
	turn, call string
	checkpoint string
}

func newRevert(c *cli) *cobra.Command {
	f := &revertCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "revert",
		Short:   "Undo only what some calls wrote",
		Long:    revertLong,
		Example: "  mulligan revert --call toolu_01A --dry-run\n  mulligan revert --turn turn-4f2a\n  mulligan revert --conversation 1b9d --from m-3 --to m-5\n  mulligan revert --conversation 1b9d --set-checkpoint m-3",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.call, "call", "", "the `ID` of a tool call")
	cmd.Flags().StringVar(&f.turn, "turn", "", "the `ID` of a turn")
	cmd.Flags().StringVar(&f.req.ConversationID, "conversation", "", "the `ID` of a conversation, an agent's session")
	cmd.Flags().StringVar(&f.req.FromMessageID, "from", "", "the first `MESSAGE` whose writes are undone")
	cmd.Flags().StringVar(&f.req.ToMessageID, "to", "", "the last one (default: the newest)")
	cmd.Flags().BoolVar(&f.req.Force, "force", false, "overwrite others' edits where they cannot be merged")
	cmd.Flags().BoolVar(&f.req.DryRun, "dry-run", false, "change nothing, say what would change")
	cmd.Flags().StringVar(&f.req.Reason, "reason", "", "why, for the audit trail")
	cmd.Flags().StringVar(&f.checkpoint, "set-checkpoint", "", "revert nothing: set the conversation's checkpoint behind this `MESSAGE`")
	return cmd
}

func (f *revertCmd) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	f.req.CallID, f.req.TurnID = ipc.CallID(f.call), ipc.TurnID(f.turn)
	if f.call == "" && f.turn == "" && f.req.ConversationID == "" {
		return usage(cmd, "say whose writes to undo: --call, --turn or --conversation")
	}
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	if f.checkpoint != "" {
		return f.setCheckpoint(cmd, client, app)
	}
	res, err := client.Revert(ctx, app, f.req)
	if err != nil && ctx.Err() != nil {
		return interrupted{
			op: "revert", message: "interrupted; a revert that the daemon has begun goes on to its end",
			hint: "see `mulligan log` for how it went",
		}
	}
	if err != nil {
		return err
	}
	if err := f.out.PrintRevert(res); err != nil {
		return err
	}
	if len(res.Conflicts) > 0 && !res.DryRun {
		return leftAlone(res.Conflicts)
	}
	return nil
}

// leftAlone returns the error of a revert that left some paths as they are.
func leftAlone(list []ipc.RevertConflict) error {
	what := wasWere(output.Count(len(list), "path"), len(list))
	if slices.ContainsFunc(list, func(c ipc.RevertConflict) bool { return c.Forcible }) {
		return errs.New(errs.Conflict, "revert", "%s left alone", what).WithHint("they are named above; --force overwrites others' edits where it can")
	}
	return errs.New(errs.Conflict, "revert", "%s left alone", what).
		WithHint("they are named above; `mulligan rollback CHECKPOINT --scope PATH` takes a path back with all that others did in it")
}

func wasWere(what string, n int) string {
	if n == 1 {
		return what + " was"
	}
	return what + " were"
}

func (f *revertCmd) setCheckpoint(cmd *cobra.Command, client *ipc.Client, app string) error {
	if f.req.ConversationID == "" {
		return usage(cmd, "--set-checkpoint needs --conversation")
	}
	res, err := client.SetConversationCheckpoint(cmd.Context(), app, f.req.ConversationID, f.checkpoint)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(res)
	}
	if f.out.Terminal {
		f.out.Printf("the checkpoint of %s is behind message %s\n", f.out.Text(res.ConversationID), f.out.Text(res.MessageID))
	} else {
		f.out.Table(nil, [][]string{{f.out.Text(res.ConversationID), f.out.Text(res.MessageID)}})
	}
	for _, w := range res.Warnings {
		fmt.Fprintf(f.out.Stderr, "warning: %s\n", f.out.Text(w))
	}
	return nil
}
