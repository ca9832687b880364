package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"mulligan/errs"
)

// Models write arguments in several ways: a number without quotes, one text instead of a list. What can mean one thing alone is
// accepted; for the rest there is a plain sentence, instead of the words of a check of schemas.

// fitted returns the arguments of a call in the types that schema asks for, without those that are null. The error, of kind
// errs.Invalid, says which argument is wrong and what it takes.
func fitted(tool string, args json.RawMessage, schema *jsonschema.Schema) (json.RawMessage, error) {
	invalid := func(format string, a ...any) error { return errs.New(errs.Invalid, tool, format, a...) }
	fields := map[string]json.RawMessage{}
	if len(args) > 0 && json.Unmarshal(args, &fields) != nil {
		return nil, invalid("the arguments are %s: give an object, as in {\"app_id\": \"shop\"}", shown(args))
	}
	maps.DeleteFunc(fields, func(_ string, v json.RawMessage) bool { return bytes.Equal(v, []byte("null")) })
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		p := schema.Properties[name]
		if p == nil {
			return nil, invalid("there is no argument %.64q: %s takes %s", name, tool, strings.Join(schema.PropertyOrder, ", "))
		}
		v, ok := fit(fields[name], p)
		if !ok {
			return nil, invalid("%s is %s: give %s", name, shown(fields[name]), accepted(p))
		}
		fields[name] = v
	}
	for _, name := range schema.Required {
		if fields[name] == nil {
			return nil, invalid("%s is missing: give %s", name, accepted(schema.Properties[name]))
		}
	}
	return json.Marshal(fields)
}

// fit returns a value in the type that p asks for, and reports whether it has one.
func fit(v json.RawMessage, p *jsonschema.Schema) (json.RawMessage, bool) {
	var text string
	isText := json.Unmarshal(v, &text) == nil
	switch p.Type {
	case "string":
		n, err := strconv.ParseFloat(string(v), 64)
		switch {
		case !isText && err == nil && n == float64(int64(n)): // the number of a checkpoint
			v = encoded(strconv.FormatInt(int64(n), 10))
		case !isText:
			return nil, false
		}
		return v, len(p.Enum) == 0 || slices.ContainsFunc(p.Enum, func(e any) bool { return fmt.Sprint(e) == text })
	case "array":
		if isText && strings.HasPrefix(text, "[") && json.Valid([]byte(text)) { // a list in a text
			v = json.RawMessage(text)
		} else if isText {
			return encoded([]string{text}), true
		}
		return v, json.Unmarshal(v, new([]string)) == nil
	case "boolean":
		if isText {
			v = json.RawMessage(text)
		}
		return v, string(v) == "true" || string(v) == "false"
	case "integer":
		if isText {
			v = json.RawMessage(text)
		}
		n, err := strconv.ParseFloat(string(v), 64)
		if err != nil || n != float64(int32(n)) {
			return nil, false
		}
		return encoded(int32(n)), true
	}
	return v, true
}

// encoded returns v, which can always be encoded, as JSON.
func encoded(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// accepted says what an argument takes.
func accepted(p *jsonschema.Schema) string {
	switch p.Type {
	case "array":
		return `a list of texts, as in ["one", "two"]`
	case "boolean":
		return "true or false"
	case "integer":
		return "a whole number"
	}
	if len(p.Enum) == 0 {
		return "a text"
	}
	var all []string
	for _, e := range p.Enum {
		all = append(all, fmt.Sprint(e))
	}
	return "one of " + strings.Join(all, ", ")
}

// shown returns a value as it was given, or what it is if it is long.
func shown(v json.RawMessage) string {
	const most = 64
	switch {
	case len(v) <= most:
		return string(v)
	case v[0] == '{':
		return "an object"
	case v[0] == '[':
		return "a list"
	}
	return strings.ToValidUTF8(string(v[:most]), "") + "…"
}
