package mysql

import "testing"

func TestEstimateSize(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	size := func() int64 {
		n, err := s.driver.EstimateSize(t.Context())
		check(t, err)
		return n
	}
	before := size()
	s.sql(t, s.db, "CREATE TABLE heavy (b LONGBLOB) ENGINE=MyISAM; INSERT INTO heavy VALUES (REPEAT('x', 3000000))")
	if after := size(); after < before+3_000_000 || after > before+4_000_000 {
		t.Errorf("3 MB more: from %d to %d bytes", before, after)
	}
}
