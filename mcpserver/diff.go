package mcpserver

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/ipc"
)

const (
	maxDiffed     = 50       // maximal number of changes in an answer
	maxDiffedText = 16 << 10 // maximal number of bytes of unified diffs in an answer
)

type diffIn struct {
	App        ipc.AppID        `json:"app_id,omitempty"`
	Checkpoint ipc.CheckpointID `json:"checkpoint_id"`
	Against    string           `json:"against,omitempty" jsonschema:"another checkpoint_id, or now (default)"`
	Paths      []string         `json:"paths,omitempty" jsonschema:"only these, with unified diffs"`
}

type diffOut struct {
	From         ipc.CheckpointID `json:"from"`
	To           string           `json:"to"`
	Changes      []ipc.DiffChange `json:"changes"`
	ChangesTotal int              `json:"changes_total"`
	Unknown      []string         `json:"unknown"`
	Unreadable   []string         `json:"unreadable,omitempty"`
	SessionToken string           `json:"session_token"`
	Next         string           `json:"next"`
}

// diff returns only names unless paths are given; then it also returns changed lines.
func (t tools) diff(ctx context.Context, _ *mcp.CallToolRequest, in diffIn) (*mcp.CallToolResult, diffOut, error) {
	what := onCheckpoint("diff_checkpoint", in.App, in.Checkpoint)
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, diffOut{}, failed(err, what)
	}
	in.Checkpoint = what.checkpoint
	if in.Against != "" && in.Against != ipc.AgainstNow {
		to, err := t.checkpoint(ctx, app, ipc.CheckpointID(in.Against))
		if err != nil {
			return nil, diffOut{}, failed(err, what)
		}
		in.Against = string(to)
	}
	d, err := t.client.Diff(ctx, string(app.ID), in.Checkpoint, ipc.DiffQuery{
		Against: in.Against, Paths: in.Paths, Patch: len(in.Paths) > 0, Limit: maxDiffed,
	})
	if err != nil {
		return nil, diffOut{}, failed(err, what)
	}
	shorten(d.Changes)
	out := diffOut{d.From, d.To, append([]ipc.DiffChange{}, d.Changes...), d.Total, append([]string{}, d.Unknown...), wording(app.ID).texts(d.Unreadable), sessionToken(app), ""}
	switch {
	case d.Total > len(d.Changes):
		out.Next = fmt.Sprintf("%d more changed: %s shows those below a path", d.Total-len(d.Changes), pathsOf(what, "…"))
	case d.Total == 0:
		out.Next = toolCall("list_checkpoints", app.ID, "") + " shows other checkpoints to compare with"
	default:
		out.Next = toolCall("rollback_app", app.ID, in.Checkpoint) + " goes back there; with scope, only for the paths that it names"
	}
	return nil, out, nil
}

// pathsOf returns the text of a call of diff_checkpoint for a path.
func pathsOf(what invocation, path string) string {
	what.more = "paths=['" + quoted(path) + "']"
	return what.again()
}

// shorten drops the diffs that would make the answer too long.
func shorten(changes []ipc.DiffChange) {
	left := maxDiffedText
	for i := range changes {
		c := &changes[i]
		if len(c.Patch) > left {
			c.Patch, c.NoPatch = "", "too large for this answer"
		}
		left -= len(c.Patch)
	}
}
