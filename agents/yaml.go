package agents

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"mulligan/errs"
)

// yamlEdit adds an entry to a mapping at the top level of a YAML file in block style. It edits whole lines.
type yamlEdit struct {
	mapping string
	name    string
	lines   []string // of the entry, indented by two spaces per level, beginning with its own
}

// Insert adds the entry.
func (e yamlEdit) Insert(text string) (string, error) {
	there, entry, err := e.entry(text)
	switch {
	case err != nil || there && e.own().starts(entry):
		return text, err
	case there && !e.own().isIn(entry):
		return "", notOurs(e.mapping, e.name)
	case there:
		aimed := e.aim(text)
		if _, entry, err := e.entry(aimed); err == nil && e.own().starts(entry) {
			return aimed, nil
		}
		if text, err = e.Remove(text); err != nil {
			return "", err
		}
	}
	lines := strings.SplitAfter(text, "\n")
	at, indent, err := e.find(lines)
	if err != nil {
		return "", err
	}
	block := e.block(indent)
	if at < 0 {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += e.mapping + ":\n" + block
	} else {
		if !strings.HasSuffix(lines[at], "\n") {
			lines[at] += "\n"
		}
		text = strings.Join(lines[:at+1], "") + block + strings.Join(lines[at+1:], "")
	}
	if there, _, err := e.entry(text); err != nil || !there {
		return "", errs.New(errs.Conflict, opSettings, "mulligan cannot add to %s", e.mapping).WithHint("add it by hand")
	}
	return text, nil
}

// aim sets the program of mulligan's entry.
func (e yamlEdit) aim(text string) string {
	lines := strings.SplitAfter(text, "\n")
	_, first, last, err := e.span(lines)
	if err != nil || first < 0 {
		return text
	}
	for _, line := range e.lines {
		key, _, _ := strings.Cut(line, ":")
		_, isText := e.own()[key].(string)
		for i := first + 1; i <= last && isText && slices.Contains(starting, key); i++ {
			if word := trimmed(lines[i]); strings.HasPrefix(word, key+":") {
				lines[i] = lines[i][:depthOf(lines[i])] + line + "\n"
			}
		}
	}
	return strings.Join(lines, "")
}

// Before removes the entry unless a user wrote it.
func (e yamlEdit) Before(text string) (string, error) {
	if _, entry, err := e.entry(text); err != nil || !e.own().isMade(entry) {
		return text, err
	}
	return e.Remove(text)
}

// block returns the lines of the entry.
func (e yamlEdit) block(indent string) string {
	block := indent + e.name + ":\n"
	for _, l := range e.lines {
		block += indent + "  " + l + "\n"
	}
	return block
}

// Remove removes the entry, if it is mulligan's, and the mapping if it has no other entries.
func (e yamlEdit) Remove(text string) (string, error) {
	there, entry, err := e.entry(text)
	if err != nil || !there || !e.own().isIn(entry) {
		return text, err
	}
	lines := strings.SplitAfter(text, "\n")
	at, first, last, err := e.span(lines)
	if err != nil || first < 0 {
		return text, err
	}
	rest := append(append([]string{}, lines[:first]...), lines[last+1:]...)
	if trimmed(rest[at]) == e.mapping+":" && empty(rest, at) {
		rest = append(rest[:at], rest[at+1:]...)
	}
	return strings.Join(rest, ""), nil
}

// span returns the line of the mapping, and the first and the last line of the entry; first is -1 if there is none.
func (e yamlEdit) span(lines []string) (at, first, last int, err error) {
	first, last = -1, -1
	at, indent, err := e.find(lines)
	if err != nil || at < 0 {
		return at, first, last, err
	}
	for i := at + 1; i < len(lines); i++ {
		word := trimmed(lines[i])
		if word == "" || word[0] == '#' {
			continue
		}
		depth := depthOf(lines[i])
		if depth == 0 || first >= 0 && depth <= len(indent) {
			break
		}
		if first < 0 && depth == len(indent) && strings.HasPrefix(word, e.name+":") {
			first = i
		}
		if first >= 0 {
			last = i
		}
	}
	return at, first, last, nil
}

// own returns the entry that Insert adds.
func (e yamlEdit) own() (entry mcpEntry) {
	_ = yaml.Unmarshal([]byte(strings.Join(e.lines, "\n")), &entry) // they are valid
	return entry
}

// entry reports whether text has the entry, and returns it.
func (e yamlEdit) entry(text string) (there bool, entry mcpEntry, err error) {
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return false, nil, errs.New(errs.Invalid, opSettings, "%s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	in, _ := v[e.mapping].(map[string]any)
	at, there := in[e.name]
	entry, _ = at.(map[string]any)
	return there, entry, nil
}

// empty reports whether the mapping at a line has no entries.
func empty(lines []string, at int) bool {
	for _, l := range lines[at+1:] {
		if trimmed(l) != "" {
			return depthOf(l) == 0
		}
	}
	return true
}

// find returns the line of the mapping, -1 if there is none, and the indentation of its entries.
func (e yamlEdit) find(lines []string) (at int, indent string, err error) {
	for i, l := range lines {
		rest, found := strings.CutPrefix(l, e.mapping+":")
		if !found {
			continue
		}
		if rest = trimmed(rest); rest != "" && rest[0] != '#' {
			return -1, "", errs.New(errs.Conflict, opSettings, "%s is not written with one entry per line", e.mapping).
				WithHint("write its entries below it, one per line")
		}
		for _, below := range lines[i+1:] {
			if word := trimmed(below); word != "" && word[0] != '#' {
				if d := depthOf(below); d > 0 {
					return i, below[:d], nil
				}
				break
			}
		}
		return i, "  ", nil
	}
	return -1, "  ", nil
}

func depthOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// trimmed returns s without YAML white space around it.
func trimmed(s string) string { return strings.Trim(s, " \t\r\n") }
