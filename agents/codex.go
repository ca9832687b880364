package agents

// codex is Codex CLI. Its hooks: https://developers.openai.com/codex/hooks, and
// the schemas in codex-rs/hooks/schema of its repository. Standard output that
// is not empty must be JSON by those schemas, so nothing is printed but a systemMessage.
var codex = &Agent{
	Name: "codex", Title: "Codex CLI",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[snake](payload)
		ev := p.event(name, codexEvents)
		ev.Turn = p.Turn
		return ev, err
	},
	notice: systemMessage,
	ask:    askCodex,
	looks:  []string{"update_plan", "view_image", "web_search"},
	settings: func(p Place) []Change {
		root, below := p.base("CODEX_HOME", ".codex/", ".codex/")
		hooks := grouped("codex", p, "10", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
		hooks = append(hooks, grouped("codex", p, "3", "Interrupt", "SessionEnd")...) // the most they may take
		return []Change{
			{root, below + "hooks.json", p.mode(), hooks},
			{root, below + "config.toml", p.mode(), tomlEdit{
				table: []string{"mcp_servers", "mulligan"},
				lines: []string{
					"command = " + literal(p.Program), `args = ["mcp"]`,
					// Codex passes few variables to a server. Without these, the server would look for another daemon.
					`env_vars = ["XDG_RUNTIME_DIR", "MULLIGAN_SOCKET"]`,
				},
			}},
		}
	},
	notes: func(s Scope) []string {
		notes := []string{"early versions need [features] codex_hooks = true in config.toml; newer ones ask you to trust new hooks: see /hooks"}
		if s == Project {
			notes = append(notes, "a project's settings count only in projects that you trust")
		}
		return notes
	},
}

// Codex CLI runs Stop at the end of a turn and, since late 2026, Interrupt when a person ends it. StopFailure was in its
// schemas for a while. A version ignores hooks of events that it does not know.
var codexEvents = map[string]Kind{
	"UserPromptSubmit": TurnBegins,
	"PreToolUse":       CallBegins,
	"PostToolUse":      CallEnds,
	"Stop":             TurnEnds,
	"StopFailure":      TurnEnds,
	"Interrupt":        TurnEnds,
	"SessionEnd":       TurnEnds,
}
