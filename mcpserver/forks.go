package mcpserver

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

type forkIn struct {
	App        ipc.AppID        `json:"app_id,omitempty"`
	Checkpoint ipc.CheckpointID `json:"checkpoint_id,omitempty" jsonschema:"default: the present state"`
	Count      int              `json:"count,omitempty" jsonschema:"default 1"`
	NoNetwork  bool             `json:"no_network,omitempty"`
}

type forksIn struct {
	App ipc.AppID `json:"app_id,omitempty"`
}

type compareIn struct {
	App     ipc.AppID `json:"app_id,omitempty"`
	Names   []string  `json:"names,omitempty"`
	Command string    `json:"command,omitempty" jsonschema:"a shell command, run in each"`
}

type keepIn struct {
	App    ipc.AppID `json:"app_id,omitempty"`
	Name   string    `json:"name"`
	Scope  []string  `json:"scope,omitempty" jsonschema:"see rollback_app"`
	DryRun bool      `json:"dry_run,omitempty"`
	Stay   bool      `json:"and_stay,omitempty" jsonschema:"the fork stays"`
}

type dropIn struct {
	App  ipc.AppID `json:"app_id,omitempty"`
	Name string    `json:"name"`
}

type forksOut struct {
	Forks        []forkOut `json:"forks"`
	SessionToken string    `json:"session_token"`
	Next         string    `json:"next"`
}

type compareOut struct {
	Forks        []ipc.ComparedFork `json:"forks"`
	SessionToken string             `json:"session_token"`
	Next         string             `json:"next"`
}

// forkOut describes a fork to a model: where it can be edited, and where it answers.
type forkOut struct {
	Name      string           `json:"name"`
	App       ipc.AppID        `json:"app_id"`
	State     string           `json:"state"`
	Folder    string           `json:"folder"`
	Origin    ipc.CheckpointID `json:"origin"`
	Isolation string           `json:"isolation"`
	Ports     []ipc.ForkPort   `json:"ports"`           // the app's own ports, and the addresses on the host that lead to them
	Notes     []string         `json:"notes,omitempty"` // what in the fork may lead to the app
	Problems  []string         `json:"problems,omitempty"`
}

type dropOut struct {
	Dropped      bool   `json:"dropped"`
	Name         string `json:"name"`
	SessionToken string `json:"session_token"`
	Next         string `json:"next"`
}

func (t tools) fork(ctx context.Context, _ *mcp.CallToolRequest, in forkIn) (*mcp.CallToolResult, forksOut, error) {
	what := invocation{tool: "fork_app", app: in.App, checkpoint: in.Checkpoint, names: in.Checkpoint != ""}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, forksOut{}, failed(err, what)
	}
	list, err := t.client.Fork(ctx, string(app.ID), ipc.ForkRequest{CheckpointID: what.checkpoint, Count: in.Count, NoNetwork: in.NoNetwork})
	if err != nil {
		return nil, forksOut{}, failed(err, what)
	}
	out := forksOf(app, list)
	if len(out.Forks) > 0 {
		out.Next = fmt.Sprintf("edit files in each fork's folder and try each at its address; the app itself stays as it is. Then %s takes the app to a fork's state, and %s removes one",
			callOf("keep_fork", app.ID, "name", out.Forks[0].Name), callOf("drop_fork", app.ID, "name", "…"))
	}
	return nil, out, nil
}

func (t tools) forks(ctx context.Context, _ *mcp.CallToolRequest, in forksIn) (*mcp.CallToolResult, forksOut, error) {
	what := invocation{tool: "list_forks", app: in.App}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, forksOut{}, failed(err, what)
	}
	list, err := t.client.Forks(ctx, string(app.ID))
	if err != nil {
		return nil, forksOut{}, failed(err, what)
	}
	out := forksOf(app, list)
	out.Next = callOf("fork_app", app.ID) + " makes a fork"
	if len(out.Forks) > 0 {
		out.Next = callOf("keep_fork", app.ID, "name", out.Forks[0].Name) + " takes the app to this fork's state"
	}
	return nil, out, nil
}

func (t tools) compare(ctx context.Context, _ *mcp.CallToolRequest, in compareIn) (*mcp.CallToolResult, compareOut, error) {
	what := invocation{tool: "compare_forks", app: in.App}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, compareOut{}, failed(err, what)
	}
	req := ipc.CompareRequest{Names: in.Names}
	if in.Command != "" {
		req.Command = []string{"/bin/sh", "-c", in.Command}
	}
	res, err := t.client.CompareForks(ctx, string(app.ID), req)
	if err != nil {
		return nil, compareOut{}, failedFork(err, what)
	}
	out := compareOut{Forks: res.Forks, SessionToken: sessionToken(app), Next: callOf("fork_app", app.ID) + " makes a fork"}
	for i := range res.Forks {
		f := &res.Forks[i]
		f.Unreadable, f.Unknown = wording(app.ID).texts(f.Unreadable), wording(app.ID).texts(f.Unknown)
	}
	for _, f := range slices.Backward(res.Forks) { // the first good one is named
		if (f.Healthy == nil || *f.Healthy) && (f.Command == nil || f.Command.ExitCode == 0 && f.Command.Problem == "") {
			out.Next = callOf("keep_fork", app.ID, "name", f.Name) + " takes the app to this fork's state"
		}
	}
	return nil, out, nil
}

func forksOf(app ipc.App, list ipc.ForkList) forksOut {
	out, w := forksOut{Forks: []forkOut{}, SessionToken: sessionToken(app)}, wording(app.ID)
	for _, f := range list.Forks {
		out.Forks = append(out.Forks, forkOut{
			Name: f.Fork.Name, App: f.ID, State: f.State, Folder: f.Workspace, Origin: f.Fork.Origin,
			Isolation: f.Fork.Isolation, Ports: append([]ipc.ForkPort{}, f.Fork.Ports...), Notes: w.texts(f.Fork.Notes), Problems: w.texts(f.Problems),
		})
	}
	return out
}

// keep answers with the receipt of a rollback, as rollback does.
func (t tools) keep(ctx context.Context, req *mcp.CallToolRequest, in keepIn) (*mcp.CallToolResult, rollbackOut, error) {
	what := invocation{tool: "keep_fork", app: in.App, rest: []string{"name", in.Name}, scope: in.Scope}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, rollbackOut{}, failedFork(err, what)
	}
	if ask, err := t.confirm.ask(req, app, rollbackIn{Checkpoint: ipc.CheckpointID("fork " + in.Name), Scope: in.Scope, DryRun: in.DryRun}); err != nil || ask != nil {
		return ask, rollbackOut{}, failedOrNil(err, what)
	}
	conversation, call := asker(req.Params.Meta)
	res, err := t.client.Keep(ctx, string(app.ID), in.Name, ipc.KeepRequest{
		Scope: in.Scope, DryRun: in.DryRun, AndStay: in.Stay, ConversationID: conversation, CallID: call,
	})
	if err != nil && len(res.Stages) == 0 { // the rollback did not begin
		return nil, rollbackOut{}, failedFork(err, what)
	}
	reword(app, &res)
	switch {
	case in.DryRun && err == nil:
		res.Next = what.again() + " does it"
	case res.RolledBack && res.SafetyCheckpoint != nil:
		res.Next = "read files again; to undo: " + toolCall("rollback_app", app.ID, res.SafetyCheckpoint.ID)
	}
	if err == nil {
		return nil, rollbackOut{receiptFields(res), sessionToken(app)}, nil
	}
	body := bodyOf(err, what)
	res.Error = &body
	return &mcp.CallToolResult{IsError: true}, rollbackOut{receiptFields(res), sessionToken(app)}, nil
}

func (t tools) drop(ctx context.Context, _ *mcp.CallToolRequest, in dropIn) (*mcp.CallToolResult, dropOut, error) {
	what := invocation{tool: "drop_fork", app: in.App, rest: []string{"name", in.Name}}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, dropOut{}, failedFork(err, what)
	}
	if err := t.client.DropFork(ctx, string(app.ID), in.Name); err != nil {
		return nil, dropOut{}, failedFork(err, what)
	}
	return nil, dropOut{true, in.Name, sessionToken(app), callOf("list_forks", app.ID) + " shows those that are left"}, nil
}

// failedFork returns the answer for a failed call that names a fork.
func failedFork(err error, what invocation) error {
	f := &failure{bodyOf(err, what), nextAfter(err, what)}
	if what.appKnown && f.Body.Kind == errs.NotFound && len(what.scope) == 0 {
		f.Next = callOf("list_forks", what.app) + " shows the forks there are"
	}
	return f
}
