package agents

import "encoding/json"

// cline is Cline. Its hooks: https://docs.cline.bot/features/hooks/hook-reference.
// A task is the conversation. Old payloads have no id of the call; those of its
// SDK have tool_call. A hook must print a JSON object.
var cline = &Agent{
	Name: "cline", Title: "Cline",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[clinePayload](payload)
		if p.Hook != "" {
			name = p.Hook
		}
		ev := Event{Kind: clineEvents[name], Name: name, Session: p.Task, Dirs: p.Roots}
		if p.Submit != nil {
			ev.Prompt = p.Submit.Prompt
		}
		for _, tool := range []*clineTool{p.Pre, p.Post} {
			if tool != nil {
				ev.Tool, ev.Args = tool.Name, tool.Parameters
			}
		}
		if c := p.Call; c != nil {
			ev.Call, ev.Tool, ev.Args = c.ID, c.Name, c.Input
		}
		return ev, err
	},
	reply: func(string) string { return clineReply },
	looks: []string{
		"read_file", "list_files", "search_files", "list_code_definition_names", "ask_followup_question", "plan_mode_respond",
		"attempt_completion", "web_fetch", "load_mcp_documentation", "access_mcp_resource", "new_task", "condense",
	},
	// A hook is a program with the event's name. The folders of a user's hooks and servers are second-hand.
	settings: func(p Place) []Change {
		root, below := p.base("", "Documents/Cline/Hooks/", ".clinerules/hooks/")
		mode := p.mode() | p.mode()&0o444>>2 // whoever can read it can run it
		script := whole{mark: "mulligan install cline", content: "#!/bin/sh\n# Written by mulligan install cline; mulligan uninstall cline removes it.\n" +
			quote(p.Program) + " hook cline || echo '" + clineReply + "'\n"}
		var changes []Change
		for _, event := range []string{"UserPromptSubmit", "PreToolUse", "PostToolUse", "TaskComplete", "TaskCancel"} {
			changes = append(changes, Change{root, below + event, mode, script})
		}
		if p.Scope == User {
			changes = append(changes, Change{p.Home, ".cline/data/settings/cline_mcp_settings.json", p.mode(), jsonEdit{server("mcpServers", p, "")}})
		}
		return changes
	},
	notes: func(s Scope) []string {
		if s == Project {
			return []string{"Cline has MCP servers for users only: mulligan install cline --scope user adds mulligan's"}
		}
		return []string{"in an editor, add the server in Cline's own settings: command mulligan, argument mcp"}
	},
}

const clineReply = `{"cancel":false}`

type clinePayload struct {
	Hook   string     `json:"hookName"`
	Task   string     `json:"taskId"`
	Roots  []string   `json:"workspaceRoots"`
	Pre    *clineTool `json:"preToolUse"`
	Post   *clineTool `json:"postToolUse"`
	Submit *struct {
		Prompt string `json:"prompt"`
	} `json:"userPromptSubmit"`
	Call *struct {
		ID    string          `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	} `json:"tool_call"`
}

type clineTool struct {
	Name       string          `json:"toolName"`
	Parameters json.RawMessage `json:"parameters"`
}

// UserPromptSubmit follows TaskStart, so TaskStart needs no report.
var clineEvents = map[string]Kind{
	"UserPromptSubmit": TurnBegins,
	"PreToolUse":       CallBegins,
	"PostToolUse":      CallEnds,
	"TaskComplete":     TurnEnds,
	"TaskCancel":       TurnEnds,
}
