// Package tomlfile reads TOML strictly for people: a key that nobody knows is
// refused with its line and the key that was probably meant, and so is every
// other fault. What is wrong is said in one line that begins "FILE:LINE:".
//
// A file is measured before it is parsed, since the parser's work grows with the
// square of how long keys are and how many tables there are.
//
// Messages never repeat a value of the file, since it may hold passwords.
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
)

// MaxSize is the largest file that is read, in bytes.
const MaxSize = 1 << 20

// Doc is a decoded file: enough of it to say where a thing stands.
type Doc struct {
	op, name string
	lines    []string
}

// Read reads the whole of the file at path, up to MaxSize bytes. A missing file
// is errs.NotFound.
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

// Decode decodes data into the struct that v points to, by its `toml` tags. op
// and name (the file's path, or a word for it) go into errors, which are of
// kind errs.Invalid.
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

// Errorf makes an error about key (dotted; "retention.keep_last") in the nth
// table of that name, counted from 0 ([[database]] repeats, others don't).
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
	if near := Nearest(last, known); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return d.at(d.line(key, 0), "unknown key %.64q%.256s", last, where).WithHint("%s", hint)
}

// syntax turns the TOML package's error into ours. Its text may quote what
// stands in the file, so only the parts that cannot hold a value are kept.
func (d *Doc) syntax(err error) error {
	var pe toml.ParseError
	if !errors.As(err, &pe) {
		// The decoder's complaint about a type: "toml: line 3 (last key "auto"): incompatible types: …"
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

// unquoted cuts what the parser repeats of the file (quoted, or a number), when
// that is more than a character.
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

// line finds the line, from 1, that sets key in the nth table of its name; the
// table's own line when the key isn't set; 0 when neither is there. It reads
// lines, not TOML: what a text of several lines holds may mislead it.
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
		if full == want || strings.HasPrefix(want, full+".") { // the second: an inline table
			return i + 1
		}
	}
	return fallback
}

// plain is a key as Go's toml writes it: without quotes and spaces.
func plain(key string) string {
	return strings.NewReplacer(`"`, "", `'`, "", " ", "").Replace(key)
}

// keys lists the keys that the table at path may hold.
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
