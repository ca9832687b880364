package mcpserver

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

// maxListed bounds the checkpoints of one answer, to about 4,000 tokens.
const maxListed = 20

type createIn struct {
	App    ipc.AppID `json:"app_id,omitempty" jsonschema:"default: this folder's"`
	Notes  string    `json:"notes,omitempty" jsonschema:"what is about to happen"`
	Pinned bool      `json:"pinned,omitempty"`
}

type listIn struct {
	App     ipc.AppID        `json:"app_id,omitempty"`
	Trigger ipc.Trigger      `json:"trigger,omitempty"`
	Limit   int              `json:"limit,omitempty" jsonschema:"at most 20, the default"`
	Before  ipc.CheckpointID `json:"before,omitempty" jsonschema:"only those older than this one"`
	Details bool             `json:"details,omitempty" jsonschema:"with all fields of each"`
}

type pinIn struct {
	App        ipc.AppID        `json:"app_id,omitempty"`
	Checkpoint ipc.CheckpointID `json:"checkpoint_id"`
	Pinned     *bool            `json:"pinned,omitempty" jsonschema:"default true"`
}

type deleteIn struct {
	App        ipc.AppID        `json:"app_id,omitempty"`
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
	cp.Warnings, cp.Damaged = wording(app.ID).texts(cp.Warnings), wording(app.ID).text(cp.Damaged)
	return checkpointOut{checkpointFields(cp), sessionToken(app), next}
}

type listOut struct {
	Checkpoints  []any            `json:"checkpoints"`     // listed, or numbered with details
	Agent        string           `json:"agent,omitempty"` // whose turns those are that name no agent and no trigger
	StorageUsage ipc.StorageUsage `json:"storage_usage"`
	RemoteOnly   int              `json:"remote_only,omitempty"` // number of older ones that are on a remote alone
	SessionToken string           `json:"session_token"`
	Next         string           `json:"next"`
}

// listed is a checkpoint in a list. A list of 20 has at most listBudget bytes.
type listed struct {
	N       int              `json:"n,omitempty"` // the number that a call may name it by; 0 for that of a rollback that was called off
	ID      ipc.CheckpointID `json:"checkpoint_id"`
	Made    string           `json:"created_at"`
	Trigger ipc.Trigger      `json:"trigger,omitempty"` // left out for agents' turns where their titles need the room
	Agent   string           `json:"agent,omitempty"`   // left out if it is that of the whole list
	Title   string           `json:"title,omitempty"`   // of the turn that came after it, or else its notes; cut
	Pinned  bool             `json:"pinned,omitempty"`
	Damaged bool             `json:"damaged,omitempty"`
	Where   string           `json:"location,omitempty"` // left out if it is also on a remote, or the app has none
}

// numbered is a checkpoint with all of its fields.
type numbered struct {
	N int `json:"n,omitempty"`
	checkpointFields
}

const (
	// listBudget bounds an answer with a list, in bytes: 150 for each of 20 checkpoints, with all that is around them.
	listBudget = maxListed * 150
	// minTitle and maxTitle bound what is shown of a title, in bytes. Between them is what has room.
	minTitle, maxTitle = 24, 120
)

// lineOf returns a checkpoint for a list, with a title of at most so many bytes.
func lineOf(n int, cp ipc.Checkpoint, most int) listed {
	l := listed{n, cp.ID, cp.CreatedAt.UTC().Format("2006-01-02T15:04:05Z"), cp.Trigger, cp.Agent, cp.Title, cp.Pinned, cp.Damaged != "", ""}
	if cp.Location != ipc.LocationBoth {
		l.Where = cp.Location
	}
	switch {
	case l.Title != "":
	case cp.RollbackTitle != "":
		l.Title = "before going back to “" + cp.RollbackTitle + "”"
	case cp.Notes != nil:
		l.Title = *cp.Notes
	}
	if len(l.Title) > most {
		l.Title = strings.TrimSpace(strings.ToValidUTF8(l.Title[:most-len("…")], "")) + "…"
	}
	return l
}

// lines returns checkpoints for the list of an answer, with as much of their titles as has room.
func lines(out *listOut, numbers []int, cps []ipc.Checkpoint) {
	agents := map[string]int{}
	for _, cp := range cps {
		agents[cp.Agent]++
	}
	for name, count := range agents { // the most frequent is told once
		if name != "" && (out.Agent == "" || count > agents[out.Agent] || count == agents[out.Agent] && name < out.Agent) {
			out.Agent = name
		}
	}
	for most := maxTitle; ; most -= 2 {
		out.Checkpoints = []any{}
		tight := most < maxTitle
		for i, cp := range cps {
			l := lineOf(numbers[i], cp, most)
			if l.Agent == out.Agent {
				l.Agent = ""
			}
			if tight && l.Trigger == ipc.TriggerAgent {
				l.Trigger = ""
			}
			out.Checkpoints = append(out.Checkpoints, l)
		}
		if most <= minTitle || len(jsonText(out)) <= listBudget {
			return
		}
	}
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
	what := invocation{tool: "list_checkpoints", app: in.App, checkpoint: in.Before, names: in.Before != ""}
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, listOut{}, failed(err, what)
	}
	if in.Limit < 1 || in.Limit > maxListed {
		in.Limit = maxListed
	}
	l, err := t.client.Checkpoints(ctx, string(app.ID), ipc.CheckpointQuery{}) // all of them: they are numbered
	if err != nil {
		return nil, listOut{}, failed(err, what)
	}
	if in.Before = what.checkpoint; in.Before != "" && !slices.ContainsFunc(l.Checkpoints, func(cp ipc.Checkpoint) bool { return cp.ID == in.Before }) {
		return nil, listOut{}, failed(errs.New(errs.NotFound, what.tool, "the app has no checkpoint %s", in.Before), what)
	}
	out := listOut{Checkpoints: []any{}, StorageUsage: l.StorageUsage, SessionToken: sessionToken(app), RemoteOnly: len(l.RemoteOnly)}
	var cps []ipc.Checkpoint
	var numbers []int
	more := false
	for n, cp := range older(l.Checkpoints, in) {
		if more = len(cps) == in.Limit; more {
			break
		}
		cps, numbers = append(cps, cp), append(numbers, n)
	}
	out.Next = nextOfList(in, cps)
	if more {
		out.Next += "; " + callOf("list_checkpoints", in.App, "trigger", string(in.Trigger), "before", string(cps[len(cps)-1].ID)) + " lists older ones"
	}
	if !in.Details {
		lines(&out, numbers, cps)
		return nil, out, nil
	}
	for i, cp := range cps {
		cp.Warnings, cp.Damaged = wording(app.ID).texts(cp.Warnings), wording(app.ID).text(cp.Damaged)
		out.Checkpoints = append(out.Checkpoints, numbered{numbers[i], checkpointFields(cp)})
	}
	return nil, out, nil
}

// older yields the numbers and checkpoints of a list, newest first, that a call asks for.
func older(newestFirst []ipc.Checkpoint, in listIn) iter.Seq2[int, ipc.Checkpoint] {
	return func(yield func(int, ipc.Checkpoint) bool) {
		have, reached := 0, in.Before == ""
		for _, cp := range newestFirst {
			n := 0
			if !cp.CalledOff {
				have++
				n = have
			}
			if reached && (in.Trigger == "" || cp.Trigger == in.Trigger) && !yield(n, cp) {
				return
			}
			reached = reached || cp.ID == in.Before
		}
	}
}

// nextOfList returns the next call after a list. As a list is to be short, it names the app only if the call did.
func nextOfList(in listIn, shown []ipc.Checkpoint) string {
	switch {
	case len(shown) > 0:
		return toolCall("rollback_app", in.App, shown[0].ID) + " goes back to the newest one shown"
	case in.Before != "":
		return toolCall("list_checkpoints", in.App, "") + " lists the newest ones: there are none before " + string(in.Before)
	case in.Trigger != "":
		return toolCall("list_checkpoints", in.App, "") + " lists those with another trigger"
	}
	return toolCall("create_checkpoint", in.App, "") + " captures the present state"
}

func (t tools) pin(ctx context.Context, _ *mcp.CallToolRequest, in pinIn) (*mcp.CallToolResult, checkpointOut, error) {
	what := onCheckpoint("pin_checkpoint", in.App, in.Checkpoint)
	app, err := t.app(ctx, &what)
	if err != nil {
		return nil, checkpointOut{}, failed(err, what)
	}
	pinned := in.Pinned == nil || *in.Pinned
	cp, err := t.client.Pin(ctx, string(app.ID), what.checkpoint, pinned)
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
	if err := t.client.DeleteCheckpoint(ctx, string(app.ID), what.checkpoint); err != nil {
		return nil, deleteOut{}, failed(err, what)
	}
	return nil, deleteOut{true, what.checkpoint, sessionToken(app), toolCall("list_checkpoints", app.ID, "") + " shows what is left"}, nil
}
