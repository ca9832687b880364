package mcpserver

import (
	"context"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

type rollbackIn struct {
	App           ipc.AppID        `json:"app_id,omitempty"`
	Checkpoint    ipc.CheckpointID `json:"checkpoint_id" jsonschema:"id, N (1: newest), words of its title, or @{2 hours ago}"`
	Scope         []string         `json:"scope,omitempty" jsonschema:"only these: paths in the workspace, layer:files, layer:disk, layer:db"`
	Without       []string         `json:"without,omitempty" jsonschema:"leave as is: db:NAME, files, disk"`
	VerifyRestore *bool            `json:"verify_restore,omitempty" jsonschema:"compare hashes after; default true"`
	Reason        string           `json:"reason,omitempty"`
	DryRun        bool             `json:"dry_run,omitempty" jsonschema:"only say what would change"`
	Start         *bool            `json:"start,omitempty" jsonschema:"start the app; default: if meant to be up"`
}

// rollbackOut has the fields of a receipt and those that a result adds.
type rollbackOut struct {
	receiptFields
	SessionToken string `json:"session_token"`
}

// receiptFields has the fields of an ipc.RollbackResult without its methods, as checkpointFields.
type receiptFields ipc.RollbackResult

// rollback answers with the receipt if there is one. If the rollback began and failed, the answer is an error with the receipt,
// which says what happened to the app.
func (t tools) rollback(ctx context.Context, req *mcp.CallToolRequest, in rollbackIn) (*mcp.CallToolResult, rollbackOut, error) {
	what := onCheckpoint("rollback_app", in.App, in.Checkpoint)
	what.scope, what.without, what.start = in.Scope, in.Without, in.Start
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, rollbackOut{}, failed(err, what)
	}
	in.Checkpoint = what.checkpoint
	if ask, err := t.confirm.ask(req, app, in); err != nil || ask != nil {
		return ask, rollbackOut{}, failedOrNil(err, what)
	}
	conversation, call := asker(req.Params.Meta)
	res, err := t.client.Rollback(ctx, string(app.ID), in.Checkpoint, ipc.RollbackRequest{
		Scope: in.Scope, Without: in.Without, VerifyRestore: in.VerifyRestore, Reason: in.Reason, DryRun: in.DryRun, Start: in.Start,
		ConversationID: conversation, CallID: call,
	}, progress(ctx, req))
	if err != nil && len(res.Stages) == 0 { // the rollback did not begin
		return nil, rollbackOut{}, failed(err, what)
	}
	reword(app, &res)
	res.Next = nextOfRollback(app, what, res)
	if err == nil {
		return nil, rollbackOut{receiptFields(res), sessionToken(app)}, nil
	}
	body := bodyOf(err, what)
	res.Error = &body
	return &mcp.CallToolResult{IsError: true}, rollbackOut{receiptFields(res), sessionToken(app)}, nil
}

// reword puts what the daemon says in a receipt into words for a model, and makes lists that are nil empty.
func reword(app ipc.App, res *ipc.RollbackResult) {
	w := wording(app.ID)
	res.Warnings, res.NextActions, res.PutBack = w.texts(res.Warnings), w.texts(res.NextActions), w.texts(res.PutBack)
	for i := range res.Stages {
		res.Stages[i].Notes = w.text(res.Stages[i].Notes)
	}
	if res.Preview != nil {
		res.Preview.NotCovered = w.texts(res.Preview.NotCovered)
	}
	for _, cp := range []*ipc.Checkpoint{res.SafetyCheckpoint, res.RestoredTo, res.RolledBackTo} {
		if cp != nil {
			cp.Warnings, cp.Damaged = w.texts(cp.Warnings), w.text(cp.Damaged)
		}
	}
	res.Normalize()
}

// asker returns the conversation or call of a request, which Codex and Claude Code send, so that the daemon can protect the
// work of other sessions.
func asker(m mcp.Meta) (conversation string, call ipc.CallID) {
	conversation, _ = m["threadId"].(string)
	id, _ := m["claudecode/toolUseId"].(string)
	return conversation, ipc.CallID(id)
}

// nextOfRollback returns the next call if this package knows it, and otherwise the daemon's hint.
func nextOfRollback(app ipc.App, what invocation, res ipc.RollbackResult) string {
	switch {
	case res.DryRun && res.Error == nil:
		return what.again() + " does it"
	case res.RolledBack && res.SafetyCheckpoint != nil:
		return "To roll FORWARD (undo the rollback): " + toolCall("rollback_app", app.ID, res.SafetyCheckpoint.ID)
	case res.Recovered:
		return "the app is as it was before; " + toolCall("list_checkpoints", app.ID, "") + " shows what else to go back to"
	case res.Next != "":
		return wording(app.ID).text(res.Next)
	case res.SafetyCheckpoint != nil:
		return toolCall("rollback_app", app.ID, res.SafetyCheckpoint.ID) + " goes to the state before the rollback"
	}
	return toolCall("list_checkpoints", app.ID, "") + " shows where one can go"
}

// progress returns a function that reports each stage to the client, or nil if the client did not ask for progress.
func progress(ctx context.Context, req *mcp.CallToolRequest) func(ipc.Stage) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	done := 0.0
	return func(st ipc.Stage) {
		// A stage counts half when it starts and whole when it ends, because the progress must increase with each report.
		now := float64(slices.Index(ipc.Stages, st.Stage)) + 1
		if st.Status == ipc.StageRunning {
			now -= 0.5
		}
		if st.Status == ipc.StageRunning && st.Notes != "" && now >= done-0.4 {
			now = max(now, done+0.001) // the progress of a stage
		}
		if now <= done {
			return
		}
		done = now
		msg := string(st.Stage) + ": " + string(st.Status)
		if st.Notes != "" {
			msg += ", " + wording("").text(st.Notes)
		}
		// If the client has gone, the rollback continues.
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: now, Total: float64(len(ipc.Stages)), Message: msg,
		})
	}
}
