package agents

import (
	"strings"

	"github.com/BurntSushi/toml"

	"mulligan/errs"
)

// tomlEdit adds a table at the end of a TOML file. It edits whole lines, and checks the result with a parser.
type tomlEdit struct {
	table []string // its name
	lines []string // the lines of the table
}

// Insert adds the table.
func (e tomlEdit) Insert(text string) (string, error) {
	block := e.header() + "\n" + strings.Join(e.lines, "\n") + "\n"
	if strings.Contains("\n"+text, "\n"+block) {
		return text, nil
	}
	text, err := e.Remove(text)
	if err != nil {
		return "", err
	}
	// The parser allows additions to an inline table; the format does not.
	for line := range strings.Lines(text) {
		name, _, found := strings.Cut(line, "=")
		if found && strings.TrimSpace(name) == e.table[0] {
			return "", errs.New(errs.Conflict, opSettings, "%s is an inline table", e.table[0]).WithHint("write its tables one by one")
		}
	}
	if text != "" {
		text = strings.TrimSuffix(text, "\n") + "\n\n"
	}
	text += block
	if there, err := e.in(text); err != nil || !there {
		return "", errs.New(errs.Conflict, opSettings, "mulligan cannot add to the end of %s", e.header()).WithHint("add it by hand")
	}
	return text, nil
}

// Remove removes the table and its subtables.
func (e tomlEdit) Remove(text string) (string, error) {
	there, err := e.in(text)
	if err != nil || !there {
		return text, err
	}
	var kept []string
	inside := false
	for line := range strings.Lines(text) {
		word := strings.TrimSpace(line)
		if strings.HasPrefix(word, "[") {
			below := strings.TrimSuffix(e.header(), "]") + "."
			was := inside
			inside = strings.HasPrefix(word, e.header()) || strings.HasPrefix(word, below)
			if inside && !was && len(kept) > 0 && strings.TrimSpace(kept[len(kept)-1]) == "" {
				kept = kept[:len(kept)-1] // the empty line before it
			}
		} else if strings.HasPrefix(word, "#") {
			inside = false // a comment was written by the user
		}
		if !inside {
			kept = append(kept, line)
		}
	}
	out := strings.Join(kept, "")
	if there, err := e.in(out); err != nil || there {
		return "", errs.New(errs.Conflict, opSettings, "mulligan cannot remove %s", e.header()).WithHint("remove it by hand")
	}
	return out, nil
}

func (e tomlEdit) header() string { return "[" + strings.Join(e.table, ".") + "]" }

// in reports whether text has the table.
func (e tomlEdit) in(text string) (bool, error) {
	var v map[string]any
	md, err := toml.Decode(text, &v)
	if err != nil {
		return false, errs.New(errs.Invalid, opSettings, "%s", err)
	}
	return md.IsDefined(e.table...), nil
}
