package rollback

import "testing"

// TestWithoutRefresh leaves out what git writes by itself, and nothing else.
func TestWithoutRefresh(t *testing.T) {
	for _, c := range []struct{ in, want int }{
		{len(withoutRefresh([]string{".git/index", ".git"})), 0},
		{len(withoutRefresh([]string{".git/index", "a"})), 1},
		{len(withoutRefresh([]string{".git/index", ".git/refs/heads/main"})), 2},
	} {
		if c.in != c.want {
			t.Errorf("%d are left, want %d", c.in, c.want)
		}
	}
}

// TestConfidence holds the rules to the table that is documented.
func TestConfidence(t *testing.T) {
	for _, c := range []struct {
		v    verdict
		want float64
	}{
		{verdict{}, 0}, {verdict{layers: 2, compared: 2}, 0}, {verdict{done: true, layers: 2, compared: 2}, 1},
		{verdict{done: true, layers: 2, compared: 1}, 0.5}, {verdict{done: true, layers: 2, compared: 2, unwell: true}, 0.5},
		{verdict{done: true, layers: 2, unwell: true}, 0.25},
	} {
		if got := c.v.confidence(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.v, got, c.want)
		}
	}
}
