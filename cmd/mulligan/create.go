package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const createLong = `Capture the app as it is now: files, VM disk and databases together, under one id.
The app's unit is stopped for it and started again, unless --quiesce none.
A domain (VM) goes on running: its guest agent freezes its filesystems for a
moment. --quiesce stop, given, shuts the guest down for it and starts it again.

In a pipe: one line with the fields of mulligan list; what the checkpoint lacks is on standard
error, a line that begins with "warning:" for each.`

type createCmd struct {
	*cli
	req              ipc.CreateRequest
	trigger, quiesce string
}

func newCreate(c *cli) *cobra.Command {
	f := &createCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Make a checkpoint",
		Long:    createLong,
		Example: "  mulligan create --notes 'before the upgrade' --pin",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&f.req.Notes, "notes", "", "a description for readers of the list")
	cmd.Flags().BoolVar(&f.req.Pinned, "pin", false, "keep it until it is unpinned")
	cmd.Flags().StringVar(&f.trigger, "trigger", "", "the cause: `manual|deploy|agent` (default manual)")
	cmd.Flags().StringVar(&f.req.DeployID, "deploy-id", "", "the deployment's `ID`")
	cmd.Flags().StringVar(&f.quiesce, "quiesce", "", "`stop|none`: whether to stop the app meanwhile (default stop; none for a domain)")
	cmd.Flags().BoolVar(&f.req.WithMemory, "with-memory", false, "keep the running domain's memory too: a rollback resumes the guest, without a boot")
	return cmd
}

func (f *createCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	f.req.Trigger, f.req.Quiesce = ipc.Trigger(f.trigger), ipc.Quiesce(f.quiesce)
	cp, err := client.CreateCheckpoint(ctx, app, f.req)
	if err != nil {
		return err
	}
	return f.out.PrintCheckpoint(cp)
}
