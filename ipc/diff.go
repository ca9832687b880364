package ipc

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// AgainstNow stands for the present state of the app.
const AgainstNow = "now"

// DiffQuery says what a checkpoint is compared with, and which changes are returned.
type DiffQuery struct {
	Against string   // AgainstNow, the default, or a checkpoint's id
	Paths   []string // only these and what lies below them
	Patch   bool     // with unified diffs of text files
	Limit   int      // at most so many changes; 0: the daemon's own limit
	Offset  int      // of the first one
}

// Diff has the differences between a checkpoint and a later state of the app.
type Diff struct {
	From    CheckpointID `json:"from"`
	To      string       `json:"to"` // "now" or a checkpoint's id
	Changes []DiffChange `json:"changes"`
	Total   int          `json:"total"` // also those that are not in Changes
	// Unknown names the layers whose differences cannot be determined.
	Unknown []string `json:"unknown"`
	// Unreadable has a line for each layer that cannot be read, with the reason.
	Unreadable []string `json:"unreadable,omitempty"`
}

// DiffChange is one difference.
type DiffChange struct {
	Layer     string `json:"layer"`
	Path      string `json:"path"`
	Operation string `json:"operation"` // create, modify, delete: what happened after From
	Summary   string `json:"summary"`
	Patch     string `json:"patch,omitempty"`    // a unified diff
	NoPatch   string `json:"no_patch,omitempty"` // why there is none: "binary", "too large"
}

// Diff compares a checkpoint with the present state or with another checkpoint.
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
