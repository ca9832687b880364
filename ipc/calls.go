package ipc

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"mulligan/errs"
)

// Status is the daemon's word on itself.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, c, http.MethodGet, "/api/status", nil)
}

// Apps lists the caller's apps.
func (c *Client) Apps(ctx context.Context) ([]App, error) {
	l, err := ask[AppList](ctx, c, http.MethodGet, "/api/apps", nil)
	return l.Apps, err
}

// App is one app, named by its id or its slug, as in every call here.
func (c *Client) App(ctx context.Context, app string) (App, error) {
	return askApp[App](ctx, c, http.MethodGet, app, nil, nil)
}

// AppWithGaps is App, with what of it cannot be captured or could not be given back: the
// daemon looks at every file for that.
func (c *Client) AppWithGaps(ctx context.Context, app string) (App, error) {
	return askApp[App](ctx, c, http.MethodGet, app, url.Values{"gaps": {"1"}}, nil)
}

// AddApp registers an app.
func (c *Client) AddApp(ctx context.Context, app App) (App, error) {
	return ask[App](ctx, c, http.MethodPost, "/api/apps", app)
}

// SetApp changes an app.
func (c *Client) SetApp(ctx context.Context, app string, ch AppChange) (App, error) {
	return askApp[App](ctx, c, http.MethodPatch, app, nil, ch)
}

// RemoveApp forgets an app; with purge its checkpoints go too.
func (c *Client) RemoveApp(ctx context.Context, app string, purge bool) error {
	q := url.Values{}
	setFlag(q, "purge", purge)
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, q, nil)
	return err
}

// CreateCheckpoint captures the app as it is now.
func (c *Client) CreateCheckpoint(ctx context.Context, app string, req CreateRequest) (Checkpoint, error) {
	return askApp[Checkpoint](ctx, c, http.MethodPost, app, nil, req, "checkpoints")
}

// Checkpoints lists the app's checkpoints, newest first.
func (c *Client) Checkpoints(ctx context.Context, app string, query CheckpointQuery) (CheckpointList, error) {
	q := url.Values{}
	if query.Trigger != "" {
		q.Set("trigger", string(query.Trigger))
	}
	if query.Limit != 0 {
		q.Set("limit", strconv.Itoa(query.Limit))
	}
	if query.Before != "" {
		q.Set("before", string(query.Before))
	}
	if query.Conversation != "" {
		q.Set("conversation", query.Conversation)
	}
	return askApp[CheckpointList](ctx, c, http.MethodGet, app, q, nil, "checkpoints")
}

// Checkpoint is one checkpoint of the app.
func (c *Client) Checkpoint(ctx context.Context, app string, id CheckpointID) (Checkpoint, error) {
	return askApp[Checkpoint](ctx, c, http.MethodGet, app, nil, nil, "checkpoints", string(id))
}

// DeleteCheckpoint deletes one; a pinned one is errs.Pinned.
func (c *Client) DeleteCheckpoint(ctx context.Context, app string, id CheckpointID) error {
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, nil, nil, "checkpoints", string(id))
	return err
}

// Pin exempts a checkpoint from pruning and deletion, or no longer does.
func (c *Client) Pin(ctx context.Context, app string, id CheckpointID, pinned bool) (Checkpoint, error) {
	verb := "unpin"
	if pinned {
		verb = "pin"
	}
	return askApp[Checkpoint](ctx, c, http.MethodPost, app, nil, nil, "checkpoints", string(id), verb)
}

// Verify reads what is stored of a checkpoint and checks it.
func (c *Client) Verify(ctx context.Context, app string, id CheckpointID) (VerifyResult, error) {
	return c.verify(ctx, app, id, false)
}

// VerifyQuickly checks that what should be stored of a checkpoint is there, and
// does not read all of it.
func (c *Client) VerifyQuickly(ctx context.Context, app string, id CheckpointID) (VerifyResult, error) {
	return c.verify(ctx, app, id, true)
}

func (c *Client) verify(ctx context.Context, app string, id CheckpointID, quick bool) (VerifyResult, error) {
	q := url.Values{}
	setFlag(q, "quick", quick)
	return askApp[VerifyResult](ctx, c, http.MethodPost, app, q, nil, "checkpoints", string(id), "verify")
}

// Prune applies the app's retention now; a dry run only says what would go.
func (c *Client) Prune(ctx context.Context, app string, dryRun bool) (PruneResult, error) {
	q := url.Values{}
	setFlag(q, "dry_run", dryRun)
	return askApp[PruneResult](ctx, c, http.MethodPost, app, q, nil, "checkpoints", "prune")
}

// Audit gives the newest limit entries of the app's audit trail (0: all).
func (c *Client) Audit(ctx context.Context, app string, limit int) ([]AuditEntry, error) {
	l, err := c.audit(ctx, app, limit, false)
	return l.Entries, err
}

// VerifyAudit is Audit, and checks the whole trail's hashes.
func (c *Client) VerifyAudit(ctx context.Context, app string, limit int) (AuditList, error) {
	return c.audit(ctx, app, limit, true)
}

func (c *Client) audit(ctx context.Context, app string, limit int, verify bool) (AuditList, error) {
	q := url.Values{}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	setFlag(q, "verify", verify)
	return askApp[AuditList](ctx, c, http.MethodGet, app, q, nil, "audit")
}

// askApp is ask for a path below the app.
func askApp[T any](ctx context.Context, c *Client, method, app string, query url.Values, body any, below ...string) (T, error) {
	p, err := appPath(app, query, below...)
	if err != nil {
		var none T
		return none, err
	}
	return ask[T](ctx, c, method, p, body)
}

// appPath is /api/apps/APP/BELOW…?QUERY. A name that a path cannot hold as one
// segment is refused here: the server's mux would clean it away.
func appPath(app string, query url.Values, below ...string) (string, error) {
	var b strings.Builder
	b.WriteString("/api/apps")
	for i, name := range append([]string{app}, below...) {
		if name == "" || name == "." || name == ".." {
			what := "app"
			if i > 0 {
				what = map[string]string{"checkpoints": "checkpoint", "turns": "turn", "calls": "call", "conversations": "conversation"}[below[max(i-2, 0)]]
			}
			return "", errs.New(errs.Invalid, opAsk, "%q names no %s", name, what)
		}
		b.WriteByte('/')
		b.WriteString(url.PathEscape(name))
	}
	if len(query) > 0 {
		b.WriteByte('?')
		b.WriteString(query.Encode())
	}
	return b.String(), nil
}

func setFlag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "1")
	}
}
