// Package wal handles the notations of a PostgreSQL server's write-ahead log: positions, timelines and their histories, the
// names of log files, and the records that pg_waldump prints. It opens no files.
package wal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"mulligan/errs"
)

// LSN is a position in the write-ahead log, in bytes from its beginning.
type LSN uint64

// ParseLSN parses the server's notation: two hex numbers, such as "16/B374D848".
func ParseLSN(s string) (LSN, error) {
	high, low, found := strings.Cut(strings.TrimSpace(s), "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !found || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is not a place in the log", s)
	}
	return LSN(h<<32 | l), nil
}

// String returns the server's notation.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// MarshalText implements encoding.TextMarshaler with the server's notation.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *LSN) UnmarshalText(b []byte) (err error) {
	*l, err = ParseLSN(string(b))
	return err
}

var _ json.Unmarshaler = (*Timeline)(nil)

// Timeline is the number of a line of the cluster's history. Each fork begins a new timeline.
type Timeline uint32

// UnmarshalJSON returns an error for 0, which is not a timeline.
func (t *Timeline) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil || n == 0 {
		return fmt.Errorf("%s is not a timeline", b)
	}
	*t = Timeline(n)
	return nil
}

// HistoryFile returns the name of the timeline's history file.
func (t Timeline) HistoryFile() string { return fmt.Sprintf("%08X.history", uint32(t)) }

// Segments is the size in bytes of the log's files, from which their names follow.
type Segments uint64

// Number returns the number of the log file with the position l.
func (s Segments) Number(l LSN) uint64 { return uint64(l) / uint64(s) }

// Name returns the name of the log file with this number on timeline t (xlog_internal.h, XLogFileName).
func (s Segments) Name(t Timeline, number uint64) string {
	perID := uint64(1<<32) / uint64(s)
	return fmt.Sprintf("%08X%08X%08X", uint32(t), number/perID, number%perID)
}

// IsSegment reports whether name is the name of a log file.
func IsSegment(name string) bool {
	return len(name) == 24 && strings.Trim(name, "0123456789ABCDEF") == ""
}

// IsHistory reports whether name is the name of a history file.
func IsHistory(name string) bool {
	id, found := strings.CutSuffix(name, ".history")
	return found && len(id) == 8 && strings.Trim(id, "0123456789ABCDEF") == ""
}

// ParseTimeline parses the timeline in the first eight digits of a log file's name.
func ParseTimeline(name string) (Timeline, error) {
	if len(name) < 8 {
		return 0, fmt.Errorf("%q does not begin with a timeline", name)
	}
	n, err := strconv.ParseUint(name[:8], 16, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q does not begin with a timeline", name)
	}
	return Timeline(n), nil
}

// Leg is a part of a history: timeline TLI up to End, where the next leg begins.
type Leg struct {
	TLI Timeline
	End LSN
}

// Endless is the End of the last leg of a history.
const Endless = ^LSN(0)

// ParseHistory parses a .history file, whose lines are timeline, position and reason (timeline.c, readTimeLineHistory). The
// last leg is t itself.
func ParseHistory(t Timeline, data []byte) (legs []Leg, err error) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil || len(fields) < 2 || n == 0 || Timeline(n) >= t {
			return nil, fmt.Errorf("%s has a line %q", t.HistoryFile(), lines.Text())
		}
		end, err := ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.HistoryFile(), err)
		}
		legs = append(legs, Leg{Timeline(n), end})
	}
	return append(legs, Leg{t, Endless}), nil
}

// span is a range of log on one timeline.
type span struct {
	TLI        Timeline
	Start, End LSN
}

// Path returns the ranges of log that lead from a position on timeline t to a position on the last leg. It returns nil if from
// is not on the way.
func Path(legs []Leg, t Timeline, from, to LSN) (spans []span) {
	for _, l := range legs {
		if len(spans) == 0 && l.TLI != t {
			continue
		}
		end := min(l.End, to)
		if end < from {
			return nil
		}
		spans = append(spans, span{l.TLI, from, end})
		from = end
	}
	return spans
}

// Scan implements sql.Scanner with the server's notation.
func (l *LSN) Scan(v any) (err error) {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("%v is not a place in the log", v)
	}
	*l, err = ParseLSN(s)
	return err
}

// LegsOf parses the history of timeline t. history is nil if there is none, which is an error of kind errs.Corrupt except for
// timeline 1.
func LegsOf(t Timeline, history []byte) ([]Leg, error) {
	switch {
	case history != nil:
		return ParseHistory(t, history)
	case t != 1:
		return nil, errs.New(errs.Corrupt, "", "the history of timeline %d is missing", t).WithHint("use another checkpoint")
	}
	return []Leg{{1, Endless}}, nil
}

// Names returns the log files that hold these ranges of log. A range that ends where a file would begin does not need this
// file, which the server may not have made yet.
func (s Segments) Names(spans []span) (names []string) {
	for _, p := range spans {
		for n := s.Number(p.Start); n <= s.Number(p.End-1); n++ {
			names = append(names, s.Name(p.TLI, n))
		}
	}
	return names
}
