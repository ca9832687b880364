package agents

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"mulligan/errs"
)

// Kind is the meaning of an event for the daemon.
type Kind int

// The kinds of events.
const (
	Other Kind = iota // not reported
	TurnBegins
	TurnEnds // any open turn of the session has ended too
	CallBegins
	CallEnds
)

// Event is an event that an agent's hook received.
type Event struct {
	Kind    Kind
	Name    string   // the agent's name of the event
	Session string   // the conversation's id
	Turn    string   // the agent's id of the turn, "" if it has none
	Message string   // the agent's id of the prompt, "" if it has none
	Prompt  string   // what the person asked for, at the beginning of a turn; "" if the agent does not say
	Call    string   // the agent's id of the call, "" if it has none
	Tool    string   // its name
	Args    []byte   // its arguments, as JSON
	Dirs    []string // folders in which the agent works, the most likely first
}

// Read returns the event that an agent sent to its hook. name is used if the payload has no name of the event. The error is of
// kind errs.Invalid if the payload is not valid.
func (a *Agent) Read(name string, payload []byte) (Event, error) {
	ev, err := a.read(name, payload)
	if err != nil {
		return Event{}, errs.New(errs.Invalid, "read the hook's input", "the input is not an event of %s: %s", a.Title, err)
	}
	if (ev.Kind == CallBegins || ev.Kind == CallEnds) && slices.Contains(a.looks, ev.Tool) {
		ev.Kind = Other
	}
	if ev.Kind != TurnBegins {
		ev.Prompt = ""
	}
	dirs := ev.Dirs
	ev.Dirs = nil
	for _, d := range dirs {
		if d != "" {
			ev.Dirs = append(ev.Dirs, d)
		}
	}
	if ev.Session == "" && len(ev.Dirs) > 0 {
		ev.Session = "at-" + digest(ev.Dirs[0]) // assumes that one agent at a time works in a folder
	}
	return ev, nil
}

// Reply returns what a hook of the event must print, also after an error.
func (a *Agent) Reply(event string) string {
	if a.reply == nil {
		return ""
	}
	return a.reply(event)
}

// Notice returns what a hook of the event must print so that the agent shows a line to the person. Where the agent has no means for
// that, it is what Reply returns.
func (a *Agent) Notice(event, line string) string {
	if a.notice == nil {
		return a.Reply(event)
	}
	return a.notice(event, line)
}

// systemMessage returns the output of hooks with which several agents show a line to the person.
func systemMessage(_, line string) string {
	text, err := json.Marshal(map[string]string{"systemMessage": line})
	if err != nil { // a string can always be encoded
		return ""
	}
	return string(text)
}

// snake is the payload of several agents, modelled on Claude Code's.
type snake struct {
	Event     string          `json:"hook_event_name"`
	Session   string          `json:"session_id"`
	Turn      string          `json:"turn_id"`
	PromptID  string          `json:"prompt_id"`
	Prompt    string          `json:"prompt"`
	Cwd       string          `json:"cwd"`
	Source    string          `json:"source"`
	Tool      string          `json:"tool_name"`
	ToolInput json.RawMessage `json:"tool_input"`
	ToolUse   string          `json:"tool_use_id"`
}

// event returns the payload as an event. kinds maps names of events to kinds.
func (p snake) event(name string, kinds map[string]Kind) Event {
	if p.Event != "" {
		name = p.Event
	}
	return Event{
		Kind: kinds[name], Name: name, Session: p.Session, Message: p.PromptID, Prompt: p.Prompt,
		Call: p.ToolUse, Tool: p.Tool, Args: p.ToolInput, Dirs: []string{p.Cwd},
	}
}

// decode reads a payload: one JSON object.
func decode[T any](payload []byte) (p T, err error) {
	// null would decode into anything
	if trimmed := bytes.TrimSpace(payload); len(trimmed) == 0 || trimmed[0] != '{' {
		return p, errs.New(errs.Invalid, "", "there is no JSON object")
	}
	err = json.Unmarshal(payload, &p)
	return p, err
}

// sameArgs returns a tool's arguments in a normal form, without differences in spaces and in the order of names, which may
// differ between the hooks before and after the call.
func sameArgs(raw []byte) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(b)
}

// digest returns a short digest of words.
func digest(words ...string) string {
	h := sha256.New()
	for _, w := range words {
		h.Write([]byte(w))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// id returns an agent's id in a form that the daemon accepts: of bounded length, and valid in a path.
func id(s string) string {
	if len(s) > 200 || s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return "id-" + digest(s)
	}
	return s
}
