package redis

import "testing"

func TestEstimateSize(t *testing.T) {
	s := newSubject(t, "--save", "")
	size := func() int64 {
		n, err := s.driver.EstimateSize(t.Context())
		check(t, err)
		return n
	}
	before := size()
	check(t, s.db.SetRange(t.Context(), "heavy", 20_000_000, "x").Err())
	if after := size(); after < before+20_000_000 || after > before+40_000_000 {
		t.Errorf("20 MB more: from %d to %d bytes", before, after)
	}
}
