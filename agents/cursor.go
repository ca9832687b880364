package agents

import "encoding/json"

// cursor is Cursor. Its hooks: https://cursor.com/docs/agent/hooks. The turn is
// the generation, second-hand. preToolUse and postToolUse, for all tools, came
// after the hooks for single tools; those are read too, for who has set them,
// but have no id of the call.
var cursor = &Agent{
	Name: "cursor", Title: "Cursor",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[struct {
			snake
			Conversation string   `json:"conversation_id"`
			Generation   string   `json:"generation_id"`
			Roots        []string `json:"workspace_roots"`
			Command      string   `json:"command"`
		}](payload)
		ev := p.event(name, cursorEvents)
		ev.Turn, ev.Message = p.Generation, p.Generation
		if p.Conversation != "" {
			ev.Session = p.Conversation
		}
		ev.Dirs = append(ev.Dirs, p.Roots...)
		if ev.Name == "beforeShellExecution" || ev.Name == "afterShellExecution" {
			ev.Tool = "Shell"
			ev.Args, _ = json.Marshal(p.Command) // a string can always be encoded
		}
		return ev, err
	},
	// Nothing is said of permission: Cursor and its user decide that.
	reply: func(event string) string {
		if event == "beforeSubmitPrompt" {
			return `{"continue":true}`
		}
		return "{}"
	},
	looks: []string{"Read", "Grep", "Glob", "Task"},
	settings: func(p Place) []Change {
		hooks := jsonEdit{{path: []string{"version"}, value: "1", stays: true}}
		for _, event := range []string{"beforeSubmitPrompt", "preToolUse", "postToolUse", "postToolUseFailure", "stop", "sessionEnd"} {
			hooks = append(hooks, jsonPart{
				path: []string{"hooks", event}, element: true, ours: isHook("cursor"),
				value: `{"command":` + literal(p.hook("cursor")) + `}`,
			})
		}
		root, below := p.base("", ".cursor/", ".cursor/")
		return []Change{
			{root, below + "hooks.json", p.mode(), hooks},
			{root, below + "mcp.json", p.mode(), jsonEdit{server("mcpServers", p, "")}},
		}
	},
}

var cursorEvents = map[string]Kind{
	"beforeSubmitPrompt":   TurnBegins,
	"preToolUse":           CallBegins,
	"postToolUse":          CallEnds,
	"postToolUseFailure":   CallEnds,
	"beforeShellExecution": CallBegins,
	"afterShellExecution":  CallEnds,
	"beforeMCPExecution":   CallBegins,
	"afterMCPExecution":    CallEnds,
	"stop":                 TurnEnds,
	"sessionEnd":           TurnEnds,
}
