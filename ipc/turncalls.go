package ipc

import (
	"context"
	"net/http"
)

// Turns lists the app's newest turns, newest first; limit 0 is all.
func (c *Client) Turns(ctx context.Context, app string, limit int) ([]Turn, error) {
	return c.TurnsOf(ctx, app, "", limit)
}

// BeginTurn tells that an agent's turn begins. Telling twice is harmless.
func (c *Client) BeginTurn(ctx context.Context, app string, req BeginTurn) (Turn, error) {
	return askApp[Turn](ctx, c, http.MethodPost, app, nil, req, "turns")
}

// EndTurn tells that a turn is over, and gives what it changed.
func (c *Client) EndTurn(ctx context.Context, app string, id TurnID) (Turn, error) {
	return askApp[Turn](ctx, c, http.MethodPost, app, nil, nil, "turns", string(id), "end")
}

// BeginCall tells that a tool call of a turn begins.
func (c *Client) BeginCall(ctx context.Context, app string, turn TurnID, req BeginCall) (Call, error) {
	return askApp[Call](ctx, c, http.MethodPost, app, nil, req, "turns", string(turn), "calls")
}

// EndCall tells that a tool call is over.
func (c *Client) EndCall(ctx context.Context, app string, turn TurnID, id CallID) (Call, error) {
	return askApp[Call](ctx, c, http.MethodPost, app, nil, nil, "turns", string(turn), "calls", string(id), "end")
}
