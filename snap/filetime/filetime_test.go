package filetime

import (
	"testing"
	"time"
)

func TestReliable(t *testing.T) {
	for _, x := range []struct {
		what string
		sec  int64
		nsec uint32
		now  time.Time
		want bool
	}{
		{"fine, at once", 1000, 123456789, time.Unix(1000, 130000000), false},
		{"fine, later", 1000, 123456789, time.Unix(1000, 140000000), true},
		{"an odd whole second", 1001, 0, time.Unix(1001, 990000000), false},
		{"an odd whole second, later", 1001, 0, time.Unix(1002, 20000000), true},
		{"an even whole second", 1000, 0, time.Unix(1001, 990000000), false},
		{"an even whole second, later", 1000, 0, time.Unix(1002, 20000000), true},
		{"hundredths", 1000, 120000000, time.Unix(1000, 139000000), false},
		{"hundredths, later", 1000, 120000000, time.Unix(1000, 141000000), true},
		{"ahead of the clock", 1100, 1, time.Unix(1000, 140000000), false},
	} {
		if got := Reliable(x.sec, x.nsec, x.now); got != x.want {
			t.Errorf("%s: %v", x.what, got)
		}
	}
}
