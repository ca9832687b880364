package agents

import (
	"slices"
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
	there, entry, err := e.entry(text)
	switch {
	case err != nil || there && e.own().starts(entry):
		return text, err
	case there && !e.own().isIn(entry):
		return "", notOurs(e.table...)
	case there:
		aimed := e.aim(text, entry)
		if _, entry, err := e.entry(aimed); err == nil && e.own().starts(entry) {
			return aimed, nil
		}
		if text, err = e.Remove(text); err != nil {
			return "", err
		}
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
	text += e.header() + "\n" + strings.Join(e.lines, "\n") + "\n"
	if there, _, err := e.entry(text); err != nil || !there {
		return "", errs.New(errs.Conflict, opSettings, "mulligan cannot add to the end of %s", e.header()).WithHint("add it by hand")
	}
	return text, nil
}

// aim sets, in mulligan's table, the values that say how it is started, if each is in a line of its own.
func (e tomlEdit) aim(text string, entry mcpEntry) string {
	lines := slices.Collect(strings.Lines(text))
	head := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), e.header()) })
	if head < 0 {
		return text
	}
	lines[head] = strings.TrimSuffix(lines[head], "\n") + "\n"
	for _, line := range e.lines {
		name := func(l string) string {
			key, _, _ := strings.Cut(l, "=")
			return strings.TrimSpace(key)
		}
		key := name(line)
		if (mcpEntry{key: e.own()[key]}).starts(entry) {
			continue
		}
		at := head + 1
		for at < len(lines) && name(lines[at]) != key && !strings.HasPrefix(strings.TrimSpace(lines[at]), "[") {
			at++
		}
		if at < len(lines) && name(lines[at]) == key {
			lines[at] = line + "\n"
		} else {
			lines = slices.Insert(lines, head+1, line+"\n")
		}
	}
	return strings.Join(lines, "")
}

// Before removes the table unless a user wrote it.
func (e tomlEdit) Before(text string) (string, error) {
	if _, entry, err := e.entry(text); err != nil || !e.own().isMade(entry) {
		return text, err
	}
	return e.Remove(text)
}

// Remove removes the table and its subtables, if it is mulligan's.
func (e tomlEdit) Remove(text string) (string, error) {
	there, entry, err := e.entry(text)
	if err != nil || !there || !e.own().isIn(entry) {
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
	if there, _, err := e.entry(out); err != nil || there {
		return "", errs.New(errs.Conflict, opSettings, "mulligan cannot remove %s", e.header()).WithHint("remove it by hand")
	}
	return out, nil
}

func (e tomlEdit) header() string { return "[" + strings.Join(e.table, ".") + "]" }

// own returns the table that Insert adds.
func (e tomlEdit) own() (entry mcpEntry) {
	_, _ = toml.Decode(strings.Join(e.lines, "\n"), &entry) // they are valid
	return entry
}

// entry reports whether text has the table, and returns it.
func (e tomlEdit) entry(text string) (there bool, entry mcpEntry, err error) {
	var v map[string]any
	md, err := toml.Decode(text, &v)
	if err != nil {
		return false, nil, errs.New(errs.Invalid, opSettings, "%s", err)
	}
	var at any = v
	for _, name := range e.table {
		in, _ := at.(map[string]any)
		at = in[name]
	}
	entry, _ = at.(map[string]any)
	return md.IsDefined(e.table...), entry, nil
}
