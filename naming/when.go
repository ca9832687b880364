package naming

import (
	"strconv"
	"strings"
	"time"

	"mulligan/errs"
)

// units are the units of time in which people say how long ago something was.
var units = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// moments are the ways to write a time of the calendar, in the local time zone unless the text names one.
var moments = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"}

// When reads a time in the past as people write it: "2 hours ago", "90m", "1h30m ago", "yesterday", "14:30" (the last time that it was
// that late), "2026-03-01 14:30". now is in the local time zone.
func When(text string, now time.Time) (time.Time, error) {
	words := strings.Fields(strings.ToLower(text))
	if n := len(words); n > 1 && words[n-1] == "ago" {
		words = words[:n-1]
	}
	word := strings.Join(words, " ")
	switch word {
	case "now":
		return now, nil
	case "yesterday":
		return now.AddDate(0, 0, -1), nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if at, err := time.Parse(layout, word); err == nil {
			then := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, now.Location())
			if then.After(now) {
				then = then.AddDate(0, 0, -1)
			}
			return then, nil
		}
	}
	for _, layout := range moments {
		if at, err := time.ParseInLocation(layout, strings.ToUpper(word), now.Location()); err == nil {
			return at, nil
		}
	}
	if long, ok := span(words); ok {
		return now.Add(-long), nil
	}
	return time.Time{}, errs.New(errs.Invalid, "", "%.64q is no time", text).
		WithHint("write it as in 2 hours ago, 90m, yesterday, 14:30 or 2006-01-02 15:04")
}

// maxSpan bounds what span returns: far longer than there is mulligan, and far from an overflow.
const maxSpan = 100 * 365 * 24 * time.Hour

// span reads a length of time: numbers with units, "2 hours", "1h30m", "3 days 2 hours".
func span(words []string) (sum time.Duration, ok bool) {
	rest := strings.Join(words, "")
	for rest != "" {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		rest = rest[len(digits):]
		name := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))]
		rest = rest[len(name):]
		unit, known := units[name]
		if !known && len(name) > 3 {
			unit, known = units[strings.TrimSuffix(name, "s")]
		}
		n, err := strconv.ParseInt(digits, 10, 32)
		if err != nil || !known || time.Duration(n) > maxSpan/unit {
			return 0, false
		}
		if sum += time.Duration(n) * unit; sum > maxSpan {
			return 0, false
		}
	}
	return sum, len(words) > 0
}
