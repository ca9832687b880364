package tomlfile

import "strings"

// bounds are the limits of a file that is parsed. The parser's time grows with the square of each of these numbers.
type bounds struct {
	parts  int // parts of one dotted key
	depth  int // nesting of arrays and inline tables
	tables int // number of headers: [name] and [[name]]
}

// generous has limits that are many times higher than the numbers of any file of mulligan.
var generous = bounds{parts: 16, depth: 16, tables: 2000}

// measure returns a message about the first limit that text exceeds, and the line, or "" if text exceeds none. It runs before
// the parser. measure skips strings and comments, where the limits do not apply, and knows nothing else of TOML's syntax. If a
// string has no end, measure continues after the string's line or at the end of text; the parser returns an error for such a
// string.
func (l bounds) measure(text string) (what string, line int) {
	line = 1
	parts, depth, tables := 1, 0, 0
	first := true // the next character that is not blank is the first one of its line
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

// end returns the index of the string what in text, or the length of text if what is not there.
func end(text, what string) int {
	if i := strings.Index(text, what); i >= 0 {
		return i
	}
	return len(text)
}

// quote returns the length of the TOML string at the beginning of text. A single-line string ends at the end of its line at the
// latest.
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
				i++ // up to two quotation marks of the content may precede the closing ones
			}
			return i
		}
	}
	return len(text)
}
