package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

// failure is the answer for a failed call: the API's error, and the next call.
type failure struct {
	Body ipc.ErrorBody `json:"error"`
	Next string        `json:"next"`
}

// Error returns the text of the result, which is JSON.
func (f *failure) Error() string { return jsonText(f) }

// invocation describes a call, for the text of the next one.
type invocation struct {
	tool       string
	app        ipc.AppID // the id or slug from the call, and then the id
	appKnown   bool      // the app exists
	checkpoint ipc.CheckpointID
	names      bool     // the call names a checkpoint
	found      bool     // the name of the checkpoint was understood
	rest       []string // names and values of further arguments
	scope      []string
	without    []string
	start      *bool
	more       string   // further arguments, as they are written
	others     []string // the slugs of the caller's apps, if the app is not known
}

// again returns the text of the call.
func (i invocation) again() string {
	call := callOf(i.tool, i.app, append([]string{"checkpoint_id", string(i.checkpoint)}, i.rest...)...)
	var more []string
	for _, list := range []struct {
		name   string
		values []string
	}{{"scope", i.scope}, {"without", i.without}} {
		if len(list.values) > 0 {
			more = append(more, list.name+"=["+quotedList(list.values)+"]")
		}
	}
	if i.start != nil {
		more = append(more, fmt.Sprintf("start=%t", *i.start))
	}
	if i.more != "" {
		more = append(more, i.more)
	}
	if len(more) == 0 {
		return call
	}
	call = strings.TrimSuffix(call, ")")
	if !strings.HasSuffix(call, "(") {
		call += ", "
	}
	return call + strings.Join(more, ", ") + ")"
}

// corrected returns the text of the call with a place for another scope, if it has one.
func (i invocation) corrected() string {
	if len(i.scope) > 0 {
		i.scope = []string{"…"}
	}
	if len(i.without) > 0 {
		i.without = []string{"…"}
	}
	return i.again()
}

// quotedList returns values in quotation marks, with commas between them.
func quotedList(values []string) string {
	var all []string
	for _, v := range values {
		all = append(all, "'"+quoted(v)+"'")
	}
	return strings.Join(all, ", ")
}

// elsewhere returns the text of the call for another app.
func (i invocation) elsewhere() string {
	i.app = "…"
	return i.again()
}

func onCheckpoint(tool string, app ipc.AppID, cp ipc.CheckpointID) invocation {
	return invocation{tool: tool, app: app, checkpoint: cp, names: true}
}

// failed returns the answer for the call what, which failed with err.
func failed(err error, what invocation) error {
	return &failure{bodyOf(err, what), nextAfter(err, what)}
}

// failedOrNil does the same as failed, and returns nil for a nil err.
func failedOrNil(err error, what invocation) error {
	if err == nil {
		return nil
	}
	return failed(err, what)
}

// bodyOf returns err in the API's form, in words for a model.
func bodyOf(err error, what invocation) ipc.ErrorBody {
	body := ipc.Body(err)
	body.Message, body.Hint = wording(what.app).text(body.Message), wording(what.app).text(body.Hint)
	switch {
	case errors.Is(err, ipc.ErrNoDaemon):
		body.Hint = noDaemon
	case !what.appKnown && (body.Kind == errs.NotFound || body.Kind == errs.Conflict):
		body.Hint = "" // what comes next says it with the names of the user's apps
	}
	return body
}

const noDaemon = "ask the user to start mulligan's daemon, mulligand"

// nextAfter returns the next call after err.
func nextAfter(err error, what invocation) string {
	app := what.app
	again := what.again()
	list := toolCall("list_checkpoints", app, "")
	hint := wording(app).text(errs.HintOf(err))
	known := ""
	if len(what.others) > 0 {
		known = " (the user's apps are " + strings.Join(what.others, ", ") + ")"
	}
	switch kind := errs.KindOf(err); {
	case errors.Is(err, ipc.ErrNoDaemon):
		return noDaemon + ", then " + again
	case kind == errs.Pinned:
		return fmt.Sprintf("pin_checkpoint(app_id='%s', checkpoint_id='%s', pinned=false) first, then %s", app, what.checkpoint, again)
	case (kind == errs.NotFound || kind == errs.Invalid) && len(what.scope)+len(what.without) > 0 && (what.found || what.appKnown && !what.names) && hint != "":
		return hint + "; then " + what.corrected()
	case kind == errs.NotFound && what.appKnown && len(what.rest) > 0:
		return strings.TrimSuffix(callOf("list_checkpoints", app, "trigger", "agent"), ")") + ", details=true) names conversations and their messages"
	case kind == errs.Conflict && what.appKnown && hint != "":
		return hint
	case kind == errs.NotFound && what.appKnown, kind == errs.Expired, kind == errs.Corrupt:
		return list + " shows which checkpoints there are"
	case kind == errs.NotFound && app != "":
		return "leave app_id out inside the app's workspace, or give that of an app" + known + ": " + what.elsewhere()
	case kind == errs.NotFound:
		return "ask the user to protect this folder with mulligan, or give the app_id of an app" + known + ": " + what.elsewhere()
	case kind == errs.Conflict && app == "":
		return "give the app_id of one of them: " + what.elsewhere()
	case kind == errs.Busy:
		return "wait for it to end, then " + again
	case kind == errs.Invalid && len(what.scope) > 0 && what.found:
		return "scope takes paths in the workspace, layer:files, layer:disk and layer:db: " + what.corrected()
	case kind == errs.Invalid && what.names && what.appKnown && !what.found:
		return list + " shows the ids"
	case hint != "":
		return hint + "; then " + again
	case kind == errs.Failed, kind == errs.Internal, kind == errs.Unsupported:
		return "ask the user to see what this host lacks; then " + again
	}
	return list
}

// toolCall returns the text of a call without empty arguments.
func toolCall(tool string, app ipc.AppID, cp ipc.CheckpointID) string {
	return callOf(tool, app, "checkpoint_id", string(cp))
}

// callOf returns the text of a call with arguments, each a name and a value. It leaves out empty ones.
func callOf(tool string, app ipc.AppID, args ...string) string {
	var words []string
	for pair := range slices.Chunk(append([]string{"app_id", string(app)}, args...), 2) {
		if pair[1] != "" {
			words = append(words, fmt.Sprintf("%s='%s'", pair[0], quoted(pair[1])))
		}
	}
	return tool + "(" + strings.Join(words, ", ") + ")"
}

// quoted returns a value without quotes and line breaks.
func quoted(s string) string {
	return strings.NewReplacer(`\`, `\\`, "'", `\'`, "\n", `\n`).Replace(s)
}

// forgive runs before the SDK's check of arguments. It makes arguments fit, and returns errors of arguments in the form of all other
// errors, with the usage of the tool. The text of every answer is readable.
func forgive(schemas map[string]*jsonschema.Schema) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, ok := req.(*mcp.CallToolRequest)
			if !ok {
				return next(ctx, method, req)
			}
			schema := schemas[call.Params.Name]
			if schema == nil {
				return next(ctx, method, req) // the SDK says that there is no such tool
			}
			args, err := fitted(call.Params.Name, call.Params.Arguments, schema)
			if err != nil {
				return refusal(err, call.Params.Name, schema), nil
			}
			call.Params.Arguments = args
			res, err := next(ctx, method, req)
			r, ok := res.(*mcp.CallToolResult)
			if !ok || r == nil {
				return res, err
			}
			var known *failure
			if r.GetError() != nil && !errors.As(r.GetError(), &known) {
				return refusal(errs.Wrap(errs.Invalid, call.Params.Name, r.GetError()), call.Params.Name, schema), err
			}
			readableText(r)
			return r, err
		}
	}
}

// refusal returns the answer for arguments that are wrong.
func refusal(err error, tool string, schema *jsonschema.Schema) *mcp.CallToolResult {
	r := &mcp.CallToolResult{}
	r.SetError(&failure{ipc.Body(err), usage(tool, schema)})
	return r
}
