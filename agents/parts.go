package agents

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// server is the MCP entry of most agents: the name of the file's list of servers, and the command.
func server(list string, p Place, more string) jsonPart {
	return jsonPart{
		path:  []string{list, "mulligan"},
		value: `{` + more + `"command":` + literal(p.Program) + `,"args":["mcp"]}`,
		ours:  isServer(list),
	}
}

// isServer reports whether an entry of a list of servers is mulligan's MCP server.
func isServer(list string) func([]string, *hujson.Value) bool {
	return func(names []string, v *hujson.Value) bool {
		if !slices.Equal(names, []string{list, "mulligan"}) {
			return false
		}
		raw := minimal(v)
		return strings.Contains(raw, "mulligan") && strings.Contains(raw, `"mcp"`)
	}
}

// grouped returns hooks in Claude Code's form: one group with one hook for each event, with a timeout in the agent's unit.
func grouped(agent string, p Place, timeout string, events ...string) jsonEdit {
	var e jsonEdit
	for _, event := range events {
		e = append(e, jsonPart{
			path: []string{"hooks", event}, element: true, ours: isHook(agent),
			value: `{"hooks":[{"type":"command","command":` + literal(p.hook(agent)) + `,"timeout":` + timeout + `}]}`,
		})
	}
	return e
}

// isHook reports whether a value is mulligan's hook of an agent, in any group.
func isHook(agent string) func([]string, *hujson.Value) bool {
	return func(names []string, v *hujson.Value) bool {
		o, ok := v.Value.(*hujson.Object)
		if !ok || len(names) < 3 || names[0] != "hooks" {
			return false
		}
		for _, key := range []string{"command", "bash"} {
			if c := member(o, key); c != nil {
				if l, ok := c.Value.(hujson.Literal); ok && l.Kind() == '"' && isOurs(l.String(), agent) {
					return true
				}
			}
		}
		return false
	}
}

// isOurs reports whether a command line runs mulligan's hook of an agent.
func isOurs(line, agent string) bool {
	before, after, found := strings.Cut(line, " hook "+agent)
	return found && strings.HasSuffix(strings.TrimRight(before, `'"`), "mulligan") && (after == "" || after[0] == ' ')
}

// whole is a file that only mulligan writes.
type whole struct {
	content string
	mark    string // a text that every version of the file has
}

func (w whole) Insert(text string) (string, error) {
	if text != "" && !strings.Contains(text, w.mark) {
		return "", wholeConflict
	}
	return w.content, nil
}

func (w whole) Remove(text string) (string, error) {
	if strings.Contains(text, w.mark) {
		return "", nil
	}
	return text, nil
}

// pretty returns JSON that is indented by two spaces and ends with a line break.
func pretty(raw string) string {
	var v json.RawMessage = []byte(raw)
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return raw
	}
	return string(b) + "\n"
}
