// Package tomlfile reads TOML files that people write. It is strict: an unknown key is an error, which names the key that was
// probably meant. The message about an error in a file is one line, which begins with "FILE:LINE:".
//
// The package checks the size of a file's parts before it parses the file, because the parser's time grows with the square of
// the parts of a key, the nesting and the number of tables.
//
// Messages never contain a value from the file, because it may be a password.
package tomlfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"

	"mulligan/errs"
	"mulligan/nearest"
)

// MaxSize is the size of the largest file that is read, in bytes.
const MaxSize = 1 << 20

// Doc is a decoded file. It keeps the lines, to find the line of a key for an error.
type Doc struct {
	op, name string
	lines    []string
}

// Read reads the whole file at path. The error is of kind errs.NotFound if the file is missing, and errs.Invalid if it is
// larger than MaxSize.
func Read(op, path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.NotFound, op, "there is no file %s", path).WithHint("check the path")
	}
	if err != nil {
		return nil, &errs.Error{Kind: errs.Denied, Op: op, Err: err, Hint: "check who may read it"}
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if len(data) > MaxSize {
		return nil, errs.New(errs.Invalid, op, "%s is larger than %d bytes", path, MaxSize).WithHint("check that it is the right file")
	}
	return data, nil
}

// Decode decodes data into the struct to which v points, by its `toml` tags. name is the file's path, or a word for the file.
// Errors are of kind errs.Invalid and of the operation op, and their messages begin with name.
func Decode(op, name string, data []byte, v any) (*Doc, error) {
	d := &Doc{op: op, name: name, lines: strings.Split(string(data), "\n")}
	if len(data) > MaxSize {
		return nil, d.at(0, "it is larger than %d bytes", MaxSize).WithHint("check that it is the right file")
	}
	if what, line := generous.measure(string(data)); what != "" {
		return nil, d.at(line, "%s", what).WithHint("compare it with the documentation")
	}
	md, err := toml.Decode(string(data), v)
	if err != nil {
		return nil, d.syntax(err)
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return nil, d.unknown(unknown[0], reflect.TypeOf(v).Elem())
	}
	return d, nil
}

// Errorf returns an errs.Invalid error about the dotted key, such as "retention.keep_last". nth is the number of the key's
// table among those of the same name, from 0: tables like [[database]] may repeat.
func (d *Doc) Errorf(key string, nth int, format string, args ...any) *errs.Error {
	return d.at(d.line(strings.Split(key, "."), nth), format, args...)
}

func (d *Doc) at(line int, format string, args ...any) *errs.Error {
	where := d.name
	if line > 0 {
		where = fmt.Sprintf("%s:%d", d.name, line)
	}
	return errs.New(errs.Invalid, d.op, "%s: %s", where, fmt.Sprintf(format, args...))
}

func (d *Doc) unknown(key toml.Key, t reflect.Type) error {
	parent, last := key[:len(key)-1], key[len(key)-1]
	known := keys(t, parent)
	where := ""
	if len(parent) > 0 {
		where = " in [" + strings.Join(parent, ".") + "]"
	}
	hint := "the keys here are " + strings.Join(known, ", ")
	if near := nearest.Word(last, known); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return d.at(d.line(key, 0), "unknown key %.64q%.256s", last, where).WithHint("%s", hint)
}

// syntax returns an *errs.Error for an error of the TOML package. That error's text may contain values from the file, so syntax
// keeps only the other parts.
func (d *Doc) syntax(err error) error {
	var pe toml.ParseError
	if !errors.As(err, &pe) {
		// The error is about a type: "toml: line 3 (last key "auto"): incompatible types: …"
		m := mismatch.FindStringSubmatch(err.Error())
		if m == nil {
			return d.at(0, "a value has the wrong type").WithHint("compare it with the documentation")
		}
		return d.at(d.line(strings.Split(m[1], "."), 0), "%s has the wrong type", m[1]).
			WithHint("texts are quoted, numbers and true or false are not, lists stand in [ ]")
	}
	return d.at(pe.Position.Line, "this is not TOML: %s", unquoted(pe.Message)).
		WithHint("texts are quoted: key = \"value\"")
}

var (
	mismatch = regexp.MustCompile(`\(last key "([^"]+)"\)`)
	quoted   = regexp.MustCompile(`["'` + "`" + `].*["'` + "`" + `]|\S*\d{3}\S*`)
)

// unquoted replaces the parts of the message that come from the file, which are quoted strings or numbers, by an ellipsis if
// they are longer than one character.
func unquoted(message string) string {
	return quoted.ReplaceAllStringFunc(strings.ReplaceAll(message, "\n", " "), func(s string) string {
		if len(s) <= 3 {
			return s
		}
		return "…"
	})
}

var (
	header   = regexp.MustCompile(`^\s*\[\[?\s*([^\]]+?)\s*\]\]?`)
	keyValue = regexp.MustCompile(`^\s*([A-Za-z0-9_."'\- ]+?)\s*=`)
)

// line returns the number of the line, from 1, that sets key in the nth table of its name. If the key is not set, it returns
// the line of the table's header, and 0 if there is no such table. line does not parse TOML: it can return a wrong line because
// of the content of a multi-line string.
func (d *Doc) line(key []string, nth int) int {
	want := strings.Join(key, ".")
	table, seen, fallback := "", map[string]int{}, 0
	for i, l := range d.lines {
		if m := header.FindStringSubmatch(l); m != nil {
			table = plain(m[1])
			seen[table]++
			if seen[table]-1 == nth && (table == want || strings.HasPrefix(want, table+".")) {
				fallback = i + 1
			}
			continue
		}
		m := keyValue.FindStringSubmatch(l)
		if m == nil || table != "" && seen[table]-1 != nth {
			continue
		}
		full := strings.TrimPrefix(table+"."+plain(m[1]), ".")
		if full == want || strings.HasPrefix(want, full+".") { // the second condition: an inline table
			return i + 1
		}
	}
	return fallback
}

// plain returns key without quotes and spaces, like the keys of package toml.
func plain(key string) string {
	return strings.NewReplacer(`"`, "", `'`, "", " ", "").Replace(key)
}

// keys returns the keys that the table at path may have. t is the type of the whole file.
func keys(t reflect.Type, path []string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("toml")
		if len(path) > 0 && name == path[0] {
			return keys(t.Field(i).Type, path[1:])
		}
		names = append(names, name)
	}
	if len(path) > 0 {
		return nil
	}
	return names
}
