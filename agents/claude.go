package agents

// claude is Claude Code. Its hooks: https://code.claude.com/docs/en/hooks.
//
// The output of a UserPromptSubmit or SessionStart hook goes to the model, so these hooks print nothing, or JSON with a systemMessage,
// which the person sees. Stop does not fire
// when a person interrupts; then the next prompt, or the end of the session, ends the turn. The beginning of a session ends its
// open turn, unless the session begins again after compaction, in the middle of a turn. Version 2.1.197 sends prompt_id after
// the first prompt; older versions do not.
var claude = &Agent{
	Name: "claude-code", Title: "Claude Code",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[snake](payload)
		ev := p.event(name, claudeEvents)
		ev.Turn = p.PromptID
		if ev.Name == "SessionStart" && p.Source == "compact" {
			ev.Kind = Other
		}
		return ev, err
	},
	notice: systemMessage,
	// A sub-agent's tools have hooks of their own, so the start of a sub-agent is not a call.
	looks: []string{
		"Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite", "Task", "Agent",
		"AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ToolSearch", "BashOutput", "TaskOutput",
	},
	settings: func(p Place) []Change {
		hooks := grouped("claude-code", p, "10", "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop", "StopFailure", "SessionEnd")
		servers := jsonEdit{server("mcpServers", p, "")}
		root, below := p.base("CLAUDE_CONFIG_DIR", ".claude/", ".claude/")
		list := ".claude.json" // beside the usual folder, but inside a folder that the variable names
		if p.Scope == Project {
			list = ".mcp.json"
		}
		return []Change{{root, below + "settings.json", p.mode(), hooks}, {root, list, p.mode(), servers}}
	},
}

var claudeEvents = map[string]Kind{
	"SessionStart":       TurnEnds,
	"UserPromptSubmit":   TurnBegins,
	"PreToolUse":         CallBegins,
	"PostToolUse":        CallEnds,
	"PostToolUseFailure": CallEnds,
	"Stop":               TurnEnds,
	"StopFailure":        TurnEnds,
	"SessionEnd":         TurnEnds,
}
