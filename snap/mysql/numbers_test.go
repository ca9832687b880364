package mysql

import "testing"

// Numbers of every kind come back as they were.
func TestNumbers(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	s.sql(t, s.db, "CREATE TABLE n (a INT(9) ZEROFILL, b BIGINT UNSIGNED, c YEAR, d FLOAT, e DOUBLE, f BIT(9), g BIGINT, h TINYINT UNSIGNED); "+
		"INSERT INTO n VALUES (7, 18446744073709551615, 0, 1e-20, 1e300, b'101', -9223372036854775808, 255), (NULL, 0, 1999, 16777215, 0.1, NULL, 1, 0)")
	check(t, s.capture("db-1"))
	want := s.dump(t, s.db)
	s.sql(t, s.db, "UPDATE n SET a = 1, b = 1, c = 2000, d = 1, e = 1, f = 1, g = 1, h = 1")
	s.restore(t, "db-1")
	if got := s.dump(t, s.db); got != want {
		t.Error("not restored")
	}
}
