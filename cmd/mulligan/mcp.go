package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/mcpserver"
)

const mcpLong = `Serve the Model Context Protocol on standard input and output, for an agent that
starts this as its server. Where a tool call names no app, the one of --app is meant,
else the one that the current folder belongs to.

Its tools checkpoint, list, compare, pin, delete and roll back, and revert what single
messages or calls wrote. Its prompts, rollback and checkpoint, are slash commands in
clients that have them.

A user's own daemon that has ended, as after a crash, is started again by the next call.`

type mcpCmd struct {
	*cli
	confirm bool
}

func newMCP(c *cli) *cobra.Command {
	f := &mcpCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "mcp",
		Short:   "Serve MCP to an agent, on standard input and output",
		Long:    mcpLong,
		Example: "  claude mcp add mulligan -- mulligan mcp",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&f.confirm, "confirm", false, "have the client ask its user before each rollback, where it can")
	return cmd
}

func (f *mcpCmd) run(ctx context.Context) error {
	dir, err := place.Here()
	if err != nil {
		return errs.Wrap(errs.Failed, "mcp", err)
	}
	err = mcpserver.Run(ctx, mcpserver.Options{
		Client: defaultApp{ipc.NewClient(f.ownSocket()), f.app}, Wake: f.launcher().Wake, Cwd: dir, Version: buildVersion().Version, Confirm: f.confirm,
	})
	return errs.Wrap(errs.Failed, "mcp", err)
}

// ownSocket returns the socket that a client would use, or, where there is no daemon yet, that of the user's own daemon: init may start
// it while the server runs.
func (f *mcpCmd) ownSocket() string {
	socket := ipc.FindSocket(f.socket)
	if _, err := os.Lstat(socket); err != nil && f.socket == "" && os.Getenv("MULLIGAN_SOCKET") == "" {
		return ipc.UserSocket()
	}
	return socket
}

// defaultApp is a client for which every folder belongs to app, unless app is "".
type defaultApp struct {
	*ipc.Client
	app string
}

func (d defaultApp) AppAt(ctx context.Context, dir string) (ipc.App, error) {
	if d.app == "" {
		return d.Client.AppAt(ctx, dir)
	}
	return d.App(ctx, d.app)
}
