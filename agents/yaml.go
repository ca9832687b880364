package agents

import (
	"strings"

	"mulligan/errs"
)

// yamlEdit puts an entry into a mapping at the top of a YAML file that is
// written in block style. Text is cut at lines.
type yamlEdit struct {
	mapping string
	name    string
	lines   []string // of the entry, indented by two spaces a level, from its own
}

// Insert puts the entry in.
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

// block is the entry's lines.
func (e yamlEdit) block(indent string) string {
	block := indent + e.name + ":\n"
	for _, l := range e.lines {
		block += indent + "  " + l + "\n"
	}
	return block
}

// Remove takes the entry out, and the mapping if it was all of it.
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

// empty tells whether the mapping at a line holds nothing.
func empty(lines []string, at int) bool {
	for _, l := range lines[at+1:] {
		if trimmed(l) != "" {
			return depthOf(l) == 0
		}
	}
	return true
}

// find finds the mapping's line, -1 if there is none, and its entries' indentation.
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

// trimmed is s without what YAML takes for space around it.
func trimmed(s string) string { return strings.Trim(s, " \t\r\n") }
