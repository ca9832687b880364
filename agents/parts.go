package agents

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"mulligan/errs"
)

// server is the MCP entry of most agents: the name of the file's list of servers, and the command.
func server(list string, p Place, more string) jsonPart {
	return serverAs(list, `{`+more+`"command":`+literal(p.Program)+`,"args":["mcp"]}`)
}

// serverAs is an MCP entry in a form of its own.
func serverAs(list, value string) jsonPart {
	own := decoded(value)
	return jsonPart{path: []string{list, "mulligan"}, value: value, server: own, ours: func(names []string, v *hujson.Value) bool {
		return slices.Equal(names, []string{list, "mulligan"}) && own.isIn(decoded(minimal(v)))
	}}
}

// mcpEntry is an MCP entry as a parser of its format decodes it; nil: there is none.
type mcpEntry map[string]any

func decoded(raw string) (e mcpEntry) {
	if json.Unmarshal([]byte(raw), &e) != nil {
		return nil
	}
	return e
}

// starting are the keys of MCP entries that say how a server is started, in the settings of all agents. All other keys are the user's.
var starting = []string{"command", "cmd", "args", "env_vars"}

// starts reports whether entry starts mulligan as its own one does. A user may have added something, also at the end of a list.
func (own mcpEntry) starts(entry mcpEntry) bool {
	for _, key := range starting {
		want, isList := own[key].([]any)
		have, _ := entry[key].([]any)
		if isList && (len(have) < len(want) || !reflect.DeepEqual(have[:len(want)], want)) || !isList && own[key] != nil && own[key] != entry[key] {
			return false
		}
	}
	return true
}

// isIn reports whether entry is mulligan's, and not another program's of that name.
func (own mcpEntry) isIn(entry mcpEntry) bool {
	raw, err := json.Marshal(entry)
	return own.starts(entry) || err == nil && strings.Contains(string(raw), "mulligan") && strings.Contains(string(raw), `"mcp"`)
}

// isMade reports whether entry is as Insert writes it, perhaps for another program: a user did not.
func (own mcpEntry) isMade(entry mcpEntry) bool {
	entry = maps.Clone(entry)
	for _, key := range []string{"command", "cmd"} {
		have, _ := entry[key].([]any)
		if want, isList := own[key].([]any); isList && len(have) > 0 {
			entry[key] = append(slices.Clone(want[:1]), have[1:]...)
		} else if entry[key] != nil {
			entry[key] = own[key]
		}
	}
	return reflect.DeepEqual(entry, own)
}

// notOurs returns the error for an entry of mulligan's name that is another program's.
func notOurs(path ...string) error {
	return errs.New(errs.Conflict, opSettings, "the file already has %s, which mulligan did not write", strings.Join(path, ".")).WithHint("rename that entry")
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

func (w whole) Before(text string) (string, error) { return w.Remove(text) }

// pretty returns JSON that is indented by two spaces and ends with a line break.
func pretty(raw string) string {
	var v json.RawMessage = []byte(raw)
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return raw
	}
	return string(b) + "\n"
}
