package naming

import (
	"testing"
	"time"

	"mulligan/errs"
)

func TestWhen(t *testing.T) {
	zone := time.FixedZone("there", 2*3600)
	now := time.Date(2026, 3, 29, 14, 20, 30, 0, zone)
	for text, want := range map[string]time.Time{
		"2 hours ago":          now.Add(-2 * time.Hour),
		"1 hour ago":           now.Add(-time.Hour),
		"90m":                  now.Add(-90 * time.Minute),
		"1h30m ago":            now.Add(-90 * time.Minute),
		"3 days 2 hours ago":   now.Add(-74 * time.Hour),
		"2 Weeks ago":          now.Add(-14 * 24 * time.Hour),
		"10 mins ago":          now.Add(-10 * time.Minute),
		"now":                  now,
		"1 year ago":           now.AddDate(-1, 0, 0),
		"2 years ago":          now.AddDate(-2, 0, 0),
		"a month ago":          now.AddDate(0, -1, 0),
		"two hours ago":        now.Add(-2 * time.Hour),
		"Twelve days ago":      now.Add(-12 * 24 * time.Hour),
		"an hour ago":          now.Add(-time.Hour),
		"one day two hours":    now.Add(-26 * time.Hour),
		"last monday":          now.AddDate(0, 0, -6), // it is a Sunday
		"Saturday":             now.AddDate(0, 0, -1),
		"last sunday":          now.AddDate(0, 0, -7),
		"yesterday":            now.AddDate(0, 0, -1),
		"14:20":                time.Date(2026, 3, 29, 14, 20, 0, 0, zone),
		"14:30":                time.Date(2026, 3, 28, 14, 30, 0, 0, zone),
		"09:05:07":             time.Date(2026, 3, 29, 9, 5, 7, 0, zone),
		"2026-03-01":           time.Date(2026, 3, 1, 0, 0, 0, 0, zone),
		"2026-03-01 08:15":     time.Date(2026, 3, 1, 8, 15, 0, 0, zone),
		"2026-03-01T08:15:00Z": time.Date(2026, 3, 1, 8, 15, 0, 0, time.UTC),
	} {
		if got, err := When(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ago", "2", "hours ago", "2 hours later", "25:00", "tomorrow", "9999999999 hours ago", "2000000000 weeks", "-2h", "2 hoursx", "thirteen hours ago", "last someday", "101 years ago", "years ago", "a"} {
		if got, err := When(text, now); err == nil || errs.KindOf(err) != errs.Invalid || errs.HintOf(err) == "" {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func FuzzWhen(f *testing.F) {
	now := time.Date(2026, 3, 29, 14, 20, 30, 0, time.UTC)
	for _, text := range []string{"2 hours ago", "1h30m", "14:30", "2026-03-01 08:15", "9223372036854775807 s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if at, err := When(text, now); err == nil && (at.Year() < 0 || at.Year() > 9999) {
			t.Errorf("%q is the time %v", text, at)
		}
	})
}
