package ipc

import "time"

// TurnID identifies a turn within its app: the agent's own id, or a generated one.
type TurnID string

// CallID identifies a tool call within its turn.
type CallID string

// BeginTurn announces that an agent's turn begins.
type BeginTurn struct {
	TurnID         TurnID `json:"turn_id,omitempty"` // empty: one is generated
	ConversationID string `json:"conversation_id,omitempty"`
	MessageID      string `json:"message_id,omitempty"`
	Agent          string `json:"agent,omitempty"` // "claude-code", "codex", …
}

// BeginCall announces that a tool call begins.
type BeginCall struct {
	CallID CallID `json:"call_id,omitempty"` // empty: one is made up
	Tool   string `json:"tool,omitempty"`
	// Before makes the daemon wait until everything that was written before the call is in the journal, so that the turn's
	// checkpoint is exact.
	Before bool `json:"before,omitempty"`
	// DeadlineMS bounds that wait, in milliseconds; default 250.
	DeadlineMS int `json:"deadline_ms,omitempty"`
}

// Turn is one round of an agent's work.
type Turn struct {
	ID             TurnID        `json:"turn_id"`
	AppID          AppID         `json:"app_id"`
	ConversationID string        `json:"conversation_id"`
	MessageID      string        `json:"message_id"`
	Agent          string        `json:"agent"`
	Inferred       bool          `json:"inferred"` // nobody announced it: writes came after a quiet time
	StartedAt      time.Time     `json:"started_at"`
	EndedAt        *time.Time    `json:"ended_at"`
	CheckpointID   *CheckpointID `json:"checkpoint_id"` // of the state before the turn; null if the turn changed nothing
	Changes        TurnChanges   `json:"changes"`
	Calls          []Call        `json:"calls"`
	Warnings       []string      `json:"warnings"` // why the record of the turn may be inexact
}

// TurnChanges summarizes the files that a turn changed.
type TurnChanges struct {
	Created  int      `json:"created"`
	Modified int      `json:"modified"`
	Deleted  int      `json:"deleted"`
	Paths    []string `json:"paths"` // some of them, at most 20
}

// Call is one tool call of a turn.
type Call struct {
	ID        CallID     `json:"call_id"`
	TurnID    TurnID     `json:"turn_id"`
	Tool      string     `json:"tool"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Exact     bool       `json:"exact"` // earlier writes were in the journal before the deadline
}

// TurnList is a list of turns, newest first.
type TurnList struct {
	Turns []Turn `json:"turns"`
}
