package ipc

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// TokenID identifies a token: "tk-" and hex digits. It is not secret.
type TokenID string

// Scope is a kind of request that a token permits.
type Scope string

// The scopes. A token never permits more than its owner may do.
const (
	ScopeRead    Scope = "read"    // look: apps, checkpoints, diffs, turns, the audit trail
	ScopeWrite   Scope = "write"   // checkpoints, turns, rollbacks of registered apps
	ScopeManage  Scope = "manage"  // register, change and remove apps
	ScopeMetrics Scope = "metrics" // GET /metrics, over all apps of the daemon
)

// Scopes lists every Scope once.
var Scopes = []Scope{ScopeRead, ScopeWrite, ScopeManage, ScopeMetrics}

// Token is a bearer token without its secret, which is shown only when the token is made.
type Token struct {
	ID        TokenID    `json:"token_id"`
	Name      string     `json:"name"`
	Owner     string     `json:"owner"`
	Scopes    []Scope    `json:"scopes"`
	Apps      []AppID    `json:"apps"`       // the apps that the token is limited to; empty: all apps of its owner
	ExpiresAt *time.Time `json:"expires_at"` // null: never
	CreatedAt time.Time  `json:"created_at"`
}

// TokenRequest is a request for a new token.
type TokenRequest struct {
	Name    string   `json:"name,omitempty"`
	Scopes  []Scope  `json:"scopes,omitempty"`  // default: read
	Apps    []string `json:"apps,omitempty"`    // ids or slugs; default: all of the caller's
	Expires string   `json:"expires,omitempty"` // a Go duration from now; "0": never; default: 720h
	// Rotate deletes all but the newest eight of the caller's tokens with this name.
	Rotate bool `json:"rotate,omitempty"`
}

// NewToken is a new token with its secret.
type NewToken struct {
	Token
	Secret string `json:"token"` // what a client sends: Authorization: Bearer …
}

// TokenList is a list of tokens, oldest first.
type TokenList struct {
	Tokens []Token `json:"tokens"`
}

// UIRequest is a request for a link that opens the page.
type UIRequest struct {
	App string `json:"app,omitempty"` // the slug or id of the app that the page opens on; "" is the first of the list
}

// UILink is a link that opens the page once.
type UILink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"` // of the link; the session that it opens lasts longer
}

// Session describes the user of the page.
type Session struct {
	User      string    `json:"user"`
	UID       int       `json:"uid"`
	CSRF      string    `json:"csrf"` // to be sent as X-CSRF-Token with every request that changes something
	Key       string    `json:"key"`  // with which the page resumes the session after a restart of the daemon; for its memory only
	ExpiresAt time.Time `json:"expires_at"`
}

// AddToken makes a token. It works only over the socket.
func (c *Client) AddToken(ctx context.Context, req TokenRequest) (NewToken, error) {
	return ask[NewToken](ctx, c, http.MethodPost, "/api/tokens", req)
}

// Tokens lists the caller's tokens, and for root those of all users.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	l, err := ask[TokenList](ctx, c, http.MethodGet, "/api/tokens", nil)
	return l.Tokens, err
}

// RevokeToken makes a token invalid at once.
func (c *Client) RevokeToken(ctx context.Context, id TokenID) error {
	_, err := ask[nothing](ctx, c, http.MethodDelete, "/api/tokens/"+url.PathEscape(string(id)), nil)
	return err
}

// UI returns a link that opens the page once, as the caller.
func (c *Client) UI(ctx context.Context, req UIRequest) (UILink, error) {
	return ask[UILink](ctx, c, http.MethodPost, "/api/ui", req)
}
