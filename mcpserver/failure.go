package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

// failure is how a model is told that a call failed: the API's error, and the
// call to make next.
type failure struct {
	Body ipc.ErrorBody `json:"error"`
	Next string        `json:"next"`
}

// Error gives the result's text, which is JSON.
func (f *failure) Error() string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)              // a model reads it: `mulligand &`, not \u0026
	if err := enc.Encode(f); err != nil { // five strings: this cannot fail
		return f.Body.Message
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// invocation is what a call was about, to word the next one with.
type invocation struct {
	tool       string
	app        ipc.AppID // as the call named it, id or slug; then the id
	appKnown   bool      // there is such an app
	checkpoint ipc.CheckpointID
	takesID    bool     // checkpoint must be an id
	rest       []string // names of further arguments, each with its value
}

// again writes the call out.
func (i invocation) again() string {
	return callOf(i.tool, i.app, append([]string{"checkpoint_id", string(i.checkpoint)}, i.rest...)...)
}

// elsewhere is again for another app.
func (i invocation) elsewhere() string {
	i.app = "…"
	return i.again()
}

func onCheckpoint(tool string, app ipc.AppID, cp ipc.CheckpointID) invocation {
	return invocation{tool: tool, app: app, checkpoint: cp, takesID: true}
}

// failed says that the call what failed because of err.
func failed(err error, what invocation) error {
	return &failure{ipc.Body(err), nextAfter(err, what)}
}

// failedOrNil is failed for an err that may be nil.
func failedOrNil(err error, what invocation) error {
	if err == nil {
		return nil
	}
	return failed(err, what)
}

// nextAfter spells out what to do about err.
func nextAfter(err error, what invocation) string {
	app := what.app
	again := what.again()
	list := toolCall("list_checkpoints", app, "")
	hint := errs.HintOf(err)
	switch kind := errs.KindOf(err); {
	case errors.Is(err, ipc.ErrNoDaemon):
		return hint + ", then " + again
	case kind == errs.Pinned:
		return fmt.Sprintf("pin_checkpoint(app_id='%s', checkpoint_id='%s', pinned=false) first, then %s", app, what.checkpoint, again)
	case kind == errs.NotFound && what.appKnown && len(what.rest) > 0:
		return callOf("list_checkpoints", app, "trigger", "agent") + " names conversations and their messages"
	case kind == errs.Conflict && what.appKnown && hint != "":
		return hint
	case kind == errs.NotFound && what.appKnown, kind == errs.Expired, kind == errs.Corrupt:
		return list + " shows which checkpoints there are"
	case kind == errs.NotFound && app != "":
		return "leave app_id out inside the app's workspace, or give one that `mulligan app list` shows: " + what.elsewhere()
	case kind == errs.NotFound, kind == errs.Conflict && app == "":
		return "give an app_id that `mulligan app list` shows, or register this folder with `mulligan init`: " + what.elsewhere()
	case kind == errs.Busy:
		return "wait for it to end, then " + again
	case kind == errs.Invalid && what.takesID:
		return list + " shows the ids"
	case hint != "":
		return hint + "; then " + again
	case kind == errs.Failed, kind == errs.Internal, kind == errs.Unsupported:
		return "`mulligan doctor` says what this host lacks; then " + again
	}
	return list
}

// toolCall writes a call out; an empty argument is left out.
func toolCall(tool string, app ipc.AppID, cp ipc.CheckpointID) string {
	return callOf(tool, app, "checkpoint_id", string(cp))
}

// callOf writes a call with any arguments out, each a name and a value; empty ones
// are left out.
func callOf(tool string, app ipc.AppID, args ...string) string {
	var words []string
	for pair := range slices.Chunk(append([]string{"app_id", string(app)}, args...), 2) {
		if pair[1] != "" {
			words = append(words, fmt.Sprintf("%s='%s'", pair[0], quoted(pair[1])))
		}
	}
	return tool + "(" + strings.Join(words, ", ") + ")"
}

// quoted keeps a value within its quotes and its line.
func quoted(s string) string {
	return strings.NewReplacer(`\`, `\\`, "'", `\'`, "\n", `\n`).Replace(s)
}

// forgive goes before the SDK's check of arguments: a null is taken as no
// argument at all, as some clients write it, and what the check finds wrong is
// told in the form of every other error, with how the tool is called.
func forgive(usages map[string]string) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, ok := req.(*mcp.CallToolRequest)
			if !ok {
				return next(ctx, method, req)
			}
			call.Params.Arguments = withoutNulls(call.Params.Arguments)
			res, err := next(ctx, method, req)
			if r, ok := res.(*mcp.CallToolResult); ok && r != nil && r.GetError() != nil {
				explain(r, call.Params.Name, usages)
			}
			return res, err
		}
	}
}

// explain words an error that is not this package's own: one in the arguments.
func explain(r *mcp.CallToolResult, tool string, usages map[string]string) {
	var known *failure
	if errors.As(r.GetError(), &known) {
		return
	}
	f := failure{ipc.ErrorBody{Kind: errs.Invalid, Op: tool, Message: r.GetError().Error()}, usages[tool]}
	r.Content = []mcp.Content{&mcp.TextContent{Text: f.Error()}}
}

// withoutNulls drops the top-level fields of args that are null, and makes an
// empty object of a null (on which the SDK's check can panic). What else is not
// an object is left for the check to refuse.
func withoutNulls(args json.RawMessage) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if len(args) == 0 || json.Unmarshal(args, &fields) != nil {
		return args
	}
	maps.DeleteFunc(fields, func(_ string, v json.RawMessage) bool { return bytes.Equal(v, []byte("null")) })
	if len(fields) == 0 {
		return json.RawMessage("{}")
	}
	b, err := json.Marshal(fields)
	if err != nil {
		return args
	}
	return b
}
