package ipc

import (
	"strings"
	"time"
	"unicode"
)

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
	Title          string `json:"title,omitempty"` // the first words of the prompt, as Title returns them
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
	Title          string        `json:"title"`    // the first words of the prompt; "" where they are unknown, or titles are off
	Inferred       bool          `json:"inferred"` // nobody announced it: writes came after a quiet time
	StartedAt      time.Time     `json:"started_at"`
	EndedAt        *time.Time    `json:"ended_at"`
	CheckpointID   *CheckpointID `json:"checkpoint_id"` // of the state before the turn; null if the turn changed nothing
	Changes        TurnChanges   `json:"changes"`
	Calls          []Call        `json:"calls"`
	Warnings       []string      `json:"warnings"` // why the record of the turn may be inexact
}

// TurnChanges summarizes the files and databases that a turn changed.
type TurnChanges struct {
	Created  int      `json:"created"`
	Modified int      `json:"modified"`
	Deleted  int      `json:"deleted"`
	Paths    []string `json:"paths"` // some of them, at most 20
	// Databases are those that changed.
	Databases []DatabaseChanges `json:"databases,omitempty"`
}

// DatabaseChanges summarizes what a turn changed in a database.
type DatabaseChanges struct {
	Database string `json:"database"`
	// Changes are at most 20: tables, rows, definitions. They are empty where the driver cannot list them in a moment.
	Changes []Change `json:"changes"`
	Total   int      `json:"total"` // also those that are not in Changes
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

// MaxTitle is the number of characters that a turn's title has at most.
const MaxTitle = 80

// Title returns the title of a turn with this prompt: its first words in one line, without characters that are not printed, and
// cut to MaxTitle characters.
func Title(prompt string) string {
	const enough = 64 * MaxTitle // bytes
	if len(prompt) > enough {
		prompt = prompt[:enough]
	}
	var title []rune
	for _, word := range strings.FieldsFunc(strings.ToValidUTF8(prompt, ""), unicode.IsSpace) {
		printed := []rune(strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, word))
		if len(title) > 0 && len(printed) > 0 {
			title = append(title, ' ')
		}
		if title = append(title, printed...); len(title) > MaxTitle {
			return string(cut(title))
		}
	}
	return string(title)
}

// cut shortens a title, which is too long, at the end of a word if one ends late enough.
func cut(title []rune) []rune {
	end := MaxTitle - 1
	for i := end; i > MaxTitle/2; i-- {
		if title[i] == ' ' {
			end = i
			break
		}
	}
	return append(title[:end:end], '…')
}
