package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"mulligan/ipc"
	"mulligan/ipc/errs"
)

const undoLong = `Take the app to the checkpoint that was made before the newest turn of an agent.
Again, to the turn before that one, and so on: turns that are undone already are
passed by. Where a revert came last, that is undone: the paths that it changed.
mulligan redo goes forward again.

In a pipe, the same lines as mulligan rollback prints.`

type undoCmd struct {
	*cli
	dryRun, force bool
	start         startFlags
}

func newUndo(c *cli) *cobra.Command {
	f := &undoCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "undo",
		Short:   "Undo the newest turn",
		Long:    undoLong,
		Example: "  mulligan undo",
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

func (f *undoCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{})
	if err != nil {
		return err
	}
	trail, err := client.Audit(ctx, app, 0)
	if err != nil {
		return err
	}
	back := reverts(trail)
	cp, found := lastTurn(list.Checkpoints, receipts(trail), back)
	if !found {
		return errs.New(errs.NotFound, "undo", "there is no turn's checkpoint to go to").
			WithHint("`mulligan rollback 1` goes to the newest checkpoint of any kind")
	}
	return f.rollback(ctx, client, app, cp.ID, ipc.RollbackRequest{Reason: "undo", DryRun: f.dryRun, Force: f.force, Start: f.start.wish(), Scope: back[cp.ID]})
}

// lastTurn walks list, newest first, to the newest turn's checkpoint that is
// not undone. At the safety checkpoint of a rollback it goes on from where that
// rollback went, as what lies between is no longer in the app. The safety checkpoint of
// a revert is what undoes that.
func lastTurn(list []ipc.Checkpoint, receipts []ipc.RollbackResult, reverts map[ipc.CheckpointID][]string) (ipc.Checkpoint, bool) {
	wentTo := map[ipc.CheckpointID]ipc.Checkpoint{}
	for _, r := range receipts {
		if r.RolledBack {
			wentTo[r.SafetyCheckpoint.ID] = *r.RestoredTo
		}
	}
	var skipTo *ipc.Checkpoint
	for _, cp := range list {
		if skipTo != nil && !cp.CreatedAt.Before(skipTo.CreatedAt) {
			if cp.ID == skipTo.ID {
				skipTo = nil
			}
			continue
		}
		skipTo = nil
		if to, ok := wentTo[cp.ID]; ok {
			skipTo = &to
			continue
		}
		if cp.Trigger == ipc.TriggerAgent || reverts[cp.ID] != nil {
			return cp, true
		}
	}
	return ipc.Checkpoint{}, false
}

// reverts gives the safety checkpoints of the reverts in trail, each with the scope
// that undoes it: what the revert changed, and nothing that was done since.
func reverts(trail []ipc.AuditEntry) map[ipc.CheckpointID][]string {
	const most = 1000
	all := map[ipc.CheckpointID][]string{}
	for _, e := range trail {
		var r ipc.RevertResult
		if e.Action != "revert" || json.Unmarshal(e.Detail, &r) != nil || r.SafetyCheckpoint == nil {
			continue
		}
		odd := func(p string) bool { return strings.ContainsRune(p, utf8.RuneError) } // not what it is on disk
		scope := r.RestoredPaths
		if len(scope) == 0 || len(scope) > most || slices.ContainsFunc(scope, odd) {
			scope = []string{"layer:files"}
		}
		all[r.SafetyCheckpoint.ID] = scope
	}
	return all
}
