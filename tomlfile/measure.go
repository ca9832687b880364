package tomlfile

import "strings"

// bounds limit what is parsed: the parser's work grows with the square of each.
type bounds struct {
	parts  int // of one dotted key
	depth  int // of arrays and inline tables in each other
	tables int // headers, [name] and [[name]]
}

// generous is many times what any file of mulligan's has.
var generous = bounds{parts: 16, depth: 16, tables: 2000}

// measure says which of the bounds text exceeds and on which line, before it is
// parsed; "" where it exceeds none. It knows of TOML just what strings and
// comments are, where the bounds don't apply. What it takes for the end of a
// string that has none, the parser refuses.
func (l bounds) measure(text string) (what string, line int) {
	line = 1
	parts, depth, tables := 1, 0, 0
	first := true // of what is no blank on its line
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch c {
		case ' ', '\t', '\r':
			continue
		case '\n':
			line++
			parts, first = 1, depth == 0
			continue
		case '#':
			i += end(text[i:], "\n") - 1
			continue
		case '"', '\'':
			n := quote(text[i:])
			line += strings.Count(text[i:i+n], "\n")
			i += n - 1
		case '.':
			parts++
		case '=', ',':
			parts = 1
		case '[', '{':
			parts = 1
			if first {
				tables++
			} else {
				depth++
			}
		case ']', '}':
			parts, depth = 1, max(0, depth-1)
		}
		first = false
		switch {
		case parts > l.parts:
			return "a key has too many parts", line
		case depth > l.depth:
			return "lists or tables are nested too deeply", line
		case tables > l.tables:
			return "there are too many tables", line
		}
	}
	return "", 0
}

// end is where the first of what ends stands in text; its length where there is none.
func end(text, what string) int {
	if i := strings.Index(text, what); i >= 0 {
		return i
	}
	return len(text)
}

// quote is the length of the string that text begins with. One of a single line
// ends with its line at the latest.
func quote(text string) int {
	mark := text[:1]
	if strings.HasPrefix(text, strings.Repeat(mark, 3)) {
		mark = text[:3]
	}
	for i := len(mark); i < len(text); i++ {
		switch {
		case text[i] == '\\' && mark[0] == '"':
			i++
		case text[i] == '\n' && len(mark) == 1:
			return i
		case strings.HasPrefix(text[i:], mark):
			i += len(mark)
			for n := 0; len(mark) == 3 && n < 2 && i < len(text) && text[i] == mark[0]; n++ {
				i++ // quotation marks of its content, before those of its end
			}
			return i
		}
	}
	return len(text)
}
