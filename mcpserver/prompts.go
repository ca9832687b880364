package mcpserver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

// Clients offer prompts as slash commands. A prompt says which tool to call, and does nothing itself.

// maxOffered bounds the checkpoints that the rollback prompt offers.
const maxOffered = 10

func addPrompts(s *mcp.Server, t tools) {
	s.AddPrompt(&mcp.Prompt{
		Name: "checkpoint", Title: "Checkpoint the app", Description: "Capture the app as it is now: files, VM disk and databases.",
		Arguments: []*mcp.PromptArgument{{Name: "notes", Description: "what is about to happen"}},
	}, t.promptCheckpoint)
	s.AddPrompt(&mcp.Prompt{
		Name: "rollback", Title: "Roll the app back", Description: "Take the whole app to a checkpoint; it can be undone.",
		Arguments: []*mcp.PromptArgument{
			{Name: "checkpoint", Description: "an id, N for the N-th newest, words of its title, or a time as in @{2 hours ago}; without it, you are asked"},
			{Name: "reason", Description: "why, for the audit trail"},
		},
	}, t.promptRollback)
}

func (t tools) promptCheckpoint(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	call := callOf("create_checkpoint", "", "notes", req.Params.Arguments["notes"])
	return prompt("Checkpoint the app", "Call "+call+" and tell me the checkpoint's id. Do nothing else."), nil
}

// promptRollback names the checkpoint, or those that exist. If the daemon does not answer, the tool reports that.
func (t tools) promptRollback(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	const title = "Roll the app back"
	wanted, reason := req.Params.Arguments["checkpoint"], req.Params.Arguments["reason"]
	list := slices.DeleteFunc(t.newest(ctx), func(cp ipc.Checkpoint) bool { return cp.CalledOff })
	if n, err := strconv.Atoi(wanted); err == nil && n >= 1 && n <= len(list) {
		wanted = string(list[n-1].ID)
	}
	after := "Then read again every file that you know, as they changed on disk, and tell me what was undone and the id of the safety checkpoint."
	if wanted != "" {
		return prompt(title, fmt.Sprintf("Call %s. %s", callOf("rollback_app", "", "checkpoint_id", wanted, "reason", reason), after)), nil
	}
	if len(list) == 0 {
		return prompt(title, "Call list_checkpoints() and ask me which checkpoint to go back to. Then call rollback_app with its id. "+after), nil
	}
	var b strings.Builder
	b.WriteString("I want the app to go back to an earlier state. These are its newest checkpoints, the newest first:\n")
	for i, cp := range list {
		fmt.Fprintf(&b, "%d. %s, %s, %s", i+1, cp.ID, cp.CreatedAt.UTC().Format("2006-01-02 15:04:05Z"), cp.Trigger)
		if cp.Title != "" {
			fmt.Fprintf(&b, ": before %q by %s", cp.Title, cp.Agent)
		}
		if cp.Notes != nil {
			fmt.Fprintf(&b, ": %.100q", *cp.Notes)
		}
		b.WriteByte('\n')
	}
	b.WriteString("Ask me which one, then call rollback_app with its id. " + after)
	return prompt(title, b.String()), nil
}

// newest lists the newest checkpoints of the app in the working directory. It ignores errors.
func (t tools) newest(ctx context.Context) []ipc.Checkpoint {
	app, err := t.app(ctx, new(invocation))
	if err != nil {
		return nil
	}
	l, err := t.client.Checkpoints(ctx, string(app.ID), ipc.CheckpointQuery{Limit: maxOffered})
	if err != nil {
		return nil
	}
	return l.Checkpoints
}

func prompt(title, text string) *mcp.GetPromptResult {
	return &mcp.GetPromptResult{Description: title, Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}}}
}
