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

// months are the units whose length depends on the calendar, in months.
var months = map[string]int{"month": 1, "y": 12, "year": 12}

// numbers are the numbers that people write as words.
var numbers = map[string]string{
	"a": "1", "an": "1", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
	"ten": "10", "eleven": "11", "twelve": "12",
}

// moments are the ways to write a time of the calendar, in the local time zone unless the text names one.
var moments = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"}

// When reads a time in the past as people write it: "2 hours ago", "an hour ago", "90m", "1h30m ago", "yesterday", "last monday" (as
// late in the day as it is now), "14:30" (the last time that it was that late), "2026-03-01 14:30". now is in the local time zone.
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
	for day := range 7 {
		if name := strings.ToLower(time.Weekday(day).String()); strings.TrimPrefix(word, "last ") == name {
			return now.AddDate(0, 0, -((int(now.Weekday())-day+6)%7 + 1)), nil
		}
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
	if at, ok := before(now, words); ok {
		return at, nil
	}
	return time.Time{}, errs.New(errs.Invalid, "", "%.64q is no time", text).
		WithHint("write it as in 2 hours ago, 90m, yesterday, last monday, 14:30 or 2006-01-02 15:04")
}

// maxSpan bounds what before subtracts: far longer than there is mulligan, and far from an overflow.
const maxSpan = 100 * 365 * 24 * time.Hour

// before subtracts a length of time from now: numbers with units, "2 hours", "1h30m", "3 days 2 hours", "a year".
func before(now time.Time, words []string) (at time.Time, ok bool) {
	var rest string
	for _, w := range words {
		if n, ok := numbers[w]; ok {
			w = n
		}
		rest += w
	}
	var sum time.Duration
	back := 0 // months
	for rest != "" {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		rest = rest[len(digits):]
		name := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))]
		rest = rest[len(name):]
		if len(name) > 3 {
			name = strings.TrimSuffix(name, "s")
		}
		unit, known := units[name]
		ofCalendar, long := months[name]
		n, err := strconv.ParseInt(digits, 10, 32)
		switch {
		case err != nil:
			return now, false
		case long && n <= 1200:
			back += int(n) * ofCalendar
		case !known || time.Duration(n) > maxSpan/unit:
			return now, false
		default:
			sum += time.Duration(n) * unit
		}
		if sum > maxSpan || back > 1200 {
			return now, false
		}
	}
	return now.AddDate(0, -back, 0).Add(-sum), len(words) > 0
}
