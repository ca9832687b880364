package values

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

// Lists and texts mean on the command line what they mean in an app file, and
// ambiguous values are refused.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		read func(string) ([]string, error)
		in   string
		want []string // nil: an error
	}{
		{Patterns, ``, []string{}},
		{Patterns, `a`, []string{"a"}},
		{Patterns, `*.log, tmp/,,`, []string{"*.log", "tmp/"}},
		{Patterns, `["a"]`, []string{"a"}},
		{Patterns, `["a",'b,c', "{d}", "[ef]", ]`, []string{"a", "b,c", "{d}", "[ef]"}},
		{Patterns, `[]`, []string{}},
		{Patterns, `"a"`, []string{"a"}},
		{Patterns, `'a,b'`, []string{"a", "b"}},
		{Patterns, `[ab].log`, []string{"[ab].log"}},
		{Patterns, `x[ab]`, []string{"x[ab]"}},
		{Patterns, `[ab]`, nil},
		{Patterns, `[a`, nil},
		{Patterns, `["a"`, nil},
		{Patterns, `"a"]`, nil},
		{Patterns, `["a"],["b"]`, nil},
		{Patterns, `["a", 1]`, nil},
		{Patterns, `[["a"]]`, nil},
		{Patterns, `"a","b"`, nil},
		{Patterns, `a,"b"`, nil},
		{Patterns, `*.{a,b}`, nil},
		{Patterns, `[a,b]x`, nil},
		{Patterns, "[\"a\"]\nvalue = [\"b\"]", nil},
		{Patterns, "[\"a\"]\nother = []", nil},
		{Command, ``, []string{}},
		{Command, `[]`, []string{}},
		{Command, `["a b", 'c']`, []string{"a b", "c"}},
		{Command, `[ -e x ]`, []string{"[", "-e", "x", "]"}},
		{Command, `"a b" c`, []string{"a b", "c"}},
		{Command, `["a"`, nil},
		{Command, `["a", 1]`, nil},
		{Command, `['a'] b`, nil},
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
		if got, err := Text("k", in); err != nil || got != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{`"a`, `'a"`, `"a" b`, `"s3cret"x`} {
		if got, err := Text("k", in); errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
}

// Words that are quoted as a whole come back as they were.
func FuzzSplitWords(f *testing.F) {
	f.Add("a b", `c"d`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) {
			t.Skip("arguments on the wire are UTF-8")
		}
		double := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(b) + `"`
		got, err := splitWords(JoinWords([]string{a}) + " " + double)
		if err != nil || !slices.Equal(got, []string{a, b}) {
			t.Errorf("%q, %v", got, err)
		}
	})
}
