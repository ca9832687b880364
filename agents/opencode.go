package agents

import (
	_ "embed" // of the plugin
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// opencode is OpenCode. Its plugins run in its own process (https://opencode.ai/docs/plugins). Mulligan's plugin calls the hook
// with OpenCode's fields in one object.
var opencode = &Agent{
	Name: "opencode", Title: "OpenCode",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[struct {
			Event     string          `json:"event"`
			Session   string          `json:"sessionID"`
			Message   string          `json:"messageID"`
			Call      string          `json:"callID"`
			Tool      string          `json:"tool"`
			Args      json.RawMessage `json:"args"`
			Directory string          `json:"directory"`
			Prompt    string          `json:"prompt"`
		}](payload)
		if p.Event != "" {
			name = p.Event
		}
		return Event{
			Kind: opencodeEvents[name], Name: name, Session: p.Session, Turn: p.Message, Message: p.Message, Prompt: p.Prompt,
			Call: p.Call, Tool: p.Tool, Args: p.Args, Dirs: []string{p.Directory},
		}, err
	},
	notice: systemMessage, // the plugin shows it
	looks:  []string{"read", "glob", "grep", "list", "webfetch", "websearch", "codesearch", "todowrite", "todoread", "task", "question", "skill"},
	settings: func(p Place) []Change {
		root, below := p.base("XDG_CONFIG_HOME", ".config/", "")
		plugins := below + "opencode/plugins/"
		if p.Scope == Project {
			plugins = ".opencode/plugins/"
		} else {
			below += "opencode/"
		}
		config := below + "opencode.json"
		if _, err := os.Lstat(filepath.Join(root, config+"c")); err == nil {
			config += "c"
		}
		return []Change{
			{root, config, p.mode(), jsonEdit{serverAs("mcp", `{"type":"local","command":[`+literal(p.Program)+`,"mcp"],"enabled":true}`)}},
			{root, plugins + "mulligan.js", p.mode(), whole{strings.ReplaceAll(opencodePlugin, "@PROGRAM@", literal(p.Program)), "mulligan install opencode"}},
		}
	},
}

// opencodePlugin is the plugin. It calls the hooks in order, and waits for them before a tool runs.
//
//go:embed opencode.js
var opencodePlugin string

var opencodeEvents = map[string]Kind{
	"chat.message":        TurnBegins,
	"tool.execute.before": CallBegins,
	"tool.execute.after":  CallEnds,
	"session.idle":        TurnEnds,
}
