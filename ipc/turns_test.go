package ipc

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestTitle(t *testing.T) {
	long := strings.Repeat("word ", 40)
	for _, c := range []struct{ prompt, want string }{
		{"Fix the login page", "Fix the login page"},
		{"  Fix\n\n\tthe  login\r\npage  ", "Fix the login page"},
		{"red \x1b[31malert\x1b[0m\u202e!\x00", "red [31malert[0m!"},
		{"bad \xff\xfe bytes", "bad bytes"},
		{"日本語の表題", "日本語の表題"},
		{long, strings.TrimSpace(long[:80]) + "…"},
		{strings.Repeat("x", 500), strings.Repeat("x", MaxTitle-1) + "…"},
		{strings.Repeat("y", MaxTitle), strings.Repeat("y", MaxTitle)},
		{"", ""},
		{" \n ", ""},
	} {
		if got := Title(c.prompt); got != c.want {
			t.Errorf("%q is called %q, and should be %q", c.prompt, got, c.want)
		}
	}
}

func FuzzTitle(f *testing.F) {
	f.Add("Fix\nthe \xff login\u2028page")
	f.Fuzz(func(t *testing.T, prompt string) {
		title := Title(prompt)
		if utf8.RuneCountInString(title) > MaxTitle || !utf8.ValidString(title) || title != strings.TrimSpace(title) ||
			strings.ContainsFunc(title, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is called %q", prompt, title)
		}
		if again := Title(title); again != title {
			t.Errorf("the title of %q is %q", title, again)
		}
	})
}
