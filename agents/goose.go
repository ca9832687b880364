package agents

// goose is Goose. Its hooks: documentation/docs/guides/context-engineering/hooks.md
// of its repository. Only payloads of tools have the working folder; the hook's
// own stands in for it. Standard output is a decision: none is made.
var goose = &Agent{
	Name: "goose", Title: "Goose",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[struct {
			snake
			Event string `json:"event"`
			Dir   string `json:"working_dir"`
			Call  string `json:"tool_call_id"`
			Text  string `json:"message"`
		}](payload)
		if p.Event != "" {
			name = p.Event
		}
		ev := p.event(name, gooseEvents)
		ev.Call, ev.Dirs, ev.Prompt = p.Call, []string{p.Dir}, p.Text
		return ev, err
	},
	looks: []string{"developer__tree", "developer__read_image"},
	settings: func(p Place) []Change {
		root, folder := p.base("", ".agents/plugins/mulligan/", ".agents/plugins/mulligan/")
		rules := ""
		for i, event := range []string{"UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop", "SessionEnd"} {
			if i > 0 {
				rules += ","
			}
			rules += literal(event) + `:[{"hooks":[{"type":"command","command":` + literal(p.hook("goose")) + `,"timeout":10}]}]`
		}
		changes := []Change{
			{root, folder + "plugin.json", p.mode(), whole{
				pretty(`{"name":"mulligan","version":"1.0.0","description":"Checkpoints of every turn: mulligan install goose"}`), "mulligan install goose",
			}},
			{root, folder + "hooks/hooks.json", p.mode(), whole{pretty(`{"hooks":{` + rules + `}}`), " hook goose"}},
		}
		if p.Scope == Project {
			return changes
		}
		// The fields of extensions are second-hand.
		root, folder = p.base("XDG_CONFIG_HOME", ".config/", "")
		return append(changes, Change{root, folder + "goose/config.yaml", p.mode(), yamlEdit{
			mapping: "extensions", name: "mulligan",
			lines: []string{
				"enabled: true", "type: stdio", "name: mulligan", "description: checkpoints and rollback of the whole app",
				"cmd: " + literal(p.Program), "args:", "  - mcp", "envs: {}", "env_keys: []", "timeout: 300",
			},
		}})
	},
	notes: func(s Scope) []string {
		if s == Project {
			return []string{"Goose has MCP servers for users only: mulligan install goose --scope user adds mulligan's"}
		}
		return nil
	},
}

var gooseEvents = map[string]Kind{
	"UserPromptSubmit":   TurnBegins,
	"PreToolUse":         CallBegins,
	"PostToolUse":        CallEnds,
	"PostToolUseFailure": CallEnds,
	"Stop":               TurnEnds,
	"SessionEnd":         TurnEnds,
}
