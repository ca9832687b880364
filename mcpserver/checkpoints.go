package mcpserver

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// maxListed bounds the checkpoints of one answer, to about 4,000 tokens.
const maxListed = 20

type createIn struct {
	App    ipc.AppID `json:"app_id,omitempty" jsonschema:"id or slug; default: this folder's"`
	Notes  string    `json:"notes,omitempty" jsonschema:"what is about to happen"`
	Pinned bool      `json:"pinned,omitempty" jsonschema:"never prune it"`
}

type listIn struct {
	App     ipc.AppID   `json:"app_id,omitempty" jsonschema:"default: this folder's"`
	Trigger ipc.Trigger `json:"trigger,omitempty" jsonschema:"only those made by this"`
	Limit   int         `json:"limit,omitempty" jsonschema:"at most 20, the default"`
}

type pinIn struct {
	App        ipc.AppID        `json:"app_id,omitempty" jsonschema:"default: this folder's"`
	Checkpoint ipc.CheckpointID `json:"checkpoint_id"`
	Pinned     *bool            `json:"pinned,omitempty" jsonschema:"default true"`
}

type deleteIn struct {
	App        ipc.AppID        `json:"app_id,omitempty" jsonschema:"default: this folder's"`
	Checkpoint ipc.CheckpointID `json:"checkpoint_id"`
}

// checkpointOut has the fields of a checkpoint and those that a result adds.
type checkpointOut struct {
	checkpointFields
	SessionToken string `json:"session_token"`
	Next         string `json:"next"`
}

// checkpointFields has the fields of an ipc.Checkpoint without its methods: if it were embedded, its MarshalJSON would be that
// of the whole result.
type checkpointFields ipc.Checkpoint

func outOf(cp ipc.Checkpoint, app ipc.App, next string) checkpointOut {
	if cp.DBSnapshots == nil {
		cp.DBSnapshots = []ipc.DBSnapshot{}
	}
	return checkpointOut{checkpointFields(cp), sessionToken(app), next}
}

type listOut struct {
	Checkpoints  []ipc.Checkpoint `json:"checkpoints"`
	StorageUsage ipc.StorageUsage `json:"storage_usage"`
	SessionToken string           `json:"session_token"`
	Next         string           `json:"next"`
}

type deleteOut struct {
	Deleted      bool             `json:"deleted"`
	CheckpointID ipc.CheckpointID `json:"checkpoint_id"`
	SessionToken string           `json:"session_token"`
	Next         string           `json:"next"`
}

func (t tools) create(ctx context.Context, _ *mcp.CallToolRequest, in createIn) (*mcp.CallToolResult, checkpointOut, error) {
	what := invocation{tool: "create_checkpoint", app: in.App}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, checkpointOut{}, failed(err, what)
	}
	cp, err := t.client.CreateCheckpoint(ctx, string(app.ID), ipc.CreateRequest{Notes: in.Notes, Pinned: in.Pinned})
	if err != nil {
		return nil, checkpointOut{}, failed(err, what)
	}
	next := toolCall("rollback_app", app.ID, cp.ID) + " restores this state; it captures a safety checkpoint first, so you can go forward again"
	return nil, outOf(cp, app, next), nil
}

func (t tools) list(ctx context.Context, _ *mcp.CallToolRequest, in listIn) (*mcp.CallToolResult, listOut, error) {
	what := invocation{tool: "list_checkpoints", app: in.App}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, listOut{}, failed(err, what)
	}
	limit := in.Limit
	if limit < 1 || limit > maxListed {
		limit = maxListed
	}
	// One checkpoint more than the answer shows is requested, to find out whether there are more.
	l, err := t.client.Checkpoints(ctx, string(app.ID), ipc.CheckpointQuery{Trigger: in.Trigger, Limit: limit + 1})
	if err != nil {
		return nil, listOut{}, failed(err, what)
	}
	shown := l.Checkpoints[:min(limit, len(l.Checkpoints))]
	out := listOut{append([]ipc.Checkpoint{}, shown...), l.StorageUsage, sessionToken(app), ""}
	out.Next = nextOfList(app, in, shown, len(l.Checkpoints) > len(shown))
	return nil, out, nil
}

func nextOfList(app ipc.App, in listIn, shown []ipc.Checkpoint, more bool) string {
	if len(shown) == 0 && in.Trigger != "" {
		return toolCall("list_checkpoints", app.ID, "") + " lists those with another trigger"
	}
	if len(shown) == 0 {
		return toolCall("create_checkpoint", app.ID, "") + " captures the present state"
	}
	next := toolCall("rollback_app", app.ID, shown[0].ID) + " goes back to the newest one shown"
	switch {
	case !more:
		return next
	case len(shown) < maxListed:
		return next + fmt.Sprintf("; there are older ones: list_checkpoints(app_id='%s', limit=%d)", app.ID, maxListed)
	}
	return next + fmt.Sprintf("; there are older ones: narrow the list with trigger, or run `mulligan list --app %s --limit 200`", app.Slug)
}

func (t tools) pin(ctx context.Context, _ *mcp.CallToolRequest, in pinIn) (*mcp.CallToolResult, checkpointOut, error) {
	what := onCheckpoint("pin_checkpoint", in.App, in.Checkpoint)
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, checkpointOut{}, failed(err, what)
	}
	pinned := in.Pinned == nil || *in.Pinned
	cp, err := t.client.Pin(ctx, string(app.ID), in.Checkpoint, pinned)
	if err != nil {
		return nil, checkpointOut{}, failed(err, what)
	}
	next := toolCall("rollback_app", app.ID, cp.ID) + " restores it at any time"
	if !pinned {
		next = toolCall("delete_checkpoint", app.ID, cp.ID) + " is now allowed, and pruning may take it"
	}
	return nil, outOf(cp, app, next), nil
}

func (t tools) delete(ctx context.Context, _ *mcp.CallToolRequest, in deleteIn) (*mcp.CallToolResult, deleteOut, error) {
	what := onCheckpoint("delete_checkpoint", in.App, in.Checkpoint)
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, deleteOut{}, failed(err, what)
	}
	if err := t.client.DeleteCheckpoint(ctx, string(app.ID), in.Checkpoint); err != nil {
		return nil, deleteOut{}, failed(err, what)
	}
	return nil, deleteOut{true, in.Checkpoint, sessionToken(app), toolCall("list_checkpoints", app.ID, "") + " shows what is left"}, nil
}
