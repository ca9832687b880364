package physical

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// lsn is a place in the write-ahead log, in bytes from its beginning.
type lsn uint64

// parseLSN reads the server's notation: two hex numbers, "16/B374D848".
func parseLSN(s string) (lsn, error) {
	high, low, found := strings.Cut(strings.TrimSpace(s), "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !found || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is not a place in the log", s)
	}
	return lsn(h<<32 | l), nil
}

// String gives the server's notation.
func (l lsn) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// MarshalText and UnmarshalText store it in that notation.
func (l lsn) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (l *lsn) UnmarshalText(b []byte) (err error) {
	*l, err = parseLSN(string(b))
	return err
}

var _ json.Unmarshaler = (*timeline)(nil)

// timeline numbers one line of the cluster's history; each fork begins a new one.
type timeline uint32

// UnmarshalJSON refuses 0, which is no timeline.
func (t *timeline) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil || n == 0 {
		return fmt.Errorf("%s is not a timeline", b)
	}
	*t = timeline(n)
	return nil
}

func (t timeline) historyFile() string { return fmt.Sprintf("%08X.history", uint32(t)) }

// segments tells the log's files apart; its value is their size in bytes.
type segments uint64

func (s segments) number(l lsn) uint64 { return uint64(l) / uint64(s) }

// name is the log file that holds l on t (xlog_internal.h, XLogFileName).
func (s segments) name(t timeline, number uint64) string {
	perID := uint64(1<<32) / uint64(s)
	return fmt.Sprintf("%08X%08X%08X", uint32(t), number/perID, number%perID)
}

// isSegment reports whether name is that of a log file.
func isSegment(name string) bool {
	return len(name) == 24 && strings.Trim(name, "0123456789ABCDEF") == ""
}

func isHistory(name string) bool {
	id, found := strings.CutSuffix(name, ".history")
	return found && len(id) == 8 && strings.Trim(id, "0123456789ABCDEF") == ""
}

// parseTimeline reads the first eight digits of a log file's name.
func parseTimeline(name string) (timeline, error) {
	if len(name) < 8 {
		return 0, fmt.Errorf("%q does not begin with a timeline", name)
	}
	n, err := strconv.ParseUint(name[:8], 16, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q does not begin with a timeline", name)
	}
	return timeline(n), nil
}

// leg is a part of a history: timeline TLI up to End, where the next begins.
type leg struct {
	TLI timeline
	End lsn
}

// endless is the End of a history's last leg.
const endless = ^lsn(0)

// parseHistory reads a .history file: lines of timeline, place, reason (timeline.c,
// readTimeLineHistory). t itself is the last leg.
func parseHistory(t timeline, data []byte) (legs []leg, err error) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil || len(fields) < 2 || n == 0 || timeline(n) >= t {
			return nil, fmt.Errorf("%s has a line %q", t.historyFile(), lines.Text())
		}
		end, err := parseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.historyFile(), err)
		}
		legs = append(legs, leg{timeline(n), end})
	}
	return append(legs, leg{t, endless}), nil
}

// span is a stretch of log on one timeline.
type span struct {
	TLI        timeline
	Start, End lsn
}

// path is the log that leads from a place on one leg to a place on the last.
// It is empty when from is not on the way.
func path(legs []leg, t timeline, from, to lsn) (spans []span) {
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
