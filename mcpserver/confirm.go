package mcpserver

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mulligan/errs"
	"mulligan/ipc"
)

// confirmer has the client's person confirm rollbacks. The question goes out as the
// call's result, and the client calls again with the answer: so nothing may be done
// before, and what comes back is only trusted with this process's own signature.
type confirmer struct{ key []byte }

// newConfirmer is nil, which confirms everything, unless it is asked for.
func newConfirmer(on bool) *confirmer {
	if !on {
		return nil
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return &confirmer{key}
}

const question = "confirm" // the one question's name

// ask gives the result that asks, or nil where the call may go on. A client that
// cannot ask its person is not held up.
func (c *confirmer) ask(req *mcp.CallToolRequest, app ipc.App, in rollbackIn) (*mcp.CallToolResult, error) {
	if c == nil || in.DryRun || !canAsk(req.Session) {
		return nil, nil
	}
	state, err := c.sign(app, in)
	if err != nil {
		return nil, err
	}
	answer, answered := req.Params.InputResponses[question].(*mcp.ElicitResult)
	if !answered {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{question: elicitation(app, in)}, RequestState: state}, nil
	}
	if !hmac.Equal([]byte(state), []byte(req.Params.RequestState)) {
		return nil, errs.New(errs.Invalid, "confirm rollback", "the confirmation belongs to another rollback").WithHint("ask again")
	}
	if yes, _ := answer.Content[question].(bool); answer.Action != "accept" || !yes {
		return nil, errs.New(errs.Denied, "confirm rollback", "the user did not confirm the rollback").WithHint("ask the user what to do instead")
	}
	return nil, nil
}

func canAsk(s *mcp.ServerSession) bool {
	p := s.InitializeParams()
	if p == nil || p.Capabilities == nil || p.Capabilities.Elicitation == nil {
		return false
	}
	e := p.Capabilities.Elicitation
	return e.Form != nil || e.URL == nil // neither: forms, as before there were others
}

func elicitation(app ipc.App, in rollbackIn) *mcp.ElicitParams {
	part := "all of it"
	if len(in.Scope) > 0 {
		part = fmt.Sprintf("only %q", in.Scope)
	}
	if len(in.Without) > 0 {
		part += fmt.Sprintf(" without %q", in.Without)
	}
	return &mcp.ElicitParams{
		Mode:    "form",
		Message: fmt.Sprintf("Roll %s back to %s (%s)? The present state becomes a safety checkpoint first.", app.Slug, in.Checkpoint, part),
		RequestedSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{question: map[string]any{"type": "boolean", "title": "Roll back"}},
			"required":   []string{question},
		},
	}
}

// sign makes a state that fits this rollback only.
func (c *confirmer) sign(app ipc.App, in rollbackIn) (string, error) {
	text, err := json.Marshal(struct {
		App ipc.AppID
		In  rollbackIn
	}{app.ID, in})
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, c.key)
	mac.Write(text)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), nil
}
