package redis

import "testing"

func TestWeigh(t *testing.T) {
	s := newSubject(t, "--save", "")
	weigh := func() int64 {
		n, err := s.driver.Weigh(t.Context())
		check(t, err)
		return n
	}
	before := weigh()
	check(t, s.db.SetRange(t.Context(), "heavy", 20_000_000, "x").Err())
	if after := weigh(); after < before+20_000_000 || after > before+40_000_000 {
		t.Errorf("20 MB more: from %d to %d bytes", before, after)
	}
}
