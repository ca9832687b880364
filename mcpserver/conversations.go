package mcpserver

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// maxPaths bounds the paths of each kind in an answer.
const maxPaths = 100

type setIn struct {
	App          ipc.AppID `json:"app_id,omitempty"`
	Conversation string    `json:"conversation_id"`
	Message      string    `json:"message_id" jsonschema:"the last one before the checkpoint"`
}

type setOut struct {
	Conversation string   `json:"conversation_id"`
	Message      string   `json:"message_id"`
	Warnings     []string `json:"warnings"`
	SessionToken string   `json:"session_token"`
	Next         string   `json:"next"`
}

type revertIn struct {
	App          ipc.AppID  `json:"app_id,omitempty"`
	Conversation string     `json:"conversation_id"`
	From         string     `json:"from_message_id,omitempty" jsonschema:"first; default: after the conversation's checkpoint"`
	To           string     `json:"to_message_id,omitempty" jsonschema:"last; default: the newest"`
	Call         ipc.CallID `json:"call_id,omitempty" jsonschema:"only this tool call's"`
	DryRun       bool       `json:"dry_run,omitempty" jsonschema:"only say what would change"`
}

// revertOut has paths and no contents, because a model must not see what was undone.
type revertOut struct {
	RestoredPaths    []string             `json:"restored_paths"`
	RestoredTotal    int                  `json:"restored_total"`
	MergedPaths      []string             `json:"merged_paths"`
	Conflicts        []ipc.RevertConflict `json:"conflicts"`
	ConflictsTotal   int                  `json:"conflicts_total"`
	SafetyCheckpoint *ipc.Checkpoint      `json:"safety_checkpoint"`
	Warnings         []string             `json:"warnings"`
	DryRun           bool                 `json:"dry_run,omitempty"`
	SessionToken     string               `json:"session_token"`
	Next             string               `json:"next"`
}

func (t tools) setConversation(ctx context.Context, _ *mcp.CallToolRequest, in setIn) (*mcp.CallToolResult, setOut, error) {
	what := invocation{tool: "set_conversation_checkpoint", app: in.App, rest: []string{"conversation_id", in.Conversation, "message_id", in.Message}}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, setOut{}, failed(err, what)
	}
	c, err := t.client.SetConversationCheckpoint(ctx, string(app.ID), in.Conversation, in.Message)
	if err != nil {
		return nil, setOut{}, failed(err, what)
	}
	next := callOf("revert_conversation_writes", app.ID, "conversation_id", in.Conversation) + " undoes what is written after it"
	return nil, setOut{c.ConversationID, c.MessageID, append([]string{}, wording(app.ID).texts(c.Warnings)...), sessionToken(app), next}, nil
}

func (t tools) revert(ctx context.Context, _ *mcp.CallToolRequest, in revertIn) (*mcp.CallToolResult, revertOut, error) {
	what := invocation{tool: "revert_conversation_writes", app: in.App, rest: []string{"conversation_id", in.Conversation,
		"from_message_id", in.From, "to_message_id", in.To, "call_id", string(in.Call)}}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, revertOut{}, failed(err, what)
	}
	res, err := t.client.Revert(ctx, string(app.ID), ipc.RevertRequest{
		ConversationID: in.Conversation, FromMessageID: in.From, ToMessageID: in.To, CallID: in.Call, DryRun: in.DryRun,
	})
	if err != nil {
		return nil, revertOut{}, failed(err, what)
	}
	out := revertOut{
		RestoredPaths: first(res.RestoredPaths), RestoredTotal: len(res.RestoredPaths), MergedPaths: first(res.MergedPaths),
		Conflicts: first(res.Conflicts), ConflictsTotal: len(res.Conflicts), SafetyCheckpoint: res.SafetyCheckpoint,
		Warnings: first(wording(app.ID).texts(res.Warnings)), DryRun: res.DryRun, SessionToken: sessionToken(app),
	}
	out.Next = nextOfRevert(app, what, res)
	return nil, out, nil
}

// first returns the beginning of a list, and never nil.
func first[T any](list []T) []T { return append([]T{}, list[:min(len(list), maxPaths)]...) }

func nextOfRevert(app ipc.App, what invocation, res ipc.RevertResult) string {
	forcible := 0
	for _, c := range res.Conflicts {
		if c.Forcible {
			forcible++
		}
	}
	left := ""
	switch n := len(res.Conflicts); {
	case n == 0:
	case forcible == 0:
		left = fmt.Sprintf("%d left alone: repair them by hand; ", n)
	case forcible == n:
		left = fmt.Sprintf("%d left alone: repair them by hand, or ask the user to revert them with force; ", n)
	default:
		left = fmt.Sprintf("%d left alone: repair them by hand, or ask the user to revert those with force that are forcible (%d); ", n, forcible)
	}
	switch {
	case res.DryRun:
		return left + what.again() + " does it"
	case res.SafetyCheckpoint != nil:
		return left + "read the restored files again; to undo the revert: " + toolCall("rollback_app", app.ID, res.SafetyCheckpoint.ID)
	}
	return left + "nothing was changed; " + callOf("list_checkpoints", app.ID, "trigger", "agent") + " names conversations and their messages"
}
