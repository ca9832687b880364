// Package mcpserver lets an agent make checkpoints of an app and go back to
// them, over the Model Context Protocol. It turns each tool call into calls of
// the daemon and words the answers for a model: results keep the API's field
// names, and every answer, an error too, spells out the call to make next.
package mcpserver

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// API is what the tools need of the daemon; *ipc.Client has it.
type API interface {
	App(ctx context.Context, app string) (ipc.App, error)
	AppAt(ctx context.Context, dir string) (ipc.App, error)
	CreateCheckpoint(ctx context.Context, app string, req ipc.CreateRequest) (ipc.Checkpoint, error)
	Checkpoints(ctx context.Context, app string, query ipc.CheckpointQuery) (ipc.CheckpointList, error)
	Diff(ctx context.Context, app string, id ipc.CheckpointID, query ipc.DiffQuery) (ipc.Diff, error)
	SetConversationCheckpoint(ctx context.Context, app, conversation, message string) (ipc.ConversationCheckpoint, error)
	Revert(ctx context.Context, app string, req ipc.RevertRequest) (ipc.RevertResult, error)
	Pin(ctx context.Context, app string, id ipc.CheckpointID, pinned bool) (ipc.Checkpoint, error)
	DeleteCheckpoint(ctx context.Context, app string, id ipc.CheckpointID) error
	Rollback(ctx context.Context, app string, id ipc.CheckpointID, req ipc.RollbackRequest, onStage func(ipc.Stage)) (ipc.RollbackResult, error)
}

// Options are what a server is made of.
type Options struct {
	Client  API
	Cwd     string // whose app is meant where a call names none
	Version string // of mulligan
	Confirm bool   // rollbacks wait for a person's word, where the client can ask for it
}

const instructions = "Call create_checkpoint before anything that is hard to take back (a refactor, a migration, an upgrade, a deploy, a bulk delete): it captures the app's files, VM disk and databases together. " +
	"When a check fails afterwards, call rollback_app with that checkpoint's id, or revert_conversation_writes to undo what single messages or calls wrote to files, and read files again, since they changed on disk. " +
	"app_id may be left out inside an app's workspace, and the `next` of every answer spells out the next call."

// New makes a server with all tools and prompts.
func New(o Options) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "mulligan", Title: "Mulligan", Version: o.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		// Neither logging, which the SDK offers otherwise, nor changing lists.
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Prompts: &mcp.PromptCapabilities{}},
	})
	t := tools{o.Client, o.Cwd, newConfirmer(o.Confirm)}
	addTools(s, t)
	addPrompts(s, t)
	return s
}

// Run serves one client on standard input and output until that goes away or
// ctx ends. A rollback under way goes on in the daemon.
func Run(ctx context.Context, o Options) error {
	return serve(ctx, o, &mcp.StdioTransport{})
}

func serve(ctx context.Context, o Options, t mcp.Transport) error {
	err := New(o).Run(ctx, t)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // told to stop, it stopped
	}
	return err
}
