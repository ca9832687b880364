package agents

// claude is Claude Code. Its hooks: https://code.claude.com/docs/en/hooks.
//
// What a hook of UserPromptSubmit or SessionStart prints goes to the model, so
// nothing is printed. Stop does not fire when a person interrupts: the next
// prompt, or the session's end, ends the turn then. A session that begins ends
// what it left open, unless it only begins anew after compaction, in the
// middle of a turn. prompt_id is in what version 2.1.197 says, after the first
// prompt; older ones have none.
var claude = &Agent{
	Name: "claude-code", Title: "Claude Code",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[snake](payload)
		ev := p.event(name, claudeEvents)
		ev.Turn = p.Prompt
		if ev.Name == "SessionStart" && p.Source == "compact" {
			ev.Kind = Other
		}
		return ev, err
	},
	// A sub-agent's tools have hooks of their own, so starting one is no call.
	looks: []string{
		"Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite", "Task", "Agent",
		"AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ToolSearch", "BashOutput", "TaskOutput",
	},
	settings: func(p Place) []Change {
		hooks := grouped("claude-code", p, "10", "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop", "StopFailure", "SessionEnd")
		servers := jsonEdit{server("mcpServers", p, "")}
		root, below := p.base("CLAUDE_CONFIG_DIR", ".claude/", ".claude/")
		list := ".claude.json" // beside the folder, but in one that the variable names
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
