package mysql

import (
	"regexp"
	"slices"
	"strings"
)

// Parts of a statement's head as it was typed: what may be between two words, a name, and what may precede a name.
const (
	gap       = `(?:\s|/\*.*?\*/|#[^\n]*\n|--(?:[ \t\r\v\f][^\n]*)?\n)*`
	typedName = "(?:`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|[^\\s.,`\"/#@-]+)"
	qualifier = `(?:(?:` + typedName + gap + `)?\.` + gap + `)?`
)

// triggerHead matches the head of a CREATE TRIGGER statement up to the table's name. The server keeps the text from TRIGGER on as it was typed.
var triggerHead = regexp.MustCompile(strings.NewReplacer("~", gap, "QUALIFIER", qualifier, "NAME", typedName).Replace(
	`(?is)^(CREATE (?:DEFINER=NAME(?:@NAME)? )?TRIGGER\b~)(?:IF\b~NOT\b~EXISTS\b~)?(QUALIFIER)(NAME)(~(?:BEFORE|AFTER)\b(?:~,?~NAME)+?~\bON\b~)(QUALIFIER)(NAME)~FOR\b`))

// unqualify takes the database's name out of a trigger's head, because the trigger is also created in databases with other names. It
// takes out IF NOT EXISTS, too, so that the server says if it finds such a trigger.
func (o *object) unqualify() {
	if m := triggerHead.FindSubmatchIndex(o.Create); m != nil && o.Kind == "TRIGGER" {
		part := func(i int) []byte { return o.Create[m[2*i]:m[2*i+1]] }
		o.Create = slices.Concat(part(1), bare(part(2), part(3)), part(4), bare(part(5), part(6)), o.Create[m[13]:])
	}
}

// bare returns a name without its qualifier, behind which it may be a reserved word that is not quoted.
func bare(qualifier, name []byte) []byte {
	if len(qualifier) == 0 || name[0] == '`' || name[0] == '"' {
		return name
	}
	return slices.Concat([]byte("`"), name, []byte("`"))
}
