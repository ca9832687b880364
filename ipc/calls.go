package ipc

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"mulligan/errs"
)

// Status returns the state of the daemon.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, c, http.MethodGet, "/api/status", nil)
}

// Apps lists the caller's apps.
func (c *Client) Apps(ctx context.Context) ([]App, error) {
	l, err := ask[AppList](ctx, c, http.MethodGet, "/api/apps", nil)
	return l.Apps, err
}

// App returns an app. app is its id or its slug, as in all calls of this file.
func (c *Client) App(ctx context.Context, app string) (App, error) {
	return askApp[App](ctx, c, http.MethodGet, app, nil, nil)
}

// AppWithGaps returns an app with its gaps: what cannot be captured or restored. The daemon reads the metadata of every file
// for that.
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

// RemoveApp removes an app's registration, and with purge also its checkpoints.
func (c *Client) RemoveApp(ctx context.Context, app string, purge bool) error {
	q := url.Values{}
	setFlag(q, "purge", purge)
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, q, nil)
	return err
}

// CreateCheckpoint captures the present state of the app.
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

// DeleteCheckpoint deletes a checkpoint. The error is of kind errs.Pinned if the checkpoint is pinned.
func (c *Client) DeleteCheckpoint(ctx context.Context, app string, id CheckpointID) error {
	_, err := askApp[nothing](ctx, c, http.MethodDelete, app, nil, nil, "checkpoints", string(id))
	return err
}

// Pin sets whether a checkpoint is exempt from pruning and deletion.
func (c *Client) Pin(ctx context.Context, app string, id CheckpointID, pinned bool) (Checkpoint, error) {
	verb := "unpin"
	if pinned {
		verb = "pin"
	}
	return askApp[Checkpoint](ctx, c, http.MethodPost, app, nil, nil, "checkpoints", string(id), verb)
}

// Verify reads all that is stored of a checkpoint and checks it.
func (c *Client) Verify(ctx context.Context, app string, id CheckpointID) (VerifyResult, error) {
	return c.verify(ctx, app, id, false)
}

// VerifyQuickly checks that all parts of a checkpoint are stored, without reading all of them.
func (c *Client) VerifyQuickly(ctx context.Context, app string, id CheckpointID) (VerifyResult, error) {
	return c.verify(ctx, app, id, true)
}

func (c *Client) verify(ctx context.Context, app string, id CheckpointID, quick bool) (VerifyResult, error) {
	q := url.Values{}
	setFlag(q, "quick", quick)
	return askApp[VerifyResult](ctx, c, http.MethodPost, app, q, nil, "checkpoints", string(id), "verify")
}

// Prune applies the app's retention now. A dry run only lists what would be deleted.
func (c *Client) Prune(ctx context.Context, app string, dryRun bool) (PruneResult, error) {
	q := url.Values{}
	setFlag(q, "dry_run", dryRun)
	return askApp[PruneResult](ctx, c, http.MethodPost, app, q, nil, "checkpoints", "prune")
}

// Audit returns the newest limit entries of the app's audit trail; 0 means all.
func (c *Client) Audit(ctx context.Context, app string, limit int) ([]AuditEntry, error) {
	l, err := c.audit(ctx, app, limit, false)
	return l.Entries, err
}

// VerifyAudit does the same as Audit, and checks the hashes of the whole trail.
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

// askApp calls ask for a path below the app.
func askApp[T any](ctx context.Context, c *Client, method, app string, query url.Values, body any, below ...string) (T, error) {
	p, err := appPath(app, query, below...)
	if err != nil {
		var none T
		return none, err
	}
	return ask[T](ctx, c, method, p, body)
}

// appPath returns /api/apps/APP/BELOW…?QUERY. It refuses a name that cannot be one segment of a path, because the server's mux
// would remove it.
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
