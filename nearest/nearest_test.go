package nearest

import "testing"

func TestWord(t *testing.T) {
	known := []string{"url", "command", "timeout", "keep_last", "auto", "list", "init"}
	for word, want := range map[string]string{
		"ulr": "url", "urll": "url", "Timeout": "timeout", "keepLast": "keep_last", "keep-lost": "keep_last",
		"atuo": "auto", "comand": "command", "lsit": "list", "intit": "init", "": "", "colour": "", "x": "",
	} {
		if got := Word(word, known); got != want {
			t.Errorf("Word(%q) = %q, want %q", word, got, want)
		}
	}
}

// The distances are known ones: of the textbook's words, and of words with exchanged neighbours, each letter moved once.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"saturday", "sunday", 3}, {"ab", "ba", 1}, {"ca", "abc", 3}, {"abcd", "badc", 2}} {
		if got, back := distance(c.a, c.b), distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q: %d and %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}
