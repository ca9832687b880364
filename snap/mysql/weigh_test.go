package mysql

import "testing"

func TestWeigh(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	weigh := func() int64 {
		n, err := s.driver.Weigh(t.Context())
		check(t, err)
		return n
	}
	before := weigh()
	s.sql(t, s.db, "CREATE TABLE heavy (b LONGBLOB) ENGINE=MyISAM; INSERT INTO heavy VALUES (REPEAT('x', 3000000))")
	if after := weigh(); after < before+3_000_000 || after > before+4_000_000 {
		t.Errorf("3 MB more: from %d to %d bytes", before, after)
	}
}
