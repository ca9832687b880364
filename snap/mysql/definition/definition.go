// Package definition reads and changes the texts with which MariaDB and MySQL answer SHOW CREATE.
package definition

import (
	"regexp"
	"slices"
	"strings"
)

// Collated removes the name of a character set before a collation from a definition, because the collation implies it. MySQL
// writes both for a column that was created with a collation, and only one for a column that has the table's. A restored
// definition has both, even if the original had one.
func Collated(create string) string {
	const set, collate = " CHARACTER SET ", " COLLATE "
	var b strings.Builder
	for quote, at := byte(0), 0; at < len(create); at++ {
		c := create[at]
		switch {
		case quote == '\'' && c == '\\' && at+1 < len(create):
			b.WriteByte(c)
			at++
			c = create[at]
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '`' || c == '"':
			quote = c
		case strings.HasPrefix(create[at:], set):
			rest := strings.TrimLeft(create[at+len(set):], "abcdefghijklmnopqrstuvwxyz0123456789_")
			if strings.HasPrefix(rest, collate) {
				at = len(create) - len(rest) - 1
				continue
			}
		}
		b.WriteByte(c)
	}
	return b.String()
}

// Parts of a statement's head as it was typed: what may be between two words, a name, and what may precede a name.
const (
	gap       = `(?:\s|/\*.*?\*/|#[^\n]*\n|--(?:[ \t\r\v\f][^\n]*)?\n)*`
	typedName = "(?:`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|[^\\s.,`\"/#@-]+)"
	qualifier = `(?:(?:` + typedName + gap + `)?\.` + gap + `)?`
)

// triggerHead matches the head of a CREATE TRIGGER statement up to the table's name. The server keeps the text from TRIGGER on as it was typed.
var triggerHead = regexp.MustCompile(strings.NewReplacer("~", gap, "QUALIFIER", qualifier, "NAME", typedName).Replace(
	`(?is)^(CREATE (?:DEFINER=NAME(?:@NAME)? )?TRIGGER\b~)(?:IF\b~NOT\b~EXISTS\b~)?(QUALIFIER)(NAME)(~(?:BEFORE|AFTER)\b(?:~,?~NAME)+?~\bON\b~)(QUALIFIER)(NAME)~FOR\b`))

// Trigger returns a trigger's definition without the database's name in its head, so that it creates the trigger in any database. It also
// leaves out IF NOT EXISTS, so that the server says if it finds such a trigger. ok is false if the head is not understood.
func Trigger(create []byte) (text []byte, ok bool) {
	m := triggerHead.FindSubmatchIndex(create)
	if m == nil {
		return create, false
	}
	part := func(i int) []byte { return create[m[2*i]:m[2*i+1]] }
	return slices.Concat(part(1), bare(part(2), part(3)), part(4), bare(part(5), part(6)), create[m[13]:]), true
}

// bare returns a name without its qualifier, behind which it may be a reserved word that is not quoted.
func bare(qualifier, name []byte) []byte {
	if len(qualifier) == 0 || name[0] == '`' || name[0] == '"' {
		return name
	}
	return slices.Concat([]byte("`"), name, []byte("`"))
}

// sequenceOf matches what the server writes before the name of a sequence in a default; and names and texts, which may look so.
var sequenceOf = regexp.MustCompile("(?s)`(?:[^`]|``)*`|'(?:[^'\\\\]|\\\\.)*'|\\b(?:next|last|set)val\\(`(?:[^`]|``)*`\\.")

// Redirect returns a table's definition in which the defaults use the sequences of the database to instead of those of from.
func Redirect(create, from, to string) string {
	return sequenceOf.ReplaceAllStringFunc(create, func(m string) string {
		if call, found := strings.CutSuffix(m, Quote(from)+"."); found {
			return call + Quote(to) + "."
		}
		return m
	})
}

var reference = regexp.MustCompile("REFERENCES `((?:[^`]|``)+)` \\(")

// References returns the tables of the same database to which the foreign keys of a table refer.
func References(create string) (tables []string) {
	for _, m := range reference.FindAllStringSubmatch(create, -1) {
		tables = append(tables, strings.ReplaceAll(m[1], "``", "`"))
	}
	return tables
}

// Quote quotes a name.
func Quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// ending matches an event's definition up to what becomes of it after its last moment.
var ending = regexp.MustCompile(strings.ReplaceAll(
	`(?s)^(CREATE DEFINER=NAME(?:@NAME)? EVENT NAME ON SCHEDULE (?:AT|EVERY (?:'[^']*'|\S+) \w+(?: STARTS '[^']*')? ENDS) '([^']*)' ON COMPLETION )(?:(NOT )?PRESERVE( ENABLE)?)`,
	"NAME", typedName))

// Ending returns the last moment of an event's schedule, "" if there is none, and the definition that the server makes of the event then: none
// if it drops the event.
func Ending(create []byte) (last string, then []byte) {
	m := ending.FindSubmatch(create)
	switch {
	case m == nil:
		return "", create
	case len(m[3]) > 0:
		return string(m[2]), nil
	case len(m[4]) > 0:
		return string(m[2]), slices.Concat(m[1], []byte("PRESERVE DISABLE"), create[len(m[0]):])
	}
	return string(m[2]), create
}
