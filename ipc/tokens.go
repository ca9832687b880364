package ipc

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// TokenID names a token: "tk-" and hex digits. It is no secret.
type TokenID string

// Scope is one kind of thing that a token is good for.
type Scope string

// The scopes. Whatever its scopes, a token never reaches further than its owner.
const (
	ScopeRead    Scope = "read"    // look: apps, checkpoints, diffs, turns, the audit trail
	ScopeWrite   Scope = "write"   // checkpoints, turns, rollbacks of registered apps
	ScopeManage  Scope = "manage"  // register, change and remove apps
	ScopeMetrics Scope = "metrics" // GET /metrics, over all apps of the daemon
)

// Scopes lists every Scope once.
var Scopes = []Scope{ScopeRead, ScopeWrite, ScopeManage, ScopeMetrics}

// Token is a bearer token, less its secret, which only its maker ever sees.
type Token struct {
	ID        TokenID    `json:"token_id"`
	Name      string     `json:"name"`
	Owner     string     `json:"owner"`
	Scopes    []Scope    `json:"scopes"`
	Apps      []AppID    `json:"apps"`       // only these; none: all of its owner's
	ExpiresAt *time.Time `json:"expires_at"` // null: never
	CreatedAt time.Time  `json:"created_at"`
}

// TokenRequest asks for a token.
type TokenRequest struct {
	Name    string   `json:"name,omitempty"`
	Scopes  []Scope  `json:"scopes,omitempty"`  // default: read
	Apps    []string `json:"apps,omitempty"`    // ids or slugs; default: all of the caller's
	Expires string   `json:"expires,omitempty"` // a Go duration from now; "0": never; default: 720h
	// Rotate asks that of the caller's tokens of this name only the newest eight stay.
	Rotate bool `json:"rotate,omitempty"`
}

// NewToken is a token that was just made.
type NewToken struct {
	Token
	Secret string `json:"token"` // what a client sends: Authorization: Bearer …
}

// TokenList is oldest first.
type TokenList struct {
	Tokens []Token `json:"tokens"`
}

// UILink is a link that opens the page once.
type UILink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"` // of the link; the page it opens stays open longer
}

// Session is what the page may know of who looks at it.
type Session struct {
	User      string    `json:"user"`
	UID       int       `json:"uid"`
	CSRF      string    `json:"csrf"` // sent back as X-CSRF-Token with all that changes things
	ExpiresAt time.Time `json:"expires_at"`
}

// AddToken makes a token. Over the socket only.
func (c *Client) AddToken(ctx context.Context, req TokenRequest) (NewToken, error) {
	return ask[NewToken](ctx, c, http.MethodPost, "/api/tokens", req)
}

// Tokens lists the caller's tokens; root sees everybody's.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	l, err := ask[TokenList](ctx, c, http.MethodGet, "/api/tokens", nil)
	return l.Tokens, err
}

// RevokeToken ends a token at once.
func (c *Client) RevokeToken(ctx context.Context, id TokenID) error {
	_, err := ask[nothing](ctx, c, http.MethodDelete, "/api/tokens/"+url.PathEscape(string(id)), nil)
	return err
}

// UI asks for a link that opens the page, once, as the caller.
func (c *Client) UI(ctx context.Context) (UILink, error) {
	return ask[UILink](ctx, c, http.MethodPost, "/api/ui", nil)
}
