package mysql

import (
	"bytes"
	"context"
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

// sequenceOf matches what the server writes before the name of a sequence in a default; and names and texts, which may look so.
var sequenceOf = regexp.MustCompile("(?s)`(?:[^`]|``)*`|'(?:[^'\\\\]|\\\\.)*'|\\b(?:next|last|set)val\\(`(?:[^`]|``)*`\\.")

// redirect returns a table's definition in which the defaults use the sequences of the database to instead of those of from.
func redirect(definition, from, to string) string {
	return sequenceOf.ReplaceAllStringFunc(definition, func(m string) string {
		if call, found := strings.CutSuffix(m, quote(from)+"."); found {
			return call + quote(to) + "."
		}
		return m
	})
}

// redirectBack gives live tables their own defaults if they were loaded into the database side when the sequences of these were not live.
func (s *session) redirectBack(ctx context.Context, side string, want *state) error {
	for _, t := range want.Tables {
		if redirect(t.Create, s.db, side) == t.Create {
			continue
		}
		now := table{Name: t.Name}
		if err := s.describe(ctx, s.db, &now); err != nil {
			return err
		}
		if redirect(now.Create, side, s.db) == now.Create {
			continue
		}
		var columns []string
		for line := range strings.Lines(t.Create) {
			if line = strings.TrimSuffix(strings.TrimSpace(line), ","); redirect(line, s.db, side) != line {
				columns = append(columns, "MODIFY COLUMN "+line)
			}
		}
		if err := s.all(ctx, "SET NAMES utf8mb4", "ALTER TABLE "+in(s.db, t.Name)+" "+strings.Join(columns, ", "), "SET NAMES binary"); err != nil {
			return err
		}
	}
	return nil
}

// movable returns the objects of a state of the database db as they can be created in the database side. It leaves out events, which would
// run; broken views; triggers whose heads may have db's name; and views that have it also as the name of something else, or use such a view.
func (s *state) movable(db, side string) (list []object) {
	var out []string
	for _, o := range s.Objects {
		text := string(o.Create)
		named := strings.Count(text, quote(db)+".")
		switch {
		case o.Kind == "EVENT", o.Broken, o.Kind == "TRIGGER" && !triggerHead.Match(o.Create):
			continue
		case o.Kind == "VIEW" && named > 0 && named < strings.Count(text, quote(db)):
			out = append(out, quote(o.Name))
			continue
		case o.Kind == "VIEW":
			o.Create = []byte(strings.ReplaceAll(text, quote(db)+".", quote(side)+"."))
		}
		list = append(list, o)
	}
	for i := 0; i < len(out); i++ {
		list = slices.DeleteFunc(list, func(o object) bool {
			uses := o.Kind == "VIEW" && bytes.Contains(o.Create, []byte(out[i]))
			if uses {
				out = append(out, quote(o.Name))
			}
			return uses
		})
	}
	return list
}
