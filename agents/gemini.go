package agents

// gemini is Gemini CLI. Its hooks: https://geminicli.com/docs/hooks/reference.
// It has ids of sessions only. Standard output is parsed as JSON.
var gemini = &Agent{
	Name: "gemini", Title: "Gemini CLI",
	read: func(name string, payload []byte) (Event, error) {
		p, err := decode[snake](payload)
		return p.event(name, geminiEvents), err
	},
	reply:  func(string) string { return "{}" },
	notice: systemMessage,
	looks:  []string{"read_file", "read_many_files", "list_directory", "glob", "grep_search", "search_file_content", "google_web_search", "web_fetch"},
	settings: func(p Place) []Change {
		hooks := grouped("gemini", p, "10000", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd") // milliseconds
		edit := append(hooks, server("mcpServers", p, ""))
		root, below := p.base("", ".gemini/", ".gemini/")
		return []Change{{root, below + "settings.json", p.mode(), edit}}
	},
}

var geminiEvents = map[string]Kind{
	"BeforeAgent": TurnBegins,
	"BeforeTool":  CallBegins,
	"AfterTool":   CallEnds,
	"AfterAgent":  TurnEnds,
	"SessionEnd":  TurnEnds,
}
