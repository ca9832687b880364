package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"mulligan/ipc"
	"mulligan/ipc/errs"
)

const redoLong = `Go back over the last rollback or revert: take the app to that rollback's safety checkpoint,
the state just before it. That is a rollback too, and a second redo goes back over it.

In a pipe, the same lines as mulligan rollback prints.`

type redoCmd struct {
	*cli
	dryRun, force bool
	start         startFlags
}

func newRedo(c *cli) *cobra.Command {
	f := &redoCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "redo",
		Short:   "Go back over the last rollback",
		Long:    redoLong,
		Example: "  mulligan undo && mulligan redo",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.start.check(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "change nothing, say what would change")
	cmd.Flags().BoolVar(&f.force, "force", false, forceHelp)
	f.start.add(cmd)
	return cmd
}

func (f *redoCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{Trigger: ipc.TriggerPreRollback})
	if err != nil {
		return err
	}
	trail, err := client.Audit(ctx, app, 0)
	if err != nil {
		return err
	}
	id, found := lastSafety(list.Checkpoints, receipts(trail))
	if !found {
		return errs.New(errs.NotFound, "redo", "the app was not rolled back").WithHint("see `mulligan log`")
	}
	return f.rollback(ctx, client, app, id, ipc.RollbackRequest{Reason: "redo", DryRun: f.dryRun, Force: f.force, Start: f.start.wish()})
}

// lastSafety is the safety checkpoint of the last rollback that changed the
// app. All comes newest first: list, the safety checkpoints there are, and the
// receipts. One in list without a receipt is of a rollback that a restarted
// daemon finished or undid; where it was undone, going there changes nothing.
func lastSafety(list []ipc.Checkpoint, receipts []ipc.RollbackResult) (ipc.CheckpointID, bool) {
	var last *ipc.Checkpoint
	undone := map[ipc.CheckpointID]bool{}
	for _, r := range receipts {
		if r.RolledBack && last == nil {
			last = r.SafetyCheckpoint
		}
		undone[r.SafetyCheckpoint.ID] = r.Recovered
	}
	for _, cp := range list {
		if !undone[cp.ID] && (last == nil || cp.CreatedAt.After(last.CreatedAt)) {
			return cp.ID, true
		}
	}
	if last == nil {
		return "", false
	}
	return last.ID, true
}

// receipts gives the receipts of the rollbacks in trail that got as far as a
// safety checkpoint, in its order: newest first.
func receipts(trail []ipc.AuditEntry) []ipc.RollbackResult {
	var list []ipc.RollbackResult
	for _, e := range trail {
		var r ipc.RollbackResult
		if e.Action != "rollback" || json.Unmarshal(e.Detail, &r) != nil {
			continue
		}
		if r.RestoredTo != nil && r.SafetyCheckpoint != nil {
			list = append(list, r)
		}
	}
	return list
}
