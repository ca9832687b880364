package offsite

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/ipc"
)

const pruneLong = `Remove from a remote the checkpoints that the app's settings no longer keep there, and what
no other checkpoint needs. NAME may be left out where there is one remote.

What stays: checkpoints that this host has, those that are pinned, the newest, and what
remote.keep_last and remote.daily_days of mulligan app set say: so many of the newest, and
the first of each of so many of the newest days that have one. If neither is set, all of
them stay, and only what pushes that were cut short left behind goes.

What little is needed of a pack is sent again in another one, and the pack is deleted. What
other hosts sent is not known here, and stays. With a key that cannot delete, where the
bucket locks objects, or where something that this host sent is missing, nothing is
removed; in that case mulligan verify --remote notes what is missing, for the next prune.

In a pipe: a line per checkpoint that was removed, or with --dry-run would be: its id and
when it was made; then "kept", "packs", "freed_bytes" and "moved_bytes" with their numbers,
and "left" with a sentence for what else is there.`

func newPruneRemote(h Host) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:     "prune [NAME]",
		Short:   "Remove from a remote what the app's settings no longer keep there",
		Long:    pruneLong,
		Example: "  mulligan app set remote.keep_last=100 remote.daily_days=90\n  mulligan remote prune backup --dry-run",
		Args:    h.args(0, 1),
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, args []string) error {
			r, err := remoteOf(ctx, client, app, args, "remote prune")
			if err != nil {
				return err
			}
			res, err := client.PruneRemote(ctx, app, r.Name, dry)
			if err != nil {
				return err
			}
			return printPruned(h.Out, res)
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "remove nothing, list what would be removed and what that frees")
	return cmd
}

// printPruned prints what a prune removed.
func printPruned(p *output.Printer, res ipc.RemotePrune) error {
	if p.JSON {
		return p.PrintJSON(res)
	}
	for _, c := range res.Deleted {
		p.Printf("%s\t%s\n", p.Text(string(c.ID)), p.Time(c.CreatedAt))
	}
	if !p.Terminal {
		p.Fields([][2]string{{"kept", strconv.Itoa(res.Kept)}, {"packs", strconv.Itoa(res.Packs)}, {"freed_bytes", p.Size(res.FreedBytes)}, {"moved_bytes", p.Size(res.MovedBytes)}})
	} else {
		verb, frees := "removed", "freed"
		if res.DryRun {
			verb, frees = "would remove", "would be freed"
		}
		p.Printf("%s %s and %s; %d left, %s %s\n", verb, output.Count(len(res.Deleted), "checkpoint"), output.Count(res.Packs, "pack"), res.Kept, p.Size(res.FreedBytes), frees)
	}
	for _, l := range res.Left {
		say(p, "left", l)
	}
	return nil
}
