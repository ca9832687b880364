package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const showLong = `Show everything that is known about one checkpoint.

In a pipe: a line per field, its name (as in the API) and its value; db_snapshot, raw (a
layer that could not be read, kept as bytes), stayed_behind (a layer that the rollback
after it left as it was) and warning once for each.`

type showCmd struct{ *cli }

func newShow(c *cli) *cobra.Command {
	f := &showCmd{cli: c}
	return &cobra.Command{
		Use:               "show CP",
		Short:             "Show a checkpoint",
		Long:              showLong,
		Example:           "  mulligan show 1\n  mulligan show cp-4f2a --json",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
}

func (f *showCmd) run(ctx context.Context, name string) error {
	client, app, id, err := f.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	cp, err := client.Checkpoint(ctx, app, id)
	if err != nil {
		return err
	}
	if f.json {
		return f.printJSON(cp)
	}
	f.fields(f.checkpointFields(cp))
	return nil
}

func (c *cli) checkpointFields(cp ipc.Checkpoint) [][2]string {
	var expires time.Time
	if cp.ExpiresAt != nil {
		expires = *cp.ExpiresAt
	}
	all := [][2]string{
		{"checkpoint_id", c.text(string(cp.ID))},
		{"app_id", c.text(string(cp.AppID))},
		{"created_at", c.when(cp.CreatedAt)},
		{"trigger", c.text(string(cp.Trigger))},
		{"pinned", yesNo(cp.Pinned)},
		{"quiesced", yesNo(cp.Quiesced)},
		{"running", known(cp.Running)},
		{"healthy", known(cp.Healthy)},
		{"rehearsed", known(cp.Rehearsed)},
		{"size_bytes", c.size(cp.SizeBytes)},
		{"notes", c.maybe(cp.Notes)},
		{"ref", c.maybe(cp.Ref)},
		{"files_snapshot_id", c.maybe(cp.FilesSnapshot)},
		{"files_hash", c.maybe(cp.FilesHash)},
		{"vm_snapshot_id", c.maybe(cp.VMSnapshotID)},
		{"deploy_id", c.maybe(cp.DeployID)},
		{"conversation_id", c.maybe(cp.ConversationID)},
		{"message_id", c.maybe(cp.MessageID)},
		{"turn_id", c.maybe(cp.TurnID)},
		{"expires_at", c.when(expires)},
	}
	for _, db := range cp.DBSnapshots {
		parts := []string{db.Database, db.SnapshotID, db.Driver}
		if db.Position != "" {
			parts = append(parts, db.Position)
		}
		all = append(all, [2]string{"db_snapshot", c.text(strings.Join(parts, " "))})
	}
	for _, l := range cp.Raw {
		all = append(all, [2]string{"raw", c.text(l)})
	}
	for _, l := range cp.StayedBehind {
		all = append(all, [2]string{"stayed_behind", c.text(l)})
	}
	if cp.Damaged != "" {
		all = append(all, [2]string{"damaged", c.text(cp.Damaged)})
	}
	for _, w := range cp.Warnings {
		all = append(all, [2]string{"warning", c.text(w)})
	}
	return all
}

// known is yes or no, or "-" where that is not known.
func known(b *bool) string {
	if b == nil {
		return "-"
	}
	return yesNo(*b)
}
