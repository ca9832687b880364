package ipc

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SetCheckpoint is a request to move a conversation's checkpoint.
type SetCheckpoint struct {
	// MessageID is the last message before the checkpoint: a person's, as a turn
	// has it, or a turn's own id. One that no turn has stands for the newest.
	MessageID string `json:"message_id"`
}

// ConversationCheckpoint is where a conversation's checkpoint is.
type ConversationCheckpoint struct {
	AppID          AppID     `json:"app_id"`
	ConversationID string    `json:"conversation_id"`
	MessageID      string    `json:"message_id"`
	SetAt          time.Time `json:"set_at"`
	Warnings       []string  `json:"warnings"`
}

// RevertRequest selects the writes to files that are undone: those of one call, of one turn, or of a range of a conversation's
// messages.
type RevertRequest struct {
	ConversationID string `json:"conversation_id,omitempty"`
	FromMessageID  string `json:"from_message_id,omitempty"` // the first; default the one after the conversation's checkpoint
	ToMessageID    string `json:"to_message_id,omitempty"`   // the last; default the newest
	TurnID         TurnID `json:"turn_id,omitempty"`
	CallID         CallID `json:"call_id,omitempty"`
	// Force also restores paths that cannot be merged, and so overwrites what others wrote.
	Force  bool   `json:"force,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	Reason string `json:"reason,omitempty"` // for the audit trail
}

// RevertResult is the result of a revert. It has paths, and never contents.
type RevertResult struct {
	RestoredPaths []string         `json:"restored_paths"` // what was changed on disk
	MergedPaths   []string         `json:"merged_paths"`   // those of them that keep what others wrote
	Conflicts     []RevertConflict `json:"conflicts"`      // what was left alone
	// SafetyCheckpoint has the files before the revert; null if nothing was changed.
	SafetyCheckpoint *Checkpoint `json:"safety_checkpoint"`
	Calls            []CallID    `json:"calls"` // whose writes were undone, as far as they can be told apart
	Warnings         []string    `json:"warnings"`
	Next             string      `json:"next"`
	DryRun           bool        `json:"dry_run,omitempty"`
}

// RevertConflict is a path that was not changed, with the reason.
type RevertConflict struct {
	Path    string   `json:"path"`
	Reason  string   `json:"reason"` // one word
	Message string   `json:"message"`
	Calls   []CallID `json:"calls"` // the other calls that wrote to it, where known
	// Forcible is whether the same revert with force may restore it.
	Forcible bool `json:"forcible"`
}

// ReasonShared is the reason of a conflict where calls ran at the same time and
// nobody can tell which of them wrote. The others are package snap's.
const ReasonShared = "shared"

// SetConversationCheckpoint moves a conversation's checkpoint; nothing else changes.
func (c *Client) SetConversationCheckpoint(ctx context.Context, app, conversation, message string) (ConversationCheckpoint, error) {
	return askApp[ConversationCheckpoint](ctx, c, http.MethodPut, app, nil, SetCheckpoint{message}, "conversations", conversation, "checkpoint")
}

// Revert undoes the writes of some calls to files.
func (c *Client) Revert(ctx context.Context, app string, req RevertRequest) (RevertResult, error) {
	if req.ConversationID == "" {
		return askApp[RevertResult](ctx, c, http.MethodPost, app, nil, req, "revert")
	}
	conversation := req.ConversationID
	req.ConversationID = ""
	return askApp[RevertResult](ctx, c, http.MethodPost, app, nil, req, "conversations", conversation, "revert")
}

// TurnsOf lists the turns of one conversation, as Turns does.
func (c *Client) TurnsOf(ctx context.Context, app, conversation string, limit int) ([]Turn, error) {
	q := url.Values{}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	if conversation != "" {
		q.Set("conversation", conversation)
	}
	l, err := askApp[TurnList](ctx, c, http.MethodGet, app, q, nil, "turns")
	return l.Turns, err
}
