// Package wal knows the notations of a PostgreSQL server's write-ahead log: places in it, timelines
// and their histories, the names of its files, and the records that pg_waldump prints. It opens no
// files.
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

// LSN is a place in the write-ahead log, in bytes from its beginning.
type LSN uint64

// ParseLSN reads the server's notation: two hex numbers, "16/B374D848".
func ParseLSN(s string) (LSN, error) {
	high, low, found := strings.Cut(strings.TrimSpace(s), "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !found || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is not a place in the log", s)
	}
	return LSN(h<<32 | l), nil
}

// String gives the server's notation.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// MarshalText and UnmarshalText store it in that notation.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (l *LSN) UnmarshalText(b []byte) (err error) {
	*l, err = ParseLSN(string(b))
	return err
}

var _ json.Unmarshaler = (*Timeline)(nil)

// Timeline numbers one line of the cluster's history; each fork begins a new one.
type Timeline uint32

// UnmarshalJSON refuses 0, which is no timeline.
func (t *Timeline) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil || n == 0 {
		return fmt.Errorf("%s is not a timeline", b)
	}
	*t = Timeline(n)
	return nil
}

func (t Timeline) HistoryFile() string { return fmt.Sprintf("%08X.history", uint32(t)) }

// Segments tells the log's files apart; its value is their size in bytes.
type Segments uint64

func (s Segments) Number(l LSN) uint64 { return uint64(l) / uint64(s) }

// Name is the log file that holds l on t (xlog_internal.h, XLogFileName).
func (s Segments) Name(t Timeline, number uint64) string {
	perID := uint64(1<<32) / uint64(s)
	return fmt.Sprintf("%08X%08X%08X", uint32(t), number/perID, number%perID)
}

// IsSegment reports whether name is that of a log file.
func IsSegment(name string) bool {
	return len(name) == 24 && strings.Trim(name, "0123456789ABCDEF") == ""
}

func IsHistory(name string) bool {
	id, found := strings.CutSuffix(name, ".history")
	return found && len(id) == 8 && strings.Trim(id, "0123456789ABCDEF") == ""
}

// ParseTimeline reads the first eight digits of a log file's name.
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

// Leg is a part of a history: timeline TLI up to End, where the next begins.
type Leg struct {
	TLI Timeline
	End LSN
}

// Endless is the End of a history's last leg.
const Endless = ^LSN(0)

// ParseHistory reads a .history file: lines of timeline, place, reason (timeline.c,
// readTimeLineHistory). t itself is the last leg.
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

// span is a stretch of log on one timeline.
type span struct {
	TLI        Timeline
	Start, End LSN
}

// Path is the log that leads from a place on one leg to a place on the last.
// It is empty when from is not on the way.
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

// Scan implements sql.Scanner, for the server's notation.
func (l *LSN) Scan(v any) (err error) {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("%v is not a place in the log", v)
	}
	*l, err = ParseLSN(s)
	return err
}

// LegsOf reads the history of timeline t, which is nil without one. Timeline 1 has none.
func LegsOf(t Timeline, history []byte) ([]Leg, error) {
	switch {
	case history != nil:
		return ParseHistory(t, history)
	case t != 1:
		return nil, errs.New(errs.Corrupt, "", "the history of timeline %d is missing", t).WithHint("use another checkpoint")
	}
	return []Leg{{1, Endless}}, nil
}

// Names lists the files that hold these stretches of log. One that ends where a
// file would begin does not need that file, and the server may not have made it yet.
func (s Segments) Names(spans []span) (names []string) {
	for _, p := range spans {
		for n := s.Number(p.Start); n <= s.Number(p.End-1); n++ {
			names = append(names, s.Name(p.TLI, n))
		}
	}
	return names
}
