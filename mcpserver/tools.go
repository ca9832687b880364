package mcpserver

import (
	"context"
	"errors"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/naming"
)

// tools has what the tools' handlers share.
type tools struct {
	client  API
	wake    func(context.Context) (bool, error) // as in Options
	cwd     string
	confirm *confirmer
}

// addTools registers every tool.
func addTools(s *mcp.Server, t tools) {
	schemas := map[string]*jsonschema.Schema{}
	add(s, schemas, "create_checkpoint",
		"Capture the app as it is now: files, VM disk and databases. Call it before a risky change.",
		hints{}, checkpointSchema(), t.create)
	add(s, schemas, "list_checkpoints",
		"List checkpoints, newest first: n, id, time, and the turn's title or the notes. Call it to find the state to go back to.",
		hints{readOnly: true, idempotent: true}, listSchema(), t.list)
	add(s, schemas, "rollback_app",
		"Take the whole app, or a scope of it, to a checkpoint. The present state becomes a safety checkpoint first, so this can be undone. Call it when a check fails after a change. Files change on disk: read them again.",
		hints{destructive: true}, rollbackSchema(), t.rollback)
	add(s, schemas, "pin_checkpoint",
		"Protect a checkpoint from pruning and deletion, or (pinned=false) no longer. Call it for a state that must last.",
		hints{idempotent: true}, checkpointSchema(), t.pin)
	add(s, schemas, "delete_checkpoint",
		"Delete a checkpoint for good. Call it only when asked. A pinned one must be unpinned first.",
		hints{destructive: true, idempotent: true}, deleteSchema(), t.delete)
	add(s, schemas, "diff_checkpoint",
		"What changed between a checkpoint and now, or another one. Call it before a rollback.",
		hints{readOnly: true, idempotent: true}, diffSchema(), t.diff)
	add(s, schemas, "set_conversation_checkpoint",
		"Accept a conversation's writes up to a message: reverts begin after it. Call it when they are to stay. list_checkpoints(trigger='agent', details=true) shows the ids.",
		hints{idempotent: true}, setSchema(), t.setConversation)
	add(s, schemas, "revert_conversation_writes",
		"Undo only what a conversation's messages, or one tool call, wrote to files. Call it when only some work is wrong. Others' edits are kept; what conflicts is named. A safety checkpoint comes first. Read restored files again.",
		hints{destructive: true, idempotent: true}, revertSchema(), t.revert)
	add(s, schemas, "fork_app",
		"Make running copies of the app, each with its own folder and data, to try several ways side by side. The app itself is not touched. Call it when unsure which way works.",
		hints{}, forksSchema(), t.fork)
	add(s, schemas, "list_forks", "List the app's forks. Call it for their folders and addresses.", hints{readOnly: true, idempotent: true}, forksSchema(), t.forks)
	add(s, schemas, "compare_forks", "What each fork changed, whether it is healthy, and how a command ends in it. Call it to choose one.", hints{readOnly: true}, compareSchema(), t.compare)
	add(s, schemas, "keep_fork",
		"Take the app to a fork's present state, and drop the fork. Call it with the best.",
		hints{destructive: true}, keepSchema(), t.keep)
	add(s, schemas, "drop_fork", "Remove a fork and all of its data. Call it for the rest.", hints{destructive: true, idempotent: true}, dropSchema(), t.drop)
	s.AddReceivingMiddleware(forgive(schemas))
}

// hints are the annotations of a tool. All tools work on the app only, so none has openWorldHint.
type hints struct{ readOnly, destructive, idempotent bool }

func (h hints) annotations() *mcp.ToolAnnotations {
	closed := false
	return &mcp.ToolAnnotations{
		ReadOnlyHint: h.readOnly, DestructiveHint: &h.destructive, IdempotentHint: h.idempotent, OpenWorldHint: &closed,
	}
}

// add registers a tool and records the schema of its input.
func add[In, Out any](s *mcp.Server, schemas map[string]*jsonschema.Schema, name, description string, h hints,
	out *jsonschema.Schema, f func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, Out, error)) {
	in := inputSchema[In]()
	schemas[name] = in
	mcp.AddTool(s, &mcp.Tool{
		Name: name, Description: description, Annotations: h.annotations(), InputSchema: in, OutputSchema: out,
	}, f)
}

// app finds the app of a call, and records it in what. A checkpoint that the call names by a number, a time or words is replaced in
// what by its id.
func (t tools) app(ctx context.Context, what *invocation) (ipc.App, error) {
	app, err := t.find(ctx, what.app)
	if errors.Is(err, ipc.ErrNoDaemon) && t.wake != nil {
		started, failed := t.wake(ctx)
		switch {
		case started:
			app, err = t.find(ctx, what.app)
		case failed != nil:
			err = failed
		}
	}
	if err != nil {
		what.others = t.slugs(ctx, err)
		return app, err
	}
	what.app, what.appKnown = app.ID, true
	if what.names {
		what.checkpoint, err = t.checkpoint(ctx, app, what.checkpoint)
		what.found = err == nil
	}
	return app, err
}

// find finds an app, or that of the working folder for "".
func (t tools) find(ctx context.Context, app ipc.AppID) (ipc.App, error) {
	if app == "" {
		return t.client.AppAt(ctx, t.cwd)
	}
	return t.client.App(ctx, string(app))
}

// maxSlugs bounds the apps that an answer names.
const maxSlugs = 20

// slugs names the apps that a call may be about, after err, with which the look-up of its app failed. It ignores errors.
func (t tools) slugs(ctx context.Context, err error) (list []string) {
	if kind := errs.KindOf(err); kind != errs.NotFound && kind != errs.Conflict {
		return nil
	}
	apps, err := t.client.Apps(ctx)
	if err != nil {
		return nil
	}
	for _, a := range apps[:min(len(apps), maxSlugs)] {
		list = append(list, a.Slug)
	}
	return list
}

// idLen is the length of the shortest whole id of a checkpoint.
const idLen = len("cp-0123456789ab")

// checkpoint returns the id of the checkpoint that name means.
func (t tools) checkpoint(ctx context.Context, app ipc.App, name ipc.CheckpointID) (ipc.CheckpointID, error) {
	if strings.HasPrefix(string(name), "cp-") && len(name) >= idLen {
		return name, nil
	}
	id, err := naming.Checkpoint(ctx, t.client, string(app.ID), string(name))
	if err != nil {
		return name, err
	}
	return id, nil
}

// sessionToken returns the owner of the app in the form of results.
func sessionToken(a ipc.App) string { return "user-" + a.Owner }
