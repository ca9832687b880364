package ipc

import (
	"context"
	"net/http"
)

// Turns lists the app's newest turns, newest first; a limit of 0 means all.
func (c *Client) Turns(ctx context.Context, app string, limit int) ([]Turn, error) {
	return c.TurnsOf(ctx, app, "", limit)
}

// BeginTurn announces that an agent's turn begins. It may be called again for the same turn.
func (c *Client) BeginTurn(ctx context.Context, app string, req BeginTurn) (Turn, error) {
	return askApp[Turn](ctx, c, http.MethodPost, app, nil, req, "turns")
}

// EndTurn announces the end of a turn, and returns the turn with its changes.
func (c *Client) EndTurn(ctx context.Context, app string, id TurnID) (Turn, error) {
	return askApp[Turn](ctx, c, http.MethodPost, app, nil, nil, "turns", string(id), "end")
}

// BeginCall announces that a tool call of a turn begins.
func (c *Client) BeginCall(ctx context.Context, app string, turn TurnID, req BeginCall) (Call, error) {
	return askApp[Call](ctx, c, http.MethodPost, app, nil, req, "turns", string(turn), "calls")
}

// EndCall announces the end of a tool call.
func (c *Client) EndCall(ctx context.Context, app string, turn TurnID, id CallID) (Call, error) {
	return askApp[Call](ctx, c, http.MethodPost, app, nil, nil, "turns", string(turn), "calls", string(id), "end")
}
