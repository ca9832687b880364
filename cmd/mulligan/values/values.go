// Package values reads the values that people write on the command line: texts, lists, patterns and commands. Quotation
// marks and brackets mean the same there as in an app file. Every error has the kind errs.Invalid.
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

// Help explains in help texts how to write values.
const Help = `A value may be written as in an app file: a text in quotation marks, a list in brackets
('exclude=["*.log", "a,b"]'). Patterns without brackets are divided at commas, and a pattern
that has a comma, a brace or a quotation mark must stand in such a list. A command that begins
with [" or [' is a list of its words.`

// Text returns the value v of key, without the quotation marks if v has some.
func Text(key, v string) (string, error) {
	if v == "" || v[0] != '"' && v[0] != '\'' {
		return v, nil
	}
	var read struct {
		Value string `toml:"value"`
	}
	if _, err := tomlfile.Decode("app set", key, []byte("value = "+v), &read); err != nil {
		return "", errs.New(errs.Invalid, "app set", "the value of %s begins with a quotation mark and is not a quoted text", key).
			WithHint("leave the quotation marks out, or close them")
	}
	return read.Value, nil
}

// YesNo reads a value that is yes or no, as it is printed or as other tools write it, and reports whether it is one.
func YesNo(v string) (yes, ok bool) {
	switch strings.ToLower(v) {
	case "yes", "y", "on", "true", "1":
		return true, true
	case "no", "n", "off", "false", "0":
		return false, true
	}
	return false, false
}

// textList reads a list of quoted texts in brackets. key names the value in errors.
func textList(key, v string) ([]string, error) {
	var read struct {
		Value []string `toml:"value"`
	}
	if _, err := tomlfile.Decode("app set", key, []byte("value = "+v), &read); err != nil {
		return nil, errs.New(errs.Invalid, "app set", "%q is not a list of quoted texts", v).WithHint(`write a list like ["one", "two"]`)
	}
	return append([]string{}, read.Value...), nil
}

// Patterns reads gitignore patterns: a list in brackets, or patterns with commas
// between them. Patterns refuses a pattern that is ambiguous without brackets.
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

// Command reads a command: a list of quoted words in brackets, or a command line.
// "[ -e file ]" is a command line, and the program's name is "[".
func Command(v string) ([]string, error) {
	if v == "[]" || strings.HasPrefix(v, `["`) || strings.HasPrefix(v, `['`) {
		return textList("the command", v)
	}
	return splitWords(v)
}

// Commas joins strings of any type with commas.
func Commas[T ~string](list []T) string {
	var all []string
	for _, s := range list {
		all = append(all, string(s))
	}
	return strings.Join(all, ",")
}
