package output

import "testing"

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain é 日本":      "plain é 日本",
		"a\tb\nc\rd":      `a\tb\nc\rd`,
		"\x1b]0;title\a":  `\x1b]0;title\a`,
		"\u009b31m\u202e": `\u009b31m\u202e`,
		"\xff\xfe":        `\xff\xfe`,
		"\uFFFD":          "\uFFFD",
		"a\u00a0b":        `a\u00a0b`,
		`back\slash`:      `back\slash`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b[2J\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Escape(s) {
			if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u2028' {
				t.Errorf("%q still holds %q", Escape(s), r)
			}
		}
	})
}
