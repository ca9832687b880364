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

// confirmer asks the client's user to confirm rollbacks. The question is the result of the call, and the client calls again
// with the answer. So nothing may be done before, and the state that comes back is trusted only with this process's signature.
type confirmer struct{ key []byte }

// newConfirmer returns nil, which confirms everything, unless confirmation is switched on.
func newConfirmer(on bool) *confirmer {
	if !on {
		return nil
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return &confirmer{key}
}

const question = "confirm" // the name of the only question

// ask returns the result with the question, or nil if the call may continue. A call of a client that cannot ask its user
// continues.
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
	return e.Form != nil || e.URL == nil // if neither is set, forms are supported, as in older versions of the protocol
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

// sign returns a state that is valid for this rollback only.
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
