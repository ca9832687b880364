package retention

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mulligan/ipc"
	"mulligan/testkit"
)

var now = time.Date(2026, 3, 10, 15, 0, 0, 0, time.UTC)

// sized is an item with the bytes that it alone occupies.
type sized struct {
	Item
	size int64
}

// planned is Plan for items that share nothing.
func planned(t interface{ Fatal(...any) }, now time.Time, rules ipc.Retention, all []sized) []ipc.CheckpointID {
	var items []Item
	for _, it := range all {
		items = append(items, it.Item)
	}
	slices.SortFunc(items, func(a, b Item) int { // newest first
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	left := func(drop []ipc.CheckpointID) (total int64, _ error) {
		for _, it := range all {
			if !slices.Contains(drop, it.ID) {
				total += it.size
			}
		}
		return total, nil
	}
	drop, over, err := Plan(now, rules, items, left)
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	if total, _ := left(drop); rules.MaxBytes > 0 && total > rules.MaxBytes {
		want = total - rules.MaxBytes
	}
	if over != want {
		t.Fatal(fmt.Sprintf("what stays is over the limit by %d, said to be %d", want, over))
	}
	return drop
}

// cp makes an item that is age old; what says "pinned", "protected", "turn",
// "expired", "expiring" or "size=N".
func cp(id string, age time.Duration, what ...string) sized {
	it := sized{Item{ID: ipc.CheckpointID(id), CreatedAt: now.Add(-age)}, 1}
	for _, w := range what {
		switch w {
		case "pinned":
			it.Pinned = true
		case "protected":
			it.Protected = true
		case "turn":
			it.Kind = Turn
		case "inferred":
			it.Kind = Inferred
		case "off":
			it.Kind = CalledOff
		case "safety":
			it.Kind = Safety
		case "expired":
			it.ExpiresAt = &now
		case "expiring":
			soon := now.Add(1)
			it.ExpiresAt = &soon
		default:
			if _, err := fmt.Sscanf(w, "size=%d", &it.size); err != nil {
				panic(w)
			}
		}
	}
	return it
}

const (
	minute = time.Minute
	hour   = time.Hour
	days   = 24 * time.Hour
)

func TestPlan(t *testing.T) {
	tests := []struct {
		name  string
		rules ipc.Retention
		cps   []sized
		want  string // dropped, oldest first
	}{
		{"nothing", ipc.Retention{KeepLast: 1}, nil, ""},
		{"last regardless of age", ipc.Retention{KeepLast: 2},
			[]sized{cp("a", 900*days), cp("b", 800*days), cp("c", 700*days)}, "a"},
		{"order of input is nothing", ipc.Retention{KeepLast: 2},
			[]sized{cp("c", 1*hour), cp("a", 3*hour), cp("d", 0), cp("b", 2*hour)}, "a b"},
		{"same instant: the id decides", ipc.Retention{KeepLast: 1}, []sized{cp("b", 0), cp("a", 0)}, "a"},
		{"oldest of each day", ipc.Retention{KeepLast: 1, DailyDays: 2},
			[]sized{cp("now", 0), cp("today2", 14*hour), cp("today1", 15*hour), cp("yesterday2", 15*hour+1), cp("yesterday1", 39*hour), cp("before", 39*hour+1)},
			"before yesterday2 today2"},
		{"the newest that was asked for", ipc.Retention{KeepSafety: 9}, []sized{cp("a", 2*days), cp("b", 1*days), cp("s", 1*hour, "safety")}, "a"},
		{"daily days alone", ipc.Retention{DailyDays: 1}, []sized{cp("b", 1*hour), cp("a", 2*hour), cp("z", 1*days)}, "z"},
		{"the newest always", ipc.Retention{}, []sized{cp("a", 2*days), cp("b", 1*days)}, "a"},
		{"pinned stay", ipc.Retention{KeepLast: 1}, []sized{cp("a", 9*days, "pinned"), cp("b", 2*days), cp("c", 1*days)}, "b"},
		{"pinned count", ipc.Retention{KeepLast: 2}, []sized{cp("a", 3*days), cp("b", 2*days, "pinned"), cp("c", 1*days)}, "a"},
		{"protected stay", ipc.Retention{KeepLast: 1}, []sized{cp("a", 9*days, "protected", "expired"), cp("c", 1*days)}, ""},
		{"expired go", ipc.Retention{KeepLast: 5}, []sized{cp("a", 2*days, "expired"), cp("b", 1*days, "expiring"), cp("c", 0, "expired")}, "a c"},
		{"expired and pinned stay", ipc.Retention{KeepLast: 5}, []sized{cp("a", 2*days, "expired", "pinned"), cp("b", 0)}, ""},
		{"expired don't count", ipc.Retention{KeepLast: 2}, []sized{cp("a", 3*hour), cp("b", 2*hour), cp("c", 1*hour, "expired")}, "c"},
		{"turns apart", ipc.Retention{KeepLast: 1, KeepTurns: 2, DailyDays: 7},
			[]sized{cp("m1", 9*days), cp("m2", 8*days), cp("t1", 5*hour, "turn"), cp("t2", 4*hour, "turn"), cp("t3", 3*hour, "turn")}, "m1 t1"},
		{"size: the oldest go", ipc.Retention{KeepLast: 9, KeepTurns: 9, MaxBytes: 10},
			[]sized{cp("t1", 4*hour, "size=5", "turn"), cp("t2", 3*hour, "size=5", "turn"), cp("b", 2*hour, "size=5"), cp("c", 1*hour, "size=5")}, "t1 t2"},
		{"size: safety checkpoints before turns", ipc.Retention{KeepTurns: 9, KeepSafety: 9, MaxBytes: 10},
			[]sized{cp("t", 4*hour, "size=5", "turn"), cp("s1", 3*hour, "size=5", "safety"), cp("s2", 2*hour, "size=5", "safety"), cp("c", 1*hour, "size=5")}, "s1 s2"},
		{"size: what somebody asked for stays", ipc.Retention{KeepLast: 9, KeepTurns: 9, MaxBytes: 10},
			[]sized{cp("a", 4*hour, "size=5"), cp("t", 3*hour, "size=5", "turn"), cp("b", 2*hour, "size=5"), cp("c", 1*hour, "size=5")}, "t"},
		{"size: small ones beside a large one stay", ipc.Retention{KeepLast: 9, KeepTurns: 9, KeepSafety: 9, MaxBytes: 20},
			[]sized{cp("s1", 5*hour, "size=2", "safety"), cp("t1", 4*hour, "size=2", "turn"), cp("s2", 3*hour, "size=90", "safety"), cp("b", 1*hour, "size=5")}, "s2"},
		{"size: what frees nothing stays", ipc.Retention{KeepLast: 9, KeepSafety: 9, MaxBytes: 20},
			[]sized{cp("s1", 5*hour, "size=0", "safety"), cp("s2", 4*hour, "size=1", "safety"), cp("b", 1*hour, "size=50")}, "s2"},
		{"turns that were inferred apart", ipc.Retention{KeepTurns: 1},
			[]sized{cp("t1", 9*hour, "turn"), cp("t2", 8*hour, "turn"), cp("i1", 5*hour, "inferred"), cp("i2", 4*hour, "inferred"), cp("i3", 3*hour, "inferred")}, "t1 i1 i2"},
		{"safety checkpoints apart", ipc.Retention{KeepLast: 2, KeepSafety: 2, DailyDays: 1},
			[]sized{cp("m1", 9*days), cp("KEEP ME", 8*days), cp("m3", 7*days), cp("s1", 5*hour, "safety"), cp("s2", 4*hour, "safety"), cp("s3", 3*hour, "safety")}, "m1 s1"},
		{"those of rollbacks that were called off apart", ipc.Retention{KeepSafety: 1},
			[]sized{cp("s1", 5*hour, "safety"), cp("s2", 4*hour, "safety"), cp("o1", 3*hour, "off"), cp("o2", 2*hour, "off"), cp("o3", 1*hour, "off")}, "s1 o1 o2"},
		{"no safety checkpoint but the newest of all", ipc.Retention{KeepLast: 1}, []sized{cp("s1", 5*hour, "safety"), cp("a", 4*hour), cp("s2", 3*hour, "safety")}, "s1"},
		{"size: exactly at the limit", ipc.Retention{KeepLast: 9, MaxBytes: 10}, []sized{cp("a", 2*hour, "size=5"), cp("b", 1*hour, "size=5")}, ""},
		{"size: pinned count and stay", ipc.Retention{KeepLast: 9, MaxBytes: 10},
			[]sized{cp("a", 4*hour, "size=9", "pinned"), cp("b", 3*hour, "size=1", "protected", "safety"), cp("c", 2*hour, "size=1", "turn"), cp("d", 1*hour, "size=1")}, "c"},
		{"size: the newest stays", ipc.Retention{KeepTurns: 9, MaxBytes: 1}, []sized{cp("a", 2*hour, "size=50", "turn"), cp("b", 1*hour, "size=50", "turn")}, "a"},
		{"size: what went already is not counted", ipc.Retention{KeepLast: 2, MaxBytes: 10},
			[]sized{cp("a", 3*hour, "size=50"), cp("b", 2*hour, "size=5"), cp("c", 1*hour, "size=5")}, "a"},
		{"from the future", ipc.Retention{KeepLast: 1, DailyDays: 7}, []sized{cp("a", 1*hour), cp("b", -50*hour)}, ""},
		{"days before 1970", ipc.Retention{KeepLast: 1, DailyDays: 30000},
			[]sized{cp("a", 24000*days+1*hour), cp("b", 24000*days), cp("c", 0)}, "b"},
		{"midnight before 1970", ipc.Retention{KeepLast: 1, DailyDays: 30000},
			[]sized{cp("a", now.Sub(time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC))+1), cp("b", now.Sub(time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC))),
				cp("c", now.Sub(time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC))), cp("d", 0)}, "c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, id := range planned(t, now, tt.rules, tt.cps) {
				got = append(got, string(id))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("dropped %q, want %q", got, tt.want)
			}
		})
	}
}

// A day begins at midnight of UTC, wherever the times were taken.
func TestPlanDaysAreUTC(t *testing.T) {
	zone := time.FixedZone("far", 11*60*60)
	midnight := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	items := []sized{
		{Item: Item{ID: "today", CreatedAt: midnight.In(zone)}},
		{Item: Item{ID: "yesterday", CreatedAt: midnight.Add(-1).In(zone)}},
		{Item: Item{ID: "newest", CreatedAt: now}},
	}
	got := planned(t, now.In(zone), ipc.Retention{DailyDays: 1}, items)
	if !slices.Equal(got, []ipc.CheckpointID{"yesterday"}) {
		t.Errorf("dropped %v", got)
	}
}

// naive says whether one item stays by looking at all the others, rule by rule but
// that of max_bytes, sharing nothing with Plan but the meaning.
func naive(now time.Time, rules ipc.Retention, all []sized, it sized) bool {
	held := func(x sized) bool { return x.Pinned || x.Protected }
	alive := func(x sized) bool { return held(x) || x.ExpiresAt == nil || now.Before(*x.ExpiresAt) }
	newer := func(x, y sized) bool {
		return x.CreatedAt.After(y.CreatedAt) || x.CreatedAt.Equal(y.CreatedAt) && x.ID > y.ID
	}
	date := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
	if held(it) {
		return true
	}
	if !alive(it) {
		return false
	}
	newerOfAll, newerOfKind, olderOfDay := 0, 0, 0
	for _, x := range all {
		if x.ID == it.ID || !alive(x) {
			continue
		}
		if newer(x, it) {
			newerOfAll++
			if x.Kind == it.Kind {
				newerOfKind++
			}
		} else if x.Kind == Asked && date(x.CreatedAt) == date(it.CreatedAt) {
			olderOfDay++
		}
	}
	if newerOfAll == 0 || it.Kind == Asked && newerOfKind == 0 {
		return true
	}
	stays := newerOfKind < map[Kind]int{Asked: rules.KeepLast, Turn: rules.KeepTurns, Inferred: rules.KeepTurns, Safety: rules.KeepSafety, CalledOff: rules.KeepSafety}[it.Kind]
	for d := range rules.DailyDays {
		if it.Kind == Asked && olderOfDay == 0 && date(now.AddDate(0, 0, -d)) == date(it.CreatedAt) {
			stays = true
		}
	}
	return stays
}

// checkSizes holds what max_bytes took, beyond what the other rules did, to the words
// of its rule.
func checkSizes(t *rapid.T, rules ipc.Retention, kept, took []sized) {
	var total int64
	for _, it := range kept {
		total += it.size
	}
	if len(took) > 0 && rules.MaxBytes == 0 {
		t.Fatalf("without a limit, %v went for their size", took)
	}
	newest := slices.MaxFunc(append(slices.Clone(kept), took...), func(a, b sized) int { // of all
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, it := range took {
		if it.Kind == Asked || it.Pinned || it.Protected || it.ID == newest.ID {
			t.Fatalf("%+v went for its size", it)
		}
		if total+it.size <= rules.MaxBytes || it.size == 0 {
			t.Fatalf("%+v did not have to go", it)
		}
	}
	for _, it := range kept {
		if rules.MaxBytes > 0 && total > rules.MaxBytes && it.size > 0 && it.Kind != Asked && !it.Pinned && !it.Protected && it.ID != newest.ID {
			t.Fatalf("%+v stays, and %d is too much", it, total)
		}
	}
}

func TestPlanAgainstModel(t *testing.T) {
	testkit.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		rules := ipc.Retention{
			KeepLast: rapid.IntRange(0, 5).Draw(t, "keep_last"), DailyDays: rapid.IntRange(0, 5).Draw(t, "daily_days"),
			KeepTurns: rapid.IntRange(0, 4).Draw(t, "keep_turns"), KeepSafety: rapid.IntRange(0, 3).Draw(t, "keep_safety"), MaxBytes: rapid.Int64Range(0, 60).Draw(t, "max_bytes"),
		}
		n := rapid.IntRange(0, 20).Draw(t, "n")
		items := make([]sized, n)
		for i := range items {
			it := cp(fmt.Sprintf("cp-%02d", i), time.Duration(rapid.IntRange(-30, 24*7).Draw(t, "age"))*hour)
			it.Kind = Kind(rapid.IntRange(0, 4).Draw(t, "kind"))
			it.Pinned = rapid.IntRange(0, 5).Draw(t, "pinned") == 0
			it.Protected = rapid.IntRange(0, 7).Draw(t, "protected") == 0
			it.size = rapid.Int64Range(0, 9).Draw(t, "size")
			if rapid.IntRange(0, 3).Draw(t, "expires") == 0 {
				at := now.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, "expiry")))
				it.ExpiresAt = &at
			}
			items[i] = it
		}
		dropped := planned(t, now, rules, items)
		var kept, took []sized
		for _, it := range items {
			gone := slices.Contains(dropped, it.ID)
			switch stays := naive(now, rules, items, it); {
			case !stays && !gone:
				t.Fatalf("%s stays, the model says it goes", it.ID)
			case stays && gone:
				took = append(took, it)
			case stays:
				kept = append(kept, it)
			}
		}
		if len(kept)+len(took) > 0 {
			checkSizes(t, rules, kept, took)
		}
		// Automatic ones are nothing to those that were asked for.
		asked := slices.DeleteFunc(slices.Clone(items), func(it sized) bool { return it.Kind != Asked })
		without := planned(t, now, rules, asked)
		if with := slices.DeleteFunc(slices.Clone(dropped), func(id ipc.CheckpointID) bool {
			return !slices.ContainsFunc(asked, func(it sized) bool { return it.ID == id })
		}); !slices.Equal(with, without) {
			t.Fatalf("of those that were asked for, %v went, and without the others %v", with, without)
		}
		// What is done is done: a second look at what was left finds nothing more.
		left := slices.DeleteFunc(slices.Clone(items), func(it sized) bool { return slices.Contains(dropped, it.ID) })
		if again := planned(t, now, rules, left); len(again) != 0 {
			t.Fatalf("dropped more on a second look: %v", again)
		}
	})
}

// TestClockSetBack: the newest is the one that was made last, whatever its time says.
func TestClockSetBack(t *testing.T) {
	items := []Item{{ID: "last", CreatedAt: now.Add(-48 * time.Hour)}, {ID: "first", CreatedAt: now}}
	drop, _, err := Plan(now, ipc.Retention{KeepLast: 1}, items, nil)
	if err != nil || !slices.Equal(drop, []ipc.CheckpointID{"first"}) {
		t.Errorf("%v, %v", drop, err)
	}
}
