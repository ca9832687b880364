package agents

import "encoding/json"

// copilot is GitHub's Copilot CLI. Its hooks:
// https://docs.github.com/en/copilot/reference/copilot-cli-reference/cli-hooks-reference.
// Payloads of camelCase events do not name their event, so the settings do;
// PascalCase events have Claude Code's fields. Old payloads have no session.
var copilot = &Agent{
	Name: "copilot", Title: "Copilot CLI",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[struct {
			snake
			Session string          `json:"sessionId"`
			Tool    string          `json:"toolName"`
			Args    json.RawMessage `json:"toolArgs"`
		}](payload)
		ev := p.event(name, copilotEvents)
		if p.Session != "" {
			ev.Session = p.Session
		}
		if p.Tool != "" {
			ev.Tool, ev.Args = p.Tool, p.Args
		}
		return ev, err
	},
	looks: []string{"view", "glob", "grep", "rg", "read_bash", "list_bash", "web_fetch", "report_intent", "task", "ask_user"},
	settings: func(p Place) []Change {
		rules := ""
		for i, event := range []string{"userPromptSubmitted", "preToolUse", "postToolUse", "agentStop", "sessionEnd"} {
			if i > 0 {
				rules += ","
			}
			rules += literal(event) + `:[{"type":"command","bash":` + literal(p.hook("copilot", event)) + `,"timeoutSec":10}]`
		}
		hooks := whole{pretty(`{"version":1,"hooks":{` + rules + `}}`), " hook copilot "}
		servers := jsonEdit{server("mcpServers", p, `"type":"local","tools":["*"],`)}
		root, below := p.base("", ".copilot/", ".github/")
		list := "mcp-config.json"
		if p.Scope == Project {
			list = "mcp.json"
		}
		return []Change{{root, below + "hooks/mulligan.json", p.mode(), hooks}, {root, below + list, p.mode(), servers}}
	},
}

var copilotEvents = map[string]Kind{
	"userPromptSubmitted": TurnBegins, "UserPromptSubmit": TurnBegins,
	"preToolUse": CallBegins, "PreToolUse": CallBegins,
	"postToolUse": CallEnds, "PostToolUse": CallEnds,
	"postToolUseFailure": CallEnds, "PostToolUseFailure": CallEnds,
	"agentStop": TurnEnds, "Stop": TurnEnds,
	"sessionEnd": TurnEnds, "SessionEnd": TurnEnds,
}
