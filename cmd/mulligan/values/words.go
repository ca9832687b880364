package values

import (
	"strings"

	"mulligan/errs"
)

// CommandHelp explains in help texts how Command splits a command line.
const CommandHelp = `A command is split into words at spaces. Within single quotes every character
stands for itself; within double quotes a backslash takes away the meaning of the next " or
backslash, and elsewhere of any next character. Nothing is expanded and no shell is run.`

// splitWords splits a command line into words as CommandHelp explains.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	var quote rune
	rs := []rune(s)
	for i := 0; i < len(rs); i++ {
		r := rs[i]
		escapes := r == '\\' && quote != '\'' &&
			(quote == 0 || i+1 < len(rs) && (rs[i+1] == '"' || rs[i+1] == '\\'))
		switch {
		case escapes:
			if i++; i == len(rs) {
				return nil, errs.New(errs.Invalid, "read the command", "nothing follows the last backslash: %s", s)
			}
			word.WriteRune(rs[i])
			inWord = true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		name := map[rune]string{'"': "double", '\'': "single"}[quote]
		return nil, errs.New(errs.Invalid, "read the command", "a %s quotation mark is opened and never closed: %s", name, s)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// JoinWords returns a command line that Command splits into words.
func JoinWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted[i] = w
	}
	return strings.Join(quoted, " ")
}
