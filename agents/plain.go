package agents

import "strings"

// plain calls an edit with the text in its usual form: without a byte order mark, and with lines that end in LF. It restores
// both in the result.
type plain struct{ edit Edit }

const mark = "\uFEFF"

func (p plain) Insert(text string) (string, error) { return p.through(text, p.edit.Insert) }
func (p plain) Remove(text string) (string, error) { return p.through(text, p.edit.Remove) }
func (p plain) Before(text string) (string, error) { return p.through(text, p.edit.Before) }

func (p plain) through(text string, edit func(string) (string, error)) (string, error) {
	body, marked := strings.CutPrefix(text, mark)
	n := strings.Count(body, "\n")
	dos := n > 0 && strings.Count(body, "\r\n") == n && strings.Count(body, "\r") == n
	if dos {
		body = strings.ReplaceAll(body, "\r\n", "\n")
	}
	body, err := edit(body)
	if err != nil {
		return "", err
	}
	if dos {
		body = strings.ReplaceAll(body, "\n", "\r\n")
	}
	if marked {
		body = mark + body
	}
	return body, nil
}
