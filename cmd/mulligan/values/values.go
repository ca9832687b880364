// Package values reads the values that a person gives on the command line: texts, lists, patterns and commands. They
// mean there what they mean in an app file. Every error is errs.Invalid.
//
// The splitter of commands is mulligan's own. splitWords keeps a # and, within double quotes, a backslash before any
// other character, where package shlex takes comments and backslashes away.
package values

import (
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/tomlfile"
)

// Help is how values are written on the command line, for help texts.
const Help = `A value may be written as in an app file: a text in quotation marks, a list in brackets
('exclude=["*.log", "a,b"]'). Patterns without brackets are divided at commas, and a pattern
that has a comma, a brace or a quotation mark must stand in such a list. A command that begins
with [" or [' is a list of its words.`

// Text is what a value says: itself, or the text that stands in quotation marks.
func Text(key, v string) (string, error) {
	if v == "" || v[0] != '"' && v[0] != '\'' {
		return v, nil
	}
	var read struct {
		Value string `toml:"value"`
	}
	if _, err := tomlfile.Decode("app set", key, []byte("value = "+v), &read); err != nil {
		return "", errs.New(errs.Invalid, "app set", "the value of %s begins with a quotation mark and is not a quoted text", key).
			WithHint("leave the quotation marks out, or see `mulligan app set --help`")
	}
	return read.Value, nil
}

// textList reads a list of texts in brackets, as in an app file.
func textList(key, v string) ([]string, error) {
	var read struct {
		Value []string `toml:"value"`
	}
	if _, err := tomlfile.Decode("app set", key, []byte("value = "+v), &read); err != nil {
		return nil, errs.New(errs.Invalid, "app set", "%q is not a list of quoted texts", v).WithHint(`write a list like ["one", "two"]`)
	}
	return append([]string{}, read.Value...), nil
}

// Patterns reads patterns of gitignore: a list in brackets, or divided by
// commas. What could be meant otherwise than it would be read is an error.
func Patterns(v string) ([]string, error) {
	if strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") {
		return textList("exclude", v)
	}
	v, err := Text("exclude", v)
	if err != nil {
		return nil, err
	}
	list := strings.Split(v, ",")
	for i, p := range list {
		list[i] = strings.TrimSpace(p)
		if strings.ContainsAny(p, "\"'`{}") || strings.Count(p, "[") != strings.Count(p, "]") {
			return nil, errs.New(errs.Invalid, "app set", "the pattern %q is ambiguous", p).
				WithHint(`write patterns as a list: exclude=["*.log", "tmp/"]; braces have no special meaning in them`)
		}
	}
	return slices.DeleteFunc(list, func(p string) bool { return p == "" }), nil
}

// Command reads a command: a list of words in brackets, or one line of
// them. "[ -e file ]" is a line, whose first word is a program's name.
func Command(v string) ([]string, error) {
	if v == "[]" || strings.HasPrefix(v, `["`) || strings.HasPrefix(v, `['`) {
		return textList("the command", v)
	}
	return splitWords(v)
}
