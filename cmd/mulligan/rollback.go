package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
)

const rollbackLong = `Take the app to a checkpoint, in six stages: keep the state as it is now, stop the app, put
files and disks back, put databases back, start the app, ask it how it is. Programs know
them as safety-checkpoint, stop-unit, vm-revert, db-restore, start-unit, health-check.
The safety checkpoint holds the state before; mulligan redo goes back to it. A
rollback that fails puts the app back where it was: exit code 6.

A PATH of --scope or --discard is relative to the current folder, where that is in the
app's workspace, else to the workspace. A scope that exists neither now nor in the
checkpoint is refused, as is all else that can be known beforehand, before anything is done.

Each layer (files, disk, db:NAME) is safe by itself. A layer out of scope is not read. A
layer that cannot be read, such as an overwritten database file, is saved as raw bytes and
then restored. If even that fails, for example because a server is down, the rollback does
nothing; the error names the flag that restores the rest: --without db:main. Afterwards,
mulligan app show lists what stayed behind.

If the rollback would also undo what another agent's session wrote at the same time, it
says so and does nothing, unless --force is given. mulligan revert undoes the writes of
one session only.

The app is started at the end if it was meant to be up: it ran, was starting or had
failed; or it is down for no known reason, and ran when the checkpoint was made. One
that somebody stopped stays down. --start and --no-start decide otherwise.

The daemon does the work: an interrupt ends only this program.

In a pipe, a line per fact: rolled_back, dry_run, restored_to, turn (its title), safety_checkpoint,
changes_total, verified (yes, no or skipped), recovered; then "stage", name, status, milliseconds,
notes, six times; then "change", operation undone, path, summary (at most 100);
"stayed_behind", a layer in scope that is as it was; "put_back", what became of a layer of a
rollback that was undone; "warning", text; "downtime", how long the app was down until its unit
had started, "measured"; "next", text. A dry run adds "layer", name and what was created,
modified and deleted in it; "database", like "change", for what is not among the changes;
"unaffected", what would stay as it is; "downtime", how long, from what. What is not known yet or at all is "-".

With --events, a line of JSON when a stage starts, goes on or ends, {"event":"stage","data":…}, and
at last {"event":"result","data":…}, as the API has them. An error is JSON on standard error.`

// addDiscard adds the flag that names files to delete first, for a disk that is full.
func addDiscard(cmd *cobra.Command, req *ipc.RollbackRequest) {
	cmd.Flags().StringArrayVar(&req.Discard, "discard", nil, "first delete for good the file `PATH`, or the files in it, made since, for which a full disk has no room; may be repeated")
}

// addWithout adds the flag that names the layers that a rollback leaves as they are.
func addWithout(cmd *cobra.Command, req *ipc.RollbackRequest) {
	cmd.Flags().StringArrayVar(&req.Without, "without", nil, "leave this `LAYER` (db:main, files, disk) as it is, unchecked; may be repeated")
}

// addEvents adds the flag that has the stages printed while they run, for programs.
func (c *cli) addEvents(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.out.Events, "events", false, "print each stage while it runs, and then the result, as lines of JSON")
}

const forceHelp = "also undo what another session wrote at the same time"

type rollbackCmd struct {
	*cli
	req         ipc.RollbackRequest
	noVerify    bool
	onUnhealthy string
	start       startFlags
}

// startFlags say whether the app is started at the end of a rollback.
type startFlags struct{ start, noStart bool }

func (s *startFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.start, "start", false, "start the app at the end, also one that was stopped on purpose")
	cmd.Flags().BoolVar(&s.noStart, "no-start", false, "leave the app down at the end")
}

func (s *startFlags) check(cmd *cobra.Command) error {
	if s.start && s.noStart {
		return usage(cmd, "--start and --no-start don't go together")
	}
	return nil
}

// value returns the value for a request, which is nil if no flag was given.
func (s *startFlags) value() *bool {
	if !s.start && !s.noStart {
		return nil
	}
	return &s.start
}

func newRollback(c *cli) *cobra.Command {
	f := &rollbackCmd{cli: c}
	cmd := &cobra.Command{
		Use:               "rollback CP",
		Short:             "Take the app to a checkpoint",
		Long:              rollbackLong,
		Example:           "  mulligan rollback 1\n  mulligan rollback cp-4f2a --scope src/ --dry-run\n  mulligan rollback 2 --scope layer:db:main --reason 'bad migration'",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.start.check(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context(), args[0])
		},
	}
	cmd.Flags().StringArrayVar(&f.req.Scope, "scope", nil, "only this: a `PATH`, or layer:NAME (layer:files, layer:db:main); may be repeated")
	cmd.Flags().BoolVar(&f.req.DryRun, "dry-run", false, "change nothing, say what would change")
	cmd.Flags().StringVar(&f.req.Reason, "reason", "", "why, for the audit trail")
	cmd.Flags().BoolVar(&f.noVerify, "no-verify", false, "don't hash the restored state and compare")
	cmd.Flags().BoolVar(&f.req.CheckStored, "check-stored", false, "first read every byte that is stored for the checkpoint")
	cmd.Flags().BoolVar(&f.req.Force, "force", false, forceHelp)
	addWithout(cmd, &f.req)
	addDiscard(cmd, &f.req)
	f.start.add(cmd)
	c.addEvents(cmd)
	cmd.Flags().StringVar(&f.onUnhealthy, "on-unhealthy", "", "`keep|undo`: what to do when the health check fails (default keep)")
	return cmd
}

func (f *rollbackCmd) run(ctx context.Context, name string) error {
	client, app, id, err := f.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	if f.noVerify {
		f.req.VerifyRestore = new(bool)
	}
	f.req.OnUnhealthy = ipc.OnUnhealthy(f.onUnhealthy)
	f.req.Start = f.start.value()
	if f.req.Scope, err = place.Scope(ctx, client, "rollback", app, "", f.req.Scope); err != nil {
		return err
	}
	if f.req.Discard, err = place.Discard(ctx, client, "rollback", app, f.req.Discard); err != nil {
		return err
	}
	return f.rollback(ctx, client, app, id, f.req)
}

// rollback takes the app to the checkpoint id and prints the receipt. On a
// terminal it shows the stages while they run.
func (c *cli) rollback(ctx context.Context, client *ipc.Client, app string, id ipc.CheckpointID, req ipc.RollbackRequest) error {
	var show *output.Progress
	var onStage func(ipc.Stage)
	switch {
	case c.out.Events:
		onStage = func(st ipc.Stage) { _ = c.out.PrintEvent(ipc.EventStage, st) } // Stdout keeps the error, and the command ends with it
	case c.out.Terminal && !c.out.JSON:
		show = output.NewProgress(c.out.Stdout)
		show.Width = c.out.Width
		onStage = show.Stage
	}
	res, err := client.Rollback(ctx, app, id, req, onStage)
	show.End()
	return c.rolledBack(ctx, "rollback", id, req.DryRun, res, err)
}

// rolledBack prints the receipt of a rollback to the checkpoint id, and returns the error with which the command op ends.
func (c *cli) rolledBack(ctx context.Context, op string, id ipc.CheckpointID, dryRun bool, res ipc.RollbackResult, err error) error {
	if err != nil && ctx.Err() != nil {
		return interrupted{
			op: op, message: "interrupted; a rollback that the daemon has begun goes on to its end",
			hint: "see `mulligan log` for how it went",
		}
	}
	if err == nil && !res.RolledBack && !res.DryRun && !dryRun {
		err = errs.New(errs.Internal, op, "the daemon did not report the rollback's result").WithHint("see `mulligan log`")
	}
	if err != nil && len(res.Stages) == 0 {
		return err // no stage has begun, so there is no receipt
	}
	if printErr := c.out.PrintReceipt(id, res); err == nil {
		err = printErr
	}
	if err != nil && res.Recovered {
		return recovered{err}
	}
	return err
}
