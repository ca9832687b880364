package agents

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"mulligan/errs"
)

// jsonEdit adds members and elements to a JSON file, which may have comments and trailing commas. It edits the text at
// positions that a parser finds, so that all other bytes stay.
type jsonEdit []jsonPart

// jsonPart is a member or an element to add.
type jsonPart struct {
	path    []string // names of nested members, down to the value
	value   string   // in JSON
	element bool     // the value is an element of the array at path
	stays   bool     // the file needs it without mulligan too: it is not removed again
	server  mcpEntry // the value, if it is an MCP entry
	// ours reports whether the value at names in the file is mulligan's. The name of an array's element is "*".
	ours func(names []string, v *hujson.Value) bool
}

const opSettings = "edit the settings"

// Insert adds the parts and replaces older versions of them.
func (e jsonEdit) Insert(text string) (string, error) {
	if done, err := e.complete(text); done || err != nil {
		return text, err
	}
	text, err := e.aim(text)
	if err != nil {
		return "", err
	}
	text, err = e.cut(text, func(p jsonPart, v *hujson.Value) bool { return p.server == nil || !p.has(v) })
	if err != nil {
		return "", err
	}
	if isBlank(text) {
		text = "{}\n"
	}
	for _, p := range e {
		if text, err = p.insert(text); err != nil {
			return "", err
		}
	}
	return text, nil
}

// aim sets the program of mulligan's MCP entries.
func (e jsonEdit) aim(text string) (string, error) {
	for _, p := range e {
		if p.server == nil || isBlank(text) {
			continue
		}
		root, err := parseJSON(text)
		if err != nil {
			return "", err
		}
		find(&root, func(names []string, v *hujson.Value) bool {
			if !p.ours(names, v) {
				return false
			}
			program, at := p.server["command"], member(v.Value.(*hujson.Object), "command")
			if want, isList := program.([]any); isList && at != nil {
				program = want[0]
				if have, ok := at.Value.(*hujson.Array); ok && len(have.Elements) > 0 {
					at = &have.Elements[0]
				}
			}
			if at != nil {
				text = text[:at.StartOffset] + literal(program.(string)) + text[at.EndOffset:]
			}
			return true
		})
	}
	return text, nil
}

// Remove removes mulligan's values, and containers that become empty.
func (e jsonEdit) Remove(text string) (string, error) {
	return e.cut(text, func(jsonPart, *hujson.Value) bool { return true })
}

// Before removes mulligan's values except an MCP entry that a user wrote.
func (e jsonEdit) Before(text string) (string, error) {
	return e.cut(text, func(p jsonPart, v *hujson.Value) bool { return p.server == nil || p.server.isMade(decoded(minimal(v))) })
}

// cut removes those of mulligan's values for which old returns true, and containers that become empty.
func (e jsonEdit) cut(text string, old func(jsonPart, *hujson.Value) bool) (string, error) {
	if isBlank(text) {
		return text, nil
	}
	for {
		root, err := parseJSON(text)
		if err != nil {
			return "", err
		}
		found, ok := find(&root, func(names []string, v *hujson.Value) bool {
			i := slices.IndexFunc(e, func(p jsonPart) bool { return p.ours != nil && p.ours(names, v) })
			return i >= 0 && old(e[i], v)
		})
		if !ok {
			return text, nil
		}
		text = found.cut(text)
	}
}

// complete reports whether the file has all parts in their present version.
func (e jsonEdit) complete(text string) (bool, error) {
	if isBlank(text) {
		return false, nil
	}
	root, err := parseJSON(text)
	if err != nil {
		return false, err
	}
	for _, p := range e {
		names := p.path
		if p.element {
			names = append(slices.Clone(names), "*")
		}
		_, ok := find(&root, func(at []string, v *hujson.Value) bool {
			return slices.Equal(at, names) && p.has(v)
		})
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// has reports whether v, at the part's place, is as it must be.
func (p jsonPart) has(v *hujson.Value) bool {
	if p.server != nil {
		return p.server.starts(decoded(minimal(v)))
	}
	return p.stays || minimal(v) == compact(p.value)
}

// isBlank reports whether text consists of JSON white space.
func isBlank(text string) bool { return strings.Trim(text, " \t\r\n") == "" }

func parseJSON(text string) (hujson.Value, error) {
	root, err := hujson.Parse([]byte(text))
	if err != nil {
		return root, errs.New(errs.Invalid, opSettings, "%s", strings.TrimPrefix(err.Error(), "hujson: "))
	}
	if _, ok := root.Value.(*hujson.Object); !ok {
		return root, errs.New(errs.Invalid, opSettings, "the file holds no JSON object")
	}
	return root, nil
}

// insert adds the part to text.
func (p jsonPart) insert(text string) (string, error) {
	root, err := parseJSON(text)
	if err != nil {
		return "", err
	}
	at, depth := &root, 0
	for ; depth < len(p.path); depth++ {
		o, ok := at.Value.(*hujson.Object)
		if !ok {
			return "", wrongShape(p.path[:depth], "an object")
		}
		next := member(o, p.path[depth])
		if next == nil {
			break
		}
		at = next
	}
	value := p.value
	if p.element {
		if depth == len(p.path) {
			if _, ok := at.Value.(*hujson.Array); !ok {
				return "", wrongShape(p.path, "a list")
			}
			return paste(text, at, value), nil
		}
		value = "[" + value + "]"
	}
	if depth == len(p.path) {
		if p.has(at) {
			return text, nil
		}
		return "", notOurs(p.path...)
	}
	for i := len(p.path) - 1; i > depth; i-- {
		value = "{" + literal(p.path[i]) + ":" + value + "}"
	}
	return paste(text, at, literal(p.path[depth])+":"+value), nil
}

func wrongShape(path []string, want string) error {
	return errs.New(errs.Invalid, opSettings, "%s is not %s", strings.Join(path, "."), want)
}

func literal(s string) string { return string(hujson.String(s)) }

// member returns the value of a name, or nil if there is none.
func member(o *hujson.Object, name string) *hujson.Value {
	for i := range o.Members {
		if l, ok := o.Members[i].Name.Value.(hujson.Literal); ok && l.String() == name {
			return &o.Members[i].Value
		}
	}
	return nil
}

// minimal returns a value without spaces, comments and trailing commas.
func minimal(v *hujson.Value) string {
	c := v.Clone()
	c.Minimize()
	return strings.TrimSpace(c.String())
}

func compact(raw string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(raw)) != nil {
		return raw
	}
	return b.String()
}
