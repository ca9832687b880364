package tomlfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"mulligan/errs"
)

// many is text with numbers in it, again and again, up to size bytes.
func many(text string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-32; i++ {
		if strings.Contains(text, "%d") {
			fmt.Fprintf(&b, text, i)
		} else {
			b.WriteString(text)
		}
	}
	return b.String()
}

// slow are files that the parser would be busy with for seconds or minutes.
var slow = map[string]string{
	"a dotted key":          strings.Repeat("a.", 20_000) + "b = 1",
	"with blanks":           strings.Repeat("a . ", 20_000) + "b = 1",
	"in quotes":             strings.Repeat(`"a".'b'.`, 20_000) + "b = 1",
	"a header":              "[" + strings.Repeat("a.", 20_000) + "b]\nx = 1",
	"an array of tables":    "[[" + strings.Repeat("a.", 20_000) + "b]]\nx = 1",
	"in an inline table":    "limits = { " + strings.Repeat("a.", 20_000) + "b = 1 }",
	"behind a value":        "limits = { a = 1.5, " + strings.Repeat("a.", 20_000) + "b = 1 }",
	"behind strings":        "name = \"\"\"\"a\\\"\"\"\"\"\n" + strings.Repeat("a.", 20_000) + "b = 1",
	"inline tables":         strings.Repeat("a={", 20_000) + strings.Repeat("}", 20_000),
	"inline tables, dotted": strings.Repeat("a.b={", 20_000) + strings.Repeat("}", 20_000),
	"arrays":                "name = " + strings.Repeat("[", 500_000),
	"arrays on many lines":  "name = " + strings.Repeat("[\n", 500_000),
	"tables":                many("[k%d]\n", MaxSize),
	"tables with spaces":    many(" [ k%d ] \n", MaxSize),
	"tables of one array":   many("[[item]]\nkind = 'a'\n", MaxSize),
}

// TestMeasure: files that keep the parser busy are refused before it sees them.
// That it does not see them is what is asserted: it would have another word for
// them, and most would take longer than a test may.
func TestMeasure(t *testing.T) {
	for name, text := range slow {
		if what, line := generous.measure(text); what == "" || line < 1 {
			t.Errorf("%s: %q on line %d", name, what, line)
			continue
		}
		var s sample
		_, err := Decode("test", "f", []byte(text), &s)
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(fmt.Sprint(err), " too ") || errs.HintOf(err) == "" {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	text := "name = 'x'\n\n[limits]\nmax = 1\n" + strings.Repeat("a.", 20) + "b = 1"
	if what, line := generous.measure(text); what == "" || line != 5 {
		t.Errorf("%q, on line %d", what, line)
	}
	var s sample
	if _, err := Decode("test", "f", []byte(strings.Repeat("#", MaxSize+1)), &s); errs.KindOf(err) != errs.Invalid {
		t.Errorf("more bytes than a file may have: %v", err)
	}
}

// TestMeasureLetsFilesThrough: what stands in strings and comments does not count.
func TestMeasureLetsFilesThrough(t *testing.T) {
	dots, open := strings.Repeat("a.", 100), strings.Repeat("[{", 100)
	for name, text := range map[string]string{
		"text":            "name = \"" + dots + open + "\"",
		"escapes":         "name = \"" + dots + "\\\"" + open + "\\\\\"",
		"literal":         "name = '" + dots + open + "\\'",
		"lines":           "name = \"\"\"" + dots + "\n" + open + "\"\n\"\"" + dots + "\"\"\"\"\"",
		"literal lines":   "name = '''" + dots + "\n''" + open + "\\'''''",
		"empty":           "name = \"\" # " + dots + "\nlimits = {} # " + open,
		"comment":         "# " + dots + open + "\"'''\n" + "name = 'x'",
		"long list":       "[[item]]\nkind = 'x'\n" + strings.Repeat("[[item]]\n", 1000),
		"many keys below": "[limits]\nmax = 1\n",
	} {
		var s sample
		if _, err := Decode("test", "f", []byte(text), &s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzMeasure: no text has more than measure lets through. The bounds are low,
// so that short texts exceed them.
func FuzzMeasure(f *testing.F) {
	f.Add("a.b = 1\n[c.d]\ne = { f.g = [ { h = 1 } ] }\n")
	f.Add("a = \"\"\"\"x\\\"\"\"\"\"\"\nb.c = '''''x'''''\n\"d.e\".'f'.g = 1.5 # h.i.j\n")
	f.Add("[[a]]\n[[a]]\n[[a]]\n[[a]]\n")
	for _, text := range slow {
		f.Add(text[:min(len(text), 64)])
		f.Add(text[len(text)-min(len(text), 64):])
	}
	low := bounds{parts: 2, depth: 2, tables: 3}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		var s sample
		if _, err := Decode("test", "f", []byte(text), &s); err != nil &&
			(errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error()+errs.HintOf(err), "\n")) {
			t.Fatalf("%q: kind %s", err, errs.KindOf(err))
		}
		if what, _ := low.measure(text); what != "" {
			return
		}
		var v any
		md, err := toml.Decode(text, &v)
		if err != nil {
			return
		}
		for _, key := range md.Keys() { // at worst a header, and in each inline table a key
			if len(key) > low.parts*(low.depth+2) {
				t.Fatalf("a key of %d parts was let through: %s", len(key), key)
			}
		}
		if n := deepest(v); n > low.parts*(low.depth+2)+low.depth {
			t.Fatalf("%d levels were let through", n)
		}
	})
}

// deepest counts the levels of tables and arrays in v.
func deepest(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n = max(n, deepest(e)+1)
		}
	case []any:
		for _, e := range v {
			n = max(n, deepest(e)+1)
		}
	case []map[string]any:
		for _, e := range v {
			n = max(n, deepest(e)+1)
		}
	}
	return n
}
