package agents

import (
	"strings"

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
	lines := strings.SplitAfter(text, "\n")
	at, indent, err := e.find(lines)
	if err != nil {
		return "", err
	}
	if at >= 0 && strings.Contains(text, "\n"+e.block(indent)) {
		return text, nil
	}
	if text, err = e.Remove(text); err != nil {
		return "", err
	}
	lines = strings.SplitAfter(text, "\n")
	if at, indent, err = e.find(lines); err != nil {
		return "", err
	}
	block := e.block(indent)
	if at < 0 {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		return text + e.mapping + ":\n" + block, nil
	}
	if !strings.HasSuffix(lines[at], "\n") {
		lines[at] += "\n"
	}
	return strings.Join(lines[:at+1], "") + block + strings.Join(lines[at+1:], ""), nil
}

// block returns the lines of the entry.
func (e yamlEdit) block(indent string) string {
	block := indent + e.name + ":\n"
	for _, l := range e.lines {
		block += indent + "  " + l + "\n"
	}
	return block
}

// Remove removes the entry, and the mapping if it has no other entries.
func (e yamlEdit) Remove(text string) (string, error) {
	lines := strings.SplitAfter(text, "\n")
	at, indent, err := e.find(lines)
	if err != nil || at < 0 {
		return text, err
	}
	first, last := -1, -1
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
	if first < 0 {
		return text, nil
	}
	rest := append(append([]string{}, lines[:first]...), lines[last+1:]...)
	if trimmed(rest[at]) == e.mapping+":" && empty(rest, at) {
		rest = append(rest[:at], rest[at+1:]...)
	}
	return strings.Join(rest, ""), nil
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
