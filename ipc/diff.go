package ipc

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// AgainstNow compares a checkpoint with the app as it is.
const AgainstNow = "now"

// DiffQuery says what to compare a checkpoint with, and how much to tell.
type DiffQuery struct {
	Against string   // AgainstNow, the default, or a checkpoint's id
	Paths   []string // only these and what lies below them
	Patch   bool     // with unified diffs of text files
	Limit   int      // at most so many changes; 0: the daemon's own limit
	Offset  int      // of the first one
}

// Diff is what differs between a checkpoint and a later state of the app.
type Diff struct {
	From    CheckpointID `json:"from"`
	To      string       `json:"to"` // "now" or a checkpoint's id
	Changes []DiffChange `json:"changes"`
	Total   int          `json:"total"` // also those that are not in Changes
	// Unknown names the layers that can't tell what differs.
	Unknown []string `json:"unknown"`
	// Unreadable says of layers that cannot be read why, a line for each.
	Unreadable []string `json:"unreadable,omitempty"`
}

// DiffChange is one thing that differs.
type DiffChange struct {
	Layer     string `json:"layer"`
	Path      string `json:"path"`
	Operation string `json:"operation"` // create, modify, delete: what happened after From
	Summary   string `json:"summary"`
	Patch     string `json:"patch,omitempty"`    // a unified diff
	NoPatch   string `json:"no_patch,omitempty"` // why there is none: "binary", "too large"
}

// Diff compares a checkpoint with now, or with another one.
func (c *Client) Diff(ctx context.Context, app string, id CheckpointID, query DiffQuery) (Diff, error) {
	q := url.Values{}
	if query.Against != "" {
		q.Set("against", query.Against)
	}
	for _, p := range query.Paths {
		q.Add("path", p)
	}
	setFlag(q, "patch", query.Patch)
	if query.Limit > 0 {
		q.Set("limit", strconv.Itoa(query.Limit))
	}
	if query.Offset > 0 {
		q.Set("offset", strconv.Itoa(query.Offset))
	}
	return askApp[Diff](ctx, c, http.MethodGet, app, q, nil, "checkpoints", string(id), "diff")
}
