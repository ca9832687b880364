package agents

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/tailscale/hujson"
)

// item is a member or an element in a text, without the comma after it.
type item struct {
	start, end int
	comma      int // where that is, -1: there is none
}

// items returns the members of an object or the elements of an array.
func items(v *hujson.Value) []item {
	var list []item
	add := func(start int, v *hujson.Value, last bool) {
		it := item{start, v.EndOffset, v.EndOffset + len(v.AfterExtra)}
		if last && v.AfterExtra == nil {
			it.comma = -1
		}
		list = append(list, it)
	}
	switch c := v.Value.(type) {
	case *hujson.Object:
		for i := range c.Members {
			add(c.Members[i].Name.StartOffset, &c.Members[i].Value, i == len(c.Members)-1)
		}
	case *hujson.Array:
		for i := range c.Elements {
			add(c.Elements[i].StartOffset, &c.Elements[i], i == len(c.Elements)-1)
		}
	}
	return list
}

// paste adds an item, which is compact JSON, at the end of an object or array, in the style of the text around it.
func paste(text string, in *hujson.Value, add string) string {
	body := text[in.StartOffset+1 : in.EndOffset-1]
	have := items(in)
	nl := "\n"
	if strings.Contains(text, "\r\n") {
		nl = "\r\n"
	}
	wide := strings.Contains(body, "\n")
	if len(have) == 0 {
		wide = wide || strings.Contains(strings.TrimSpace(text), "\n") || strings.TrimSpace(text) == "{}"
	}
	outer, unit := indentAt(text, in.StartOffset), unitOf(text)
	inner := outer + unit
	if len(have) > 0 && wide && strings.TrimLeft(lineBefore(text, have[0].start), " \t") == "" {
		inner = lineBefore(text, have[0].start)
	}
	end := in.StartOffset + 1 + len(strings.TrimRight(body, " \t\r\n")) // after the last word or comment
	tail := text[end:]
	switch {
	case wide:
		add = nl + inner + spread(add, inner, unit, nl)
		if !strings.Contains(body[end-in.StartOffset-1:], "\n") {
			add += nl + outer
			tail = strings.TrimLeft(tail, " \t")
		}
	case len(have) > 0:
		add = " " + add
	}
	if len(have) > 0 && have[len(have)-1].comma < 0 {
		last := have[len(have)-1].end
		return text[:last] + "," + text[last:end] + add + tail
	}
	return text[:end] + add + tail
}

// spread writes an item on several lines.
func spread(add, indent, unit, nl string) string {
	var b bytes.Buffer
	name, value := "", add
	// A member by itself is not JSON text, but its value is.
	if add[0] == '"' {
		if i := strings.Index(add, `":`); i > 0 {
			name, value = add[:i+2]+" ", add[i+2:]
		}
	}
	if json.Indent(&b, []byte(value), indent, unit) != nil {
		return add
	}
	return name + strings.ReplaceAll(b.String(), "\n", nl)
}

// lineBefore returns the text before at in its line.
func lineBefore(text string, at int) string {
	return text[strings.LastIndexByte(text[:at], '\n')+1 : at]
}

// indentAt returns the indentation of the line of at.
func indentAt(text string, at int) string {
	line := lineBefore(text, at)
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

// unitOf returns the indentation of one level in text.
func unitOf(text string) string {
	for line := range strings.Lines(text) {
		rest := strings.TrimLeft(line, " \t")
		if indent := line[:len(line)-len(rest)]; indent != "" && strings.HasPrefix(rest, `"`) {
			return indent
		}
	}
	return "  "
}

// place is the position of a value: the containers around it, from the root on, and its index in each.
type place struct {
	in []*hujson.Value
	at []int
}

// find returns the place of the first wanted value, outer ones first.
func find(root *hujson.Value, want func(names []string, v *hujson.Value) bool) (place, bool) {
	var names []string
	var p place
	var walk func(v *hujson.Value) bool
	step := func(in *hujson.Value, i int, name string, v *hujson.Value) bool {
		names, p.in, p.at = append(names, name), append(p.in, in), append(p.at, i)
		if want(names, v) || walk(v) {
			return true
		}
		last := len(names) - 1
		names, p.in, p.at = names[:last], p.in[:last], p.at[:last]
		return false
	}
	walk = func(v *hujson.Value) bool {
		switch c := v.Value.(type) {
		case *hujson.Object:
			for i := range c.Members {
				if l, ok := c.Members[i].Name.Value.(hujson.Literal); ok && step(v, i, l.String(), &c.Members[i].Value) {
					return true
				}
			}
		case *hujson.Array:
			for i := range c.Elements {
				if step(v, i, "*", &c.Elements[i]) {
					return true
				}
			}
		}
		return false
	}
	ok := walk(root)
	return p, ok
}

// cut removes the value from text, and each container that has no other values. The root stays.
func (p place) cut(text string) string {
	level := len(p.in) - 1
	for level > 0 && len(items(p.in[level])) == 1 {
		only := items(p.in[level])[0]
		around := text[p.in[level].StartOffset+1:only.start] + text[only.end:p.in[level].EndOffset-1]
		// A group of hooks also has a matcher, which has no use without hooks.
		if strings.Trim(around, " \t\r\n,") != "" {
			break // a comment
		}
		level--
		if o, ok := p.in[level].Value.(*hujson.Object); ok && level > 0 && isGroup(o) {
			level--
		}
	}
	return cutItem(text, p.in[level], p.at[level])
}

// isGroup reports whether an object has a matcher and hooks, and nothing else.
func isGroup(o *hujson.Object) bool {
	for _, m := range o.Members {
		if l, ok := m.Name.Value.(hujson.Literal); !ok || l.String() != "matcher" && l.String() != "hooks" {
			return false
		}
	}
	return member(o, "hooks") != nil
}

// cutItem removes the item at position i from a container, with the comma that becomes superfluous, and with its line if
// nothing else is on it.
func cutItem(text string, in *hujson.Value, i int) string {
	have := items(in)
	it := have[i]
	start, end := it.start, it.end
	if it.comma >= 0 {
		end = it.comma + 1
	}
	alone := strings.Trim(lineBefore(text, start), " \t") == ""
	head := strings.TrimRight(text[:start], " \t")
	switch {
	case i == len(have)-1 && alone && startsLine(text[end:]): // otherwise a comment before it would continue
		head = strings.TrimSuffix(strings.TrimSuffix(head, "\n"), "\r")
	case i == len(have)-1 || alone && startsLine(text[end:]):
	default: // other text follows on the line
		head = text[:start]
		end = len(text) - len(strings.TrimLeft(text[end:], " \t"))
	}
	if i < len(have)-1 && alone && startsLine(text[end:]) {
		end += strings.IndexByte(text[end:], '\n') + 1
	}
	tail := text[end:]
	if i == len(have)-1 && i > 0 && it.comma < 0 {
		comma := have[i-1].comma
		head = head[:comma] + head[comma+1:]
	}
	if len(have) == 1 && strings.TrimSpace(head[in.StartOffset+1:]) == "" {
		head, tail = head[:in.StartOffset+1], strings.TrimLeft(tail, " \t\r\n")
	}
	return head + tail
}

// startsLine reports whether only spaces precede the end of the line.
func startsLine(s string) bool {
	return strings.HasPrefix(strings.TrimLeft(s, " \t\r"), "\n")
}
