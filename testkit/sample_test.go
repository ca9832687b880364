package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Successive runs take every point once, and a long run takes all of them, also in parts.
func TestSample(t *testing.T) {
	t.Setenv("MULLIGAN_TEST_LONG", "")
	old := draws
	t.Cleanup(func() { draws = old })
	sample := func(seed uint64, all, few int) []int {
		t.Setenv(seedEnv, fmt.Sprint(seed))
		draws = &sources{tests: map[string]*testSource{}}
		return Sample(&fake{name: "TestSampled"}, "points", all, few)
	}
	for _, size := range [][2]int{{1, 1}, {10, 3}, {10, 10}, {3, 10}, {100, 7}, {65, 2}} {
		all, few := size[0], size[1]
		times := make([]int, all)
		for run := range (all + few - 1) / few {
			taken := sample(5<<20+uint64(run), all, few)
			if len(taken) == 0 || len(taken) > few {
				t.Errorf("run %d takes %d of %d, want %d", run, len(taken), all, few)
			}
			for _, i := range taken {
				times[i]++
			}
		}
		for i, n := range times {
			if n != 1 {
				t.Errorf("point %d of %d, %d at a time, is taken %d times", i, all, few, n)
			}
		}
	}
	t.Setenv("MULLIGAN_TEST_LONG", "1")
	t.Setenv("MULLIGAN_TEST_PART", "")
	if n := len(sample(7, 100, 3)); n != 100 {
		t.Errorf("a long run takes %d of 100", n)
	}
	sum := 0
	for part := range 8 {
		t.Setenv("MULLIGAN_TEST_PART", fmt.Sprintf("%d/8", part+1))
		sum += len(sample(7, 100, 3))
	}
	if sum != 100 {
		t.Errorf("eight parts take %d of 100", sum)
	}
	for _, bad := range []string{"0/3", "4/3", "x", "3"} {
		t.Setenv("MULLIGAN_TEST_PART", bad)
		if f := play(func(t testing.TB) { Sample(t, "points", 3, 1) }); !strings.Contains(f.failed, bad) {
			t.Errorf("part %s: %+v", bad, f)
		}
	}
}

// Every part of a subtest meets every part of its test.
func TestSampleOfSample(t *testing.T) {
	t.Setenv("MULLIGAN_TEST_LONG", "")
	old := draws
	t.Cleanup(func() { draws = old })
	met := map[string]int{}
	for run := range 2 * 2 * 3 * 4 {
		t.Setenv(seedEnv, fmt.Sprint(5<<20+run))
		draws = &sources{tests: map[string]*testSource{}}
		outer, inner := &fake{name: "TestSampled"}, &fake{name: "TestSampled/sub"}
		operation, other := Sample(outer, "operations", 4, 1)[0], Sample(outer, "servers", 2, 1)[0]
		met[fmt.Sprint(operation, other%2, Sample(inner, "steps", 6, 1))]++
	}
	if len(met) != 4*6 {
		t.Errorf("%d pairs were met, want %d: %v", len(met), 4*6, met)
	}
}

func TestTally(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tally")
	t.Setenv(tallyEnv, path)
	Tally(t, "kills", 3)
	Tally(t, "flips", 0)
	Tally(t, "faults", 4)
	text, err := os.ReadFile(path)
	if want := "kills 3 TestTally\nfaults 4 TestTally\n"; err != nil || string(text) != want {
		t.Errorf("%q, %v; want %q", text, err, want)
	}
}
