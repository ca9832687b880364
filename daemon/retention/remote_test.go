package retention_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/daemon/retention"
	"mulligan/ipc"
)

// TestPlanRemote has the rules one by one. Each word of a list is a checkpoint, the last that was sent first: a letter, its day, and h if it is on this
// host or p if it is pinned.
func TestPlanRemote(t *testing.T) {
	for _, c := range []struct{ list, keep, days, goes string }{
		{"a9 b8 c7 d6", "", "", ""},
		{"a9 b8 c7 d6", "x", "", "b c d"},
		{"a9 b8 c7 d6", "xx", "", "c d"},
		{"a9 b8h c7p d6", "x", "", "d"},
		{"a9 b9 c9 d8 e8 f7", "", "xx", "b d f"},
		{"a9 b9 c9 d8 e8 f7", "x", "xxx", "b d"},
		{"a9 b9 c9 d8 e8 f7", "xxx", "x", "d e f"},
		{"a3 b9 c3 d2 e1", "", "xxx", "e"}, // made while a clock was wrong
		{"a9", "x", "", ""},
		{"", "x", "x", ""},
	} {
		var list []retention.Sent
		for _, word := range strings.Fields(c.list) {
			list = append(list, retention.Sent{ID: ipc.CheckpointID(word[:1]), CreatedAt: time.Date(2026, 1, int(word[1]-'0'), 12, 0, -len(list), 0, time.UTC),
				Here: strings.HasSuffix(word, "h"), Pinned: strings.HasSuffix(word, "p")})
		}
		goes := retention.PlanRemote(ipc.Remoting{KeepLast: len(c.keep), DailyDays: len(c.days)}, list)
		var ids []string
		for _, id := range slices.Sorted(maps.Keys(goes)) {
			ids = append(ids, string(id))
		}
		if got := strings.Join(ids, " "); got != c.goes {
			t.Errorf("of %q, with keep_last %d and daily_days %d, go %q, want %q", c.list, len(c.keep), len(c.days), got, c.goes)
		}
	}
}
