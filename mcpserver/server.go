// Package mcpserver is an MCP server with which an agent makes checkpoints of an app and rolls back to them. It turns each tool
// call into calls of the daemon, and returns answers for a model: results keep the API's field names, and every answer, also an
// error, has the next call.
package mcpserver

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// API has the calls of the daemon that the tools need. *ipc.Client implements it.
type API interface {
	Apps(ctx context.Context) ([]ipc.App, error)
	App(ctx context.Context, app string) (ipc.App, error)
	AppAt(ctx context.Context, dir string) (ipc.App, error)
	CreateCheckpoint(ctx context.Context, app string, req ipc.CreateRequest) (ipc.Checkpoint, error)
	Checkpoints(ctx context.Context, app string, query ipc.CheckpointQuery) (ipc.CheckpointList, error)
	Diff(ctx context.Context, app string, id ipc.CheckpointID, query ipc.DiffQuery) (ipc.Diff, error)
	SetConversationCheckpoint(ctx context.Context, app, conversation, message string) (ipc.ConversationCheckpoint, error)
	Revert(ctx context.Context, app string, req ipc.RevertRequest) (ipc.RevertResult, error)
	Pin(ctx context.Context, app string, id ipc.CheckpointID, pinned bool) (ipc.Checkpoint, error)
	DeleteCheckpoint(ctx context.Context, app string, id ipc.CheckpointID) error
	Fork(ctx context.Context, app string, req ipc.ForkRequest) (ipc.ForkList, error)
	Forks(ctx context.Context, app string) (ipc.ForkList, error)
	Keep(ctx context.Context, app, fork string, req ipc.KeepRequest) (ipc.RollbackResult, error)
	CompareForks(ctx context.Context, app string, req ipc.CompareRequest) (ipc.Comparison, error)
	DropFork(ctx context.Context, app, fork string) error
	Rollback(ctx context.Context, app string, id ipc.CheckpointID, req ipc.RollbackRequest, onStage func(ipc.Stage)) (ipc.RollbackResult, error)
}

// Options are the settings of a server.
type Options struct {
	Client  API
	Wake    func(context.Context) (started bool, err error) // starts the user's own daemon where it has ended, or says why that fails; nil: nobody does
	Cwd     string                                          // the folder whose app is used if a call names none
	Version string                                          // the version of mulligan
	Confirm bool                                            // a person must confirm rollbacks, if the client can ask
}

const instructions = "Call create_checkpoint before anything that is hard to take back (a refactor, a migration, an upgrade, a deploy, a bulk delete): it captures the app's files, VM disk and databases together. " +
	"When a check fails afterwards, call rollback_app with that checkpoint's id, or revert_conversation_writes to undo what single messages or calls wrote to files, and read files again, since they changed on disk. " +
	"To try several ways side by side, call fork_app, and then keep_fork with the best. " +
	"app_id may be left out inside an app's workspace, and the `next` of every answer spells out the next call."

// New returns a server with all tools and prompts.
func New(o Options) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "mulligan", Title: "Mulligan", Version: o.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		// The server offers neither logging, which is the SDK's default, nor changing lists.
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Prompts: &mcp.PromptCapabilities{}},
	})
	t := tools{o.Client, o.Wake, o.Cwd, newConfirmer(o.Confirm)}
	addTools(s, t)
	addPrompts(s, t)
	return s
}

// Run serves one client on standard input and output until the client disconnects or ctx ends. A rollback under way continues
// in the daemon.
func Run(ctx context.Context, o Options) error {
	return serve(ctx, o, &mcp.StdioTransport{})
}

func serve(ctx context.Context, o Options, t mcp.Transport) error {
	err := New(o).Run(ctx, t)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // the server was told to stop
	}
	return err
}
