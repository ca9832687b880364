package main

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"mulligan/errs"
)

func TestSplitWords(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string // nil: an error
	}{
		{"", []string{}},
		{"  a\tb\n c ", []string{"a", "b", "c"}},
		{`'a b' "c d"e`, []string{"a b", "c de"}},
		{`'' ""`, []string{"", ""}},
		{`a\ b \"c`, []string{"a b", `"c`}},
		{`"a\"b\\c\d"`, []string{`a"b\c\d`}},
		{`'a\'b`, []string{`a\b`}},
		{`sh -c 'echo "$HOME"'`, []string{"sh", "-c", `echo "$HOME"`}},
		{`a 'b`, nil},
		{`a "b`, nil},
		{`"a\"`, nil},
		{`a\`, nil},
	} {
		got, err := splitWords(c.in)
		if c.want == nil {
			if errs.KindOf(err) != errs.Invalid {
				t.Errorf("%q: %q, %v; want an error", c.in, got, err)
			}
		} else if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

// TestValues: the lists and texts of an app file mean on the command line what
// they mean there, and what could be meant otherwise is refused.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		read func(string) ([]string, error)
		in   string
		want []string // nil: an error
	}{
		{patternList, ``, []string{}},
		{patternList, `a`, []string{"a"}},
		{patternList, `*.log, tmp/,,`, []string{"*.log", "tmp/"}},
		{patternList, `["a"]`, []string{"a"}},
		{patternList, `["a",'b,c', "{d}", "[ef]", ]`, []string{"a", "b,c", "{d}", "[ef]"}},
		{patternList, `[]`, []string{}},
		{patternList, `"a"`, []string{"a"}},
		{patternList, `'a,b'`, []string{"a", "b"}},
		{patternList, `[ab].log`, []string{"[ab].log"}},
		{patternList, `x[ab]`, []string{"x[ab]"}},
		{patternList, `[ab]`, nil},
		{patternList, `[a`, nil},
		{patternList, `["a"`, nil},
		{patternList, `"a"]`, nil},
		{patternList, `["a"],["b"]`, nil},
		{patternList, `["a", 1]`, nil},
		{patternList, `[["a"]]`, nil},
		{patternList, `"a","b"`, nil},
		{patternList, `a,"b"`, nil},
		{patternList, `*.{a,b}`, nil},
		{patternList, `[a,b]x`, nil},
		{patternList, "[\"a\"]\nvalue = [\"b\"]", nil},
		{patternList, "[\"a\"]\nother = []", nil},
		{commandWords, ``, []string{}},
		{commandWords, `[]`, []string{}},
		{commandWords, `["a b", 'c']`, []string{"a b", "c"}},
		{commandWords, `[ -e x ]`, []string{"[", "-e", "x", "]"}},
		{commandWords, `"a b" c`, []string{"a b", "c"}},
		{commandWords, `["a"`, nil},
		{commandWords, `["a", 1]`, nil},
		{commandWords, `['a'] b`, nil},
	} {
		got, err := c.read(c.in)
		if c.want == nil {
			if errs.KindOf(err) != errs.Invalid || errs.HintOf(err) == "" {
				t.Errorf("%q: %q, %v; want an error with a hint", c.in, got, err)
			}
		} else if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
	for in, want := range map[string]string{`a`: `a`, `"a"`: `a`, `'a'`: `a`, `a"b`: `a"b`, `"a\"b"`: `a"b`, ``: ``} {
		if got, err := plainText("k", in); err != nil || got != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{`"a`, `'a"`, `"a" b`, `"s3cret"x`} {
		if got, err := plainText("k", in); errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
}

// What is quoted whole comes back whole.
func FuzzSplitWords(f *testing.F) {
	f.Add("a b", `c"d`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) {
			t.Skip("arguments on the wire are UTF-8")
		}
		double := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(b) + `"`
		got, err := splitWords(joinWords([]string{a}) + " " + double)
		if err != nil || !slices.Equal(got, []string{a, b}) {
			t.Errorf("%q, %v", got, err)
		}
	})
}

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
		if got := escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b[2J\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range escape(s) {
			if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u2028' {
				t.Errorf("%q still holds %q", escape(s), r)
			}
		}
	})
}
